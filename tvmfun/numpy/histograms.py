"""Counting, histograms and correlation."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy import statistical
from tvmfun.numpy.creation import asarray, ones, zeros
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import clip, divide, equal, logical_or, maximum, multiply, sqrt, subtract, where
from tvmfun.numpy.joining import concat, stack
from tvmfun.numpy.linear_algebra import diagonal, matmul
from tvmfun.numpy.manipulation import atleast_2d, expand_dims, matrix_transpose, ravel, reshape
from tvmfun.numpy.promotion import require_integer
from tvmfun.numpy.ranges import linspace
from tvmfun.numpy.searching import searchsorted, unknown_size
from tvmfun.numpy.utility import diff

__all__ = [
    "bincount",
    "corrcoef",
    "cov",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
]


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Array:
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
            raise unknown_size("bincount", x)
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
        low, high = statistical.min(flat), statistical.max(flat)
    else:
        low, high = asarray(0, kind), asarray(1, kind)
    apart = where(equal(low, high), asarray(0.5, kind), asarray(0, kind))
    return linspace(subtract(low, apart), low * 0 + high + apart, int(bins) + 1, dtype=kind)


def histogram(
    a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False
) -> tuple[Array, Array]:
    """Returns the numbers of elements in bins, as floats, and the edges of the bins.

    Args:
        a: the array.
        bins: how many, or the increasing edges. A bin has its left edge, the last one also its right edge.
        range: the first and the last edge; by default the smallest and the largest element.
        weights: what each element counts; by default 1.
        density: whether to divide by the sum and the widths, so that the integral is 1.

    >>> histogram([1, 2, 1], bins=2)[0]
    Array([2., 1.], dtype=float32)
    """
    a = asarray(a)
    edges = histogram_bin_edges(a, bins, range)
    flat = astype(ravel(a), edges.dtype)
    counted = ones(flat.shape, edges.dtype) if weights is None else ravel(weights)
    if counted.shape != flat.shape:
        raise ShapeError("histogram", "there must be a weight for each element", got=f"{counted.aval} and {flat.aval}")
    places = searchsorted(edges, flat, side="right")
    places = where(equal(flat, edges[-1]), edges.size - 1, places)
    counts = zeros((edges.size,), counted.dtype).at[places].add(counted, mode="drop")[1:]
    if density:
        counts = divide(divide(counts, statistical.sum(counts)), diff(edges))
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
    places = asarray(np.zeros(count, np.int32))
    outside = asarray(np.zeros(count, bool))
    for i, own in enumerate(edges):
        x = astype(points[:, i], own.dtype)
        place = where(equal(x, own[-1]), own.size - 1, searchsorted(own, x, side="right")) - 1
        outside = logical_or(outside, logical_or(place < 0, place >= own.size - 1))
        places = places * (own.size - 1) + place
    shape = tuple(own.size - 1 for own in edges)
    total = math.prod(shape)
    counted = _weights("histogramdd", weights, count)
    counts = zeros((total,), counted.dtype).at[where(outside, total, places)].add(counted, mode="drop")
    counts = reshape(counts, shape)
    if density:
        counts = divide(counts, statistical.sum(counts))
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
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    dtype: Any = None,
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
        centred = subtract(x, statistical.mean(x, 1, keepdims=True))
        norm = max(total - ddof, 0)
        weighted = centred
    else:
        total = statistical.sum(weights)
        centred = subtract(x, expand_dims(divide(matmul(x, weights), total), 1))
        if aweights is None or ddof == 0:
            norm = subtract(total, ddof)
        else:
            own = multiply(weights, asarray(aweights, x.dtype))
            norm = subtract(total, divide(multiply(ddof, statistical.sum(own)), total))
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


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Array:
    """Returns the correlation coefficients of variables, limited to [-1, 1]; see :func:`cov`."""
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return divide(c, c)
    scale = sqrt(diagonal(c))
    return clip(divide(divide(c, expand_dims(scale, 1)), expand_dims(scale, 0)), -1, 1)
