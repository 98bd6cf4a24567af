r"""The wrapped Cauchy distribution of angles, of density :math:`\frac{1 - c^2}{2\pi (1 + c^2 - 2 c \cos x)}`."""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, c: ArrayLike) -> Array:
    """Returns the logarithm of the density, NaN unless ``c`` is between 0 and 1, elementwise."""
    x, c = arrays("logpdf", x, c)
    value = tnp.log(1 - c * c) - math.log(2 * math.pi) - tnp.log(1 + c * c - 2 * c * tnp.cos(x))
    value = tnp.where(tnp.logical_and(x >= 0, x <= 2 * math.pi), value, -math.inf)
    return tnp.where(tnp.logical_and(c > 0, c < 1), value, math.nan)


def pdf(x: ArrayLike, c: ArrayLike) -> Array:
    """Returns the density, elementwise.

    >>> round(float(pdf(0.0, 0.5)), 5)
    0.47746
    """
    return tnp.exp(logpdf(x, c))


__all__ = ["logpdf", "pdf"]
