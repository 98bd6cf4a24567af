"""Convolution, interpolation, numerical derivatives and integrals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import arrays, asarray
from tvmfun.numpy.cumulative import cumsum
from tvmfun.numpy.data_types import astype, finfo
from tvmfun.numpy.elementwise import (
    abs,
    add,
    clip,
    divide,
    equal,
    greater,
    less,
    less_equal,
    logical_and,
    multiply,
    pow,
    remainder,
    subtract,
    where,
)
from tvmfun.numpy.indexing import take
from tvmfun.numpy.joining import concat, stack
from tvmfun.numpy.manipulation import flip, moveaxis, normalize_axes, normalize_axis, reshape
from tvmfun.numpy.precision import factors
from tvmfun.numpy.searching import searchsorted
from tvmfun.numpy.sorting import argsort
from tvmfun.numpy.statistical import sum
from tvmfun.numpy.utility import diff
from tvmfun.ops import conv

__all__ = [
    "convolve",
    "correlate",
    "gradient",
    "interp",
    "trapezoid",
    "unwrap",
    "vander",
]


def _sliding_products(name: str, x: Any, v: Any, mode: str, *, turned: bool) -> Array:
    """The products of all overlaps of two vectors, the second one perhaps turned around."""
    x, v = arrays(name, x, v, floating=True)
    if x.ndim != 1 or v.ndim != 1 or not x.size or not v.size:
        raise ShapeError(name, "both arrays must be vectors with elements", got=f"{x.aval} and {v.aval}")
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(name, "the mode is 'full', 'same' or 'valid'", got=repr(mode))
    swapped = x.size < v.size
    if swapped:
        x, v = v, x
    size = v.size
    kernel = flip(v) if turned else v
    around = {"full": (size - 1, size - 1), "same": (size // 2, (size - 1) // 2), "valid": (0, 0)}[mode]
    plain = {"stride": (1,), "dilation": (1,), "kernel_dilation": (1,), "groups": 1}
    rows, columns = reshape(x, (1, -1, 1)), reshape(kernel, (-1, 1, 1))
    result = reshape(conv.conv(rows, columns, padding=(around,), **plain), (-1,))
    return flip(result) if swapped and not turned else result


def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    r"""Returns :math:`\sum_k x_k v_{n-k}` for vectors, in floats, as JAX does.

    Args:
        a: a vector.
        v: another one.
        mode: ``"full"`` for every overlap, ``"same"`` for as many as the longer one has elements, ``"valid"`` for
            the complete ones.
        precision: accepted and without effect: float32 products are always exact float32.
        preferred_element_type: the dtype to multiply, to sum and to return in; by default that of the operands.

    >>> convolve([1, 2, 3], [1, 10])
    Array([ 1., 12., 23., 30.], dtype=float32)
    """
    a, v = factors("convolve", a, v, precision=precision, preferred_element_type=preferred_element_type)
    return _sliding_products("convolve", a, v, mode, turned=True)


def correlate(
    a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    r"""Returns :math:`\sum_k x_{n+k} v_k` for vectors, in floats; the arguments are those of :func:`convolve`."""
    a, v = factors("correlate", a, v, precision=precision, preferred_element_type=preferred_element_type)
    return _sliding_products("correlate", a, v, mode, turned=False)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Array:
    """Returns the values at ``x`` of the piecewise linear function through given points.

    Args:
        x: where.
        xp: the first coordinates of the points, increasing unless there is a period.
        fp: their second coordinates.
        left: the value before the first point; by default that of the point.
        right: the value behind the last point; by default that of the point.
        period: the period of the function.

    >>> interp(2.5, [1.0, 2.0, 3.0], [3.0, 2.0, 0.0])
    Array(1., dtype=float32)
    """
    x, xp, fp = arrays("interp", x, xp, fp, floating=True)
    if xp.shape != fp.shape or xp.ndim != 1 or not xp.size:
        raise ShapeError("interp", "the points must be given by two vectors of one size", got=f"{xp.aval}, {fp.aval}")
    if period is not None:
        period = abs(asarray(period, x.dtype))
        x, xp = remainder(x, period), remainder(xp, period)
        order = argsort(xp)
        xp, fp = take(xp, order, mode="promise_in_bounds"), take(fp, order, mode="promise_in_bounds")
        xp = concat([xp[-1:] - period, xp, xp[:1] + period])
        fp = concat([fp[-1:], fp, fp[:1]])
    place = clip(searchsorted(xp, x, side="right"), 1, max(xp.size - 1, 1))
    x0, x1, f0, f1 = (take(points, p, mode="promise_in_bounds") for points in (xp, fp) for p in (place - 1, place))
    step = subtract(x1, x0)
    same = less_equal(abs(step), float(finfo(x.dtype).smallest_subnormal))
    slope = divide(subtract(f1, f0), where(same, 1, step))
    result = where(same, f0, add(f0, multiply(subtract(x, x0), slope)))
    if period is None:
        result = where(less(x, xp[0]), fp[0] if left is None else left, result)
        result = where(greater(x, xp[-1]), fp[-1] if right is None else right, result)
    return result


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int | None = None) -> Any:
    """Returns the derivatives along axes by differences, central ones inside and one-sided ones at the ends.

    Args:
        f: the values of a function.
        varargs: the distance of the values, or their coordinates: none (1), one for all axes, or one for each.
        axis: one axis or several; by default all.
        edge_order: of the differences at the ends: 1.

    Returns:
        An array, or a list of them for several axes.

    >>> gradient([1.0, 2.0, 4.0])
    Array([1. , 1.5, 2. ], dtype=float32)
    """
    f = asarray(f)
    if not dtypes.is_float(f.dtype):
        f = astype(f, dtypes.DEFAULT_FLOAT)
    axes = normalize_axes("gradient", axis, f.ndim)
    if edge_order not in (None, 1):
        raise ArgumentError(
            "gradient", "the differences at the ends are of first order", got=f"edge_order={edge_order}"
        )
    distances = varargs * len(axes) if len(varargs) == 1 else varargs or (1.0,) * len(axes)
    if len(distances) != len(axes):
        raise ArgumentError("gradient", f"there must be one spacing, or {len(axes)}", got=str(len(varargs)))
    results = [_slope(f, place, distance) for place, distance in zip(axes, distances, strict=True)]
    return results[0] if len(results) == 1 else results


def _slope(x: Array, axis: int, spacing: Any) -> Array:
    rows = moveaxis(x, axis, -1)
    if rows.shape[-1] < 2:
        raise ShapeError("gradient", f"there must be two elements along axis {axis}", got=repr(x.aval))
    steps = rows[..., 1:] - rows[..., :-1]
    if not np.ndim(spacing):
        inner = (rows[..., 2:] - rows[..., :-2]) / (2 * spacing)
        ends = steps[..., :1] / spacing, steps[..., -1:] / spacing
    else:
        spacing = asarray(spacing)
        if spacing.shape != rows.shape[-1:]:
            raise ShapeError("gradient", f"there must be {rows.shape[-1]} coordinates", got=repr(spacing.aval))
        widths = diff(spacing)
        before, after = widths[:-1], widths[1:]
        slopes = steps / widths
        inner = (slopes[..., :-1] * after + slopes[..., 1:] * before) / (before + after)
        ends = slopes[..., :1], slopes[..., -1:]
    return moveaxis(concat([ends[0], inner, ends[1]], -1), -1, axis)


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """Returns the integral of values by the trapezoidal rule.

    Args:
        y: the values.
        x: their coordinates: a vector, or of the shape of ``y``.
        dx: their distance, if there are no coordinates.
        axis: the axis to integrate along.

    >>> trapezoid([1.0, 2.0, 3.0])
    Array(4., dtype=float32)
    """
    y = asarray(y)
    if not dtypes.is_float(y.dtype):
        y = astype(y, dtypes.DEFAULT_FLOAT)
    y = moveaxis(y, axis, -1)
    if x is not None:
        x = asarray(x)
        dx = diff(x if x.ndim == 1 else moveaxis(x, axis, -1))
    return multiply(sum(multiply(y[..., 1:] + y[..., :-1], dx), -1), 0.5)


def unwrap(p: Any, discont: Any = None, axis: int = -1, period: float = 2 * math.pi) -> Array:
    """Returns angles without jumps: multiples of the period are added where neighbours are more than half of it apart.

    Args:
        p: the angles.
        discont: the smallest difference that is a jump; by default half the period.
        axis: the axis along which they are neighbours.
        period: the period.

    >>> unwrap([0.0, 3.0, -3.0])
    Array([0.       , 3.       , 3.2831855], dtype=float32)
    """
    p = asarray(p)
    axis = normalize_axis("unwrap", axis, p.ndim)
    if not p.shape[axis]:
        return p
    half = period / 2
    jump = diff(p, axis=axis)
    short = remainder(jump + half, period) - half
    short = where(logical_and(equal(short, -half), greater(jump, 0)), half, short)
    moved = where(less(abs(jump), half if discont is None else discont), 0, short - jump)
    lead = (slice(None),) * axis
    return concat([p[(*lead, slice(0, 1))], p[(*lead, slice(1, None))] + cumsum(moved, axis)], axis)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Array:
    """Returns the matrix whose columns are the powers of a vector, by default from the highest to 0.

    >>> vander([2, 3], 3)
    Array([[4, 2, 1],
           [9, 3, 1]], dtype=int32)
    """
    x = asarray(x)
    if x.ndim != 1:
        raise ShapeError("vander", "the argument must be a vector", got=repr(x.aval))
    count = x.size if N is None else N
    powers = range(count) if increasing else range(count - 1, -1, -1)
    return stack([pow(x, k) for k in powers], 1) if count else reshape(x[:0], (x.size, 0))
