r"""The Laplace distribution, of density :math:`e^{-|x|} / 2`.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.laplace``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy.stats.standard import standardized
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale = standardized("logpdf", x, loc, scale)
    return -tnp.abs(y) - math.log(2) - tnp.log(scale)


def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, loc, scale))


def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(0.0)), 5)
    0.5
    """
    y, _ = standardized("cdf", x, loc, scale)
    return tnp.where(y < 0, tnp.exp(-tnp.abs(y)) / 2, 1 - tnp.exp(-tnp.abs(y)) / 2)


__all__ = ["cdf", "logpdf", "pdf"]
