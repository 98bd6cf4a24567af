r"""The beta distribution, of density :math:`x^{a-1} (1-x)^{b-1} / B(a, b)` from 0 to 1.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.beta``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.gamma_quotients import log_beta_density
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import log_of, standardized, within
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, a, b = standardized("logpdf", x, loc, scale, a, b)
    outside = tnp.logical_or(y < 0, y > 1)
    y = within(y, outside, 0.5)
    return tnp.where(outside, -math.inf, log_beta_density(a, b, y) - tnp.log(scale))


def pdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, a, b, loc, scale))


def cdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(0.5, 2.0, 2.0)), 5)
    0.5
    """
    y, _, a, b = standardized("cdf", x, loc, scale, a, b)
    below, above = y < 0, y > 1
    y = within(y, tnp.logical_or(below, above), 0.5)
    return tnp.where(below, 0.0, tnp.where(above, 1.0, special.betainc(a, b, y)))


def logcdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of at most ``x``."""
    return log_of(cdf(x, a, b, loc, scale), sf(x, a, b, loc, scale))


def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``."""
    y, _, a, b = standardized("sf", x, loc, scale, a, b)
    below, above = y < 0, y > 1
    y = within(y, tnp.logical_or(below, above), 0.5)
    return tnp.where(below, 1.0, tnp.where(above, 0.0, special.betainc(b, a, 1 - y)))


def logsf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of more than ``x``."""
    return log_of(sf(x, a, b, loc, scale), cdf(x, a, b, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
