r"""The uniform distribution from ``loc`` to ``loc + scale``.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.uniform``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy.stats.standard import arrays, standardized, within
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale = standardized("logpdf", x, loc, scale)
    outside = tnp.logical_or(y < 0, y > 1)
    y = within(y, outside, 0.5)
    return tnp.where(outside, -math.inf, 0 * y - tnp.log(scale))


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, loc, scale))


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(0.25)), 5)
    0.25
    """
    y, _ = standardized("cdf", x, loc, scale)
    below, above = y < 0, y > 1
    y = within(y, tnp.logical_or(below, above), 0.5)
    return tnp.where(below, 0.0, tnp.where(above, 1.0, y))


def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the quantile: the value that is exceeded with probability ``1 - q``."""
    q, loc, scale = arrays("ppf", q, loc, scale)
    value = q
    known = tnp.logical_and(q >= 0, q <= 1)
    return tnp.where(known, value * scale + loc, math.nan)


__all__ = ["cdf", "logpdf", "pdf", "ppf"]
