"""Reductions over some axes or all of them."""

from __future__ import annotations

import math
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.elementwise import astype, divide, logical_not, not_equal, sqrt, square, subtract
from tvmfun.numpy.manipulation import Axes, normalize_axes, normalize_axis, reshape
from tvmfun.ops import reduce as ops


def _keep(result: Array, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if not keepdims:
        return result
    return reshape(result, tuple(1 if i in axes else size for i, size in enumerate(x.shape)))


def _accumulated(x: Array) -> Array:
    """Sums of narrow integers are 32 bits wide."""
    if x.dtype == dtypes.bool_ or (dtypes.is_integer(x.dtype) and x.dtype.itemsize < 4):
        return astype(x, dtypes.uint32 if x.dtype in dtypes.UNSIGNED else dtypes.int32)
    return x


def sum(x: Any, /, *, axis: Axes | None = None, dtype: Any = None, keepdims: bool = False) -> Array:
    r"""Returns :math:`\sum x`; narrow integers and bools are summed as 32 bits.

    >>> sum([[1, 2], [3, 4]], axis=0)
    Array([4, 6], dtype=int32)
    """
    x = asarray(x)
    x = _accumulated(x) if dtype is None else astype(x, dtype)
    axes = normalize_axes("sum", axis, x.ndim)
    return _keep(ops.sum(x, axis=axes), x, axes, keepdims)


def prod(x: Any, /, *, axis: Axes | None = None, dtype: Any = None, keepdims: bool = False) -> Array:
    r"""Returns :math:`\prod x`; narrow integers and bools are multiplied as 32 bits."""
    x = asarray(x)
    x = _accumulated(x) if dtype is None else astype(x, dtype)
    axes = normalize_axes("prod", axis, x.ndim)
    return _keep(ops.prod(x, axis=axes), x, axes, keepdims)


def _extremum(op: Any, x: Any, axis: Axes | None, keepdims: bool) -> Array:
    x = asarray(x)
    axes = normalize_axes(op.name, axis, x.ndim)
    if x.dtype == dtypes.bool_:
        return astype(_keep(op(astype(x, dtypes.uint8), axis=axes), x, axes, keepdims), dtypes.bool_)
    return _keep(op(x, axis=axes), x, axes, keepdims)


def max(x: Any, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Returns the largest element; NaN if there is one.

    Raises:
        ShapeError: if there are no elements.
    """
    return _extremum(ops.max, x, axis, keepdims)


def min(x: Any, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Returns the smallest element; NaN if there is one.

    Raises:
        ShapeError: if there are no elements.
    """
    return _extremum(ops.min, x, axis, keepdims)


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[i] for i in axes)


def mean(x: Any, /, *, axis: Axes | None = None, dtype: Any = None, keepdims: bool = False) -> Array:
    r"""Returns :math:`\bar x = \frac{1}{n} \sum x`, a float."""
    x = asarray(x)
    x = (
        astype(x, dtype)
        if dtype is not None
        else x
        if dtypes.is_float(x.dtype)
        else astype(x, dtypes.DEFAULT_FLOAT)
    )
    axes = normalize_axes("mean", axis, x.ndim)
    count = _count(x, axes)
    return divide(sum(x, axis=axes, keepdims=keepdims), count or float("nan"))


def var(
    x: Any,
    /,
    *,
    axis: Axes | None = None,
    correction: float = 0,
    ddof: float | None = None,
    keepdims: bool = False,
) -> Array:
    r"""Returns :math:`\frac{1}{n - c} \sum (x - \bar x)^2` with :math:`c` the correction (NumPy's ``ddof``)."""
    x = asarray(x)
    axes = normalize_axes("var", axis, x.ndim)
    total = sum(square(subtract(x, mean(x, axis=axes, keepdims=True))), axis=axes, keepdims=keepdims)
    remaining = _count(x, axes) - (correction if ddof is None else ddof)
    return divide(total, remaining if remaining > 0 else float("nan"))


def std(
    x: Any,
    /,
    *,
    axis: Axes | None = None,
    correction: float = 0,
    ddof: float | None = None,
    keepdims: bool = False,
) -> Array:
    """Returns the square root of :func:`var`."""
    return sqrt(var(x, axis=axis, correction=correction, ddof=ddof, keepdims=keepdims))


def any(x: Any, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Returns whether an element is non-zero; false if there are none."""
    x = asarray(x)
    axes = normalize_axes("any", axis, x.ndim)
    count = ops.sum(astype(not_equal(x, 0), dtypes.int32), axis=axes)
    return _keep(not_equal(count, 0), x, axes, keepdims)


def all(x: Any, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Returns whether all elements are non-zero; true if there are none."""
    return logical_not(any(logical_not(x), axis=axis, keepdims=keepdims))


def _arg(op: Any, x: Any, axis: int | None, keepdims: bool) -> Array:
    x = asarray(x)
    if x.dtype == dtypes.bool_:
        x = astype(x, dtypes.uint8)
    if axis is None:
        if not x.size:
            raise ShapeError(op.name, "there is no element", got=repr(x.aval))
        flat = op(reshape(x, (-1,)), axis=0)
        return reshape(flat, (1,) * x.ndim) if keepdims else flat
    place = normalize_axis(op.name, axis, x.ndim)
    return _keep(op(x, axis=place), x, (place,), keepdims)


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first largest element, along an axis or of the flattened array."""
    return _arg(ops.argmax, x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first smallest element, along an axis or of the flattened array."""
    return _arg(ops.argmin, x, axis, keepdims)


def count_nonzero(x: Any, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Returns the number of elements that are not 0."""
    return sum(not_equal(asarray(x), 0), axis=axis, keepdims=keepdims)
