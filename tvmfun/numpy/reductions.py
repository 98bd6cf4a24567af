"""Sums, products, extrema, averages and tests over some axes or all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.dims import Dim
from tvmfun.core.op import Op
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.numpy import elementwise
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import (
    add,
    divide,
    equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    multiply,
    not_equal,
    renamed,
    sqrt,
    square,
    subtract,
)
from tvmfun.numpy.floats import isclose, isnan
from tvmfun.numpy.promotion import NestedArrayLike, convert, no_out
from tvmfun.numpy.shapes import Axes, broadcast_to, normalize_axes, reshape
from tvmfun.ops import reduce as ops
from tvmfun.typing import DTypeLike

__all__ = [
    "all",
    "allclose",
    "amax",
    "amin",
    "any",
    "array_equal",
    "array_equiv",
    "average",
    "max",
    "mean",
    "min",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "prod",
    "ptp",
    "std",
    "sum",
    "var",
]


def keep(result: Array, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """A reduced ``x``, if wanted with its reduced axes as size 1."""
    if not keepdims:
        return result
    return reshape(result, tuple(1 if i in axes else size for i, size in enumerate(x.shape)))


def selected(x: Array, where: Any, otherwise: Any) -> Array:
    """``x`` with a neutral element where a mask, if there is one, is false."""
    return x if where is None else elementwise.where(where, x, convert("where", otherwise, x.dtype))


def accumulated(x: Array, dtype: Any) -> Array:
    """``x`` in the dtype of its sum: sums of narrow integers are 32 bits wide."""
    if dtype is None and x.dtype.itemsize < 4 and not dtypes.is_float(x.dtype):
        dtype = dtypes.uint32 if x.dtype in dtypes.UNSIGNED else dtypes.int32
    return x if dtype is None else astype(x, dtype)


def sum(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: NestedArrayLike | None = None,
    where: NestedArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    r"""Returns :math:`\sum x`; narrow integers and bools are summed as 32 bits.

    Args:
        a: the array.
        axis: one axis or several; by default all.
        dtype: in which to sum.
        out: must be None: arrays are immutable.
        keepdims: whether the axes stay, with size 1.
        initial: what to add to the sum.
        where: a mask of the elements to sum; by default all.
        promote_integers: False to sum narrow integers in their own dtype.

    >>> sum([[1, 2], [3, 4]], axis=0)
    Array([4, 6], dtype=int32)
    """
    no_out("sum", out)
    a = accumulated(asarray(a), dtype) if promote_integers else asarray(a, dtype)
    axes = normalize_axes("sum", axis, a.ndim)
    result = keep(ops.sum(selected(a, where, 0), axis=axes), a, axes, keepdims)
    return result if initial is None else add(result, convert("sum", initial, a.dtype))


def prod(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: NestedArrayLike | None = None,
    where: NestedArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    r"""Returns :math:`\prod x`; narrow integers and bools are multiplied as 32 bits. See :func:`sum`."""
    no_out("prod", out)
    a = accumulated(asarray(a), dtype) if promote_integers else asarray(a, dtype)
    axes = normalize_axes("prod", axis, a.ndim)
    result = keep(ops.prod(selected(a, where, 1), axis=axes), a, axes, keepdims)
    return result if initial is None else multiply(result, convert("prod", initial, a.dtype))


def _extremum(op: Op, join: Callable, x: Any, axis: Axes | None, keepdims: bool, initial: Any, where: Any) -> Array:
    x = asarray(x)
    if where is not None and initial is None:
        raise ArgumentError(op.name, "a mask needs an initial value, in case it is false everywhere", hint="initial=")
    if x.dtype == dtypes.bool_:
        start = None if initial is None else int(initial)
        return astype(_extremum(op, join, astype(x, dtypes.uint8), axis, keepdims, start, where), dtypes.bool_)
    axes = normalize_axes(op.name, axis, x.ndim)
    if initial is None:
        return keep(op(x, axis=axes), x, axes, keepdims)
    start = convert(op.name, initial, x.dtype)
    shape = tuple(size for i, size in enumerate(x.shape) if i not in axes)
    if math.prod(x.shape[i] for i in axes):
        start = join(op(selected(x, where, start), axis=axes), start)
    return keep(broadcast_to(start, shape), x, axes, keepdims)


def max(
    a: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: NestedArrayLike | None = None,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns the largest element; NaN if there is one.

    Args:
        a: the array.
        axis: one axis or several; by default all.
        out: must be None: arrays are immutable.
        keepdims: whether the axes stay, with size 1.
        initial: the result is not less; needed if there may be no element.
        where: a mask of the elements to look at; by default all.

    Raises:
        ShapeError: if there are no elements and no ``initial``.
    """
    no_out("max", out)
    return _extremum(ops.max, maximum, a, axis, keepdims, initial, where)


