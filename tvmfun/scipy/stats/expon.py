r"""The exponential distribution, of density :math:`e^{-x}` from 0.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.expon``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy.stats.standard import arrays, log_of, standardized, within
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale = standardized("logpdf", x, loc, scale)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, -math.inf, -y - tnp.log(scale))


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, loc, scale))


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``."""
    y, _ = standardized("cdf", x, loc, scale)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, 0.0, -tnp.expm1(-y))


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of at most ``x``."""
    return log_of(cdf(x, loc, scale), sf(x, loc, scale))


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``.

    >>> round(float(sf(1.0)), 5)
    0.36788
    """
    y, _ = standardized("sf", x, loc, scale)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, 1.0, tnp.exp(-y))


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of more than ``x``."""
    y, _ = standardized("logsf", x, loc, scale)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, 0.0, -y)


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the quantile: the value that is exceeded with probability ``1 - q``."""
    q, loc, scale = arrays("ppf", q, loc, scale)
    value = -tnp.log1p(-q)
    known = tnp.logical_and(q >= 0, q <= 1)
    return tnp.where(known, value * scale + loc, math.nan)


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
