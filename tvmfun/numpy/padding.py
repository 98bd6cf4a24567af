"""Elements put around an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DimensionError, ShapeError
from tvmfun.numpy import statistical
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import multiply, round, subtract
from tvmfun.numpy.joining import concat, stack
from tvmfun.numpy.manipulation import broadcast_to, moveaxis, reshape
from tvmfun.numpy.order_statistics import median
from tvmfun.numpy.promotion import convert
from tvmfun.numpy.ranges import linspace
from tvmfun.ops import shape as ops

__all__ = [
    "pad",
]

_STATISTICS: dict[str, Callable[..., Array]] = {
    "maximum": statistical.max,
    "mean": statistical.mean,
    "median": median,
    "minimum": statistical.min,
}
_ELEMENTS = ("edge", "reflect", "symmetric", "wrap")
_MODES = ("constant", "empty", "linear_ramp", *_STATISTICS, *_ELEMENTS)


def pad(
    array: Any,
    pad_width: Any,
    mode: Any = "constant",
    *,
    constant_values: Any = 0,
    stat_length: Any = None,
    end_values: Any = 0,
    reflect_type: str = "even",
    **kwargs: Any,
) -> Array:
    """Returns the array with elements around it.

    Args:
        array: the array.
        pad_width: how many: a number, ``(before, after)``, one such pair per axis, or a dictionary of axes and these.
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
    if mode in _ELEMENTS:
        odd = reflect_type == "odd" and mode in ("reflect", "symmetric")
        return _pad_with_reflections(x, widths, mode) if odd else _pad_with_elements(x, widths, mode)
    if mode == "linear_ramp":
        return _pad_with_ramps(x, widths, end_values)
    return _pad_with_statistics(x, widths, mode, stat_length)


def _widths(x: Array, pad_width: Any) -> list[list[int]]:
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
    if any(not isinstance(width, int) or width < 0 for pair in widths for width in pair):
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
    for axis, pair in enumerate(widths):
        if any(pair):
            _require_elements(x, axis, mode)
            # NumPy pads the numbers of the elements; they say which ones to take.
            places = np.pad(np.arange(x.shape[axis]), pair, mode)  # type: ignore[call-overload]
            x = x[(slice(None),) * axis + (places,)]
    return x


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
