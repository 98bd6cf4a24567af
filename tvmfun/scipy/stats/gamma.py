r"""The gamma distribution, of density :math:`x^{a-1} e^{-x} / \Gamma(a)` from 0.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.gamma``: ``loc`` moves the
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


def logpdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, a = standardized("logpdf", x, loc, scale, a)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, -math.inf, log_gamma_density(a, y) - tnp.log(scale))


def pdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, a, loc, scale))


def cdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(1.0, 1.0)), 5)
    0.63212
    """
    y, _, a = standardized("cdf", x, loc, scale, a)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, 0.0, special.gammainc(a, y))


def logcdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of at most ``x``."""
    return log_of(cdf(x, a, loc, scale), sf(x, a, loc, scale))


def sf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``."""
    y, _, a = standardized("sf", x, loc, scale, a)
    outside = y < 0
    y = within(y, outside, 0.5)
    return tnp.where(outside, 1.0, special.gammaincc(a, y))


def logsf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of more than ``x``."""
    return log_of(sf(x, a, loc, scale), cdf(x, a, loc, scale))


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]
