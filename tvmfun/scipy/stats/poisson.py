r"""The Poisson distribution, of mean ``mu``.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.poisson``. ``loc`` is added to ``k``.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.gamma_quotients import log_poisson
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpmf(k: Any, mu: Any, loc: Any = 0) -> Array:
    """Returns the logarithm of the probability of ``k``, minus infinity where that is 0."""
    k, loc, mu = arrays("logpmf", k, loc, mu)
    k = k - loc
    outside = tnp.logical_or(k < 0, tnp.floor(k) != k)
    k = tnp.where(outside, 1.0, k)
    return tnp.where(outside, -math.inf, log_poisson(k, mu))


def pmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Returns the probability of ``k``.

    >>> round(float(pmf(0, 1.0)), 5)
    0.36788
    """
    return tnp.exp(logpmf(k, mu, loc))


def cdf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Returns the probability of at most ``k``."""
    k, loc, mu = arrays("cdf", k, loc, mu)
    k = tnp.floor(k - loc)
    return tnp.where(k < 0, 0.0, special.gammaincc(tnp.maximum(k, 0.0) + 1, mu))


def entropy(mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    r"""Returns the entropy :math:`-\\sum_k p_k \\ln p_k`.

    It is summed up to a mean of 100; from there on it is the asymptotic series, good to about 1e-9.
    """
    mu, loc = arrays("entropy", mu, loc)
    mu = mu + 0 * loc
    is_small = mu < 100
    small, large = tnp.where(is_small, mu, 1.0), tnp.where(is_small, 100.0, mu)
    k = tnp.arange(260, dtype=mu.dtype)
    logs = logpmf(k, small[..., None])
    total = -tnp.sum(tnp.exp(logs) * logs, axis=-1)
    inverse = 1 / large
    series = inverse * (-1 / 12 + inverse * (-1 / 24 + inverse * (-19 / 360)))
    far = 0.5 * tnp.log(2 * math.pi * math.e * large) + series
    return tnp.where(mu == 0, 0.0, tnp.where(mu < 0, math.nan, tnp.where(is_small, total, far)))


__all__ = ["cdf", "entropy", "logpmf", "pmf"]
