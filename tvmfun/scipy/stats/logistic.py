r"""The logistic distribution, of density :math:`e^{-x} / (1 + e^{-x})^2`.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.logistic``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import arrays, standardized
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale = standardized("logpdf", x, loc, scale)
    return -tnp.abs(y) - 2 * tnp.log1p(tnp.exp(-tnp.abs(y))) - tnp.log(scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, loc, scale))


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``."""
    y, _ = standardized("cdf", x, loc, scale)
    return special.expit(y)


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``."""
    y, _ = standardized("sf", x, loc, scale)
    return special.expit(-y)


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the quantile: the value that is exceeded with probability ``1 - q``.

    >>> round(float(ppf(0.5)), 5)
    0.0
    """
    q, loc, scale = arrays("ppf", q, loc, scale)
    value = special.logit(q)
    known = tnp.logical_and(q >= 0, q <= 1)
    return tnp.where(known, value * scale + loc, math.nan)


def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the value that is exceeded with probability ``q``."""
    q, loc, scale = arrays("isf", q, loc, scale)
    value = -special.logit(q)
    known = tnp.logical_and(q >= 0, q <= 1)
    return tnp.where(known, value * scale + loc, math.nan)


__all__ = ["cdf", "isf", "logpdf", "pdf", "ppf", "sf"]
