"""Sorting. Every sort is stable, and NaN is larger than any number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.indexing import take_along_axis
from tvmfun.numpy.manipulation import normalize_axis, permute_dims, ravel
from tvmfun.ops import index as ops
from tvmfun.ops import pointwise
from tvmfun.ops import shape as shapes

__all__ = [
    "argpartition",
    "argsort",
    "lexsort",
    "partition",
    "sort",
]


def argsort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: Any = None,
    order: Any = None,
    stable: bool = True,
    descending: bool = False,
    dtype: Any = None,
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
    places = descending_argsort(rows) if descending else ops.argsort(rows)
    return permute_dims(places, tuple(map(int, np.argsort(order))))


def _no_fields(name: str, order: Any) -> None:
    if order is not None:
        raise ArgumentError(name, "there are no arrays with fields to sort by", got=f"order={order!r}")


def descending_argsort(rows: Array) -> Array:
    """The stable order along the last axis from the largest to the smallest element."""
    # Backwards twice: of equal ones, the one that was first comes first.
    last = rows.ndim - 1
    backwards = shapes.flip(ops.argsort(shapes.flip(rows, axes=(last,))), axes=(last,))
    return pointwise.subtract(shapes.dim_size(size=rows.shape[-1] - 1, dtype="int32"), backwards)


def sort(
    a: Any, axis: int | None = -1, *, kind: Any = None, order: Any = None, stable: bool = True, descending: bool = False
) -> Array:
    """Returns ``a`` sorted along an axis. Arguments and order are those of :func:`argsort`.

    In descending order, the last one of equal elements comes first, which matters to their derivatives.
    """
    _no_fields("sort", order)
    a = asarray(a)
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis("sort", axis, a.ndim)
    places = argsort(a, axis, stable=stable)
    if descending:
        places = shapes.flip(places, axes=(axis,))
    return take_along_axis(a, places, axis, mode="promise_in_bounds")


def _check_kth(name: str, x: Array, kth: int, axis: int) -> int:
    axis = normalize_axis(name, axis, x.ndim)
    size = x.shape[axis]
    if not -size <= kth < size:
        raise ArgumentError(name, f"there are {size} elements along axis {axis}", got=f"kth={kth}")
    return axis


def partition(a: Any, kth: int, axis: int = -1) -> Array:
    """Returns ``a`` with the kth smallest element at its place and no larger one before it: it is sorted."""
    a = asarray(a)
    return sort(a, _check_kth("partition", a, kth, axis))


def argpartition(a: Any, kth: int, axis: int = -1) -> Array:
    """Returns the int32 indices of :func:`partition`: they sort the array."""
    a = asarray(a)
    return argsort(a, _check_kth("argpartition", a, kth, axis))


def lexsort(keys: Any, axis: int = -1) -> Array:
    """Returns the int32 indices that sort by several keys, of which the last counts first.

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
