r"""The beta-binomial distribution: binomial with a probability of the beta distribution of ``a`` and ``b``.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.betabinom``. ``loc`` is added to ``k``.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> Array:
    """Returns the logarithm of the probability of ``k``, minus infinity where that is 0."""
    k, loc, n, a, b = arrays("logpmf", k, loc, n, a, b)
    k = k - loc
    outside = tnp.logical_or(tnp.logical_or(k < 0, k > n), tnp.floor(k) != k)
    k = tnp.where(outside, 1.0, k)
    value = -tnp.log(n + 1) - special.betaln(n - k + 1, k + 1)
    value = value + special.betaln(k + a, n - k + b) - special.betaln(a, b)
    return tnp.where(outside, -math.inf, value)


def pmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Returns the probability of ``k``.

    >>> round(float(pmf(1, 2, 1.0, 1.0)), 5)
    0.33333
    """
    return tnp.exp(logpmf(k, n, a, b, loc))


__all__ = ["logpmf", "pmf"]
