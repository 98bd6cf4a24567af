"""Statistics that leave out NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.numpy import searching, statistical
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.elementwise import isnan, logical_not, sqrt, where
from tvmfun.numpy.manipulation import Axes
from tvmfun.numpy.utility import all


def _numbers(x: Any) -> tuple[Array, Array | None]:
    """The array, and a mask of what is a number; None if everything is."""
    x = asarray(x)
    return x, logical_not(isnan(x)) if dtypes.is_float(x.dtype) else None


def nansum(x: Any, /, axis: Axes | None = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
    """Returns the sum of the elements that are not NaN; see :func:`sum`."""
    x, mask = _numbers(x)
    return statistical.sum(x, axis, dtype, keepdims=keepdims, where=mask)


def nanprod(x: Any, /, axis: Axes | None = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
    """Returns the product of the elements that are not NaN; see :func:`prod`."""
    x, mask = _numbers(x)
    return statistical.prod(x, axis, dtype, keepdims=keepdims, where=mask)


def nanmean(x: Any, /, axis: Axes | None = None, dtype: Any = None, *, keepdims: bool = False) -> Array:
    """Returns the mean of the elements that are not NaN; NaN if there are none. See :func:`mean`."""
    x, mask = _numbers(x)
    return statistical.mean(x, axis, dtype, keepdims=keepdims, where=mask)


def nanvar(x: Any, /, axis: Axes | None = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Array:
    """Returns the variance of the elements that are not NaN; NaN if there are none. See :func:`var`."""
    x, mask = _numbers(x)
    return statistical.var(x, axis, dtype, ddof=ddof, keepdims=keepdims, where=mask)


def nanstd(x: Any, /, axis: Axes | None = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Array:
    """Returns the square root of :func:`nanvar`."""
    return sqrt(nanvar(x, axis, dtype, ddof=ddof, keepdims=keepdims))


def _extremum(function: Callable[..., Array], worst: float, x: Any, axis: Axes | None, keepdims: bool) -> Array:
    x, mask = _numbers(x)
    if mask is None:
        return function(x, axis, keepdims=keepdims)
    result = function(where(mask, x, worst), axis, keepdims=keepdims)
    return where(all(logical_not(mask), axis, keepdims=keepdims), math.nan, result)


def nanmax(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns the largest element that is not NaN; NaN if there is none. See :func:`max`."""
    return _extremum(statistical.max, -math.inf, x, axis, keepdims)


def nanmin(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns the smallest element that is not NaN; NaN if there is none. See :func:`min`."""
    return _extremum(statistical.min, math.inf, x, axis, keepdims)


def _arg(function: Callable[..., Array], worst: float, x: Any, axis: int | None, keepdims: bool) -> Array:
    x, mask = _numbers(x)
    if mask is None:
        return function(x, axis, keepdims=keepdims)
    result = function(where(mask, x, worst), axis, keepdims=keepdims)
    return where(all(logical_not(mask), axis, keepdims=keepdims), -1, result)


def nanargmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first largest element that is no NaN; -1 if there is none. See :func:`argmax`."""
    return _arg(searching.argmax, -math.inf, x, axis, keepdims)


def nanargmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first smallest element that is no NaN; -1 if there is none. See :func:`argmin`."""
    return _arg(searching.argmin, math.inf, x, axis, keepdims)
