r"""The normal distribution truncated to the interval from ``a`` to ``b``.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.truncnorm``: ``loc`` moves the
distribution, and ``scale`` stretches it, with its interval.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import standardized
from tvmfun.typing import ArrayLike


def _log_difference(high: Array, low: Array) -> Array:
    """``log(exp(high) - exp(low))``."""
    gap = tnp.where(high == -math.inf, 0.0, tnp.minimum(low - high, 0.0))
    return high + tnp.log(-tnp.expm1(gap))


def _log_mass(a: Array, b: Array) -> Array:
    """The logarithm of the probability between two values, from the tail in which it is accurate."""
    is_right = a > 0
    low, high = tnp.where(is_right, -b, a), tnp.where(is_right, -a, b)
    return _log_difference(special.log_ndtr(high), special.log_ndtr(low))


def logpdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, a, b = standardized("logpdf", x, loc, scale, a, b)
    value = -y * y / 2 - 0.5 * math.log(2 * math.pi) - _log_mass(a, b) - tnp.log(scale)
    value = tnp.where(tnp.logical_or(y < a, y > b), -math.inf, value)
    return tnp.where(a < b, value, math.nan)


def pdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density.

    >>> round(float(pdf(0.0, -1.0, 1.0)), 5)
    0.58437
    """
    return tnp.exp(logpdf(x, a, b, loc, scale))


def logcdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of at most ``x``."""
    y, _, a, b = standardized("logcdf", x, loc, scale, a, b)
    value = _log_mass(a, tnp.clip(y, a, b)) - _log_mass(a, b)
    value = tnp.where(y <= a, -math.inf, tnp.where(y >= b, 0.0, value))
    return tnp.where(a < b, value, math.nan)


def cdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(0.0, -1.0, 1.0)), 5)
    0.5
    """
    return tnp.exp(logcdf(x, a, b, loc, scale))


def logsf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of more than ``x``."""
    y, _, a, b = standardized("logsf", x, loc, scale, a, b)
    value = _log_mass(tnp.clip(y, a, b), b) - _log_mass(a, b)
    value = tnp.where(y <= a, 0.0, tnp.where(y >= b, -math.inf, value))
    return tnp.where(a < b, value, math.nan)


def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``."""
    return tnp.exp(logsf(x, a, b, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
