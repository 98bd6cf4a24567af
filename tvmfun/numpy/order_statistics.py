"""Quantiles and medians."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy import elementwise
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import add, equal, isinf, isnan, logical_and, logical_not, multiply, subtract, where
from tvmfun.numpy.indexing import take, take_along_axis
from tvmfun.numpy.manipulation import Axes, broadcast_to, moveaxis, normalize_axes, reshape
from tvmfun.numpy.sorting import sort
from tvmfun.numpy.statistical import sum

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(
    name: str, x: Any, q: Any, axis: Axes | None, method: str, keepdims: bool, *, ignore_nan: bool, percent: bool
) -> Array:
    if method not in _METHODS:
        raise ArgumentError(name, f"the method is one of {', '.join(_METHODS)}", got=repr(method))
    x = asarray(x)
    if not dtypes.is_float(x.dtype):
        x = astype(x, dtypes.DEFAULT_FLOAT)
    axes = normalize_axes(name, axis, x.ndim)
    free = tuple(i for i in range(x.ndim) if i not in axes)
    count = math.prod(x.shape[i] for i in axes)
    if not count:
        raise ShapeError(name, "there is no element", got=repr(x.aval))
    shape = tuple(x.shape[i] for i in free)
    rows = sort(reshape(moveaxis(x, free, range(len(free))), (*shape, count)))
    # What is known is computed at once, in double precision.
    known = not isinstance(q, Tracer) and not ignore_nan and isinstance(count, int)
    wide = dtypes.float64 if x.dtype == dtypes.float64 else dtypes.float32
    q = np.asarray(q, np.float64) if known else asarray(q, wide)
    most: Any = count - 1 if isinstance(count, int) else astype(asarray(count - 1), wide)
    last = most
    if ignore_nan:
        numbers = sum(astype(logical_not(isnan(rows)), dtypes.int32), -1, keepdims=True)
        last = astype(numbers - 1, wide)
    place = (q / 100 if percent else q).reshape(-1) * last  # along the last axis, for each row if they differ
    library: Any = np if known else elementwise
    low, high = library.floor(place), library.ceil(place)
    weight = astype(asarray(place - low), x.dtype)
    if method == "nearest":
        low = high = library.round(place)
    low, high = (astype(asarray(library.clip(p, 0, most)), dtypes.int32) for p in (low, high))
    pick = take_along_axis if ignore_nan else lambda rows, p, axis: take(rows, p, axis, mode="promise_in_bounds")
    if ignore_nan:
        low, high = (broadcast_to(p, (*shape, p.shape[-1])) for p in (low, high))
    below, above = pick(rows, low, -1), pick(rows, high, -1)
    if method in ("lower", "nearest"):
        result = below
    elif method == "higher":
        result = above
    else:
        share = x.dtype.type(0.5) if method == "midpoint" else weight
        between = add(below, multiply(share, subtract(above, below)))
        # The difference of infinities is NaN. Equal numbers keep their shares of the derivative.
        result = where(logical_and(equal(below, above), isinf(below)), below, between)
    if not ignore_nan:
        result = where(isnan(rows[..., -1:]), math.nan, result)
    if keepdims:
        shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
    return reshape(moveaxis(result, -1, 0), (*q.shape, *shape))


def quantile(x: Any, q: Any, /, axis: Axes | None = None, *, method: str = "linear", keepdims: bool = False) -> Array:
    """Returns the quantiles of the elements, a float.

    Args:
        x: the array.
        q: the probability, from 0 to 1, or an array of them, whose axes come first in the result.
        axis: one axis or several; by default all.
        method: what to do between two elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"midpoint"`` or
            ``"nearest"``.
        keepdims: whether the axes stay, with size 1.

    Raises:
        ShapeError: if there are no elements.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    Array(3., dtype=float32)
    """
    return _quantile("quantile", x, q, axis, method, keepdims, ignore_nan=False, percent=False)


def percentile(x: Any, q: Any, /, axis: Axes | None = None, *, method: str = "linear", keepdims: bool = False) -> Array:
    """Returns the quantiles of the elements for percentages from 0 to 100; see :func:`quantile`."""
    return _quantile("percentile", x, q, axis, method, keepdims, ignore_nan=False, percent=True)


def median(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns the element in the middle, or the mean of two; NaN if there is one.

    >>> median([3, 1, 10, 2])
    Array(2.5, dtype=float32)
    """
    return _quantile("median", x, 0.5, axis, "midpoint", keepdims, ignore_nan=False, percent=False)


def nanquantile(
    x: Any, q: Any, /, axis: Axes | None = None, *, method: str = "linear", keepdims: bool = False
) -> Array:
    """Returns the quantiles of the elements that are not NaN; NaN if there are none. See :func:`quantile`."""
    return _quantile("nanquantile", x, q, axis, method, keepdims, ignore_nan=True, percent=False)


def nanpercentile(
    x: Any, q: Any, /, axis: Axes | None = None, *, method: str = "linear", keepdims: bool = False
) -> Array:
    """Returns the percentiles of the elements that are not NaN; NaN if there are none. See :func:`percentile`."""
    return _quantile("nanpercentile", x, q, axis, method, keepdims, ignore_nan=True, percent=True)


def nanmedian(x: Any, /, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """Returns the median of the elements that are not NaN; NaN if there are none."""
    return _quantile("nanmedian", x, 0.5, axis, "midpoint", keepdims, ignore_nan=True, percent=False)
