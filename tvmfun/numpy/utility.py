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
from tvmfun.numpy.promotion import no_out, operands
from tvmfun.numpy.statistical import keep, selected
from tvmfun.ops import reduce as ops

__all__ = [
    "all",
    "allclose",
    "any",
    "array_equal",
    "array_equiv",
    "diff",
    "ediff1d",
    "isclose",
    "isscalar",
    "ndim",
    "shape",
    "size",
]


def any(a: Any, axis: Axes | None = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Array:
    """Returns whether an element is non-zero; false if there are none. ``where`` masks the elements to look at."""
    no_out("any", out)
    a = asarray(a)
    axes = normalize_axes("any", axis, a.ndim)
    count = ops.sum(astype(selected(not_equal(a, 0), where, False), dtypes.int32), axis=axes)
    return keep(not_equal(count, 0), a, axes, keepdims)


def all(a: Any, axis: Axes | None = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Array:
    """Returns whether all elements are non-zero; true if there are none. ``where`` masks the elements to look at."""
    no_out("all", out)
    a = asarray(a)
    axes = normalize_axes("all", axis, a.ndim)
    return logical_not(any(logical_not(a), axes, keepdims=keepdims, where=where))


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Array:
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


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Array:
    """Returns the differences of neighbours of the flattened array, with more elements around them."""
    ary = ravel(ary)
    first, last = (None if v is None else ravel(asarray(v, ary.dtype)) for v in (to_begin, to_end))
    return concat([part for part in (first, diff(ary), last) if part is not None])


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    r"""Returns whether :math:`|x_1 - x_2| \le a + r |x_2|`, elementwise; infinities of one sign are close."""
    a, b = operands("isclose", a, b)
    if not dtypes.is_float(a.dtype):
        a, b = (elementwise.multiply(x, 1.0) for x in (a, b))
    near = less_equal(abs(subtract(a, b)), add(atol, multiply(rtol, abs(b))))
    both = logical_and(isfinite(a), isfinite(b))
    close = elementwise.where(both, near, equal(a, b))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    """Returns whether all elements are close; see :func:`isclose`."""
    return all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Array:
    """Returns whether two arrays have the same shape and elements."""
    a1, a2 = asarray(a1), asarray(a2)
    if a1.shape != a2.shape:
        return asarray(False)
    same = equal(a1, a2)
    return all(logical_or(same, logical_and(isnan(a1), isnan(a2))) if equal_nan else same)


def array_equiv(a1: Any, a2: Any) -> Array:
    """Returns whether two arrays have the same elements once they are broadcast to one shape."""
    try:
        return all(equal(asarray(a1), asarray(a2)))
    except ShapeError:
        return asarray(False)


def ndim(a: Any) -> int:
    """Returns the number of axes."""
    return asarray(a).ndim


def shape(a: Any) -> tuple[int, ...]:
    """Returns the sizes of the axes."""
    return asarray(a).shape


def size(a: Any, axis: Axes | None = None) -> int:
    """Returns the number of elements, or the size of an axis."""
    a = asarray(a)
    return math.prod(a.shape[i] for i in normalize_axes("size", axis, a.ndim))


def isscalar(element: Any) -> bool:
    """Returns whether ``element`` is a number or an array without axes."""
    return isinstance(element, bool | int | float) or getattr(element, "shape", None) == ()
