r"""The von Mises distribution of angles, of density proportional to :math:`e^{\kappa \cos x}`."""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Returns the logarithm of the density, NaN for negative ``kappa``, elementwise."""
    x, kappa = arrays("logpdf", x, kappa)
    value = kappa * (tnp.cos(x) - 1) - tnp.log(2 * math.pi * special.i0e(kappa))
    return tnp.where(kappa > 0, value, math.nan)


def pdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Returns the density, elementwise.

    >>> round(float(pdf(0.0, 1.0)), 5)
    0.34171
    """
    return tnp.exp(logpdf(x, kappa))


__all__ = ["logpdf", "pdf"]
