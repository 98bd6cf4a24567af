"""Maps that are cut where an index is compared with a constant, such as at the ends of concatenated parts."""

import numpy as np
import pytest
from tvm import ir
from tvm.tirx import For, ForKind

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.tir.build import is_choice, uses
from tvmfun.lower.tir.walk import find

RNG = np.random.default_rng(0)


def array(*shape, dtype="float32"):
    return (100 * RNG.standard_normal(shape)).astype(dtype)


def choices(f, *args):
    """The number of branches of the scheduled kernels."""
    program = tvmfun.trace(f)(*args)
    kernels = pipeline.scheduled_kernels(program, targets.host())
    return sum(is_choice(call) for kernel in kernels for call in find(kernel.function.body, ir.Call))


@pytest.mark.parametrize("shape", [(5, 40), (300, 77), (3, 5, 4099), (2, 1, 19)], ids=str)
@pytest.mark.parametrize("shift", [3, -1])
def test_roll(shape, shift):
    x = array(*shape)
    f = lambda x: tnp.roll(x, shift, axis=-1)
    assert choices(f, x) == 0
    np.testing.assert_array_equal(tvmfun.jit(f)(x), np.roll(x, shift, -1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8", "bool", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((30, 40), ((3, 5), (2, 7))),
        ((300, 77), ((0, 0), (1, 0))),
        ((3, 20, 33), ((1, 1), (0, 2), (8, 8))),
        ((5000,), ((1, 3),)),
        ((4, 1100), ((2, 0), (4, 5))),
        ((2, 1), ((1, 1), (19, 20))),
    ],
    ids=str,
)
def test_pads(shape, widths, dtype):
    """No vector is partly of the padding; rows of padding are told by one condition for each row."""
    x = tnp.asarray(array(*shape)).astype(dtype)
    f = lambda x: tnp.pad(x, widths, constant_values=1)
    kernels = pipeline.scheduled_kernels(tvmfun.trace(f)(x), targets.host())
    for kernel in kernels:
        inner = [loop.loop_var for loop in find(kernel.function.body, For) if loop.kind == ForKind.VECTORIZED]
        conditions = [call.args[0] for call in find(kernel.function.body, ir.Call) if is_choice(call)]
        assert not any(uses(condition, var) for condition in conditions for var in inner)
    np.testing.assert_array_equal(tvmfun.jit(f)(x), np.pad(np.asarray(x), widths, constant_values=1))
    g = tnp.asarray(array(*f(x).shape)).astype(dtype)
    if dtype in ("float32", "float64"):
        own = tuple(slice(low, low + size) for (low, _), size in zip(widths, shape, strict=True))
        np.testing.assert_array_equal(tvmfun.jit(tvmfun.grad(lambda x: tnp.vdot(f(x), g)))(x), np.asarray(g)[own])


def test_pads_of_computed_and_of_dynamic_arrays():
    x = array(6, 5, 29)
    f = lambda x: tnp.exp(tnp.pad(tnp.sin(x), ((1, 0), (2, 1), (3, 4)))) + 1
    expected = np.exp(np.pad(np.sin(x), ((1, 0), (2, 1), (3, 4)))) + 1
    for axes in (None, {"x": {0: "n"}}, {"x": {0: "n", 1: "m"}}, {"x": {2: "k"}}):
        np.testing.assert_allclose(tvmfun.jit(f, dynamic_shapes=axes)(x), expected, rtol=1e-6)
    twice = lambda x: lax.fori_loop(0, 3, lambda i, x: tnp.pad(x, ((1, 1), (3, 2)))[1:-1, 2:-3] + 1, x)
    np.testing.assert_allclose(
        tvmfun.jit(twice, donate_argnums=0)(x[0]),
        np.pad(x[0], ((0, 0), (3, 0)))[:, :29] + np.r_[1, 2, 3, np.full(26, 3)],
        rtol=1e-6,
    )


