r"""The Pareto distribution, of density :math:`b x^{-b-1}` from 1.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.pareto``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy.stats.standard import arrays, log_of, standardized, within
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, b = standardized("logpdf", x, loc, scale, b)
    outside = y < 1
    y = within(y, outside, 1.0)
    return tnp.where(outside, -math.inf, tnp.log(b) - (b + 1) * tnp.log(y) - tnp.log(scale))


def pdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, b, loc, scale))


def cdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``."""
    y, _, b = standardized("cdf", x, loc, scale, b)
    outside = y < 1
    y = within(y, outside, 1.0)
    return tnp.where(outside, 0.0, -tnp.expm1(-b * tnp.log(y)))


def logcdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of at most ``x``."""
    return log_of(cdf(x, b, loc, scale), sf(x, b, loc, scale))


def sf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``.

    >>> round(float(sf(2.0, 2.0)), 5)
    0.25
    """
    y, _, b = standardized("sf", x, loc, scale, b)
    outside = y < 1
    y = within(y, outside, 1.0)
    return tnp.where(outside, 1.0, y**-b)


def logsf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of more than ``x``."""
    y, _, b = standardized("logsf", x, loc, scale, b)
    outside = y < 1
    y = within(y, outside, 1.0)
    return tnp.where(outside, 0.0, -b * tnp.log(y))


def ppf(q: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the quantile: the value that is exceeded with probability ``1 - q``."""
    q, loc, scale, b = arrays("ppf", q, loc, scale, b)
    value = tnp.exp(-tnp.log1p(-q) / b)
    known = tnp.logical_and(q >= 0, q <= 1)
    return tnp.where(known, value * scale + loc, math.nan)


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
