"""Combinations of elements along an axis, as interpolation makes them: products with matrices that are mostly zeros."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.transforms import custom_vjp

# Combinations of more elements than this, or than this part of all, take less time as products of matrices. The part
# depends on how many numbers lie together, which are read as vectors: fewer than 8, fewer than 16, or more.
_MOST_TAPS = 12
_PARTS = ((8, 40), (16, 16), (math.inf, 4))


def combined(x: Array, weights: np.ndarray, axis: int) -> Array:
    """The array with combinations of its elements along an axis.

    If each combination is of a few elements, these are looked up, and so are those of the gradient. Then elements of
    weight 0 count for nothing, NaN included.

    Args:
        x: an array of floats; sums of half precision are rounded at the end.
        weights: a matrix of shape (elements along the axis, combinations).
        axis: the axis, from 0 on.
    """

    @custom_vjp
    def combine(x: Array) -> Array:
        wide = dtypes.DEFAULT_FLOAT if x.dtype.itemsize < dtypes.DEFAULT_FLOAT.itemsize else x.dtype
        return tnp.astype(_combined(tnp.astype(x, wide), weights.astype(wide), axis), x.dtype)

    combine.defvjp(lambda x: (combine(x), None), lambda _, g: (combined(g, weights.T, axis),))
    return combine(x)


def _combined(x: Array, weights: np.ndarray, axis: int) -> Array:
    indices, factors = _taps(weights)
    together = math.prod(map(dims.typical, x.shape[axis + 1 :]))
    part = next(part for limit, part in _PARTS if together < limit)
    if not 1 <= len(indices) <= min(_MOST_TAPS, -(-len(weights) // part)):
        return tnp.moveaxis(tnp.moveaxis(x, axis, -1) @ weights, -1, axis)
    shape = (-1, *(1,) * (x.ndim - 1 - axis))
    parts = (tnp.take(x, at, axis) * factor.reshape(shape) for at, factor in zip(indices, factors, strict=True))
    return reduce(tnp.add, parts)


def _taps(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices and values of what is not 0 in each column of a matrix, filled up with zeros to (most, columns)."""
    most = max(1, np.count_nonzero(weights, axis=0).max(initial=0))
    indices = np.argsort(weights == 0, axis=0, kind="stable")[:most]
    return indices.astype("int32"), np.take_along_axis(weights, indices, axis=0)
