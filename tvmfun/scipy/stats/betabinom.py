r"""The beta-binomial distribution: binomial with a probability of the beta distribution of ``a`` and ``b``.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.betabinom``. ``loc`` is added to ``k``.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.gamma_quotients import log_beta, log_binomial_coefficient, log_gamma_ratio
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> Array:
    """Returns the logarithm of the probability of ``k``, minus infinity where that is 0."""
    k, loc, n, a, b = arrays("logpmf", k, loc, n, a, b)
    k = k - loc
    outside = tnp.logical_or(tnp.logical_or(k < 0, k > n), tnp.floor(k) != k)
    k, failures = tnp.where(outside, 1.0, k), tnp.where(outside, 1.0, n - k)
    of_few_trials = log_binomial_coefficient(k, failures) + _log_beta_ratio(a, b, k, failures)
    # B(a + k, b + m) by B(1 + k, 1 + m), which is a binomial coefficient of n + 1.
    of_many = log_gamma_ratio(k + 1, a - 1) + log_gamma_ratio(failures + 1, b - 1)
    of_many = of_many - log_gamma_ratio(k + failures + 2, a + b - 2) - tnp.log(k + failures + 1) - log_beta(a, b)
    return tnp.where(outside, -math.inf, tnp.where(a + b <= k + failures, of_many, of_few_trials))


def _log_beta_ratio(a: Array, b: Array, k: Array, m: Array) -> Array:
    """The logarithm of ``B(a + k, b + m) / B(a, b)``, in small steps of the larger parameter."""
    is_ordered = a <= b
    a, b, k, m = (tnp.where(is_ordered, *pair) for pair in ((a, b), (b, a), (k, m), (m, k)))
    by_trials = log_gamma_ratio(b, m) - log_gamma_ratio(a + b, k + m)
    by_parameter = log_gamma_ratio(b, a) - log_gamma_ratio(b + m, a + k)
    return log_gamma_ratio(a, k) + tnp.where(k + m <= a, by_trials, by_parameter)


def pmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Returns the probability of ``k``.

    >>> round(float(pmf(1, 2, 1.0, 1.0)), 5)
    0.33333
    """
    return tnp.exp(logpmf(k, n, a, b, loc))


__all__ = ["logpmf", "pmf"]
