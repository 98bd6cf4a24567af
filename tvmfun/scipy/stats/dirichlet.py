r"""The Dirichlet distribution of probabilities, of density proportional to :math:`\prod_i x_i^{\alpha_i - 1}`."""

from __future__ import annotations

import math

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.lax.gamma_quotients import log_poisson
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """Returns the logarithm of the density, minus infinity where ``x`` is not a vector of probabilities.

    Args:
        x: the probabilities along the first axis, all or all but the last.
        alpha: the parameters, a vector.

    Raises:
        ShapeError: if the sizes do not fit.
    """
    x, alpha = arrays("logpdf", x, alpha)
    if alpha.ndim != 1 or x.ndim < 1 or x.shape[0] not in (alpha.shape[0], alpha.shape[0] - 1):
        raise ShapeError("logpdf", "there must be a probability for each alpha", got=f"{x.aval} and {alpha.aval}")
    if x.shape[0] != alpha.shape[0]:
        x = tnp.concatenate([x, 1 - tnp.sum(x, axis=0, keepdims=True)])
    column = tnp.reshape(alpha, (-1,) + (1,) * (x.ndim - 1))
    inside = tnp.logical_and(tnp.all(x > 0, axis=0), tnp.abs(tnp.sum(x, axis=0) - 1) < 1e-6)
    # The densities of gamma distributions, given their sum. The last term is 0 if the probabilities add up to 1.
    total, x = tnp.sum(alpha), tnp.where(x > 0, x, 1.0)
    value = tnp.sum(log_poisson(column, total * x) + tnp.log(column) - tnp.log(x), axis=0)
    value = value - log_poisson(total, total) - tnp.log(total) + total * (tnp.sum(x, axis=0) - 1)
    return tnp.where(inside, value, -math.inf)


def pdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """Returns the density.

    >>> round(float(pdf(tnp.asarray([0.5, 0.5]), tnp.asarray([2.0, 2.0]))), 4)
    1.5
    """
    return tnp.exp(logpdf(x, alpha))


__all__ = ["logpdf", "pdf"]
