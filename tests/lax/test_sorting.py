"""Sorting against JAX and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.agreement import agree

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.ops.top_k import largest_by_sorting

RNG = np.random.default_rng(0)
SPECIAL = np.asarray([3.0, np.nan, -np.inf, 0.0, -0.0, np.inf, np.nan, -1.0])


@pytest.mark.quick("0")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sort(axis):
    x = RNG.normal(size=(4, 60, 3))
    agree(lambda lax, x: lax.sort(x, dimension=axis), x)


def test_sort_of_special_values():
    agree(lambda lax, x: lax.sort(x), SPECIAL, derivatives=False)
    agree(lambda lax, x: lax.sort(x), np.tile(SPECIAL, 10), derivatives=False)


@pytest.mark.quick("1-3", "1-1")
@pytest.mark.parametrize("num_keys", [1, 2, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_sort_of_several_arrays(num_keys, axis):
    keys = RNG.integers(0, 3, (7, 5)).astype("int32"), RNG.integers(0, 2, (7, 5)).astype("float32")
    values = RNG.normal(size=(7, 5))
    call = lambda lax, *xs: lax.sort(xs, dimension=axis, num_keys=num_keys)
    agree(call, *keys, values)


def test_sort_key_val():
    keys, values = RNG.integers(0, 4, (3, 9)).astype("int32"), RNG.normal(size=(3, 9))
    agree(lambda lax, k, v: lax.sort_key_val(k, v, dimension=0), keys, values)
    agree(lambda lax, k, v: lax.sort_key_val(k, v), values, values * 2)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    arrays.arrays(
        st.sampled_from(["float32", "float64", "int8", "uint16", "int32", "uint64", "bool"]),
        st.tuples(st.integers(0, 3), st.integers(0, 70)),
    )
)
def test_any_sort(x):
    np.testing.assert_array_equal(np.asarray(lax.sort(x)), np.sort(x, axis=-1, kind="stable"))


@pytest.mark.quick("0-float64")
@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8"])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_top_k(dtype, k):
    x = RNG.integers(0, 5, (3, 7)).astype(dtype)
    agree(lambda lax, x: lax.top_k(x, k), x)
    agree(lambda lax, x: lax.top_k(x, min(k, 3), axis=0), x)


# Chunks and blocks depend on the size and on k, and what is compared on the dtype.
LONG_ROWS = [
    *(("float32", size, k) for size in (1030, 1024, 4999) for k in (1, 3, 20)),
    *(("float32", size, k) for size in (100, 2048, 2111) for k in (16, 17)),
    *(("bfloat16", 1030, 1), ("bfloat16", 4999, 20)),
    *(("int8", 1024, 20), ("int8", 4999, 1)),
    *(("uint16", 1030, 20), ("uint16", 1024, 3)),
    *(("int64", 1024, 1), ("int64", 4999, 3)),
    *(("bool", 1030, 3), ("bool", 4999, 20)),
]


@pytest.mark.quick("float32-1030-3", "float32-2111-16")
@pytest.mark.parametrize(("dtype", "size", "k"), LONG_ROWS)
def test_top_k_of_long_rows(dtype, size, k):
    """Which are found chunk by chunk, also where many are equal, infinite or NaN, and by sorts, as on GPUs."""
    many = (RNG.normal(size=(2, 2, size)) * 99).astype(dtype)
    rows = [RNG.integers(0, 4, (3, size)).astype(dtype), np.zeros((2, size), dtype)]
    if dtype in ("float32", "bfloat16"):
        special = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], dtype)
        rows += [special[RNG.integers(0, 6, (3, size))], np.full((2, size), -np.inf, dtype)]
    rows = np.concatenate(rows)

    @tvmfun.jit
    def largest(rows, many):
        first = many[0]
        mapped, columns = tvmfun.vmap(lambda x: lax.top_k(x, k)[1])(first), lax.top_k(first.T, k, axis=0)[1]
        return (lax.top_k(rows, k), lax.top_k(many, k)), mapped, columns

    results, mapped, columns = largest(rows, many)
    for x, (values, indices) in zip((rows, many), results, strict=True):
        # The largest first, NaNs before them, and of equal ones the first.
        wide = x.astype("float64") if x.dtype != np.int64 else x
        keys = np.where(np.isnan(wide), np.inf, -wide) if x.dtype.kind not in "iub" else -wide.astype("int64")
        order = np.argsort(keys, -1, kind="stable")
        if x.dtype.kind not in "iub":
            order = np.lexsort((np.broadcast_to(np.arange(size), x.shape), keys, ~np.isnan(wide)), axis=-1)
        np.testing.assert_array_equal(np.asarray(indices), order[..., :k])
        np.testing.assert_array_equal(np.asarray(largest_by_sorting(tnp.asarray(x), k)), order[..., :k])
        np.testing.assert_array_equal(
            np.asarray(values).astype(wide.dtype), np.take_along_axis(wide, order[..., :k], -1)
        )
    expected = np.asarray(results[1][1])[0]
    np.testing.assert_array_equal(np.asarray(mapped), expected)
    np.testing.assert_array_equal(np.asarray(columns).T, expected)


def test_top_k_of_a_dynamic_number_of_elements():
    x = RNG.integers(0, 9, (3, 300)).astype("float32")
    f = tvmfun.jit(lambda x: lax.top_k(x, 5), dynamic_shapes=({0: "rows", 1: tvmfun.Dim("n", min=5)},))
    for size in (5, 70, 300):
        values, indices = f(x[:, :size])
        order = np.argsort(-x[:, :size], -1, kind="stable")[:, :5]
        np.testing.assert_array_equal(np.asarray(indices), order)
        np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(x, order, -1))


def test_top_k_of_long_rows_has_the_gradient_of_its_elements():
    x = RNG.normal(size=(2, 3000)).astype("float32")
    gradient = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(lax.top_k(x, 5)[0] * tnp.arange(1.0, 6))))(x)
    expected = np.zeros_like(x)
    np.put_along_axis(expected, np.argsort(-x, -1)[:, :5], np.arange(1.0, 6), -1)
    np.testing.assert_array_equal(np.asarray(gradient), expected)
    value, tangent = tvmfun.jit(lambda x: tvmfun.jvp(lambda x: lax.top_k(x, 5)[0], (x,), (x * 2,)))(x)
    np.testing.assert_allclose(np.asarray(tangent), 2 * np.asarray(value), rtol=1e-6)


@pytest.mark.quick("1")
@pytest.mark.parametrize("axis", [0, 1])
def test_top_k_along_a_dynamic_axis(axis):
    sizes = {axis: tvmfun.Dim("n", min=3), 1 - axis: "m"}
    largest = tvmfun.jit(lambda x: lax.top_k(x, 3, axis=axis), dynamic_shapes=(sizes,))
    for shape in ((5, 7), (3, 3), (9, 700)):
        x = RNG.normal(size=shape).round(1)
        indices = np.take(np.argsort(-x, axis=axis, kind="stable"), range(3), axis=axis)
        values, found = largest(x)
        np.testing.assert_array_equal(found, indices)
        np.testing.assert_array_equal(values, np.take_along_axis(x, indices, axis))


def test_top_k_of_special_values():
    values, places = lax.top_k(np.asarray([1.0, np.nan, np.inf, 3.0]), 3)
    np.testing.assert_array_equal(values, [np.nan, np.inf, 3.0])
    assert places.tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_extrema(name):
    x = RNG.integers(0, 4, (5, 6)).astype("float64")
    for axis in (0, 1):
        agree(lambda lax, x, axis=axis: getattr(lax, name)(x, axis, "int32"), x, derivatives=False)
    assert getattr(lax, name)(SPECIAL, 0).tolist() == 1
    assert getattr(lax, name)(x, -1, "int64").dtype == tnp.int64


def test_errors():
    x = np.ones((3, 4))
    with pytest.raises(ArgumentError, match=r"^\[sort\] "):
        lax.sort((x, x), num_keys=3)
    with pytest.raises(ShapeError, match=r"^\[sort\] "):
        lax.sort((x, x[:2]))
    with pytest.raises(ArgumentError, match=r"^\[top_k\] "):
        lax.top_k(x, 5)


# The steps depend on the size, and the comparison on the side and on the dtype.
SIDES = ("left", "right")
SEARCHES = [
    *((side, dtype, 1000) for side in SIDES for dtype in ("float32", "float64", "int32", "uint8", "bfloat16")),
    *(("left", "float32", size) for size in (1, 3)),
    *(("right", "float32", size) for size in (2, 4097)),
]


@pytest.mark.quick("right-float32-1000")
@pytest.mark.parametrize(("side", "dtype", "size"), SEARCHES)
def test_many_values_are_searched_in_step(side, dtype, size):
    """Vectors of values take the same steps; also of values that are equal, NaN or infinite."""
    rows = np.sort(RNG.integers(0, 60, (size,)).astype(dtype))
    values = RNG.integers(0, 64, (5, 1000)).astype(dtype)
    if np.dtype(dtype).kind not in "iu":
        rows[-1], values[0, :3] = np.nan if size > 2 else rows[-1], [np.nan, np.inf, -np.inf]
    wide = (lambda x: x.astype("float64")) if dtype == "bfloat16" else lambda x: x
    expected = np.searchsorted(wide(rows), wide(values), side)

    @tvmfun.jit
    def ours(rows, values):
        search = lambda x, v: tnp.searchsorted(x, v, side=side)
        both = tvmfun.vmap(search)(tnp.stack([rows, rows]), tnp.stack([values, values]))
        return search(rows, values), search(rows, values[:, :7]), both

    many, few, both = ours(rows, values)
    np.testing.assert_array_equal(np.asarray(many), expected)
    np.testing.assert_array_equal(np.asarray(few), expected[:, :7])
    np.testing.assert_array_equal(np.asarray(both), np.stack([expected, expected]))
