r"""The Cauchy distribution, of density :math:`\frac{1}{\pi (1 + x^2)}`.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.cauchy``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy.stats.standard import arrays, log_of, standardized
from tvmfun.typing import ArrayLike


def _quantile(q: Array) -> Array:
    is_low = q < 0.5
    tail = tnp.where(is_low, -1.0, 1.0) / tnp.tan(math.pi * tnp.where(is_low, q, 1 - q))
    return tnp.where(tnp.abs(q - 0.5) < 0.25, tnp.tan(math.pi * (q - 0.5)), tail)


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale = standardized("logpdf", x, loc, scale)
    return -math.log(math.pi) - tnp.log1p(y * y) - tnp.log(scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, loc, scale))


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(1.0)), 5)
    0.75
    """
    y, _ = standardized("cdf", x, loc, scale)
    return tnp.atan2(tnp.ones_like(y), -y) / math.pi


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of at most ``x``."""
    return log_of(cdf(x, loc, scale), sf(x, loc, scale))


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``."""
    y, _ = standardized("sf", x, loc, scale)
    return tnp.atan2(tnp.ones_like(y), y) / math.pi


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of more than ``x``."""
    return log_of(sf(x, loc, scale), cdf(x, loc, scale))


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the quantile: the value that is exceeded with probability ``1 - q``."""
    q, loc, scale = arrays("ppf", q, loc, scale)
    value = _quantile(q)
    known = tnp.logical_and(q >= 0, q <= 1)
    return tnp.where(known, value * scale + loc, math.nan)


def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the value that is exceeded with probability ``q``."""
    q, loc, scale = arrays("isf", q, loc, scale)
    value = -_quantile(q)
    known = tnp.logical_and(q >= 0, q <= 1)
    return tnp.where(known, value * scale + loc, math.nan)


__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
