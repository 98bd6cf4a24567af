"""Sums over the rows of what kernels of maps compute, and the gradient of pooling, on GPUs."""

import numpy as np
import pytest
from support.emulated_products import check as check_source
from support.emulated_products import needs_gxx
from support.serial_gpu import SM_90, check, values

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, nn
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets


def numbers(shape, seed=0, dtype="float32"):
    """Small integers: their sums are exact, whatever the order."""
    return np.random.default_rng([seed, *shape]).integers(-9, 9, shape).astype(dtype)


def masked(g, y, s):
    """The gradient of a scaled and rectified layer, and that of its bias."""
    back = tnp.where(y > 0, g * (s * 2 + 1), 0)
    return back, back.astype("bfloat16"), tnp.sum(back, tuple(range(back.ndim - 1)))


def kernels_of(function, *arrays):
    program = inlined(tvmfun.trace(function)(*(ShapeDtype(x.shape, x.dtype) for x in arrays)), "cuda")
    return [kernel for kernel in pipeline.fused(program, targets.resolve(SM_90)) if not kernel.is_view]


SHAPES = [(64, 64), (100, 33), (7, 5, 3, 130), (1000, 5), (4096, 32), (37, 256), (9001, 2), (8, 1), (1, 40), (0, 8)]


@pytest.mark.quick("float32-7x5x3x130", "bfloat16-1000x5")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_a_sum_of_columns_is_part_of_its_maps(dtype, shape):
    arrays = numbers(shape), numbers(shape, 1, dtype), numbers(shape[-1:], 2)
    outcome = check(masked, *arrays)
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    if rows > 1 and columns > 1:
        assert outcome.rules == ["columns"]
        (launches,) = outcome.launches
        assert len(launches) == 2 and launches[0].threads == 256
        # All rows are computed once.
        assert launches[0].blocks * launches[0].threads * 4 >= rows * columns / 64


def test_a_sum_that_other_maps_need_is_not_part_of_them():
    centre = lambda x: tnp.exp(x * 0.1) - tnp.sum(tnp.exp(x * 0.1), 0)
    assert len(kernels_of(centre, values((50, 40), "float32"))) > 1
    check(centre, values((50, 40), "float32"))


def test_maps_of_the_terms_join_them():
    def normalized(x, y, m, s):
        """A result in half precision, and a sum of what is computed from it, a mask and a statistic."""
        z = (x * y).astype("bfloat16")
        return z, tnp.sum(tnp.where(m, z.astype("float32") * (y - s), 0), 0)

    arrays = numbers((96, 40)), numbers((96, 40), 1), numbers((96, 40), 2) > 0, numbers((40,), 3)
    assert len(kernels_of(normalized, *arrays)) == 1
    assert check(normalized, *arrays).rules == ["columns"]
    # A value that is known only after the terms are stored cannot be part of the sum.
    late = lambda x, y: (x * y, tnp.sum((x * y - tnp.mean(x * y, 0)) * y, 0))
    assert len(kernels_of(late, *arrays[:2])) > 1
    check(late, numbers((64, 40)), numbers((64, 40), 1))


def test_one_sum_is_part_of_a_kernel_and_the_others_are_not():
    def both(x, y):
        z = tnp.where(x > y, x, 0)
        return z, tnp.sum(z, 0), tnp.sum(z, 1), tnp.sum(z), tnp.max(z, 0), tnp.sum(z * y, 0)

    check(both, numbers((70, 33)), numbers((70, 33), 1))


def test_sums_of_columns_of_other_dtypes_are_exact():
    double = lambda x: (x * 2, tnp.sum(x * 2, 0))
    for dtype in ("float64", "int32", "float16"):
        check(double, numbers((64, 20), dtype=dtype))


def test_special_values_are_summed():
    x, y = numbers((80, 40)), np.ones((80, 40), "float32")
    x[3, 5], x[9, 7], x[11, 7] = np.nan, np.inf, -np.inf
    outcome = check(masked, x, y, np.ones(40, "float32"))
    assert np.isnan(outcome.results[2]).nonzero()[0].tolist() == [5, 7]


