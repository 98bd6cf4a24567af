"""Reductions and running sums against JAX."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.agreement import agree

import tvmfun
from tvmfun import lax
from tvmfun.errors import DtypeError, ShapeError

RNG = np.random.default_rng(0)
X = RNG.permutation(60).reshape(3, 4, 5) / 9 + 0.1


@pytest.mark.quick("1x2", "()")
@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2), ()])
def test_named_reductions(axes):
    names = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
    agree(lambda lax, x: [getattr(lax, name)(x, axes) for name in names], X)


@pytest.mark.quick("uint8-reduce_and", "bool-reduce_or")
@pytest.mark.parametrize("name", ["reduce_and", "reduce_or", "reduce_xor"])
@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8"])
def test_reductions_of_bits(name, dtype):
    x = RNG.integers(0, 9, (3, 4, 5)).astype(dtype)
    for axes in ((0,), (1, 2), ()):
        agree(lambda lax, x, axes=axes: getattr(lax, name)(x, axes), x)
    agree(lambda lax, x: getattr(lax, name)(x, (0,)), x[:0])


def test_floats_have_no_bits():
    with pytest.raises(DtypeError, match=r"^\[reduce_and\] "):
        lax.reduce_and(X, (0,))


@pytest.mark.quick("0-max--inf", "0-add-0.0")
@pytest.mark.parametrize(("name", "start"), [("add", 0.0), ("mul", 1.0), ("max", -np.inf), ("min", np.inf)])
@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2)])
def test_reduce(name, start, axes):
    agree(lambda lax, x: lax.reduce(x, start, getattr(lax, name), axes), X)
    agree(lambda lax, x: lax.reduce(x, 2.5, getattr(lax, name), axes), X, derivatives=False)  # the start counts
    agree(lambda lax, x: lax.reduce(x, start, getattr(lax, name), axes), X[:0], derivatives=False)


@pytest.mark.parametrize(("name", "op"), [("add", "sum"), ("mul", "prod"), ("max", "max"), ("min", "min")])
def test_reduce_by_functions_of_lax_is_one_op(name, op):
    function = getattr(tvmfun.lax, name)
    program = tvmfun.trace(lambda x: tvmfun.lax.reduce(x, 1.5, function, (0,)))(tvmfun.ShapeDtype((5,), "float32"))
    assert program.equations[0].op.name == op


def test_reduce_of_bools():
    x = RNG.integers(0, 2, (3, 4)).astype(bool)
    for name, start in (("bitwise_or", False), ("bitwise_and", True), ("max", False)):
        agree(lambda lax, x, n=name, s=start: lax.reduce(x, s, getattr(lax, n), (1,)), x)


@pytest.mark.quick("5", "1", "8")
@pytest.mark.parametrize("count", [1, 2, 5, 8, 13])
def test_reduce_by_any_function(count):
    x = RNG.uniform(0.2, 1, (count, 3))
    # Multiplies the complements 1 - x.
    agree(lambda lax, x: lax.reduce(x, 0.0, lambda a, b: a + b - a * b, (0,)), x, derivatives=False)
    ours = tvmfun.grad(lambda x: lax.reduce_sum(lax.reduce(x, 0.0, lambda a, b: a + b - a * b, (0,)), (0,)))(x)
    expected = np.stack([np.prod(np.delete(1 - x, i, 0), axis=0) for i in range(count)])
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_reduce_of_trees():
    values, places = X, np.broadcast_to(np.arange(4, dtype="int32")[:, None], X.shape)

    def larger(lax):
        def combine(a, b):
            (x, i), (y, j) = a, b
            keep = lax.bitwise_or(lax.gt(x, y), lax.bitwise_and(lax.eq(x, y), lax.lt(i, j)))
            return lax.select(keep, x, y), lax.select(keep, i, j)

        return combine

    start = (np.float64(-np.inf), np.int32(2**31 - 1))
    call = lambda lax, x, i: lax.reduce((x, i), start, larger(lax), (1,))
    agree(call, values, places, derivatives=False)
    with pytest.raises(ShapeError, match=r"^\[reduce\] "):
        lax.reduce((X, X[0]), (0.0, 0.0), larger(lax), (0,))


# -- running sums ----------------------------------------------------------------------------------------------

RUNNING = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")


@pytest.mark.quick("2-True")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running(axis, reverse):
    agree(lambda lax, x: [getattr(lax, name)(x, axis, reverse) for name in RUNNING], X)


def test_running_of_a_zero():
    agree(lambda lax, x: lax.cumprod(x), np.asarray([2.0, 0.0, 3.0, 4.0]))


def test_running_of_integers():
    x = RNG.integers(-9, 9, (5, 3)).astype("int32")
    agree(lambda lax, x: [getattr(lax, name)(x, 0) for name in RUNNING[:4]], x)
    with pytest.raises(DtypeError, match=r"^\[cumlogsumexp\] "):
        lax.cumlogsumexp(x)
    with pytest.raises(DtypeError, match=r"^\[cumsum\] "):
        lax.cumsum(x > 0)
    with pytest.raises(ShapeError, match=r"^\[cumsum\] "):
        lax.cumsum(x, 2)


@pytest.mark.quick("float16", "bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_running_in_less_precision(dtype):
    x = jax.numpy.asarray(RNG.uniform(0.5, 1.5, (40, 3)), dtype)
    wide = np.asarray(x, np.float64)
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6}[dtype]
    for name, expected in (("cumsum", np.cumsum), ("cumprod", np.cumprod), ("cummax", np.maximum.accumulate)):
        got = getattr(lax, name)(np.asarray(x), 0)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(got, np.float64), expected(wide, axis=0), rtol=tolerance)
