r"""The negative binomial distribution: the number of failures before the ``n``-th success, of probability ``p``.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.nbinom``. ``loc`` is added to ``k``.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.gamma_quotients import log_binomial
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Array:
    """Returns the logarithm of the probability of ``k``, minus infinity where that is 0."""
    k, loc, n, p = arrays("logpmf", k, loc, n, p)
    k = k - loc
    outside = tnp.logical_or(k < 0, tnp.floor(k) != k)
    k = tnp.where(outside, 1.0, k)
    # The last trial is a success.
    value = tnp.where(n < 0, math.nan, log_binomial(n, k, p) + tnp.log(n / (n + k)))
    return tnp.where(outside, -math.inf, value)


def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Returns the probability of ``k``.

    >>> round(float(pmf(1, 1, 0.5)), 5)
    0.25
    """
    return tnp.exp(logpmf(k, n, p, loc))


__all__ = ["logpmf", "pmf"]
