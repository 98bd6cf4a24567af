"""Statistics that leave out NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.numpy import searching, statistical
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.elementwise import isnan, logical_and, logical_not, sqrt
from tvmfun.numpy.elementwise import where as choose
from tvmfun.numpy.manipulation import Axes
from tvmfun.numpy.promotion import no_out
from tvmfun.numpy.utility import all

__all__ = [
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]


def _numbers(x: Any, where: Any = None) -> tuple[Array, Any]:
    """The array, and a mask of the numbers where ``where`` is true; None if everything is."""
    x = asarray(x)
    if not dtypes.is_float(x.dtype):
        return x, where
    numbers = logical_not(isnan(x))
    return x, numbers if where is None else logical_and(numbers, where)


def nansum(
    a: Any,
    axis: Axes | None = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """Returns the sum of the elements that are not NaN; see :func:`sum`."""
    no_out("nansum", out)
    a, mask = _numbers(a, where)
    return statistical.sum(a, axis, dtype, keepdims=keepdims, initial=initial, where=mask)


def nanprod(
    a: Any,
    axis: Axes | None = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """Returns the product of the elements that are not NaN; see :func:`prod`."""
    no_out("nanprod", out)
    a, mask = _numbers(a, where)
    return statistical.prod(a, axis, dtype, keepdims=keepdims, initial=initial, where=mask)


def nanmean(
    a: Any, axis: Axes | None = None, dtype: Any = None, out: None = None, keepdims: bool = False, where: Any = None
) -> Array:
    """Returns the mean of the elements that are not NaN; NaN if there are none. See :func:`mean`."""
    no_out("nanmean", out)
    a, mask = _numbers(a, where)
    return statistical.mean(a, axis, dtype, keepdims=keepdims, where=mask)


def nanvar(
    a: Any,
    axis: Axes | None = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Array:
    """Returns the variance of the elements that are not NaN; NaN if there are none. See :func:`var`."""
    no_out("nanvar", out)
    a, mask = _numbers(a, where)
    return statistical.var(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=mask, mean=mean)


def nanstd(
    a: Any,
    axis: Axes | None = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Array:
    """Returns the square root of :func:`nanvar`."""
    no_out("nanstd", out)
    return sqrt(nanvar(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, mean=mean))


def _extremum(
    function: Callable[..., Array], worst: float, x: Any, axis: Axes | None, keepdims: bool, initial: Any, where: Any
) -> Array:
    """The largest or smallest number; if there is none, ``initial``, or NaN without it."""
    x, mask = _numbers(x, where)
    if not dtypes.is_float(x.dtype):
        return function(x, axis, keepdims=keepdims, initial=initial, where=where)
    if where is not None and initial is None:
        name = function.__name__
        raise ArgumentError(f"nan{name}", "a mask needs an initial value, in case it is false everywhere")
    result = function(choose(mask, x, worst), axis, keepdims=keepdims, initial=initial)
    return result if initial is not None else choose(all(logical_not(mask), axis, keepdims=keepdims), math.nan, result)


def nanmax(
    a: Any, axis: Axes | None = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """Returns the largest element that is not NaN; NaN if there is none. See :func:`max`."""
    no_out("nanmax", out)
    return _extremum(statistical.max, -math.inf, a, axis, keepdims, initial, where)


def nanmin(
    a: Any, axis: Axes | None = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """Returns the smallest element that is not NaN; NaN if there is none. See :func:`min`."""
    no_out("nanmin", out)
    return _extremum(statistical.min, math.inf, a, axis, keepdims, initial, where)


def _arg(function: Callable[..., Array], worst: float, x: Any, axis: int | None, keepdims: bool) -> Array:
    x, mask = _numbers(x)
    if mask is None:
        return function(x, axis, keepdims=keepdims)
    result = function(choose(mask, x, worst), axis, keepdims=keepdims)
    return choose(all(logical_not(mask), axis, keepdims=keepdims), -1, result)


def nanargmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first largest element that is no NaN; -1 if there is none. See :func:`argmax`."""
    no_out("nanargmax", out)
    return _arg(searching.argmax, -math.inf, a, axis, keepdims)


def nanargmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first smallest element that is no NaN; -1 if there is none. See :func:`argmin`."""
    no_out("nanargmin", out)
    return _arg(searching.argmin, math.inf, a, axis, keepdims)
