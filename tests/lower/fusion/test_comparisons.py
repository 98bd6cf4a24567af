"""Comparisons and extrema of bfloat16: a value is the same in each kernel that computes it."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn
from tvmfun.lower import target as targets
from tvmfun.lower.pipeline import fused
from tvmfun.ops import pointwise as pw

RNG = np.random.default_rng(0)
X = tnp.asarray(RNG.normal(size=(24, 40)).astype("float32")).astype("bfloat16")
W = tnp.asarray(RNG.normal(size=(40, 40)).astype("float32")).astype("bfloat16")

PRELUDES = {
    "affine": lambda x, c: x * 1.1 + (c + 0.3),
    "sin": lambda x, c: tnp.sin(x * 1.3) + c,
    "softmax": lambda x, c: nn.softmax(x) * 0.9 + c,
    "product": lambda x, c: nn.relu(x @ W + 100) + c,
    "sum": lambda x, c: tnp.cumsum(x, axis=1) / 3 + tnp.sum(x * 0.1, axis=0) + c,
    "transposed": lambda x, c: (x.T * 1.1 + c).reshape(40, 4, 6).transpose(1, 0, 2).reshape(24, 40),
}
# The derivative of each with respect to a number that is added to all elements is 1 for each result.
EXTREMA = {
    "rows": lambda y: tnp.max(y, axis=1),
    "columns": lambda y: tnp.min(y, axis=0),
    "all": lambda y: tnp.max(y),
    "relu": lambda y: tnp.max(nn.relu(y + 100), axis=0),
    "windows": lambda y: lax.reduce_window(y, -np.inf, lax.max, (2, 5), (2, 5), "VALID"),
    "selected": lambda y: tnp.sum(tnp.where(y == tnp.max(y, axis=1, keepdims=True), y, 0), axis=1),
    "chosen": lambda y: tnp.take_along_axis(y, tnp.argmax(y, axis=1, keepdims=True), axis=1),
    "top": lambda y: tnp.sum(tnp.where(y >= lax.top_k(y, 3)[0][:, 2:], y, 0), axis=1) / 3,
    "scan": lambda y: lax.scan(lambda carry, row: (carry, tnp.max(row * 1.0 + carry)), tnp.zeros_like(y[0]), y)[1],
    "vmap": lambda y: tvmfun.vmap(tnp.max, in_axes=1)(y),
}


@pytest.mark.parametrize("extremum", EXTREMA)
@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.quick("affine-columns", "softmax-all", "sin-chosen", "product-all", "affine-windows", "transposed-relu")
def test_one_element_has_the_derivative_of_an_extremum(prelude, extremum):
    def extrema(c, x):
        # Ties have equal shares; two of three elements that are equal to the third would both be selected.
        y = PRELUDES[prelude](x + tnp.arange(24, dtype="bfloat16")[:, None] * 0, c)
        return EXTREMA[extremum](y).astype("float32")

    @tvmfun.jit
    def both(x):
        c = tnp.zeros((), "bfloat16")
        out, slope = tvmfun.jvp(lambda c: extrema(c, x), (c,), (tnp.ones_like(c),))
        return out, slope, tvmfun.grad(lambda c: tnp.sum(extrema(c, x)))(c)

    out, slopes, total = both(X)
    if extremum not in ("selected", "top"):  # there a tie counts twice
        np.testing.assert_allclose(np.asarray(slopes), 1, rtol=0.02)
    assert np.all(np.asarray(slopes) > 0.98)
    assert float(total) >= 0.98 * out.size


@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.quick("affine", "softmax")
def test_no_element_is_above_the_maximum(prelude):
    def found(x):
        y = PRELUDES[prelude](x, 0)
        largest = tnp.max(y, axis=1, keepdims=True)
        chosen = tnp.take_along_axis(y, tnp.argmax(y, axis=1, keepdims=True), axis=1)
        return tnp.max(y - largest), tnp.min(y - tnp.min(y)), tnp.all(chosen == largest), tnp.sum(y == largest, axis=1)

    above, below, is_equal, count = tvmfun.jit(found)(X)
    assert above == 0 and below == 0 and is_equal
    assert np.all(np.asarray(count) >= 1)


def computed(row):
    return row * 1.3 + 0.1


EQUAL = {
    "argument": lambda x, y: jit_equal(x, tvmfun.jit(computed)(x)),
    "scan": lambda x, y: lax.scan(lambda m, row: (m, tnp.sum(computed(row) == m)), tnp.max(computed(x), axis=0), x)[1],
    "map": lambda x, y: lax.map(lambda row: tnp.sum(computed(row) == tnp.max(computed(x), axis=0)), x),
    "branch": lambda x, y: lax.cond(
        x[0, 0] < 9, lambda m: tnp.sum(tnp.sin(x) * 1.3 == m), lambda m: 0, tnp.max(tnp.sin(x) * 1.3, axis=0)
    ),
    "number": lambda x, y: tnp.sum(tnp.sort(x * 1.3, axis=0) > 1, axis=0) - tnp.sum(x * 1.3 > 1, axis=0),
    "floor": lambda x, y: tnp.floor(tnp.sort(x * 5.3, axis=0)).sum(axis=0) - tnp.floor(x * 5.3).sum(axis=0),
    "concatenated": lambda x, y: tnp.sum(stacked(x) == tnp.max(stacked(x), axis=1, keepdims=True), axis=1),
}


def jit_equal(x, stored):
    return tvmfun.jit(lambda x, stored: tnp.sum(computed(x) == stored))(x, stored)


def stacked(x):
    return tnp.concatenate([x * 1.1, tnp.zeros_like(x)], axis=1)


@pytest.mark.parametrize("name", EQUAL)
def test_stored_and_computed_values_are_equal(name):
    function = EQUAL[name] if name == "argument" else tvmfun.jit(EQUAL[name])  # a call of its own, or one program
    count = np.asarray(function(X, X)).astype("float32")
    if name in ("number", "floor"):
        np.testing.assert_array_equal(count, 0)
    else:
        assert count.sum() >= {"argument": X.size, "concatenated": len(X)}.get(name, X.shape[1])


def test_a_loop_ends_at_a_fixed_point():
    step = lambda x: tnp.tanh(x * 1.5)
    x, count = lax.while_loop(
        lambda carry: tnp.any(step(carry[0]) != carry[0]) & (carry[1] < 100),
        lambda c: (step(c[0]), c[1] + 1),
        (X[0], 0),
    )
    assert count < 50
    np.testing.assert_array_equal(np.asarray(step(x)), np.asarray(x))


@pytest.mark.parametrize("in_loop", [False, True])
def test_compensated_sums(in_loop):
    def add(carry, value):
        total, error = carry
        value = value - error
        new = total + value
        return (new, (new - total) - value), None

    values = tnp.full(2000, 0.01, "bfloat16")
    carry = (tnp.zeros((), "bfloat16"), tnp.zeros((), "bfloat16"))
    if in_loop:
        carry, _ = tvmfun.jit(lambda carry: lax.scan(add, carry, values))(carry)
    else:
        step = tvmfun.jit(add)
        for value in values:
            carry, _ = step(carry, value)
    assert abs(float(carry[0]) - 20) < 0.2


def test_formulas_of_numbers_in_loops():
    def body(carry, _):
        a, b = carry
        slope = tvmfun.grad(lambda a: (a * 1.5).sum())(a)
        return (a / tnp.sqrt(tnp.sum(slope**2) + tnp.sum(b * b)), b * 0.5), None

    a, b = tnp.ones(3, "bfloat16"), tnp.ones((2, 2), "bfloat16")
    (got, _), _ = lax.scan(body, (a, b), length=2)
    np.testing.assert_allclose(np.asarray(got).astype("float32"), 1 / np.sqrt(10.75 * 7.75), rtol=0.02)


@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (lambda x, y: (tnp.max(x * 2.5, axis=0), tnp.max(x * 2.5, axis=1)), 2),
        (lambda x, y: (x * 2.5 > y).sum(), 1),
        (lambda x, y: (tnp.max(tnp.abs(tnp.maximum(x, -y)), axis=0), tnp.max(-tnp.maximum(x, -y), axis=1)), 0),  # exact
        (lambda x, y: (x * 2.5 > 0).sum(), 0),  # rounding keeps the sign
        (lambda x, y: tnp.max(x * 2.5, axis=0), 0),  # one kernel alone computes the product
        (lambda x, y: (tnp.max(tnp.abs(x * 2.5), axis=0), tnp.sum(x * 2.5, axis=1)), 2),
    ],
)
def test_values_are_rounded_where_several_kernels_compute_them(function, kernels):
    program = tvmfun.trace(function)(X, X)
    is_rounding = lambda kernel: any(
        e.op is pw.astype and e.params["dtype"] == "bfloat16" and e.inputs[0].aval.dtype == "float32"
        for e in kernel.equations
    )
    assert sum(map(is_rounding, fused(program, targets.host()))) == kernels
