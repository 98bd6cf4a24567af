"""The multinomial distribution: how many of ``n`` trials have each outcome, along the last axis."""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.gamma_quotients import log_poisson
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Returns the logarithm of the probability of the counts ``x``, minus infinity where that is 0.

    Args:
        x: the counts of the outcomes along the last axis.
        n: the number of trials, which the counts must add up to.
        p: the probabilities of the outcomes along the last axis.
    """
    x, n, p = arrays("logpmf", x, n, p)
    # The counts of Poisson processes, given their sum. The last term is 0 if the probabilities add up to 1.
    value = tnp.sum(log_poisson(x, n[..., None] * p), axis=-1) - log_poisson(n, n) + n * (tnp.sum(p, axis=-1) - 1)
    return tnp.where(n == tnp.sum(x, axis=-1), value, -math.inf)


def pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Returns the probability of the counts ``x``.

    >>> round(float(pmf(tnp.asarray([1, 1]), 2, tnp.asarray([0.5, 0.5]))), 5)
    0.5
    """
    return tnp.exp(logpmf(x, n, p))


__all__ = ["logpmf", "pmf"]
