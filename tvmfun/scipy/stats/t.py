r"""Student's t-distribution with ``df`` degrees of freedom.

Functions are elementwise, with the names and arguments of ``jax.scipy.stats.t``: ``loc`` moves the
distribution, and ``scale`` stretches it.
"""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.gamma_quotients import log_gamma_ratio
from tvmfun.scipy.stats.standard import standardized
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the logarithm of the density."""
    y, scale, df = standardized("logpdf", x, loc, scale, df)
    is_normal = tnp.isinf(df)
    half = tnp.where(is_normal, 1.0, df / 2)
    constant = log_gamma_ratio(half, tnp.full_like(half, 0.5)) - 0.5 * tnp.log(half)
    far = -(half + 0.5) * tnp.log1p(y * y / (2 * half))
    value = tnp.where(is_normal, -0.5 * y * y, constant + far)
    return value - 0.5 * math.log(2 * math.pi) - tnp.log(scale)


def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Returns the density.

    >>> round(float(pdf(0.0, 1.0)), 5)
    0.31831
    """
    return tnp.exp(logpdf(x, df, loc, scale))


__all__ = ["logpdf", "pdf"]
