"""The Euclidean projection on the probability simplex, on which sparsemax and projections of parameters rest."""

from __future__ import annotations

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.core.array import Array

__all__ = []


def project_on_simplex(x: Array) -> Array:
    r"""The nearest vectors of nonnegative numbers that add up to 1, along the last axis.

    They are :math:`\max(x - t, 0)` with the :math:`t` that gives this sum. If the largest number is above 1 or below 0,
    all are moved first, so that large ones keep their differences, and small ones beside 1 their digits. Derivatives do
    not pass through the sort that finds :math:`t`: which numbers stay is locally constant. A vector with NaN, or with a
    number that is infinite, becomes NaN.

    Args:
        x: floats of shape (..., n).

    Reference: Duchi et al., "Efficient Projections onto the l1-Ball for Learning in High Dimensions" (2008).
    """
    dtype = x.dtype
    if dtype.itemsize < dtypes.DEFAULT_FLOAT.itemsize:
        x = tnp.astype(x, dtypes.DEFAULT_FLOAT)  # half precision cannot count
    largest = lax.stop_gradient(tnp.max(x, axis=-1, keepdims=True, initial=-tnp.inf))
    x = x - (largest - tnp.clip(largest, 0, 1))
    ordered = tnp.flip(tnp.sort(tnp.maximum(lax.stop_gradient(x), -1), axis=-1), axis=-1)
    sums = tnp.cumsum(ordered, axis=-1)
    numbers = tnp.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    last = tnp.count_nonzero(1 + numbers * ordered > sums, axis=-1, keepdims=True) - 1
    threshold = (tnp.take_along_axis(sums, last, axis=-1) - 1) / tnp.astype(last + 1, x.dtype)
    for _ in range(3):
        # Newton's method removes the rounding errors of the sums; derivatives only see the last step.
        start = lax.stop_gradient(threshold)
        stays = x > start
        count = tnp.astype(tnp.count_nonzero(stays, axis=-1, keepdims=True), x.dtype)
        threshold = start + (tnp.sum(tnp.where(stays, x - start, 0), axis=-1, keepdims=True) - 1) / count
    # 0, or NaN if the threshold is.
    nothing = tnp.abs(0 * lax.stop_gradient(threshold))
    return tnp.astype(tnp.where(stays & (x > threshold), x - threshold, nothing), dtype)