def test_a_map_with_a_sum_is_written_over_its_argument():
    def step(w, g):
        w = w - g
        return w, tnp.sum(w, 0)

    spec = ShapeDtype((256, 64), "float32")
    text = tvmfun.jit(step, target=SM_90, donate_argnums=0).lower(spec, spec).compile().as_text()
    assert "call_tir_inplace" in text and text.count("blockIdx.x") == 2
    check(step, numbers((256, 64)), numbers((256, 64), 1))


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(40, 33), (7, 2)])
def test_sums_read_what_an_argument_was_before_it_is_written_over(shape):
    from support.cuda_emulator.gpu import emulated_gpus

    def step(w, g):
        decayed = w * 2
        return w - g, decayed * g, tnp.sum(decayed, 0), tnp.sum(w - g, 0)

    arrays = numbers(shape), numbers(shape, 1)
    with emulated_gpus(seed=1):
        results = tvmfun.jit(step, donate_argnums=(0, 1))(*tvmfun.device_put(arrays, "cuda"))
        for ours, theirs in zip(results, step(*map(tnp.asarray, arrays)), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_sums_of_columns_in_transformed_programs():
    g, y, s = numbers((3, 40, 33)), numbers((3, 40, 33), 1), numbers((33,), 2)
    check(tvmfun.vmap(masked, in_axes=(0, 0, None)), g, y, s)
    outputs = lambda g: masked(g, y, s)[::2]
    check(lambda g, t: tvmfun.jvp(outputs, (g,), (t,)), g, y)
    check(lambda g: tvmfun.vjp(outputs, g)[1]((g, g[0, 0])), g)


@needs_gxx
@pytest.mark.slow
def test_sums_of_columns_in_loops():
    from support.cuda_emulator.gpu import emulated_gpus

    def run(xs, y, s):
        def step(total, x):
            back, _, added = masked(x, y, s)
            return total + added, back

        return lax.scan(step, tnp.zeros(y.shape[-1]), xs)

    arrays = numbers((4, 20, 33)), numbers((20, 33), 1), numbers((33,), 2)
    with emulated_gpus(seed=1):
        total, backs = tvmfun.jit(run)(*tvmfun.device_put(arrays, "cuda"))
        expected = tvmfun.jit(run)(*arrays)
        np.testing.assert_array_equal(np.asarray(total), np.asarray(expected[0]))
        np.testing.assert_array_equal(np.asarray(backs), np.asarray(expected[1]))


# -- pooling -----------------------------------------------------------------------------------------------------------


def pooled(x, window=(2, 2), strides=(2, 2), padding="VALID"):
    return nn.functional.max_pool(x, window, strides, padding)


def pooling_gradient(x, g, **settings):
    """The cotangent of a rectified and pooled array, and its sums over the examples."""
    y = nn.functional.relu(x)
    (back,) = tvmfun.vjp(lambda y: pooled(y, **settings), y)[1](g)
    back = tnp.where(x > 0, back, 0)
    return back, tnp.sum(back, (0, 1, 2))


SETTINGS = {
    "apart": {},
    "gaps": {"window": (2, 2), "strides": (3, 3)},
    "same": {"window": (3, 3), "strides": (3, 3), "padding": "SAME"},
    "overlapping": {"window": (3, 3), "strides": (2, 2)},
}


@pytest.mark.quick("apart", "overlapping")
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_of_pooling(name):
    x = numbers((2, 11, 13, 6))
    g = numbers(pooled(x, **SETTINGS[name]).shape, 1)
    run = lambda x, g: pooling_gradient(x, g, **SETTINGS[name])
    check(run, x, g)
    kernels = kernels_of(run, x, g)
    assert [out.aval.shape for kernel in kernels for out in kernel.outputs].count(x.shape) == 2
    # Windows that do not overlap are a map, whose columns are summed where they are computed.
    (last,) = [kernel for kernel in kernels if any(equation.op.name == "window_put" for equation in kernel.equations)]
    assert (last.equations[-1].op.name == "sum") == (name != "overlapping")


def test_gradients_of_pooling_in_transformed_programs():
    x, g = numbers((3, 2, 8, 6, 5)), numbers((3, 2, 4, 3, 5), 1)
    check(tvmfun.vmap(pooling_gradient), x, g)
    second = lambda x, g, t: tvmfun.vjp(lambda g: pooling_gradient(x, g)[0], g)[1](t)
    check(second, x[0], g[0], x[1])
    check(pooling_gradient, x[0][:0], g[0][:0])


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_a_pooled_convolution(dtype):
    def layer(x, w, b):
        y = lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return tnp.sum(tnp.sin(pooled(nn.functional.relu(y + b))))

    run = tvmfun.grad(layer, argnums=(0, 1, 2))
    # Few values, because roundings would change which element of a window is the largest.
    arrays = numbers((2, 9, 7, 8)) // 5, numbers((2, 2, 8, 20)) // 5, numbers((20,)) // 5
    tolerance = 2e-4 if dtype == "float32" else 6e-2
    check_source(run if dtype == "float32" else tvmfun.amp(run, dtype), *arrays, orders=1, tolerance=tolerance)
