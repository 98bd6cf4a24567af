"""Elements repeated, moved along, put around, put in and left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, DimensionError, IndexingError, ShapeError
from tvmfun.numpy.creation import Shape, as_shape, asarray, zeros
from tvmfun.numpy.cumulative import cumulative_sum
from tvmfun.numpy.indexing import take
from tvmfun.numpy.joining import concat, split
from tvmfun.numpy.manipulation import (
    Axes,
    broadcast_to,
    expand_dims,
    listed,
    moveaxis,
    normalize_axis,
    ravel,
    reshape,
)
from tvmfun.numpy.promotion import convert
from tvmfun.numpy.ranges import arange
from tvmfun.numpy.searching import searchsorted
from tvmfun.ops import shape as ops


def roll(x: Any, /, shift: Axes | Array, axis: Axes | None = None) -> Array:
    """Returns the array rotated along axes; without an axis, as if it were flat.

    >>> roll([1, 2, 3, 4], 1)
    Array([4, 1, 2, 3], dtype=int32)
    """
    x = asarray(x)
    shifts = list(shift) if isinstance(shift, Array) and shift.ndim else listed(shift)
    if any(not isinstance(amount, Tracer) and not hasattr(amount, "__index__") for amount in shifts):
        raise ArgumentError("roll", "the shifts must be integers", got=repr(shift))
    if axis is None:
        return reshape(roll(ravel(x), sum(shifts), 0), x.shape)
    axes = listed(axis)
    if 1 in (len(shifts), len(axes)):
        shifts, axes = (
            shifts * (len(axes) if len(shifts) == 1 else 1),
            axes * (len(shifts) if len(axes) == 1 else 1),
        )
    if len(shifts) != len(axes):
        raise ArgumentError("roll", "there must be one shift per axis", got=f"{shift} and {axis}")
    for amount, place in zip(shifts, axes, strict=True):
        place = normalize_axis("roll", place, x.ndim)
        size = x.shape[place]
        if isinstance(amount, Tracer) and size != 0:
            x = take(x, (arange(size) - amount) % size, place, mode="promise_in_bounds")
        elif size != 0 and int(amount) % size != 0:
            first, second = split(x, [-int(amount) % size], place)
            x = concat([second, first], place)
    return x


def repeat(
    x: Any, repeats: int | Sequence[int] | Array, /, axis: int | None = None, *, total_repeat_length: int | None = None
) -> Array:
    """Returns each element several times in a row along an axis, or flattened if it is None.

    Args:
        x: the array.
        repeats: how often, for all elements or for each one along the axis.
        axis: the axis.
        total_repeat_length: the sum of the repeats, for those that are traced. If it is smaller, the last elements
            are cut off; if it is larger, the last one is repeated more often.

    >>> repeat([1, 2], 2)
    Array([1, 1, 2, 2], dtype=int32)
    """
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("repeat", axis, x.ndim)
    size = x.shape[axis]
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
        return take(x, places, axis, mode="promise_in_bounds")
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
        return x[(slice(None),) * axis + (places,)]
    count = int(counts.reshape(()))
    wide = broadcast_to(expand_dims(x, axis + 1), (*x.shape[: axis + 1], count, *x.shape[axis + 1 :]))
    return reshape(wide, (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]))


def tile(x: Any, repetitions: Axes, /) -> Array:
    """Returns copies of the array side by side, ``repetitions`` along each axis.

    >>> tile([1, 2], 2)
    Array([1, 2, 1, 2], dtype=int32)
    """
    x = asarray(x)
    counts = list(as_shape("tile", repetitions))
    rank = max(x.ndim, len(counts))
    counts = [1] * (rank - len(counts)) + counts
    shape = (1,) * (rank - x.ndim) + x.shape
    apart = [part for size in shape for part in (1, size)]
    wide = [part for count, size in zip(counts, shape, strict=True) for part in (count, size)]
    whole = tuple(count * size for count, size in zip(counts, shape, strict=True))
    return reshape(broadcast_to(reshape(x, apart), wide), whole)


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """Returns the array with elements around it.

    Args:
        x: the array.
        pad_width: how many: a number, ``(before, after)``, or one such pair per axis.
        mode: ``"constant"``, ``"edge"``, ``"reflect"``, ``"symmetric"`` or ``"wrap"``.
        constant_values: the value of mode ``"constant"``: one, ``(before, after)``, or one such pair per axis.

    Raises:
        ArgumentError: for another mode.
        ShapeError: for widths that are negative or do not fit.

    >>> pad(np.ones(1, "int32"), (1, 2))
    Array([0, 1, 0, 0], dtype=int32)
    """
    x = asarray(x)
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    except ValueError:
        raise ShapeError("pad", f"the widths must be pairs for {x.ndim} axes", got=str(pad_width)) from None
    if any(not isinstance(width, int) or width < 0 for pair in widths for width in pair):
        raise ShapeError("pad", "the widths must be non-negative integers", got=str(pad_width))
    if mode != "constant":
        return _pad_with_elements(x, widths, mode)
    if np.ndim(constant_values):
        values = np.broadcast_to(np.asarray(constant_values), (x.ndim, 2))
        for axis, (pair, ends) in enumerate(zip(widths, values, strict=True)):
            for side, value in enumerate(ends):
                own = [(0, 0)] * x.ndim
                own[axis] = (pair[0], 0) if side == 0 else (0, pair[1])
                x = _pad_with_value(x, own, value)
        return x
    return _pad_with_value(x, widths, constant_values)


def _pad_with_value(x: Array, widths: list, value: Any) -> Array:
    low, high = (tuple(pair[side] for pair in widths) for side in (0, 1))
    return ops.pad(x, convert("pad", value, x.dtype), low=low, high=high, interior=(0,) * x.ndim)


def _pad_with_elements(x: Array, widths: list, mode: str) -> Array:
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        modes = "constant, edge, reflect, symmetric or wrap"
        raise ArgumentError("pad", f"the mode must be {modes}", got=repr(mode))
    for axis, pair in enumerate(widths):
        if any(pair):
            if not x.shape[axis]:
                raise ShapeError("pad", f"axis {axis} has no elements to pad with", got=repr(x.aval))
            if not isinstance(x.shape[axis], int):
                what = f"mode {mode!r} needs to know the size of axis {axis}"
                raise DimensionError("pad", what, got=repr(x.aval), hint="a static size, or mode 'constant'")
            # NumPy pads the numbers of the elements; they say which ones to take.
            places = np.pad(np.arange(x.shape[axis]), pair, mode)  # type: ignore[call-overload]
            x = x[(slice(None),) * axis + (places,)]
    return x


def resize(x: Any, /, new_shape: Shape) -> Array:
    """Returns the elements in row-major order in another shape, repeated as often as needed.

    >>> resize([1, 2], (2, 3))
    Array([[1, 2, 1],
           [2, 1, 2]], dtype=int32)
    """
    x = asarray(x)
    shape = as_shape("resize", new_shape)
    count = math.prod(shape)
    if not x.size:
        return zeros(shape, x.dtype)
    flat = tile(ravel(x), -(-count // x.size)) if count else ravel(x)
    return reshape(flat[:count], shape)


def insert(x: Any, places: Any, values: Any, /, axis: int | None = None) -> Array:
    """Returns the array with values before the given places along an axis, flattened if it is None.

    Args:
        x: the array.
        places: an integer, a slice or a sequence of integers; not traced.
        values: what to put there; broadcasts.
        axis: the axis.

    >>> insert([1, 2, 3], 1, 9)
    Array([1, 9, 2, 3], dtype=int32)
    """
    x = asarray(x)
    values = asarray(values, x.dtype)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("insert", axis, x.ndim)
    size = x.shape[axis]
    values = reshape(values, (1,) * (x.ndim - values.ndim) + values.shape)
    numbers = np.arange(size)
    if isinstance(places, slice):
        places = numbers[places]
    places = np.asarray(places, np.int64)
    if places.ndim == 0:
        values = moveaxis(values, 0, axis)
    count = values.shape[axis] if places.size == 1 else places.size
    values = broadcast_to(values, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    try:
        order = np.insert(numbers, places, size + np.arange(count))
    except IndexError as error:
        raise IndexingError("insert", f"there are {size} elements along axis {axis}", got=str(places)) from error
    return concat([x, values], axis)[(slice(None),) * axis + (order,)]


def delete(x: Any, places: Any, /, axis: int | None = None) -> Array:
    """Returns the array without the given places along an axis, flattened if it is None.

    Args:
        x: the array.
        places: an integer, which may be traced; a slice, a sequence of integers or a mask.
        axis: the axis.

    >>> delete([1, 2, 3], 1)
    Array([1, 3], dtype=int32)
    """
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = normalize_axis("delete", axis, x.ndim)
    size = x.shape[axis]
    if isinstance(places, Tracer) and not places.ndim:
        kept = arange(size - 1)
        return take(x, kept + (kept >= places % size), axis)
    places = places if isinstance(places, slice) else np.asarray(places)
    try:
        kept = np.delete(np.arange(size), places)
    except IndexError as error:
        raise IndexingError("delete", f"there are {size} elements along axis {axis}", got=str(places)) from error
    return x[(slice(None),) * axis + (kept,)]
