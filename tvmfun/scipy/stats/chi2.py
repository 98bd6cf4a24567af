r"""The chi-squared distribution with ``df`` degrees of freedom.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.chi2``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.gamma_quotients import log_gamma_density
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import log_of, standardized, within
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, df = standardized("logpdf", x, loc, scale, df)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, -math.inf, log_gamma_density(df / 2, y / 2) - math.log(2) - tnp.log(scale))


def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, df, loc, scale))


def cdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``."""
    y, _, df = standardized("cdf", x, loc, scale, df)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, 0.0, special.gammainc(df / 2, y / 2))


def logcdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of at most ``x``."""
    return log_of(cdf(x, df, loc, scale), sf(x, df, loc, scale))


def sf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``.

    >>> round(float(sf(2.0, 2.0)), 5)
    0.36788
    """
    y, _, df = standardized("sf", x, loc, scale, df)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, 1.0, special.gammaincc(df / 2, y / 2))


def logsf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of more than ``x``."""
    return log_of(sf(x, df, loc, scale), cdf(x, df, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
