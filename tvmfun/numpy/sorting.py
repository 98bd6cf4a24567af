"""Sorting. Every sort is stable, and NaNs go last."""

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


def argsort(x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Returns the int32 indices that sort ``x`` along an axis; equal elements keep their order, NaNs go last.

    Args:
        x: the array.
        axis: the axis; None for the flattened array.
        descending: whether the largest element comes first.
        stable: for the array API; every sort is stable.

    >>> argsort([3, 1, 2])
    Array([1, 2, 0], dtype=int32)
    """
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("argsort", axis, x.ndim)
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    rows = permute_dims(x, order)
    if x.dtype == dtypes.bool_:
        rows = astype(rows, dtypes.uint8)
    if descending:
        rows = pointwise.negative(rows) if dtypes.is_float(rows.dtype) else pointwise.bitwise_not(rows)
    return permute_dims(ops.argsort(rows), tuple(map(int, np.argsort(order))))


def sort(x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Returns ``x`` sorted along an axis; NaNs go last. The arguments are those of :func:`argsort`."""
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("sort", axis, x.ndim)
    return take_along_axis(x, argsort(x, axis, descending=descending, stable=stable), axis, mode="promise_in_bounds")


def _check_kth(name: str, x: Array, kth: int, axis: int) -> int:
    axis = normalize_axis(name, axis, x.ndim)
    size = x.shape[axis]
    if not -size <= kth < size:
        raise ArgumentError(name, f"there are {size} elements along axis {axis}", got=f"kth={kth}")
    return axis


def partition(x: Any, kth: int, /, axis: int = -1) -> Array:
    """Returns ``x`` with the kth smallest element at its place and no larger one before it: it is sorted."""
    x = asarray(x)
    return sort(x, _check_kth("partition", x, kth, axis))


def argpartition(x: Any, kth: int, /, axis: int = -1) -> Array:
    """Returns the int32 indices of :func:`partition`: they sort the array."""
    x = asarray(x)
    return argsort(x, _check_kth("argpartition", x, kth, axis))


def lexsort(keys: Any, /, axis: int = -1) -> Array:
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
