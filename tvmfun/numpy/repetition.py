"""Elements repeated, moved along, put around, put in and left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, IndexingError, ShapeError
from tvmfun.numpy.creation import Shape, as_shape, asarray, ones, zeros
from tvmfun.numpy.cumulative import cumulative_sum
from tvmfun.numpy.indexing import take
from tvmfun.numpy.joining import concat, split
from tvmfun.numpy.manipulation import (
    Axes,
    broadcast_to,
    expand_dims,
    listed,
    moveaxis,
    normalize_axes,
    normalize_axis,
    ravel,
    reshape,
)
from tvmfun.numpy.ranges import arange
from tvmfun.numpy.searching import flatnonzero, searchsorted, unknown_size

__all__ = [
    "delete",
    "insert",
    "repeat",
    "resize",
    "roll",
    "tile",
    "trim_zeros",
]


def roll(a: Any, shift: Axes | Array, axis: Axes | None = None) -> Array:
    """Returns the array rotated along axes; without an axis, as if it were flat.

    >>> roll([1, 2, 3, 4], 1)
    Array([4, 1, 2, 3], dtype=int32)
    """
    a = asarray(a)
    shifts = list(shift) if isinstance(shift, Array) and shift.ndim else listed(shift)
    if any(not isinstance(amount, Tracer) and not hasattr(amount, "__index__") for amount in shifts):
        raise ArgumentError("roll", "the shifts must be integers", got=repr(shift))
    if axis is None:
        return reshape(roll(ravel(a), sum(shifts), 0), a.shape)
    axes = listed(axis)
    if 1 in (len(shifts), len(axes)):
        shifts, axes = (
            shifts * (len(axes) if len(shifts) == 1 else 1),
            axes * (len(shifts) if len(axes) == 1 else 1),
        )
    if len(shifts) != len(axes):
        raise ArgumentError("roll", "there must be one shift per axis", got=f"{shift} and {axis}")
    for amount, place in zip(shifts, axes, strict=True):
        place = normalize_axis("roll", place, a.ndim)
        size = a.shape[place]
        if isinstance(amount, Tracer) and size != 0:
            a = take(a, (arange(size) - amount) % size, place, mode="promise_in_bounds")
        elif size != 0 and int(amount) % size != 0:
            first, second = split(a, [-int(amount) % size], place)
            a = concat([second, first], place)
    return a


def repeat(
    a: Any, repeats: int | Sequence[int] | Array, axis: int | None = None, *, total_repeat_length: int | None = None
) -> Array:
    """Returns each element several times in a row along an axis, or flattened if it is None.

    Args:
        a: the array.
        repeats: how often, for all elements or for each one along the axis.
        axis: the axis.
        total_repeat_length: the sum of the repeats, for those that are traced. If it is smaller, the last elements
            are cut off; if it is larger, the last one is repeated more often.

    >>> repeat([1, 2], 2)
    Array([1, 1, 2, 2], dtype=int32)
    """
    a = asarray(a)
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis("repeat", axis, a.ndim)
    size = a.shape[axis]
    if isinstance(repeats, Tracer):
        if total_repeat_length is None:
            raise ConcretizationError(
                "repeat",
                "repeats that are traced need a total, because they give the result its shape",
                got=repr(repeats),
                hint="total_repeat_length=",
            )
        ends = cumulative_sum(broadcast_to(repeats, (size,)))
        places = searchsorted(ends, arange(total_repeat_length, dtype=ends.dtype), side="right")
        return take(a, places, axis, mode="promise_in_bounds")
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise ArgumentError("repeat", "the repeats must be non-negative integers", got=repr(repeats))
    if counts.size not in (1, size):
        raise ShapeError("repeat", f"there must be {size} numbers of repeats", got=str(counts.size))
    if counts.size != 1 or total_repeat_length is not None:
        places = np.repeat(np.arange(size), counts)
        if total_repeat_length is not None:
            places = np.pad(places, (0, max(0, total_repeat_length - places.size)), constant_values=max(size - 1, 0))
            places = places[:total_repeat_length]
        return a[(slice(None),) * axis + (places,)]
    count = int(counts.reshape(()))
    wide = broadcast_to(expand_dims(a, axis + 1), (*a.shape[: axis + 1], count, *a.shape[axis + 1 :]))
    return reshape(wide, (*a.shape[:axis], a.shape[axis] * count, *a.shape[axis + 1 :]))


def tile(A: Any, reps: Axes) -> Array:
    """Returns copies of the array side by side, ``reps`` along each axis.

    >>> tile([1, 2], 2)
    Array([1, 2, 1, 2], dtype=int32)
    """
    A = asarray(A)
    counts = list(as_shape("tile", reps))
    rank = max(A.ndim, len(counts))
    counts = [1] * (rank - len(counts)) + counts
    shape = (1,) * (rank - A.ndim) + A.shape
    apart = [part for size in shape for part in (1, size)]
    wide = [part for count, size in zip(counts, shape, strict=True) for part in (count, size)]
    whole = tuple(count * size for count, size in zip(counts, shape, strict=True))
    return reshape(broadcast_to(reshape(A, apart), wide), whole)


def resize(a: Any, new_shape: Shape) -> Array:
    """Returns the elements in row-major order in another shape, repeated as often as needed.

    >>> resize([1, 2], (2, 3))
    Array([[1, 2, 1],
           [2, 1, 2]], dtype=int32)
    """
    a = asarray(a)
    shape = as_shape("resize", new_shape)
    count = math.prod(shape)
    if not a.size:
        return zeros(shape, a.dtype)
    flat = tile(ravel(a), -(-count // a.size)) if count else ravel(a)
    return reshape(flat[:count], shape)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Array:
    """Returns the array with values before the given places along an axis, flattened if it is None.

    Args:
        arr: the array.
        obj: an integer, a slice or a sequence of integers; not traced.
        values: what to put there; broadcasts.
        axis: the axis.

    >>> insert([1, 2, 3], 1, 9)
    Array([1, 9, 2, 3], dtype=int32)
    """
    arr = asarray(arr)
    values = asarray(values, arr.dtype)
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = normalize_axis("insert", axis, arr.ndim)
    size = arr.shape[axis]
    values = reshape(values, (1,) * (arr.ndim - values.ndim) + values.shape)
    numbers = np.arange(size)
    if isinstance(obj, slice):
        obj = numbers[obj]
    obj = np.asarray(obj, np.int64)
    if obj.ndim == 0:
        values = moveaxis(values, 0, axis)
    count = values.shape[axis] if obj.size == 1 else obj.size
    values = broadcast_to(values, (*arr.shape[:axis], count, *arr.shape[axis + 1 :]))
    try:
        order = np.insert(numbers, obj, size + np.arange(count))
    except IndexError as error:
        raise IndexingError("insert", f"there are {size} elements along axis {axis}", got=str(obj)) from error
    return concat([arr, values], axis)[(slice(None),) * axis + (order,)]


def delete(arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Array:
    """Returns the array without the given places along an axis, flattened if it is None.

    Args:
        arr: the array.
        obj: an integer, which may be traced; a slice, a sequence of integers or a mask.
        axis: the axis.
        assume_unique_indices: True lets a vector of integers be traced: no two of them are equal.

    >>> delete([1, 2, 3], 1)
    Array([1, 3], dtype=int32)
    """
    arr = asarray(arr)
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = normalize_axis("delete", axis, arr.ndim)
    size = arr.shape[axis]
    if isinstance(obj, Tracer) and not obj.ndim:
        kept = arange(size - 1)
        return take(arr, kept + (kept >= obj % size), axis)
    if assume_unique_indices and isinstance(obj, Tracer) and dtypes.is_integer(obj.dtype):
        present = ones((size,), dtypes.bool_).at[ravel(obj)].set(False)
        return take(arr, flatnonzero(present, size=max(size - obj.size, 0)), axis, mode="promise_in_bounds")
    obj = obj if isinstance(obj, slice) else np.asarray(obj)
    try:
        kept = np.delete(np.arange(size), obj)
    except IndexError as error:
        raise IndexingError("delete", f"there are {size} elements along axis {axis}", got=str(obj)) from error
    return arr[(slice(None),) * axis + (kept,)]


def trim_zeros(filt: Any, trim: str = "fb", axis: Axes | None = None) -> Array:
    """Returns the array without the zeros at its ends; not of traced arrays.

    Args:
        filt: the array.
        trim: ``"f"`` for the front, ``"b"`` for the back, ``"fb"`` for both.
        axis: one axis or several: slices of zeros at their ends are left out; by default along all axes.

    >>> trim_zeros([0, 0, 1, 0, 2, 0])
    Array([1, 0, 2], dtype=int32)
    """
    x = asarray(filt)
    sides = trim.lower()
    if not set(sides) <= {"f", "b"} or not sides:
        raise ArgumentError("trim_zeros", "the sides are 'f', 'b' or 'fb'", got=repr(trim))
    if isinstance(x, Tracer):
        raise unknown_size("trim_zeros", x)
    axes = normalize_axes("trim_zeros", axis, x.ndim)
    places = np.nonzero(x.concrete("trim_zeros").numpy())
    index = []
    for i, size in enumerate(x.shape):
        begin, end = (int(places[i].min()), int(places[i].max()) + 1) if places[i].size else (size, 0)
        if i not in axes:
            index.append(slice(None))
        elif not places[i].size:
            index.append(slice(0, 0))
        else:
            index.append(slice(begin if "f" in sides else 0, end if "b" in sides else size))
    return x[tuple(index)]
