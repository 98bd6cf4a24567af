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


def argsort(x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Returns the int32 indices that sort ``x`` along an axis; equal elements keep their order.

    NaN is larger than any number, as in JAX: it goes last, or first in descending order.

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
    places = descending_argsort(rows) if descending else ops.argsort(rows)
    return permute_dims(places, tuple(map(int, np.argsort(order))))


def descending_argsort(rows: Array) -> Array:
    """The stable order along the last axis from the largest to the smallest element."""
    # Backwards twice: of equal ones, the one that was first comes first.
    last = rows.ndim - 1
    backwards = shapes.flip(ops.argsort(shapes.flip(rows, axes=(last,))), axes=(last,))
    return pointwise.subtract(shapes.dim_size(size=rows.shape[-1] - 1, dtype="int32"), backwards)


def sort(x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Returns ``x`` sorted along an axis. Arguments and order are those of :func:`argsort`.

    In descending order, the last one of equal elements comes first, which matters to their derivatives.
    """
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("sort", axis, x.ndim)
    places = argsort(x, axis, stable=stable)
    if descending:
        places = shapes.flip(places, axes=(axis,))
    return take_along_axis(x, places, axis, mode="promise_in_bounds")


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
