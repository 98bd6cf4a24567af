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
from tvmfun.numpy.creation import asarray, ones
from tvmfun.numpy.cumulative import cumsum
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import (
    add,
    clip,
    equal,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    multiply,
    subtract,
    where,
)
from tvmfun.numpy.indexing import take, take_along_axis
from tvmfun.numpy.manipulation import Axes, broadcast_to, moveaxis, normalize_axes, reshape
from tvmfun.numpy.promotion import no_out
from tvmfun.numpy.sorting import argsort, sort
from tvmfun.numpy.statistical import sum

__all__ = [
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
]

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


def _quantile(
    name: str,
    x: Any,
    q: Any,
    axis: Axes | None,
    method: str,
    keepdims: bool,
    weights: Any = None,
    *,
    ignore_nan: bool,
    percent: bool,
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
    if method == "inverted_cdf":
        result = _inverted_cdf(name, x, q, free, (*shape, count), weights, ignore_nan=ignore_nan, percent=percent)
        kept = tuple(1 if i in axes else size for i, size in enumerate(x.shape)) if keepdims else shape
        return reshape(moveaxis(result, -1, 0), (*np.shape(q), *kept))
    if weights is not None:
        raise ArgumentError(name, "weights need the method 'inverted_cdf'", got=repr(method))
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


def _inverted_cdf(
    name: str,
    x: Array,
    q: Any,
    free: tuple[int, ...],
    shape: tuple[int, ...],
    weights: Any,
    *,
    ignore_nan: bool,
    percent: bool,
) -> Array:
    """The smallest elements whose share of the weights, with that of all smaller ones, is at least ``q``.

    Source: Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), definition 1.
    """
    weights = ones(x.shape, x.dtype) if weights is None else asarray(weights, x.dtype)
    if weights.ndim == 1 < x.ndim and len(free) == x.ndim - 1:  # along the reduced axis
        (axis,) = set(range(x.ndim)).difference(free)
        weights = reshape(weights, tuple(-1 if i == axis else 1 for i in range(x.ndim)))
    weights = broadcast_to(weights, x.shape)
    rows, shares = (reshape(moveaxis(y, free, range(len(free))), shape) for y in (x, weights))
    order = argsort(rows)
    rows, shares = (take_along_axis(y, order, -1, mode="promise_in_bounds") for y in (rows, shares))
    if ignore_nan:
        shares = where(isnan(rows), 0, shares)
    sums = cumsum(shares, -1)
    wanted = reshape(asarray(q, x.dtype), (-1,))
    wanted = multiply(wanted / 100 if percent else wanted, sums[..., -1:])
    # Elements without weight are never the result.
    before = logical_or(less(sums[..., None, :], wanted[..., :, None]), less_equal(sums, 0)[..., None, :])
    place = clip(sum(astype(before, dtypes.int32), -1), 0, shape[-1] - 1)
    result = take_along_axis(rows, place, -1, mode="promise_in_bounds")
    return result if ignore_nan else where(isnan(rows[..., -1:]), math.nan, result)


def quantile(
    a: Any,
    q: Any,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Array:
    """Returns the quantiles of the elements, a float.

    Args:
        a: the array.
        q: the probability, from 0 to 1, or an array of them, whose axes come first in the result.
        axis: one axis or several; by default all.
        out: must be None: arrays are immutable.
        overwrite_input: for NumPy; arrays are immutable, so the input stays as it is.
        method: what to do between two elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"midpoint"``,
            ``"nearest"``, or ``"inverted_cdf"`` for the first element whose share reaches the probability.
        keepdims: whether the axes stay, with size 1.
        weights: of the elements, for the method ``"inverted_cdf"``.

    Raises:
        ShapeError: if there are no elements.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    Array(3., dtype=float32)
    """
    no_out("quantile", out)
    return _quantile("quantile", a, q, axis, method, keepdims, weights, ignore_nan=False, percent=False)


def percentile(
    a: Any,
    q: Any,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Array:
    """Returns the quantiles of the elements for percentages from 0 to 100; see :func:`quantile`."""
    no_out("percentile", out)
    return _quantile("percentile", a, q, axis, method, keepdims, weights, ignore_nan=False, percent=True)


def median(
    a: Any, axis: Axes | None = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """Returns the element in the middle, or the mean of two; NaN if there is one.

    >>> median([3, 1, 10, 2])
    Array(2.5, dtype=float32)
    """
    no_out("median", out)
    return _quantile("median", a, 0.5, axis, "midpoint", keepdims, ignore_nan=False, percent=False)


def nanquantile(
    a: Any,
    q: Any,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Array:
    """Returns the quantiles of the elements that are not NaN; NaN if there are none. See :func:`quantile`."""
    no_out("nanquantile", out)
    return _quantile("nanquantile", a, q, axis, method, keepdims, weights, ignore_nan=True, percent=False)


def nanpercentile(
    a: Any,
    q: Any,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Array:
    """Returns the percentiles of the elements that are not NaN; NaN if there are none. See :func:`percentile`."""
    no_out("nanpercentile", out)
    return _quantile("nanpercentile", a, q, axis, method, keepdims, weights, ignore_nan=True, percent=True)


def nanmedian(
    a: Any, axis: Axes | None = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """Returns the median of the elements that are not NaN; NaN if there are none."""
    no_out("nanmedian", out)
    return _quantile("nanmedian", a, 0.5, axis, "midpoint", keepdims, ignore_nan=True, percent=False)