def min(
    a: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: NestedArrayLike | None = None,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns the smallest element; NaN if there is one. The arguments are as for :func:`max`.

    Raises:
        ShapeError: if there are no elements and no ``initial``.
    """
    no_out("min", out)
    return _extremum(ops.min, minimum, a, axis, keepdims, initial, where)


def ptp(a: NestedArrayLike, axis: Axes | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the difference of the largest and the smallest element."""
    no_out("ptp", out)
    return subtract(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


def averaged(name: str, x: Any, dtype: Any, average: Callable[[Array], Array]) -> Array:
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


def _divide_by_count(total: Array, count: Any) -> Array:
    """The total divided by a number of elements, NaN if there are none."""
    if isinstance(count, Array) or (isinstance(count, Dim) and not dims.always_le(1, count)):
        return divide(total, elementwise.where(asarray(count) > 0, count, math.nan))
    return divide(total, count if count > 0 else math.nan)


def _count(x: Array, axes: tuple[int, ...], where: Any, keepdims: bool) -> Any:
    """The number of elements along the axes, for each result if a mask selects them."""
    if where is None:
        return math.prod(x.shape[i] for i in axes)
    mask = broadcast_to(elementwise.where(where, x.dtype.type(1), x.dtype.type(0)), x.shape)
    return sum(mask, axes, keepdims=keepdims)


def mean(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: NestedArrayLike | None = None,
) -> Array:
    r"""Returns :math:`\bar x = \frac{1}{n} \sum x`, a float.

    Args:
        a: the array.
        axis: one axis or several; by default all.
        dtype: of the result.
        out: must be None: arrays are immutable.
        keepdims: whether the axes stay, with size 1.
        where: a mask of the elements to average; by default all.

    >>> mean([[1, 2], [3, 5]], axis=1)
    Array([1.5, 4. ], dtype=float32)
    """
    no_out("mean", out)

    def average(x: Array) -> Array:
        axes = normalize_axes("mean", axis, x.ndim)
        return _divide_by_count(sum(x, axes, keepdims=keepdims, where=where), _count(x, axes, where, keepdims))

    return averaged("mean", a, dtype, average)


def _variance(x: Array, axis: Axes | None, correction: float, keepdims: bool, where: Any, centre: Any) -> Array:
    axes = normalize_axes("var", axis, x.ndim)
    centre = mean(x, axes, keepdims=True, where=where) if centre is None else convert("var", centre, x.dtype)
    # Masked elements may be NaN; they are replaced before the square, for the sake of its derivative.
    centred = selected(subtract(x, centre), where, 0)
    return _divide_by_count(
        sum(square(centred), axes, keepdims=keepdims), _count(x, axes, where, keepdims) - correction
    )


def var(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float | None = None,
    keepdims: bool = False,
    *,
    where: NestedArrayLike | None = None,
    mean: NestedArrayLike | None = None,
    correction: float = 0,
) -> Array:
    r"""Returns :math:`\frac{1}{n - c} \sum (x - \bar x)^2`, a float.

    Args:
        a: the array.
        axis: one axis or several; by default all.
        dtype: of the result.
        out: must be None: arrays are immutable.
        ddof: NumPy's name of ``correction``.
        keepdims: whether the axes stay, with size 1.
        where: a mask of the elements to look at; by default all.
        mean: the mean, if it is known, with the reduced axes as size 1.
        correction: the number :math:`c`; 1 makes the estimate unbiased.
    """
    no_out("var", out)
    correction = correction if ddof is None else ddof
    return averaged("var", a, dtype, lambda x: _variance(x, axis, correction, keepdims, where, mean))


def std(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float | None = None,
    keepdims: bool = False,
    *,
    where: NestedArrayLike | None = None,
    mean: NestedArrayLike | None = None,
    correction: float = 0,
) -> Array:
    """Returns the square root of :func:`var`, which takes the same arguments."""
    no_out("std", out)
    correction = correction if ddof is None else ddof
    return averaged("std", a, dtype, lambda x: sqrt(_variance(x, axis, correction, keepdims, where, mean)))


def average(
    a: NestedArrayLike,
    axis: Axes | None = None,
    weights: NestedArrayLike | None = None,
    returned: bool = False,
    keepdims: bool = False,
) -> Any:
    r"""Returns :math:`\sum w x / \sum w`.

    Args:
        a: the array.
        axis: one axis or several; by default all.
        weights: of the shape of ``a``, or a vector along one axis; by default all are 1.
        returned: whether to return the sum of the weights as well.
        keepdims: whether the axes stay, with size 1.

    >>> average([1.0, 4.0], weights=[2, 1])
    Array(2., dtype=float32)
    """
    a = asarray(a)
    axes = normalize_axes("average", axis, a.ndim)
    if weights is None:
        result = mean(a, axes, keepdims=keepdims)
        total = broadcast_to(asarray(result.dtype.type(math.prod(a.shape[i] for i in axes))), result.shape)
        return (result, total) if returned else result
    weights = asarray(weights)
    if weights.shape != a.shape:
        if len(axes) != 1 or weights.shape != (a.shape[axes[0]],):
            raise ArgumentError(
                "average", "the weights have the shape of the array, or of the axis", got=f"{weights.aval}, {a.aval}"
            )
        weights = reshape(weights, (-1,) + (1,) * (a.ndim - axes[0] - 1))
    products = multiply(a, weights)
    kind = products.dtype if dtypes.is_float(products.dtype) else dtypes.DEFAULT_FLOAT
    weights = broadcast_to(astype(weights, kind), a.shape)
    total = sum(weights, axes, keepdims=keepdims)
    result = divide(sum(astype(products, kind), axes, keepdims=keepdims), total)
    return (result, total) if returned else result


def numbers(x: Any, where: Any = None) -> tuple[Array, Any]:
    """The array, and a mask of the numbers where ``where`` is true; None if everything is."""
    x = asarray(x)
    if not dtypes.is_float(x.dtype):
        return x, where
    numbers = logical_not(isnan(x))
    return x, numbers if where is None else logical_and(numbers, where)


def nansum(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: NestedArrayLike | None = None,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns the sum of the elements that are not NaN; see :func:`sum`."""
    no_out("nansum", out)
    a, mask = numbers(a, where)
    return sum(a, axis, dtype, keepdims=keepdims, initial=initial, where=mask)


def nanprod(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: NestedArrayLike | None = None,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns the product of the elements that are not NaN; see :func:`prod`."""
    no_out("nanprod", out)
    a, mask = numbers(a, where)
    return prod(a, axis, dtype, keepdims=keepdims, initial=initial, where=mask)


def nanmean(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns the mean of the elements that are not NaN; NaN if there are none. See :func:`mean`."""
    no_out("nanmean", out)
    a, mask = numbers(a, where)
    return mean(a, axis, dtype, keepdims=keepdims, where=mask)


def nanvar(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: NestedArrayLike | None = None,
    mean: NestedArrayLike | None = None,
) -> Array:
    """Returns the variance of the elements that are not NaN; NaN if there are none. See :func:`var`."""
    no_out("nanvar", out)
    a, mask = numbers(a, where)
    return var(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=mask, mean=mean)


def nanstd(
    a: NestedArrayLike,
    axis: Axes | None = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: NestedArrayLike | None = None,
    mean: NestedArrayLike | None = None,
) -> Array:
    """Returns the square root of :func:`nanvar`."""
    no_out("nanstd", out)
    return sqrt(nanvar(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, mean=mean))


def _nan_extremum(
    function: Callable[..., Array], worst: float, x: Any, axis: Axes | None, keepdims: bool, initial: Any, where: Any
) -> Array:
    """The largest or smallest number; if there is none, ``initial``, or NaN without it."""
    x, mask = numbers(x, where)
    if not dtypes.is_float(x.dtype):
        return function(x, axis, keepdims=keepdims, initial=initial, where=where)
    if where is not None and initial is None:
        name = function.__name__
        raise ArgumentError(f"nan{name}", "a mask needs an initial value, in case it is false everywhere")
    result = function(elementwise.where(mask, x, worst), axis, keepdims=keepdims, initial=initial)
    return (
        result
        if initial is not None
        else elementwise.where(all(logical_not(mask), axis, keepdims=keepdims), math.nan, result)
    )


def nanmax(
    a: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: NestedArrayLike | None = None,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns the largest element that is not NaN; NaN if there is none. See :func:`max`."""
    no_out("nanmax", out)
    return _nan_extremum(max, -math.inf, a, axis, keepdims, initial, where)


def nanmin(
    a: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: NestedArrayLike | None = None,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns the smallest element that is not NaN; NaN if there is none. See :func:`min`."""
    no_out("nanmin", out)
    return _nan_extremum(min, math.inf, a, axis, keepdims, initial, where)


def any(
    a: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns whether an element is non-zero; false if there are none. ``where`` masks the elements to look at."""
    no_out("any", out)
    a = asarray(a)
    axes = normalize_axes("any", axis, a.ndim)
    count = ops.sum(astype(selected(not_equal(a, 0), where, False), dtypes.int32), axis=axes)
    return keep(not_equal(count, 0), a, axes, keepdims)


def all(
    a: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: NestedArrayLike | None = None,
) -> Array:
    """Returns whether all elements are non-zero; true if there are none. ``where`` masks the elements to look at."""
    no_out("all", out)
    a = asarray(a)
    axes = normalize_axes("all", axis, a.ndim)
    return logical_not(any(logical_not(a), axes, keepdims=keepdims, where=where))


def allclose(
    a: NestedArrayLike, b: NestedArrayLike, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Array:
    """Returns whether all elements are close; see :func:`isclose`."""
    return all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: NestedArrayLike, a2: NestedArrayLike, equal_nan: bool = False) -> Array:
    """Returns whether two arrays have the same shape and elements."""
    a1, a2 = asarray(a1), asarray(a2)
    if a1.shape != a2.shape:
        return asarray(False)
    same = equal(a1, a2)
    return all(logical_or(same, logical_and(isnan(a1), isnan(a2))) if equal_nan else same)


def array_equiv(a1: NestedArrayLike, a2: NestedArrayLike) -> Array:
    """Returns whether two arrays have the same elements once they are broadcast to one shape."""
    try:
        return all(equal(asarray(a1), asarray(a2)))
    except ShapeError:
        return asarray(False)


amax = renamed(max, "amax")
amin = renamed(min, "amin")
