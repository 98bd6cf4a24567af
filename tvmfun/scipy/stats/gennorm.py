r"""The generalized normal distribution, of density proportional to :math:`e^{-|x|^p}`.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.gennorm``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import standardized
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, beta: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, beta = standardized("logpdf", x, loc, scale, beta)
    return tnp.log(beta / 2) - special.gammaln(1 / beta) - tnp.abs(y) ** beta - tnp.log(scale)


def pdf(x: ArrayLike, beta: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, beta, loc, scale))


def cdf(x: ArrayLike, beta: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(0.0, 2.0)), 5)
    0.5
    """
    y, _, beta = standardized("cdf", x, loc, scale, beta)
    return 0.5 * (1 + tnp.sign(y) * special.gammainc(1 / beta, tnp.abs(y) ** beta))


__all__ = ["cdf", "logpdf", "pdf"]
