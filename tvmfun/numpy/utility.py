"""Tests of all elements, and differences of neighbours."""

from __future__ import annotations

import math
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy import elementwise
from tvmfun.numpy.creation import arrays, asarray
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import (
    abs,
    add,
    equal,
    isfinite,
    isnan,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    multiply,
    not_equal,
    subtract,
)
from tvmfun.numpy.joining import concat
from tvmfun.numpy.manipulation import Axes, broadcast_to, normalize_axes, normalize_axis, ravel
from tvmfun.numpy.promotion import operands
from tvmfun.numpy.statistical import keep, selected
from tvmfun.ops import reduce as ops


def any(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False, where: Any = None) -> Array:
    """Returns whether an element is non-zero; false if there are none. ``where`` masks the elements to look at."""
    x = asarray(x)
    axes = normalize_axes("any", axis, x.ndim)
    count = ops.sum(astype(selected(not_equal(x, 0), where, False), dtypes.int32), axis=axes)
    return keep(not_equal(count, 0), x, axes, keepdims)


def all(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False, where: Any = None) -> Array:
    """Returns whether all elements are non-zero; true if there are none. ``where`` masks the elements to look at."""
    x = asarray(x)
    axes = normalize_axes("all", axis, x.ndim)
    return logical_not(any(logical_not(x), axes, keepdims=keepdims, where=where))


def diff(x: Any, /, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None) -> Array:
    """Returns the n-th differences of neighbours along an axis.

    Args:
        x: the array; of bools, a difference says whether neighbours differ.
        n: how often to take differences.
        axis: the axis.
        prepend: what to put before the array first: an array, or one number.
        append: what to put after it.

    >>> diff([1, 4, 9])
    Array([3, 5], dtype=int32)
    """
    x = asarray(x)
    if n < 0:
        raise ArgumentError("diff", "the number of differences must not be negative", got=str(n))
    if n == 0:
        return x
    axis = normalize_axis("diff", axis, x.ndim)
    edge = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    parts = arrays("diff", *(v for v in (prepend, x, append) if v is not None))
    x = concat([v if v.ndim else broadcast_to(v, edge) for v in parts], axis)
    lead = (slice(None),) * axis
    apart = not_equal if x.dtype == dtypes.bool_ else subtract
    for _ in range(n):
        x = apart(x[(*lead, slice(1, None))], x[(*lead, slice(None, -1))])
    return x


def ediff1d(x: Any, /, to_end: Any = None, to_begin: Any = None) -> Array:
    """Returns the differences of neighbours of the flattened array, with more elements around them."""
    x = ravel(x)
    first, last = (None if v is None else ravel(asarray(v, x.dtype)) for v in (to_begin, to_end))
    return concat([part for part in (first, diff(x), last) if part is not None])


def isclose(x1: Any, x2: Any, /, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    r"""Returns whether :math:`|x_1 - x_2| \le a + r |x_2|`, elementwise; infinities of one sign are close."""
    x1, x2 = operands("isclose", x1, x2)
    if not dtypes.is_float(x1.dtype):
        x1, x2 = (elementwise.multiply(x, 1.0) for x in (x1, x2))
    near = less_equal(abs(subtract(x1, x2)), add(atol, multiply(rtol, abs(x2))))
    both = logical_and(isfinite(x1), isfinite(x2))
    close = elementwise.where(both, near, equal(x1, x2))
    return logical_or(close, logical_and(isnan(x1), isnan(x2))) if equal_nan else close


def allclose(x1: Any, x2: Any, /, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    """Returns whether all elements are close; see :func:`isclose`."""
    return all(isclose(x1, x2, rtol, atol, equal_nan))


def array_equal(x1: Any, x2: Any, /, equal_nan: bool = False) -> Array:
    """Returns whether two arrays have the same shape and elements."""
    x1, x2 = asarray(x1), asarray(x2)
    if x1.shape != x2.shape:
        return asarray(False)
    same = equal(x1, x2)
    return all(logical_or(same, logical_and(isnan(x1), isnan(x2))) if equal_nan else same)


def array_equiv(x1: Any, x2: Any, /) -> Array:
    """Returns whether two arrays have the same elements once they are broadcast to one shape."""
    try:
        return all(equal(asarray(x1), asarray(x2)))
    except ShapeError:
        return asarray(False)


def ndim(x: Any, /) -> int:
    """Returns the number of axes."""
    return asarray(x).ndim


def shape(x: Any, /) -> tuple[int, ...]:
    """Returns the sizes of the axes."""
    return asarray(x).shape


def size(x: Any, /, axis: Axes | None = None) -> int:
    """Returns the number of elements, or the size of an axis."""
    x = asarray(x)
    return math.prod(x.shape[i] for i in normalize_axes("size", axis, x.ndim))


def isscalar(x: Any, /) -> bool:
    """Returns whether ``x`` is a number or an array without axes."""
    return isinstance(x, bool | int | float) or getattr(x, "shape", None) == ()
