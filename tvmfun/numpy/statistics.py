"""Quantiles, histograms, counts and covariances."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy import elementwise, reductions
from tvmfun.numpy.calculus import cumsum, diff
from tvmfun.numpy.creation import asarray, ones, zeros
from tvmfun.numpy.diagonals import diagonal
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import (
    add,
    clip,
    divide,
    equal,
    less,
    less_equal,
    logical_not,
    logical_or,
    maximum,
    multiply,
    sqrt,
    subtract,
    where,
)
from tvmfun.numpy.floats import isinf, isnan
from tvmfun.numpy.indexing import take, take_along_axis
from tvmfun.numpy.products import matmul
from tvmfun.numpy.promotion import NestedArrayLike, no_out, operands, require_integer
from tvmfun.numpy.ranges import linspace
from tvmfun.numpy.reductions import sum
from tvmfun.numpy.shapes import (
    Axes,
    atleast_2d,
    broadcast_to,
    concat,
    expand_dims,
    matrix_transpose,
    moveaxis,
    normalize_axes,
    ravel,
    reshape,
    stack,
)
from tvmfun.numpy.sorting import argsort, searchsorted, sort, unknown_size
from tvmfun.typing import DTypeLike

__all__ = [
    "bincount",
    "corrcoef",
    "cov",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
]


_QUANTILE_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


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
    """The quantiles of the elements along axes, which are sorted; the axes of ``q`` come first in the result.

    Args:
        name: the function, for errors.
        x: the array; integers become floats.
        q: a probability, or an array of them.
        axis: the axes; None for all.
        method: how to choose between two neighbours; one of ``_QUANTILE_METHODS``.
        keepdims: whether the axes stay, with size 1.
        weights: of the elements, for the method ``"inverted_cdf"``.
        ignore_nan: whether NaN counts as no element; otherwise it makes the result NaN.
        percent: whether ``q`` is in percent.
    """
    if method not in _QUANTILE_METHODS:
        raise ArgumentError(name, f"the method is one of {', '.join(_QUANTILE_METHODS)}", got=repr(method))
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
    # Constants are computed eagerly, in double precision.
    known = not isinstance(q, Tracer) and not ignore_nan and isinstance(count, int)
    wide = dtypes.float64 if x.dtype == dtypes.float64 else dtypes.float32
    q = np.asarray(q, np.float64) if known else asarray(q, wide)
    most: Any = count - 1 if isinstance(count, int) else astype(asarray(count - 1), wide)
    last = most
    if ignore_nan:
        numbers = sum(astype(logical_not(isnan(rows)), dtypes.int32), -1, keepdims=True)
        last = astype(numbers - 1, wide)
    index = (q / 100 if percent else q).reshape(-1) * last  # along the last axis, for each row if they differ
    library: Any = np if known else elementwise
    low, high = library.floor(index), library.ceil(index)
    weight = astype(asarray(index - low), x.dtype)
    if method == "nearest":
        low = high = library.round(index)
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
        result = _interpolated(below, above, x.dtype.type(0.5) if method == "midpoint" else weight)
    if not ignore_nan:
        result = where(isnan(rows[..., -1:]), math.nan, result)
    if keepdims:
        shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
    return reshape(moveaxis(result, -1, 0), (*q.shape, *shape))


def _interpolated(below: Array, above: Array, share: Any) -> Array:
    """``below + share * (above - below)``."""
    between = add(below, multiply(share, subtract(above, below)))
    # Shares of infinities are infinite; the difference of one from a number would make NaN of them.
    # Equal numbers keep their shares of the derivative.
    shares = add(multiply(below, 1 - share), multiply(above, share))
    is_infinite = logical_or(isinf(below), isinf(above))
    return where(is_infinite, where(equal(below, above), below, shares), between)


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
    index = clip(sum(astype(before, dtypes.int32), -1), 0, shape[-1] - 1)
    result = take_along_axis(rows, index, -1, mode="promise_in_bounds")
    return result if ignore_nan else where(isnan(rows[..., -1:]), math.nan, result)


def quantile(
    a: NestedArrayLike,
    q: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: NestedArrayLike | None = None,
) -> Array:
    """Returns the quantiles of the elements, a float.

    Args:
        a: the array.
        q: the probability, from 0 to 1, or an array of them, whose axes come first in the result.
        axis: one axis or several; by default all.
        out: must be None: arrays are immutable.
        overwrite_input: for NumPy; arrays are immutable, so the input does not change.
        method: the interpolation between two elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"midpoint"``,
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
    a: NestedArrayLike,
    q: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: NestedArrayLike | None = None,
) -> Array:
    """Returns the quantiles of the elements for percentages from 0 to 100; see :func:`quantile`."""
    no_out("percentile", out)
    return _quantile("percentile", a, q, axis, method, keepdims, weights, ignore_nan=False, percent=True)


