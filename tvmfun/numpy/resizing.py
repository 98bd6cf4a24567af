"""Functions that repeat, insert, delete, roll and pad elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.dims import Dim
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, DimensionError, IndexingError, ShapeError
from tvmfun.numpy import reductions
from tvmfun.numpy.calculus import cumulative_sum
from tvmfun.numpy.creation import Shape, as_shape, asarray, ones, zeros
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import multiply, round, subtract
from tvmfun.numpy.indexing import static_integer, take
from tvmfun.numpy.promotion import NestedArrayLike, convert
from tvmfun.numpy.ranges import arange, linspace
from tvmfun.numpy.shapes import (
    Axes,
    broadcast_to,
    concat,
    expand_dims,
    listed,
    moveaxis,
    normalize_axes,
    normalize_axis,
    ravel,
    reshape,
    split,
    stack,
)
from tvmfun.numpy.sorting import flatnonzero, searchsorted, unknown_size
from tvmfun.numpy.statistics import median
from tvmfun.ops import shape as ops

__all__ = ["delete", "insert", "pad", "repeat", "resize", "roll", "tile", "trim_zeros"]


def roll(a: NestedArrayLike, shift: Axes | Array, axis: Axes | None = None) -> Array:
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
    for amount, number in zip(shifts, axes, strict=True):
        number = normalize_axis("roll", number, a.ndim)
        size = a.shape[number]
        if size == 0:
            continue
        if not isinstance(amount, Tracer):
            amount = amount if isinstance(amount, Dim) else int(amount)
            cut = -amount % size
            if dims.always_le(0, cut) and dims.always_le(cut, size):
                a = concat(split(a, [cut], number)[::-1], number) if dims.is_dynamic(cut) or cut else a
                continue
        a = take(a, (arange(size) - amount) % size, number, mode="promise_in_bounds")
    return a


def repeat(
    a: NestedArrayLike,
    repeats: int | Sequence[int] | Array,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
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
        indices = searchsorted(ends, arange(total_repeat_length, dtype=ends.dtype), side="right")
        return take(a, indices, axis, mode="promise_in_bounds")
    if isinstance(repeats, Dim) and total_repeat_length is None:
        return _each_repeated(a, repeats, axis)  # type: ignore[arg-type]
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise ArgumentError("repeat", "the repeats must be non-negative integers", got=repr(repeats))
    if counts.size not in (1, size):
        raise ShapeError("repeat", f"there must be {size} numbers of repeats", got=str(counts.size))
    if counts.size != 1 or total_repeat_length is not None:
        indices = np.repeat(np.arange(size), counts)
        if total_repeat_length is not None:
            indices = np.pad(indices, (0, max(0, total_repeat_length - indices.size)), constant_values=max(size - 1, 0))
            indices = indices[:total_repeat_length]
        return a[(slice(None),) * axis + (indices,)]
    return _each_repeated(a, int(counts.reshape(())), axis)


def _each_repeated(a: Array, count: int, axis: int) -> Array:
    wide = broadcast_to(expand_dims(a, axis + 1), (*a.shape[: axis + 1], count, *a.shape[axis + 1 :]))
    return reshape(wide, (*a.shape[:axis], a.shape[axis] * count, *a.shape[axis + 1 :]))


def tile(A: NestedArrayLike, reps: Axes) -> Array:
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


def resize(a: NestedArrayLike, new_shape: Shape) -> Array:
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


def insert(arr: NestedArrayLike, obj: NestedArrayLike, values: NestedArrayLike, axis: int | None = None) -> Array:
    """Returns the array with values before the given indices along an axis, flattened if it is None.

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
    if dims.is_dynamic(size):
        before, after = _parts("insert", arr, obj, axis)
        values = moveaxis(values, 0, axis)
        values = broadcast_to(values, (*arr.shape[:axis], values.shape[axis], *arr.shape[axis + 1 :]))
        return concat([before, values, after], axis)
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


