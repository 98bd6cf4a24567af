"""Maps scheduled for a GPU, executed on the CPU."""

import numpy as np
import pytest
from support.serial_gpu import SM_90, check, values

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype

SHAPES = [(), (0,), (1,), (31,), (33, 5), (1000, 1025), (256, 1024), (7, 3, 40_000)]


@pytest.mark.quick("float32-shape3", "bfloat16-shape6")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"shape{SHAPES.index(shape)}")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "bool", "float64"])
def test_all_outputs_in_one_launch(dtype, shape):
    def function(x, y, b):
        z = tnp.where(b, x, y)
        return z, tnp.maximum(x, y), (x > y) | b, z.astype("float32")

    outcome = check(function, values(shape, dtype), values(shape, dtype, 1), values(shape, "bool", 2))
    assert set(outcome.rules) <= {"elementwise"}
    for (launch,) in outcome.launches:
        assert launch.blocks * launch.threads <= np.prod(shape, dtype=int) + 256
        assert (launch.threads > 1) == (np.prod(shape, dtype=int) > 1)


def adamw(p, m, v, g, rate):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - rate * (m / (tnp.sqrt(v) + 1e-8) + 0.01 * p), m, v


def test_an_optimizer_update_is_one_launch_written_in_place():
    arrays = [values((512, 1024), "float32", i) for i in range(4)]
    outcome = check(adamw, *arrays[:2], np.abs(arrays[2]), arrays[3], np.float32(0.1))
    assert [len(launches) for launches in outcome.launches] == [1]
    spec = ShapeDtype((512, 1024), "float32")
    step = tvmfun.jit(adamw, target=SM_90, donate_argnums=(0, 1, 2))
    text = step.lower(spec, spec, spec, spec, ShapeDtype((), "float32")).compile().as_text()
    assert "call_tir_inplace" in text and text.count("blockIdx.x") == 1
    assert text.count("T.vectorized(4)") == 7  # 16 bytes of four arguments and three results


@pytest.mark.quick("1023")
@pytest.mark.parametrize("size", [1, 3, 4, 1023, 5000])
def test_dynamic_sizes(size):
    specs = [ShapeDtype(("n",), "float32")] * 2
    check(lambda x, y: (x + y, x * 2 - y), values((size,), "float32"), values((size,), "float32", 1), specs=specs)
    specs = [ShapeDtype(("n", 64), "float32"), ShapeDtype((64,), "float32")]
    check(lambda x, y: tnp.exp(x) + y, values((size, 64), "float32"), values((64,), "float32"), specs=specs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(32, 64), (33, 70), (5, 40, 100), (3, 20, 2, 65)], ids=["even", "uneven", "batch", "four"]
)
def test_transposes_go_through_shared_memory(shape):
    axes = (0, *range(2, len(shape)), 1) if len(shape) > 2 else (1, 0)
    dtypes = ("float32", "bfloat16", "bool", "float64")
    xs, ys, zs = ([values(shape, dtype, i) for dtype in dtypes] for i in range(3))
    zs = [np.transpose(z, axes) for z in zs]
    turned = lambda x, y, z: tnp.where(tnp.transpose(x, axes) > z, tnp.transpose(y, axes), z)
    n = len(dtypes)
    function = lambda *arrays: [turned(*arrays[i::n]) for i in range(n)]
    outcome = check(function, *xs, *ys, *zs)
    assert outcome.rules == ["elementwise"] * n
    specs = [ShapeDtype(array.shape, array.dtype) for array in (*xs, *ys, *zs)]
    text = tvmfun.jit(function, target=SM_90).lower(*specs).compile().as_text()
    assert text.count("alloc_shared((32, 33)") == 2 * n


@pytest.mark.slow
def test_transposes_of_dynamic_sizes():
    for size in (1, 32, 75):
        x = values((size, 40), "float32")
        check(lambda x: x.T * 2, x, specs=[ShapeDtype(("n", 40), "float32")])


@pytest.mark.slow
def test_moved_elements():
    x = values((33, 34, 8), "float32")
    check(lambda x: tnp.pad(x, ((1, 0), (2, 3), (0, 8))) + 1, x)
    check(lambda x: tnp.concatenate([x, x[:5] * 2], axis=0), x)
    check(lambda x: x[::-1, 3:20:2, ::-1], x)
    check(lambda x: tnp.broadcast_to(x[:, :1], (33, 4, 8)) - 1, x)
    check(lambda x, i: x[i] * 2, values((50, 1024), "float32"), np.asarray([3, 49, 0, 7] * 40))


@pytest.mark.parametrize("size", [6, 5000])
def test_maps_that_turn_an_intermediate_share_no_launch_with_it(size):
    """Also where a third map is in step with both."""

    def turned(x):
        y = tnp.clip(x, -20, 20)
        return tnp.clip(tnp.flip(y) * 2, -30, 30), y + x

    x = np.arange(size, dtype="float32") % 41 - 9
    check(turned, x)
    check(lambda x: tnp.clip(tnp.clip(tnp.flip(tnp.clip(x, -2, 2)) * 2, -3, 3) + x, -1, 4), x)
    check(lambda x: turned(x)[0] + turned(x)[1][::-1], x)
