r"""The generalized normal distribution, of density proportional to :math:`e^{-|x|^p}`.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.gennorm``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import standardized


def logpdf(x: Any, p: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, p = standardized("logpdf", x, loc, scale, p)
    return tnp.log(p / 2) - special.gammaln(1 / p) - tnp.abs(y) ** p - tnp.log(scale)


def pdf(x: Any, p: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Returns the density."""
    return tnp.exp(logpdf(x, p, loc, scale))


def cdf(x: Any, p: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Returns the probability of at most ``x``.

    >>> round(float(cdf(0.0, 2.0)), 5)
    0.5
    """
    y, _, p = standardized("cdf", x, loc, scale, p)
    return 0.5 * (1 + tnp.sign(y) * special.gammainc(1 / p, tnp.abs(y) ** p))


__all__ = ["cdf", "logpdf", "pdf"]