def median(
    a: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Returns the element in the middle, or the mean of two; NaN if there is one.

    >>> median([3, 1, 10, 2])
    Array(2.5, dtype=float32)
    """
    no_out("median", out)
    return _quantile("median", a, 0.5, axis, "midpoint", keepdims, ignore_nan=False, percent=False)


def nanquantile(
    a: NestedArrayLike,
    q: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: NestedArrayLike | None = None,
) -> Array:
    """Returns the quantiles of the elements that are not NaN; NaN if there are none. See :func:`quantile`."""
    no_out("nanquantile", out)
    return _quantile("nanquantile", a, q, axis, method, keepdims, weights, ignore_nan=True, percent=False)


def nanpercentile(
    a: NestedArrayLike,
    q: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: NestedArrayLike | None = None,
) -> Array:
    """Returns the percentiles of the elements that are not NaN; NaN if there are none. See :func:`percentile`."""
    no_out("nanpercentile", out)
    return _quantile("nanpercentile", a, q, axis, method, keepdims, weights, ignore_nan=True, percent=True)


def nanmedian(
    a: NestedArrayLike,
    axis: Axes | None = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Returns the median of the elements that are not NaN; NaN if there are none."""
    no_out("nanmedian", out)
    return _quantile("nanmedian", a, 0.5, axis, "midpoint", keepdims, ignore_nan=True, percent=False)


def bincount(
    x: NestedArrayLike, weights: NestedArrayLike | None = None, minlength: int = 0, *, length: int | None = None
) -> Array:
    """Returns how often each number from 0 on occurs, or the sums of the weights of its occurrences.

    Args:
        x: a vector of integers; negative ones count as 0.
        weights: one for each element.
        minlength: the smallest length of the result.
        length: its length, which must be given when ``x`` is traced; larger numbers are not counted.

    Raises:
        ConcretizationError: for a traced array without ``length``.

    Source: ``jax.numpy.bincount``.

    >>> bincount([0, 2, 2])
    Array([1, 0, 2], dtype=int32)
    """
    x = asarray(x)
    require_integer("bincount", x)
    if x.ndim != 1:
        raise ShapeError("bincount", "the numbers must be a vector", got=repr(x.aval), hint="x.ravel()")
    if length is None:
        if isinstance(x, Tracer):
            raise unknown_size("bincount", x, "length=, the number of bins")
        length = max(minlength, int(np.max(x.concrete("bincount").numpy(), initial=-1)) + 1)
    counted = ones(x.shape, dtypes.int32) if weights is None else asarray(weights)
    if counted.shape != x.shape:
        raise ShapeError("bincount", "there must be a weight for each number", got=f"{counted.aval} and {x.aval}")
    return zeros((length,), counted.dtype).at[maximum(x, 0)].add(counted, mode="drop")


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Array:
    """Returns the edges of the bins of :func:`histogram`, which takes the same arguments."""
    a = asarray(a)
    kind = a.dtype if dtypes.is_float(a.dtype) else dtypes.DEFAULT_FLOAT
    if isinstance(bins, str):
        raise ArgumentError("histogram", "the bins are a number or an array of edges", got=repr(bins))
    if np.ndim(bins):
        return asarray(bins, kind)
    if range is not None:
        low, high = (asarray(end, kind) for end in range)
    elif a.size:
        flat = astype(ravel(a), kind)
        low, high = reductions.min(flat), reductions.max(flat)
    else:
        low, high = asarray(0, kind), asarray(1, kind)
    apart = where(equal(low, high), asarray(0.5, kind), asarray(0, kind))
    return linspace(subtract(low, apart), low * 0 + high + apart, int(bins) + 1, dtype=kind)


def histogram(
    a: NestedArrayLike,
    bins: NestedArrayLike = 10,
    range: Any = None,
    weights: NestedArrayLike | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Returns the numbers of elements in bins, as floats, and the edges of the bins.

    Args:
        a: the array.
        bins: how many, or the increasing edges. A bin has its left edge, the last one also its right edge.
        range: the first and the last edge; by default the smallest and the largest element.
        weights: what each element counts; by default 1. Integers count as floats, which do not wrap around.
        density: whether to divide by the sum and the widths, so that the integral is 1.

    >>> histogram([1, 2, 1], bins=2)[0]
    Array([2., 1.], dtype=float32)
    """
    a, *weighted = operands("histogram", asarray(a), *(() if weights is None else (asarray(weights),)), floating=True)
    edges = histogram_bin_edges(a, bins, range)
    flat = astype(ravel(a), edges.dtype)
    counted = ravel(weighted[0]) if weighted else ones(flat.shape, edges.dtype)
    if counted.shape != flat.shape:
        raise ShapeError("histogram", "there must be a weight for each element", got=f"{counted.aval} and {flat.aval}")
    indices = searchsorted(edges, flat, side="right")
    indices = where(equal(flat, edges[-1]), edges.size - 1, indices)
    counts = zeros((edges.size,), counted.dtype).at[indices].add(counted, mode="drop")[1:]
    if density:
        counts = divide(divide(counts, reductions.sum(counts)), diff(edges))
    return counts, edges


def _weights(name: str, weights: Any, count: int) -> Array:
    """The weight of each of ``count`` points; by default 1."""
    counted = ones((count,), dtypes.DEFAULT_INT) if weights is None else asarray(weights)
    if counted.shape != (count,):
        raise ShapeError(name, "there must be a weight for each point", got=f"{counted.aval} for {count}")
    return counted


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Array, list[Array]]:
    """Returns the numbers of points in the boxes of a grid, and the edges along each axis.

    Args:
        sample: a matrix with a row for each point, or a sequence of vectors of coordinates.
        bins: how many along each axis, or for each axis how many or the edges; see :func:`histogram`.
        range: for each axis the first and the last edge, or None for the smallest and the largest coordinate.
        weights: what each point counts; by default 1.
        density: whether to divide by the sum and the volumes, so that the integral is 1.

    >>> histogramdd([[1, 2], [2, 1], [1, 2]], bins=2)[0]
    Array([[0, 2],
           [1, 0]], dtype=int32)
    """
    is_columns = isinstance(sample, tuple | list) and any(hasattr(part, "shape") for part in sample)
    points = stack(sample, 1) if is_columns else asarray(sample)
    if points.ndim != 2:
        raise ShapeError("histogramdd", "the points must be rows of a matrix", got=repr(points.aval))
    count, rank = points.shape
    bins = [bins] * rank if np.ndim(bins) == 0 and not isinstance(bins, list | tuple) else list(bins)
    if len(bins) != rank:
        raise ArgumentError("histogramdd", f"there must be bins for {rank} axes", got=str(len(bins)))
    limits = [None] * rank if range is None else list(range)
    if len(limits) != rank:
        raise ArgumentError("histogramdd", f"there must be a range for {rank} axes", got=str(len(limits)))
    edges = [histogram_bin_edges(points[:, i], bins[i], limits[i]) for i in builtins.range(rank)]
    indices = asarray(np.zeros(count, np.int32))
    outside = asarray(np.zeros(count, bool))
    for i, own in enumerate(edges):
        x = astype(points[:, i], own.dtype)
        index = where(equal(x, own[-1]), own.size - 1, searchsorted(own, x, side="right")) - 1
        outside = logical_or(outside, logical_or(index < 0, index >= own.size - 1))
        indices = indices * (own.size - 1) + index
    shape = tuple(own.size - 1 for own in edges)
    total = math.prod(shape)
    counted = _weights("histogramdd", weights, count)
    counts = zeros((total,), counted.dtype).at[where(outside, total, indices)].add(counted, mode="drop")
    counts = reshape(counts, shape)
    if density:
        counts = divide(counts, reductions.sum(counts))
        for i, own in enumerate(edges):
            counts = divide(counts, reshape(diff(own), (-1,) + (1,) * (rank - i - 1)))
    return counts, edges


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Array, Array, Array]:
    """Returns the numbers of points in the boxes of a grid, and the edges along both axes.

    Args:
        x: the first coordinates of the points, a vector.
        y: the second coordinates.
        bins: how many along both axes, or the edges of both, or a pair of these.
        range: for each axis the first and the last edge.
        weights: what each point counts; by default 1.
        density: whether to divide by the sum and the areas, so that the integral is 1.
    """
    x, y = asarray(x), asarray(y)
    if x.ndim != 1 or x.shape != y.shape:
        raise ShapeError("histogram2d", "there must be two vectors of one size", got=f"{x.aval} and {y.aval}")
    if np.ndim(bins) == 1 and len(bins) not in (1, 2):  # edges of both
        bins = [bins, bins]
    elif isinstance(bins, tuple | list) and len(bins) == 1:
        bins = [bins[0], bins[0]]
    counts, edges = histogramdd(stack([x, y], 1), bins, range, weights, density)
    return counts, edges[0], edges[1]


def cov(
    m: NestedArrayLike,
    y: NestedArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: NestedArrayLike | None = None,
    aweights: NestedArrayLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Returns the covariances of variables.

    Args:
        m: observations, one row for each variable.
        y: more rows.
        rowvar: whether variables are rows, and not columns.
        bias: whether to divide by the number of observations, and not by that minus 1.
        ddof: what to subtract from that number instead.
        fweights: how often each observation occurred.
        aweights: the weight of each observation.
        dtype: of the result; by default that of the observations.

    Returns:
        A square matrix, or the variance of a single variable.

    >>> cov([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    rows = [_observations("cov", m, rowvar, dtype)]
    if y is not None:
        rows.append(_observations("cov", y, rowvar, dtype))
    x = concat(rows, 0)
    if ddof is None:
        ddof = 0 if bias else 1
    weights = None
    for own in (fweights, aweights):
        if own is not None:
            own = asarray(own, x.dtype)
            if own.shape != x.shape[1:]:
                raise ShapeError("cov", "there must be a weight for each observation", got=f"{own.aval}, {x.aval}")
            weights = own if weights is None else multiply(weights, own)
    if weights is None:
        total: Any = x.shape[1]
        centred = subtract(x, reductions.mean(x, 1, keepdims=True))
        norm = max(total - ddof, 0)
        weighted = centred
    else:
        total = reductions.sum(weights)
        centred = subtract(x, expand_dims(divide(matmul(x, weights), total), 1))
        if aweights is None or ddof == 0:
            norm = subtract(total, ddof)
        else:
            own = multiply(weights, asarray(aweights, x.dtype))
            norm = subtract(total, divide(multiply(ddof, reductions.sum(own)), total))
        weighted = multiply(centred, weights)
    result = divide(matmul(weighted, matrix_transpose(centred)), norm)
    return result[0, 0] if x.shape[0] == 1 else result


def _observations(name: str, x: Any, rowvar: bool, dtype: Any) -> Array:
    x = asarray(x, dtype)
    if x.ndim > 2:
        raise ShapeError(name, "the observations have at most two axes", got=repr(x.aval))
    if not dtypes.is_float(x.dtype):
        x = astype(x, dtypes.DEFAULT_FLOAT)
    x = atleast_2d(x)
    return matrix_transpose(x) if not rowvar and x.shape[0] != 1 else x


def corrcoef(
    x: NestedArrayLike, y: NestedArrayLike | None = None, rowvar: bool = True, dtype: DTypeLike | None = None
) -> Array:
    """Returns the correlation coefficients of variables, limited to [-1, 1]; see :func:`cov`."""
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return divide(c, c)
    scale = sqrt(diagonal(c))
    return clip(divide(divide(c, expand_dims(scale, 1)), expand_dims(scale, 0)), -1, 1)
