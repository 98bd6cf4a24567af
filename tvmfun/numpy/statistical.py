"""Reductions over some axes or all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.elementwise import astype, divide, logical_not, not_equal, sqrt, square, subtract
from tvmfun.numpy.manipulation import Axes, normalize_axes, normalize_axis, reshape
from tvmfun.ops import reduce as ops


def _keep(result: Array, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if not keepdims:
        return result
    return reshape(result, tuple(1 if i in axes else size for i, size in enumerate(x.shape)))


def _accumulated(x: Array, dtype: Any) -> Array:
    """``x`` in the dtype of its sum: sums of narrow integers are 32 bits wide."""
    if dtype is None and x.dtype.itemsize < 4 and not dtypes.is_float(x.dtype):
        dtype = dtypes.uint32 if x.dtype in dtypes.UNSIGNED else dtypes.int32
    return x if dtype is None else astype(x, dtype)


def sum(x: Any, /, axis: Axes | None = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
    r"""Returns :math:`\sum x`; narrow integers and bools are summed as 32 bits.

    >>> sum([[1, 2], [3, 4]], axis=0)
    Array([4, 6], dtype=int32)
    """
    x = _accumulated(asarray(x), dtype)
    axes = normalize_axes("sum", axis, x.ndim)
    return _keep(ops.sum(x, axis=axes), x, axes, keepdims)


def prod(x: Any, /, axis: Axes | None = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
    r"""Returns :math:`\prod x`; narrow integers and bools are multiplied as 32 bits."""
    x = _accumulated(asarray(x), dtype)
    axes = normalize_axes("prod", axis, x.ndim)
    return _keep(ops.prod(x, axis=axes), x, axes, keepdims)


def _extremum(op: Op, x: Any, axis: Axes | None, keepdims: bool) -> Array:
    x = asarray(x)
    axes = normalize_axes(op.name, axis, x.ndim)
    if x.dtype == dtypes.bool_:
        return astype(_keep(op(astype(x, dtypes.uint8), axis=axes), x, axes, keepdims), dtypes.bool_)
    return _keep(op(x, axis=axes), x, axes, keepdims)


def max(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns the largest element; NaN if there is one.

    Raises:
        ShapeError: if there are no elements.
    """
    return _extremum(ops.max, x, axis, keepdims)


def min(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns the smallest element; NaN if there is one.

    Raises:
        ShapeError: if there are no elements.
    """
    return _extremum(ops.min, x, axis, keepdims)


def _averaged(name: str, x: Any, dtype: Any, average: Callable[[Array], Array]) -> Array:
    """An average in the dtype of ``x`` or ``dtype``; that of narrower floats is computed in float32."""
    x = asarray(x)
    default = x.dtype if dtypes.is_float(x.dtype) else dtypes.DEFAULT_FLOAT
    kind = default if dtype is None else dtypes.canonical(dtype)
    if not dtypes.is_float(kind):
        raise DtypeError(name, "the dtype must be a float", got=dtypes.NAMES[kind])
    if x.dtype != kind or kind.itemsize < 4:
        x = astype(x, kind if kind.itemsize >= 4 else dtypes.float32)
    result = average(x)
    return result if result.dtype == kind else astype(result, kind)


def _over(total: Array, count: float) -> Array:
    """The total divided by a number of elements, NaN if there are none."""
    return divide(total, count if count > 0 else math.nan)


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[i] for i in axes)


def mean(x: Any, /, axis: Axes | None = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
    r"""Returns :math:`\bar x = \frac{1}{n} \sum x`, a float.

    >>> mean([[1, 2], [3, 5]], axis=1)
    Array([1.5, 4. ], dtype=float32)
    """

    def average(x: Array) -> Array:
        axes = normalize_axes("mean", axis, x.ndim)
        return _over(sum(x, axes, keepdims=keepdims), _count(x, axes))

    return _averaged("mean", x, dtype, average)


def _variance(x: Array, axis: Axes | None, correction: float, keepdims: bool) -> Array:
    axes = normalize_axes("var", axis, x.ndim)
    squares = square(subtract(x, mean(x, axes, keepdims=True)))
    return _over(sum(squares, axes, keepdims=keepdims), _count(x, axes) - correction)


def var(
    x: Any,
    /,
    axis: Axes | None = None,
    dtype: Any = None,
    *,
    correction: float = 0,
    ddof: float | None = None,
    keepdims: bool = False,
) -> Array:
    r"""Returns :math:`\frac{1}{n - c} \sum (x - \bar x)^2`, a float.

    Args:
        x: the array.
        axis: one axis or several; by default all.
        dtype: of the result.
        correction: the number :math:`c`; 1 makes the estimate unbiased.
        ddof: NumPy's name of ``correction``.
        keepdims: whether the axes stay, with size 1.
    """
    correction = correction if ddof is None else ddof
    return _averaged("var", x, dtype, lambda x: _variance(x, axis, correction, keepdims))


def std(
    x: Any,
    /,
    axis: Axes | None = None,
    dtype: Any = None,
    *,
    correction: float = 0,
    ddof: float | None = None,
    keepdims: bool = False,
) -> Array:
    """Returns the square root of :func:`var`, which takes the same arguments."""
    correction = correction if ddof is None else ddof
    return _averaged("std", x, dtype, lambda x: sqrt(_variance(x, axis, correction, keepdims)))


def any(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns whether an element is non-zero; false if there are none."""
    x = asarray(x)
    axes = normalize_axes("any", axis, x.ndim)
    count = ops.sum(astype(not_equal(x, 0), dtypes.int32), axis=axes)
    return _keep(not_equal(count, 0), x, axes, keepdims)


def all(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns whether all elements are non-zero; true if there are none."""
    x = asarray(x)
    axes = normalize_axes("all", axis, x.ndim)
    return logical_not(any(logical_not(x), axes, keepdims=keepdims))


def _arg(op: Op, x: Any, axis: int | None, keepdims: bool) -> Array:
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


def argmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first largest element, along an axis or of the flattened array.

    Raises:
        ShapeError: if there are no elements.

    >>> argmax([1, 3, 3])
    Array(1, dtype=int32)
    """
    return _arg(ops.argmax, x, axis, keepdims)


def argmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first smallest element, along an axis or of the flattened array.

    Raises:
        ShapeError: if there are no elements.
    """
    return _arg(ops.argmin, x, axis, keepdims)


def count_nonzero(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns the number of elements that are not 0, as int32."""
    x = asarray(x)
    axes = normalize_axes("count_nonzero", axis, x.ndim)
    return sum(not_equal(x, 0), axes, keepdims=keepdims)
