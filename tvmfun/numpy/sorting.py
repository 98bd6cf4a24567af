"""Sorting, searching and counting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, device_array
from tvmfun.core.op import Op
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, ShapeError
from tvmfun.numpy import elementwise
from tvmfun.numpy.calculus import cumulative_sum
from tvmfun.numpy.creation import arrays, asarray, full, zeros
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import equal, less, logical_not, not_equal, subtract, where
from tvmfun.numpy.indexing import take, take_along_axis
from tvmfun.numpy.promotion import NestedArrayLike, no_out
from tvmfun.numpy.ranges import arange
from tvmfun.numpy.reductions import all, keep, numbers, sum
from tvmfun.numpy.shapes import (
    Axes,
    flip,
    known_integer,
    normalize_axes,
    normalize_axis,
    permute_dims,
    ravel,
    reshape,
    stack,
)
from tvmfun.ops import pointwise, reduce, sorting
from tvmfun.ops import shape as shapes
from tvmfun.ops.sorting import searchsorted as search
from tvmfun.typing import DTypeLike

__all__ = [
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "argwhere",
    "count_nonzero",
    "digitize",
    "flatnonzero",
    "isin",
    "lexsort",
    "nanargmax",
    "nanargmin",
    "nonzero",
    "partition",
    "searchsorted",
    "sort",
]


def argsort(
    a: NestedArrayLike,
    axis: int | None = -1,
    *,
    kind: Any = None,
    order: Any = None,
    stable: bool = True,
    descending: bool = False,
    dtype: DTypeLike | None = None,
) -> Array:
    """Returns the int32 indices that sort ``a`` along an axis; equal elements keep their order.

    NaN is larger than any number, as in JAX: it goes last, or first in descending order.

    Args:
        a: the array.
        axis: the axis; None for the flattened array.
        kind: for NumPy: the name of an algorithm; every sort is stable.
        order: must be None: there are no arrays with fields.
        stable: for the array API; every sort is stable.
        descending: whether the largest element comes first.
        dtype: of the result; by default int32.

    >>> argsort([3, 1, 2])
    Array([1, 2, 0], dtype=int32)
    """
    _no_fields("argsort", order)
    a = asarray(a)
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis("argsort", axis, a.ndim)
    order = [i for i in range(a.ndim) if i != axis] + [axis]
    rows = permute_dims(a, order)
    if a.dtype == dtypes.bool_:
        rows = astype(rows, dtypes.uint8)
    indices = descending_argsort(rows) if descending else sorting.argsort(rows)
    return permute_dims(indices, tuple(map(int, np.argsort(order))))


def _no_fields(name: str, order: Any) -> None:
    if order is not None:
        raise ArgumentError(name, "there are no arrays with fields to sort by", got=f"order={order!r}")


def descending_argsort(rows: Array) -> Array:
    """The stable order along the last axis from the largest to the smallest element."""
    # Backwards twice: of equal ones, the one that was first comes first.
    last = rows.ndim - 1
    backwards = shapes.flip(sorting.argsort(shapes.flip(rows, axes=(last,))), axes=(last,))
    return pointwise.subtract(shapes.dim_size(size=rows.shape[-1] - 1, dtype="int32"), backwards)


def sort(
    a: NestedArrayLike,
    axis: int | None = -1,
    *,
    kind: Any = None,
    order: Any = None,
    stable: bool = True,
    descending: bool = False,
) -> Array:
    """Returns ``a`` sorted along an axis. Arguments and order are those of :func:`argsort`.

    In descending order, the last one of equal elements comes first, which matters to their derivatives.
    """
    _no_fields("sort", order)
    a = asarray(a)
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis("sort", axis, a.ndim)
    indices = argsort(a, axis, stable=stable)
    if descending:
        indices = shapes.flip(indices, axes=(axis,))
    return take_along_axis(a, indices, axis, mode="promise_in_bounds")


def _check_kth(name: str, x: Array, kth: int, axis: int) -> int:
    axis = normalize_axis(name, axis, x.ndim)
    size = x.shape[axis]
    if not -size <= kth < size:
        raise ArgumentError(name, f"there are {size} elements along axis {axis}", got=f"kth={kth}")
    return axis


def partition(a: NestedArrayLike, kth: int, axis: int = -1) -> Array:
    """Returns ``a`` with the kth smallest element at its sorted position and no larger one before it: it is sorted."""
    a = asarray(a)
    return sort(a, _check_kth("partition", a, kth, axis))


def argpartition(a: NestedArrayLike, kth: int, axis: int = -1) -> Array:
    """Returns the int32 indices of :func:`partition`: they sort the array."""
    a = asarray(a)
    return argsort(a, _check_kth("argpartition", a, kth, axis))


def lexsort(keys: Any, axis: int = -1) -> Array:
    """Returns the int32 indices that sort by several keys; the last key counts first.

    >>> lexsort(([3, 1, 2], [0, 0, -1]))
    Array([2, 1, 0], dtype=int32)
    """
    rows: Sequence[Array] = [asarray(key) for key in keys]
    if not rows or any(row.shape != rows[0].shape for row in rows):
        got = ", ".join(repr(row.aval) for row in rows)
        raise ShapeError("lexsort", "there must be keys, all of one shape", got=got)
    order = argsort(rows[0], axis)
    for row in rows[1:]:
        later = argsort(take_along_axis(row, order, axis, mode="promise_in_bounds"), axis)
        order = take_along_axis(order, later, axis, mode="promise_in_bounds")
    return order


def _arg(op: Op, x: Any, axis: int | None, keepdims: bool) -> Array:
    x = asarray(x)
    if x.dtype == dtypes.bool_:
        x = astype(x, dtypes.uint8)
    if axis is None:
        if x.size == 0:
            raise ShapeError(op.name, "there is no element", got=repr(x.aval))
        flat = op(reshape(x, (-1,)), axis=0)
        return reshape(flat, (1,) * x.ndim) if keepdims else flat
    index = normalize_axis(op.name, axis, x.ndim)
    return keep(op(x, axis=index), x, (index,), keepdims)


def argmax(a: NestedArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first largest element, along an axis or of the flattened array.

    Raises:
        ShapeError: if there are no elements.

    >>> argmax([1, 3, 3])
    Array(1, dtype=int32)
    """
    no_out("argmax", out)
    return _arg(reduce.argmax, a, axis, keepdims)


