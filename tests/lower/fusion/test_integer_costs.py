"""Long chains of formulas of integers: TVM's simplifier took minutes for a dozen of them in one kernel."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

import tvmfun
from tvmfun import numpy as tnp
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.integer_costs import MOST, integer_costs

RNG = np.random.default_rng(5)
STEPS = {
    "add": lambda m, t, x: t + x,
    "subtract": lambda m, t, x: x - t,
    "multiply": lambda m, t, x: t * x - t,
    "negative": lambda m, t, x: -t + x,
    "floor_divide": lambda m, t, x: t // (x | 1) + x,
    "remainder": lambda m, t, x: t % (x | 1),
    "mean": lambda m, t, x: (t >> 1) + (x >> 1),
    "compare": lambda m, t, x: (t > x).astype(t.dtype) + x,
    "where": lambda m, t, x: m.where(t > x, t, x + 1),
    "abs": lambda m, t, x: m.abs(t) + x,
    "sign": lambda m, t, x: m.sign(t) + x,
    "float": lambda m, t, x: (t % 100).astype("float32").astype(t.dtype) + x,
    "int8": lambda m, t, x: t.astype("int8").astype(t.dtype) + x,
    "hash": lambda m, t, x: (t * 31 + x) ^ (t >> 3),
}


@pytest.mark.quick("int32-remainder", "int8-compare", "uint32-subtract", "int32-add", "int32-hash")
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint32"])
def test_chains_of_numbers_from_memory(dtype, name):
    info = np.iinfo(dtype)
    xs = [RNG.integers(info.min, info.max, 37, endpoint=True).astype(dtype) for _ in range(20)]
    of = lambda m: lambda *xs: reduce(lambda t, x: STEPS[name](m, t, x), xs)
    with np.errstate(over="ignore"):
        expected = of(np)(*xs)
    np.testing.assert_array_equal(tvmfun.jit(of(tnp))(*xs), expected)


@pytest.mark.quick("int32-float", "uint32-multiply", "int32-where")
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_chains_of_indices(dtype, name):
    def of(m):
        rows = [m.arange(37, dtype=dtype)[::-1] * (i + 1) - 20 for i in range(8)]
        return reduce(lambda t, x: STEPS[name](m, t, x), rows)

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(tvmfun.jit(lambda: of(tnp))(), of(np))


@pytest.mark.parametrize("steps", [3, 7, 8])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_indices_that_each_step_names_again(dtype, steps):
    def of(m):
        t = (
            m.arange(37).astype("float32") * m.float32(0.025)
            if dtype == "float32"
            else m.arange(37, dtype="int32")[::-1]
        )
        for _ in range(steps):
            t = t * t - t
        return (t * 1000).astype("int32")

    compiled = tvmfun.jit(lambda: of(tnp)).lower().compile()
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(compiled(), of(np), rtol=0, atol=1 if dtype == "float32" else 0)
    assert len(compiled.as_text()) < 40_000


TABLE = RNG.integers(-49, 50, (50, 3)).astype("int32")
LOOKUPS = {
    "one": lambda m, t, x: m.asarray(TABLE)[t, 0],
    "two": lambda m, t, x: m.asarray(TABLE)[t, x % 3],
    "any": lambda m, t, x: m.where(m.any(m.asarray(TABLE)[t] == x[:, None], axis=1), t, x),
    "all": lambda m, t, x: m.where(m.all((m.asarray(TABLE)[t] < x[:, None]).astype("int8") == 0, axis=1), x, -t),
    "condition": lambda m, t, x: m.where((m.asarray(TABLE)[t, 1] < 0) & (x > 3), x, -x),
}


@pytest.mark.parametrize("steps", [2, 5, 9])
@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_by_what_was_looked_up(name, steps):
    """Conditions and indices inside one another, which TVM's simplifier visits several times each."""

    def of(m):
        def looked_up(x):
            t = x
            for _ in range(steps):
                t = LOOKUPS[name](m, t, x)
            return t

        return looked_up

    x = RNG.integers(-49, 50, 300).astype("int32")
    np.testing.assert_array_equal(tvmfun.jit(of(tnp))(x), of(np)(x))


@pytest.mark.filterwarnings("error::tvmfun.errors.PerformanceWarning")
def test_conditions_that_nothing_reads():
    """Sorting rows of one element does not look at them."""
    x = RNG.normal(size=300).astype("float32")
    np.testing.assert_array_equal(
        tvmfun.jit(lambda x: tnp.sort(tnp.where(x > 0, x, -x)[:, None], axis=1))(x), np.abs(x)[:, None]
    )
    first = tvmfun.jit(lambda x: tnp.argmax(tnp.where(x > 0, x, -x)[:, None], axis=1))
    np.testing.assert_array_equal(first(x), np.zeros(300, "int32"))


def test_kernels_end_where_integers_cost_too_much():
    def remainders(*xs):
        return reduce(lambda t, x: t % x, xs)

    program = tvmfun.trace(remainders)(*[np.ones(5, "int32")] * 12)
    (cost,) = {*integer_costs(program)}
    assert {len(kernel.equations) for kernel in fuse(program)} <= set(range(MOST // cost + 1))
    sums = tvmfun.trace(lambda *xs: sum(xs[1:], xs[0]))(*[np.ones(5, "int32")] * 12)
    assert len(fuse(sums)) == 1


def test_integers_that_turn_out_to_be_zero():
    x = np.arange(5, dtype="int32")
    np.testing.assert_array_equal(tvmfun.jit(lambda x: (x > x).astype("int32") + x)(x), x)
    np.testing.assert_array_equal(tvmfun.jit(lambda x: x * (x < x).astype("int32") - x)(x), -x)
