"""Combinations of elements along an axis, as interpolation makes them: products with matrices that are mostly zeros."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.lax.staging import compiled
from tvmfun.transforms import custom_vjp

# Combinations of more elements than this, or than this part of all, take less time as products of matrices. The part
# depends on how many numbers lie together, which are read as vectors: fewer than 8, fewer than 16, or more.
_MOST_TAPS = 12
_PARTS = ((8, 40), (16, 16), (math.inf, 4))


def combined(x: Array, weights: np.ndarray, axis: int) -> Array:
    """The array with combinations of its elements along an axis.

    If each combination has few elements, these are looked up, and so are the elements of the gradient. Then elements of
    weight 0 are ignored, even NaN.

    Args:
        x: an array of floats; sums of half precision are rounded at the end.
        weights: a matrix of shape (elements along the axis, combinations).
        axis: the axis, from 0 on.
    """
    indices, factors = _taps(weights)
    together = math.prod(map(dims.typical, x.shape[axis + 1 :]))
    part = next(part for limit, part in _PARTS if together < limit)
    uses_taps = 1 <= len(indices) <= min(_MOST_TAPS, -(-len(weights) // part))
    wide = dtypes.DEFAULT_FLOAT if x.dtype.itemsize < dtypes.DEFAULT_FLOAT.itemsize else x.dtype

    @custom_vjp
    def combine(x: Array) -> Array:
        if uses_taps:
            return _looked_up(x, indices, factors.astype(wide), axis=axis)
        return multiplied(x, weights.astype(wide), axis=axis)

    combine.defvjp(lambda x: (combine(x), None), lambda _, g: (combined(g, weights.T, axis),))
    return combine(x)


@compiled("axis")
def _looked_up(x: Array, indices: Any, factors: Any, *, axis: int) -> Array:
    """Sums of elements at indices of shape (taps, combinations), times factors."""
    wide = tnp.astype(x, factors.dtype)
    shape = (-1, *(1,) * (x.ndim - 1 - axis))
    parts = (
        tnp.take(wide, at, axis, mode="promise_in_bounds") * factor.reshape(shape)
        for at, factor in zip(indices, factors, strict=True)
    )
    return tnp.astype(reduce(tnp.add, parts), x.dtype)


@compiled("axis")
def multiplied(x: Array, weights: Any, *, axis: int) -> Array:
    """The combinations by a product with the whole matrix, in its dtype, then rounded to the array's."""
    rows = tnp.moveaxis(tnp.astype(x, weights.dtype), axis, -1)
    return tnp.astype(tnp.moveaxis(rows @ weights, -1, axis), x.dtype)


def _taps(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices and values of the nonzero elements in each column of a matrix, padded to (most, columns)."""
    most = max(1, np.count_nonzero(weights, axis=0).max(initial=0))
    indices = np.argsort(weights == 0, axis=0, kind="stable")[:most]
    return indices.astype("int32"), np.take_along_axis(weights, indices, axis=0)
