r"""The Gumbel distribution of largest values, of density :math:`e^{-x - e^{-x}}`.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.gumbel_r``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy.stats.standard import arrays, log_of, standardized
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale = standardized("logpdf", x, loc, scale)
    return -y - tnp.exp(-y) - tnp.log(scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, loc, scale))


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(0.0)), 5)
    0.36788
    """
    y, _ = standardized("cdf", x, loc, scale)
    return tnp.exp(-tnp.exp(-y))


def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of at most ``x``."""
    y, _ = standardized("logcdf", x, loc, scale)
    return -tnp.exp(-y)


def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of more than ``x``."""
    y, _ = standardized("sf", x, loc, scale)
    return -tnp.expm1(-tnp.exp(-y))


def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the probability of more than ``x``."""
    return log_of(sf(x, loc, scale), cdf(x, loc, scale))


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the quantile: the value that is exceeded with probability ``1 - q``."""
    q, loc, scale = arrays("ppf", q, loc, scale)
    value = -tnp.log(-tnp.log(q))
    known = tnp.logical_and(q >= 0, q <= 1)
    return tnp.where(known, value * scale + loc, math.nan)


__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]
