"""Cumulative sums and products, differences, gradients and integrals along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import arrays, asarray, full
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import multiply, not_equal, subtract, where
from tvmfun.numpy.floats import isnan
from tvmfun.numpy.promotion import NestedArrayLike, no_out
from tvmfun.numpy.reductions import accumulated, sum
from tvmfun.numpy.shapes import broadcast_to, concat, moveaxis, normalize_axes, normalize_axis, ravel
from tvmfun.ops import cumulative as ops
from tvmfun.typing import DTypeLike

__all__ = [
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "ediff1d",
    "gradient",
    "nancumprod",
    "nancumsum",
    "trapezoid",
]


def _running(name: str, op: Op, x: Any, axis: int | None, dtype: Any) -> Array:
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    if dtype is None and x.dtype == dtypes.bool_:
        dtype = dtypes.DEFAULT_INT
    x = x if dtype is None else astype(x, dtype)
    return op(x, axis=normalize_axis(name, axis, x.ndim), reverse=False)


def _with_initial(name: str, op: Op, start: int, x: Any, axis: int | None, dtype: Any, include: bool) -> Array:
    x = asarray(x)
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(name, "an array with several axes needs one to run along", got=repr(x.aval))
        axis = 0
    result = _running(name, op, accumulated(x, dtype), axis, None)
    if not include:
        return result
    axis = normalize_axis(name, axis, x.ndim)
    first = full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), start, result.dtype)
    return concat([first, result], axis)


def cumulative_sum(
    x: NestedArrayLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Array:
    """Returns the sums of all elements up to each one along an axis.

    Args:
        x: the array; narrow integers and bools are summed as 32 bits.
        axis: the axis; may be missing for a vector.
        dtype: in which to sum.
        include_initial: whether 0 comes first.

    >>> cumulative_sum([1, 2, 3], include_initial=True)
    Array([0, 1, 3, 6], dtype=int32)
    """
    return _with_initial("cumulative_sum", ops.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: NestedArrayLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Array:
    """Returns the products of all elements up to each one along an axis.

    Args:
        x: the array; narrow integers and bools are multiplied as 32 bits.
        axis: the axis; may be missing for a vector.
        dtype: in which to multiply.
        include_initial: whether 1 comes first.

    >>> cumulative_prod([1, 2, 3])
    Array([1, 2, 6], dtype=int32)
    """
    return _with_initial("cumulative_prod", ops.cumprod, 1, x, axis, dtype, include_initial)


def cumsum(a: NestedArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
    """Returns the sums of all elements up to each one along an axis, by default of the flattened array.

    The dtype stays, unless another one is given; bools are summed as int32.
    """
    no_out("cumsum", out)
    return _running("cumsum", ops.cumsum, a, axis, dtype)


def cumprod(a: NestedArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
    """Returns the products of all elements up to each one along an axis, by default of the flattened array.

    The dtype stays, unless another one is given; bools are multiplied as int32.
    """
    no_out("cumprod", out)
    return _running("cumprod", ops.cumprod, a, axis, dtype)


def _without_nan(x: Any, otherwise: int) -> Array:
    x = asarray(x)
    return where(isnan(x), otherwise, x) if dtypes.is_float(x.dtype) else x


def nancumsum(a: NestedArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
    """Returns the running sums with NaN as 0; see :func:`cumsum`."""
    no_out("nancumsum", out)
    return cumsum(_without_nan(a, 0), axis, dtype)


def nancumprod(a: NestedArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
    """Returns the running products with NaN as 1; see :func:`cumprod`."""
    no_out("nancumprod", out)
    return cumprod(_without_nan(a, 1), axis, dtype)


def diff(
    a: NestedArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: NestedArrayLike | None = None,
    append: NestedArrayLike | None = None,
) -> Array:
    """Returns the n-th differences of neighbours along an axis.

    Args:
        a: the array; of bools, a difference says whether neighbours differ.
        n: how often to take differences.
        axis: the axis.
        prepend: what to put before the array first: an array, or one number.
        append: what to put after it.

    >>> diff([1, 4, 9])
    Array([3, 5], dtype=int32)
    """
    a = asarray(a)
    if n < 0:
        raise ArgumentError("diff", "the number of differences must not be negative", got=str(n))
    if n == 0:
        return a
    axis = normalize_axis("diff", axis, a.ndim)
    edge = (*a.shape[:axis], 1, *a.shape[axis + 1 :])
    parts = arrays("diff", *(v for v in (prepend, a, append) if v is not None))
    a = concat([v if v.ndim else broadcast_to(v, edge) for v in parts], axis)
    lead = (slice(None),) * axis
    apart = not_equal if a.dtype == dtypes.bool_ else subtract
    for _ in range(n):
        a = apart(a[(*lead, slice(1, None))], a[(*lead, slice(None, -1))])
    return a


def ediff1d(
    ary: NestedArrayLike, to_end: NestedArrayLike | None = None, to_begin: NestedArrayLike | None = None
) -> Array:
    """Returns the differences of neighbours of the flattened array, with more elements around them."""
    ary = ravel(ary)
    first, last = (None if v is None else ravel(asarray(v, ary.dtype)) for v in (to_begin, to_end))
    return concat([part for part in (first, diff(ary), last) if part is not None])


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
    results = [_slope(f, number, distance) for number, distance in zip(axes, distances, strict=True)]
    return results[0] if len(results) == 1 else results


def _as_coordinates(x: Array, y: Array) -> Array:
    """The coordinates of float values as floats: differences of integers may overflow."""
    return x if dtypes.is_float(x.dtype) else astype(x, y.dtype)


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
        widths = diff(_as_coordinates(spacing, x))
        before, after = widths[:-1], widths[1:]
        slopes = steps / widths
        inner = (slopes[..., :-1] * after + slopes[..., 1:] * before) / (before + after)
        ends = slopes[..., :1], slopes[..., -1:]
    return moveaxis(concat([ends[0], inner, ends[1]], -1), -1, axis)


def trapezoid(y: NestedArrayLike, x: NestedArrayLike | None = None, dx: Any = 1.0, axis: int = -1) -> Array:
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
        x = _as_coordinates(asarray(x), y)
        dx = diff(x if x.ndim == 1 else moveaxis(x, axis, -1))
    return multiply(sum(multiply(y[..., 1:] + y[..., :-1], dx), -1), 0.5)