CONDITIONS = {
    "xor": lambda xp, i: (i > 4) ^ (i <= 3),
    "not": lambda xp, i: ~(i < 7),
    "both": lambda xp, i: (i >= 2) & (i != 5),
    "integers": lambda xp, i: (i < 3).astype("int8") + (i > 5),
}


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 9, 8), (4, 16), (5, 16, 2)], ids=str)
@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_on_numbers_of_lanes(name, shape, dtype):
    """Vectors of them are constant, on which TVM's analyzer fails if they are bound."""
    x = array(*shape).astype("int8").astype("float32")
    column = np.arange(shape[1]).reshape(-1, *(1,) * (len(shape) - 2))
    mask = np.broadcast_to(CONDITIONS[name](np, column) != 0, shape)
    index = lambda x: lax.broadcasted_iota("int32", x.shape, 1)
    f = lambda x: tnp.where(CONDITIONS[name](tnp, index(x)) != 0, x, tnp.asarray(2, x.dtype))
    for widths in (0, 1):
        ours = tvmfun.jit(lambda x, widths=widths: tnp.pad(f(x), widths))(tnp.asarray(x).astype(dtype))
        np.testing.assert_array_equal(ours.astype("float32"), np.pad(np.where(mask, x, 2), widths))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8", "bool", "float16"])
def test_concatenation_of_parts_of_odd_widths(dtype):
    parts = [array(30, width, dtype=dtype) for width in (13, 1, 50)]
    f = lambda *parts: tnp.concatenate(parts, axis=1)
    np.testing.assert_array_equal(tvmfun.jit(f)(*parts), np.concatenate(parts, 1))


def test_more_parts_than_are_worth_a_loop():
    parts = [array(7, width) for width in (3, 5, 7, 9, 11, 13)]
    f = lambda *parts: tnp.concatenate(parts, axis=1)
    np.testing.assert_array_equal(tvmfun.jit(f)(*parts), np.concatenate(parts, 1))


def test_what_is_computed_from_the_parts():
    x, y = array(200, 45), array(200, 22)
    f = lambda x, y: tnp.concatenate([x * 2, tnp.abs(y)], axis=1).T + 1
    np.testing.assert_allclose(tvmfun.jit(f)(x, y), np.concatenate([x * 2, abs(y)], 1).T + 1, rtol=1e-6)


def test_derivatives_batches_and_loops():
    x, y = array(6, 20), array(6, 13)

    def f(x, y):
        step = lambda carry, _: (tnp.roll(carry, 5, axis=1), None)
        joined = tnp.concatenate([x, y], axis=1)
        return lax.scan(step, joined, None, length=3)[0]

    expected = np.roll(np.concatenate([x, y], 1), 15, 1)
    np.testing.assert_array_equal(tvmfun.jit(f)(x, y), expected)
    batched = tvmfun.vmap(f)(np.stack([x, 2 * x]), np.stack([y, 3 * y]))
    np.testing.assert_array_equal(batched[0], expected)
    weights = array(6, 33)
    gradients = tvmfun.grad(lambda x, y: tnp.sum(f(x, y) * weights), (0, 1))(x, y)
    back = np.roll(weights, -15, 1)
    np.testing.assert_allclose(gradients[0], back[:, :20], rtol=1e-6)
    np.testing.assert_allclose(gradients[1], back[:, 20:], rtol=1e-6)


def test_donated_arrays_stay_apart():
    x = array(50, 70)
    f = tvmfun.jit(lambda x: tnp.roll(x, 3, axis=1), donate_argnums=0)
    np.testing.assert_array_equal(f(tvmfun.device_put(x)), np.roll(x, 3, 1))


def test_a_batch_of_any_size():
    f = tvmfun.jit(lambda x: tnp.roll(x, 3, axis=1), dynamic_shapes={"x": {0: "b"}})
    for rows in (1, 4, 300):
        x = array(rows, 45)
        np.testing.assert_array_equal(f(x), np.roll(x, 3, 1))