def _parts(name: str, x: Array, index: Any, axis: int) -> tuple[Array, Array]:
    """The parts of an array before and from a static index along an axis of dynamic size."""
    if np.ndim(index) or isinstance(index, slice | Tracer):
        what = "along an axis of dynamic size there must be one static index"
        raise DimensionError(name, what, got=f"{index} for {x.aval}", hint="a static size")
    at = static_integer(index, axis, x)
    lead = (slice(None),) * axis
    return x[(*lead, slice(None, at))], x[(*lead, slice(at, None))]


def delete(
    arr: NestedArrayLike, obj: NestedArrayLike, axis: int | None = None, *, assume_unique_indices: bool = False
) -> Array:
    """Returns the array without the given indices along an axis, flattened if it is None.

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
    if dims.is_dynamic(size):
        before, after = _parts("delete", arr, obj, axis)
        return concat([before, after[(slice(None),) * axis + (slice(1, None),)]], axis)
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
        raise unknown_size("trim_zeros", x, "a slice of a known size")
    axes = normalize_axes("trim_zeros", axis, x.ndim)
    indices = np.nonzero(x.concrete("trim_zeros").numpy())
    index = []
    for i, size in enumerate(x.shape):
        begin, end = (int(indices[i].min()), int(indices[i].max()) + 1) if indices[i].size else (size, 0)
        if i not in axes:
            index.append(slice(None))
        elif not indices[i].size:
            index.append(slice(0, 0))
        else:
            index.append(slice(begin if "f" in sides else 0, end if "b" in sides else size))
    return x[tuple(index)]


_STATISTICS: dict[str, Callable[..., Array]] = {
    "maximum": reductions.max,
    "mean": reductions.mean,
    "median": median,
    "minimum": reductions.min,
}
_ELEMENTS = ("edge", "reflect", "symmetric", "wrap")
_MODES = ("constant", "empty", "linear_ramp", *_STATISTICS, *_ELEMENTS)


def pad(
    array: NestedArrayLike,
    pad_width: Any,
    mode: Any = "constant",
    *,
    constant_values: NestedArrayLike = 0,
    stat_length: Any = None,
    end_values: NestedArrayLike = 0,
    reflect_type: str = "even",
    **kwargs: Any,
) -> Array:
    """Returns the array with elements around it.

    Args:
        array: the array.
        pad_width: how many: a number, ``(before, after)``, one such pair per axis, or a dictionary of axes and these;
            with the mode ``"constant"`` also dynamic sizes.
        mode: ``"constant"``, ``"empty"`` (zeros), ``"edge"``, ``"reflect"``, ``"symmetric"``, ``"wrap"``,
            ``"linear_ramp"``, ``"maximum"``, ``"mean"``, ``"median"``, ``"minimum"``; or a function
            ``(row, pair, axis, kwargs)`` that returns a row along an axis whose padding is zeros with other padding.
        constant_values: the value of mode ``"constant"``: one, ``(before, after)``, or one such pair per axis.
        stat_length: how many elements at the end ``"maximum"``, ``"mean"``, ``"median"`` and ``"minimum"`` look at:
            a number or pairs; by default all.
        end_values: the last values of ``"linear_ramp"``: one, ``(before, after)``, or one such pair per axis.
        reflect_type: ``"odd"`` for ``"reflect"`` and ``"symmetric"`` to turn the values at the edge as well.
        kwargs: for the function.

    Raises:
        ArgumentError: for another mode.
        ShapeError: for widths that are negative or do not fit.

    Source: ``numpy.pad``; with a function, ``jax.numpy.pad``.

    >>> pad(np.ones(1, "int32"), (1, 2))
    Array([0, 1, 0, 0], dtype=int32)
    >>> pad([1.0, 3.0], 1, "mean")
    Array([2., 1., 3., 2.], dtype=float32)
    """
    x = asarray(array)
    widths = _widths(x, pad_width)
    if callable(mode):
        return _pad_by_function(x, widths, mode, kwargs)
    if mode not in _MODES:
        raise ArgumentError("pad", f"the mode must be a function or one of {', '.join(_MODES)}", got=repr(mode))
    if kwargs:
        raise ArgumentError("pad", f"mode {mode!r} takes no such argument", got=", ".join(kwargs))
    if reflect_type not in ("even", "odd"):
        raise ArgumentError("pad", "the reflection is 'even' or 'odd'", got=repr(reflect_type))
    if mode == "empty":
        return _pad_with_value(x, widths, 0)
    if mode == "constant":
        return _pad_with_constants(x, widths, constant_values)
    if dims.is_dynamic(tuple(map(tuple, widths))):
        what = f"mode {mode!r} needs to know the widths"
        raise DimensionError("pad", what, got=str(pad_width), hint="static widths, or mode 'constant'")
    if mode in _ELEMENTS:
        odd = reflect_type == "odd" and mode in ("reflect", "symmetric")
        return _pad_with_reflections(x, widths, mode) if odd else _pad_with_elements(x, widths, mode)
    if mode == "linear_ramp":
        return _pad_with_ramps(x, widths, end_values)
    return _pad_with_statistics(x, widths, mode, stat_length)


def _widths(x: Array, pad_width: Any) -> list[list[int | Dim]]:
    """One pair of widths per axis."""
    if isinstance(pad_width, dict):
        pairs: Any = [(0, 0)] * x.ndim
        for axis, pair in pad_width.items():
            pairs[axis] = (pair, pair) if np.ndim(pair) == 0 else tuple(pair)
        pad_width = pairs
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    except ValueError:
        raise ShapeError("pad", f"the widths must be pairs for {x.ndim} axes", got=str(pad_width)) from None
    if any(not isinstance(width, int | Dim) or width < 0 for pair in widths for width in pair):
        raise ShapeError("pad", "the widths must be non-negative integers", got=str(pad_width))
    return widths


def _pairs(x: Array, values: Any) -> list[list[Any]]:
    """One pair of values per axis, of a value, a pair or pairs of numbers."""
    if isinstance(values, Array) and not values.ndim:
        return [[values, values]] * x.ndim
    return np.broadcast_to(np.asarray(values), (x.ndim, 2)).tolist()


def _pad_with_constants(x: Array, widths: list, values: Any) -> Array:
    if not np.ndim(values):
        return _pad_with_value(x, widths, values)
    for axis, (pair, ends) in enumerate(zip(widths, _pairs(x, values), strict=True)):
        for side, value in enumerate(ends):
            own = [(0, 0)] * x.ndim
            own[axis] = (pair[0], 0) if side == 0 else (0, pair[1])
            x = _pad_with_value(x, own, value)
    return x


def _pad_with_value(x: Array, widths: list, value: Any) -> Array:
    low, high = (tuple(pair[side] for pair in widths) for side in (0, 1))
    return ops.pad(x, convert("pad", value, x.dtype), low=low, high=high, interior=(0,) * x.ndim)


def _require_elements(x: Array, axis: int, mode: str) -> None:
    if not x.shape[axis]:
        raise ShapeError("pad", f"axis {axis} has no elements to pad with", got=repr(x.aval))
    if not isinstance(x.shape[axis], int):
        what = f"mode {mode!r} needs to know the size of axis {axis}"
        raise DimensionError("pad", what, got=repr(x.aval), hint="a static size, or mode 'constant'")


def _pad_with_elements(x: Array, widths: list, mode: str) -> Array:
    for axis, (before, after) in enumerate(widths):
        if not before and not after:
            continue
        size = x.shape[axis]
        needed = 1 if mode == "edge" else max(before, after) + (mode == "reflect")
        if dims.always_le(needed, size):
            ends = _ends(x, axis, before, after, mode)
            x = concat([part for part in (ends[0], x, ends[1]) if part.shape[axis]], axis)
            continue
        if not isinstance(size, int):
            what = f"mode {mode!r} needs at least {needed} elements along axis {axis}"
            raise DimensionError("pad", what, got=repr(x.aval), hint=f"a size with min={needed}")
        _require_elements(x, axis, mode)
        # NumPy pads the numbers of the elements; they say which ones to take.
        indices = np.pad(np.arange(size), (before, after), mode)  # type: ignore[call-overload]
        x = x[(slice(None),) * axis + (indices,)]
    return x


def _ends(x: Array, axis: int, before: int, after: int, mode: str) -> tuple[Array, Array]:
    """Elements that are put before and after a long enough axis."""
    size = x.shape[axis]
    part = lambda start, stop: x[(slice(None),) * axis + (slice(start, stop),)]
    if mode == "edge":
        shape = lambda width: (*x.shape[:axis], width, *x.shape[axis + 1 :])
        return broadcast_to(part(0, 1), shape(before)), broadcast_to(part(size - 1, size), shape(after))
    if mode == "wrap":
        return part(size - before, size), part(0, after)
    skipped = int(mode == "reflect")
    ends = part(skipped, skipped + before), part(size - skipped - after, size - skipped)
    return ops.flip(ends[0], axes=(axis,)), ops.flip(ends[1], axes=(axis,))


def _pad_with_reflections(x: Array, widths: list, mode: str) -> Array:
    """Odd reflections: at each edge the mirror image is subtracted from twice the value at the edge."""
    for axis, (before, after) in enumerate(widths):
        if not before and not after:
            continue
        _require_elements(x, axis, mode)
        lead = (slice(None),) * axis
        skipped = int(mode == "reflect")
        while before or after:
            size = x.shape[axis]
            if size == 1:
                x = x[(*lead, np.zeros(1 + before + after, np.int32))]
                break
            most = size - skipped
            left, right = min(before, most), min(after, most)
            first, last = x[(*lead, slice(0, 1))], x[(*lead, slice(size - 1, size))]
            parts = [x]
            if left:
                parts.insert(
                    0, subtract(multiply(first, 2), x[(*lead, np.arange(left - 1 + skipped, skipped - 1, -1))])
                )
            if right:
                ends = np.arange(size - 1 - skipped, size - 1 - skipped - right, -1)
                parts.append(subtract(multiply(last, 2), x[(*lead, ends)]))
            x = concat(parts, axis)
            before, after = before - left, after - right
    return x


def _pad_with_ramps(x: Array, widths: list, end_values: Any) -> Array:
    for axis, (pair, ends) in enumerate(zip(widths, _pairs(x, end_values), strict=True)):
        if not any(pair):
            continue
        _require_elements(x, axis, "linear_ramp")
        lead = (slice(None),) * axis
        parts = []
        for count, end, edge in zip(pair, ends, (x[(*lead, 0)], x[(*lead, -1)]), strict=True):
            ramp = linspace(convert("pad", end, x.dtype), edge, count, endpoint=False, axis=axis, dtype=x.dtype)
            parts.append(ramp)
        x = concat([parts[0], x, parts[1][(*lead, slice(None, None, -1))]], axis)
    return x


def _pad_with_statistics(x: Array, widths: list, mode: str, stat_length: Any) -> Array:
    lengths = [[None, None]] * x.ndim if stat_length is None else _pairs(x, stat_length)
    for axis, (pair, counts) in enumerate(zip(widths, lengths, strict=True)):
        if not any(pair):
            continue
        _require_elements(x, axis, mode)
        lead, size = (slice(None),) * axis, x.shape[axis]
        parts = []
        for side, (width, count) in enumerate(zip(pair, counts, strict=True)):
            count = size if count is None else min(int(count), size)
            if count < 1:
                raise ArgumentError("pad", "a statistic needs at least one element", got=f"stat_length={stat_length}")
            rows = x[(*lead, slice(0, count) if side == 0 else slice(size - count, size))]
            value = _STATISTICS[mode](rows, axis=axis, keepdims=True)
            if dtypes.is_integer(x.dtype) and dtypes.is_float(value.dtype):
                value = round(value)
            parts.append(broadcast_to(astype(value, x.dtype), (*x.shape[:axis], width, *x.shape[axis + 1 :])))
        x = concat([parts[0], x, parts[1]], axis)
    return x


def _pad_by_function(x: Array, widths: list, function: Callable[..., Any], kwargs: dict[str, Any]) -> Array:
    x = _pad_with_value(x, widths, 0)
    for axis, pair in enumerate(widths):
        rows = moveaxis(x, axis, -1)
        flat = reshape(rows, (-1, rows.shape[-1]))
        padded = [asarray(function(flat[i], tuple(pair), axis, kwargs), x.dtype) for i in range(flat.shape[0])]
        if padded:
            rows = reshape(stack(padded), rows.shape)
        x = moveaxis(rows, -1, axis)
    return x
