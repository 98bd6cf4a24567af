r"""The Bernoulli distribution: 1 with probability ``p``, and 0.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.bernoulli``. ``loc`` is added to ``k``.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpmf(k: Any, p: Any, loc: Any = 0) -> Array:
    """Returns the logarithm of the probability of ``k``, minus infinity where that is 0."""
    k, loc, p = arrays("logpmf", k, loc, p)
    k = k - loc
    outside = tnp.logical_or(tnp.logical_and(k != 0, k != 1), tnp.floor(k) != k)
    k = tnp.where(outside, 1.0, k)
    value = special.xlogy(k, p) + special.xlog1py(1 - k, -p)
    return tnp.where(outside, -math.inf, value)


def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Returns the probability of ``k``.

    >>> round(float(pmf(1, 0.25)), 5)
    0.25
    """
    return tnp.exp(logpmf(k, p, loc))


def cdf(k: ArrayLike, p: ArrayLike) -> Array:
    """Returns the probability of at most ``k``."""
    k, p = arrays("cdf", k, p)
    value = tnp.where(k < 0, 0.0, tnp.where(k < 1, 1 - p, 1.0))
    unknown = tnp.logical_or(tnp.isnan(k), tnp.logical_or(tnp.isnan(p), tnp.logical_or(p < 0, p > 1)))
    return tnp.where(unknown, math.nan, value)


def ppf(q: ArrayLike, p: ArrayLike) -> Array:
    """Returns the smallest number that is not exceeded with probability ``q``."""
    q, p = arrays("ppf", q, p)
    value = tnp.where(q == 0, -1.0, tnp.where(q <= 1 - p, 0.0, 1.0))
    known = tnp.logical_and(tnp.logical_and(q >= 0, q <= 1), tnp.logical_and(p >= 0, p <= 1))
    return tnp.where(known, value, math.nan)


__all__ = ["cdf", "logpmf", "pmf", "ppf"]