def argmin(a: NestedArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first smallest element, along an axis or of the flattened array.

    Raises:
        ShapeError: if there are no elements.
    """
    no_out("argmin", out)
    return _arg(reduce.argmin, a, axis, keepdims)


def count_nonzero(a: NestedArrayLike, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Returns the number of elements that are not 0, as int32."""
    a = asarray(a)
    axes = normalize_axes("count_nonzero", axis, a.ndim)
    return sum(not_equal(a, 0), axes, keepdims=keepdims)


def unknown_size(name: str, x: Array, hint: str = "size=, the largest number of results") -> ConcretizationError:
    """The error for a result whose shape depends on the elements of a traced array."""
    return ConcretizationError(
        name,
        "the elements of an array that is being traced are not known, but give the result its shape",
        got=repr(x.aval),
        hint=hint,
    )


def nonzero(
    a: NestedArrayLike, *, size: int | None = None, fill_value: NestedArrayLike | None = None
) -> tuple[Array, ...]:
    """Returns the int32 indices of the elements that are not 0, one array for each axis.

    Args:
        a: the array.
        size: how many indices to return, which must be given when ``a`` is traced; if there are more, the last are
            left out.
        fill_value: the index that stands for missing ones, or one number for each axis; by default 0.

    Raises:
        ShapeError: for an array without axes.
        ConcretizationError: for a traced array without ``size``.

    Source: ``jax.numpy.nonzero``.

    >>> nonzero([[0, 3], [4, 0]])
    (Array([0, 1], dtype=int32), Array([1, 0], dtype=int32))
    """
    a = asarray(a)
    if not a.ndim:
        raise ShapeError("nonzero", "an array without axes has no indices", got=repr(a.aval), hint="atleast_1d")
    size = known_integer(size)
    if size is None:
        if isinstance(a, Tracer):
            raise unknown_size("nonzero", a)
        found = np.nonzero(a.concrete("nonzero").numpy())
        return tuple(device_array(indices.astype(np.int32)) for indices in found)
    # The k-th of them is where the running count first reaches k.
    counts = cumulative_sum(astype(ravel(not_equal(a, 0)), dtypes.int32))
    indices = searchsorted(counts, arange(1, size + 1))
    exists = less(indices, a.size)
    fill = fill_value if isinstance(fill_value, tuple) else (fill_value,) * a.ndim
    flat = [indices // math.prod(a.shape[axis + 1 :]) % max(a.shape[axis], 1) for axis in range(a.ndim)]
    return tuple(elementwise.where(exists, p, 0 if f is None else f) for p, f in zip(flat, fill, strict=True))


def flatnonzero(a: NestedArrayLike, *, size: int | None = None, fill_value: NestedArrayLike | None = None) -> Array:
    """Returns the int32 indices of the elements of the flattened array that are not 0; see :func:`nonzero`."""
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: NestedArrayLike, *, size: int | None = None, fill_value: NestedArrayLike | None = None) -> Array:
    """Returns the int32 indices of the elements that are not 0, one row for each; see :func:`nonzero`."""
    a = asarray(a)
    if not a.ndim:
        return nonzero(reshape(a, (1,)), size=size, fill_value=fill_value)[0][:, None][:, :0]
    return stack(nonzero(a, size=size, fill_value=fill_value), 1)


def searchsorted(
    a: NestedArrayLike,
    v: NestedArrayLike,
    side: str = "left",
    sorter: NestedArrayLike | None = None,
    *,
    method: str = "scan",
) -> Array:
    """Returns, as int32, where each value of ``v`` belongs in the sorted vector ``a``.

    Args:
        a: the vector; NaNs are last.
        v: the values.
        side: ``"left"`` for the index before equal elements, ``"right"`` for the one after them.
        sorter: indices that sort ``a``, if it is not sorted.
        method: for JAX: every method has the same result.

    >>> searchsorted([1, 2, 2, 3], 2), searchsorted([1, 2, 2, 3], 2, side="right")
    (Array(1, dtype=int32), Array(3, dtype=int32))
    """
    a, v = arrays("searchsorted", a, v)
    if a.ndim != 1:
        raise ShapeError("searchsorted", "the sorted elements must be a vector", got=repr(a.aval))
    if side not in ("left", "right"):
        raise ArgumentError("searchsorted", "the side is 'left' or 'right'", got=repr(side))
    if sorter is not None:
        a = take(a, sorter, mode="promise_in_bounds")
    return search(a, v, side=side)


def digitize(x: NestedArrayLike, bins: NestedArrayLike, right: bool = False, *, method: Any = None) -> Array:
    """Returns, as int32, the number of the bin each element belongs to.

    Args:
        x: the array.
        bins: the edges, increasing or decreasing.
        right: whether bins include the right edge instead of the left one.
        method: for JAX: every method has the same result.

    >>> digitize([0.5, 1.0, 2.5], [1.0, 2.0])
    Array([0, 1, 2], dtype=int32)
    """
    x, bins = arrays("digitize", x, bins)
    if bins.ndim != 1:
        raise ShapeError("digitize", "the bins must be a vector", got=repr(bins.aval))
    if not bins.size:
        return zeros(x.shape, dtypes.int32)
    side = "left" if right else "right"
    upwards = searchsorted(bins, x, side=side)
    downwards = subtract(bins.size, searchsorted(flip(bins), x, side=side))
    return elementwise.where(bins[-1] >= bins[0], upwards, downwards)


def isin(
    element: NestedArrayLike,
    test_elements: NestedArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Array:
    """Returns whether each element is one of ``test_elements``, or with ``invert`` none of them.

    ``assume_unique`` and ``method`` are for JAX and make no difference.

    >>> isin([1, 2, 3], [1, 3])
    Array([ True, False,  True], dtype=bool)
    """
    element, tests = arrays("isin", element, test_elements)
    if not tests.size:
        return full(element.shape, invert)
    known = sort(ravel(tests))
    found = equal(take(known, search(known, element, side="left"), mode="promise_in_bounds"), element)
    return elementwise.logical_not(found) if invert else found


def _nan_arg(function: Callable[..., Array], worst: float, x: Any, axis: int | None, keepdims: bool) -> Array:
    x, mask = numbers(x)
    if mask is None:
        return function(x, axis, keepdims=keepdims)
    result = function(where(mask, x, worst), axis, keepdims=keepdims)
    return where(all(logical_not(mask), axis, keepdims=keepdims), -1, result)


def nanargmax(a: NestedArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first largest element other than NaN; -1 without one. See :func:`argmax`."""
    no_out("nanargmax", out)
    return _nan_arg(argmax, -math.inf, a, axis, keepdims)


def nanargmin(a: NestedArrayLike, axis: int | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first smallest element other than NaN; -1 without one. See :func:`argmin`."""
    no_out("nanargmin", out)
    return _nan_arg(argmin, math.inf, a, axis, keepdims)
