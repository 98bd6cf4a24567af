r"""Student's t-distribution with ``df`` degrees of freedom.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.t``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy import special
from tvmfun.scipy.stats.standard import standardized
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, df = standardized("logpdf", x, loc, scale, df)
    return (
        special.gammaln((df + 1) / 2)
        - special.gammaln(df / 2)
        - 0.5 * tnp.log(math.pi * df)
        - (df + 1) / 2 * tnp.log1p(y * y / df)
    ) - tnp.log(scale)


def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density.

    >>> round(float(pdf(0.0, 1.0)), 5)
    0.31831
    """
    return tnp.exp(logpdf(x, df, loc, scale))


__all__ = ["logpdf", "pdf"]
