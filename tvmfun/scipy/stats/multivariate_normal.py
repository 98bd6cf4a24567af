"""The normal distribution of vectors."""

from __future__ import annotations

import math
from typing import Any

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy import linalg
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


def logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike, allow_singular: Any = None) -> Array:
    """Returns the logarithm of the density.

    Args:
        x: vectors along the last axis.
        mean: the mean.
        cov: the covariance, a number if it is that of independent numbers, or matrices.
        allow_singular: only None, as in JAX.

    Raises:
        ArgumentError: if singular covariances are asked for.
        ShapeError: if the sizes do not fit.
    """
    if allow_singular is not None:
        raise ArgumentError("logpdf", "singular covariances are not supported", got=repr(allow_singular))
    x, mean, cov = arrays("logpdf", x, mean, cov)
    if not mean.ndim:
        if cov.ndim:
            raise ShapeError("logpdf", "the covariance of a number is a number", got=repr(cov.aval))
        return -tnp.square(x - mean) / (2 * cov) - 0.5 * (math.log(2 * math.pi) + tnp.log(cov))
    size = mean.shape[-1]
    if not cov.ndim:
        distance = tnp.sum(tnp.square(x - mean), axis=-1) / cov
        return -0.5 * (distance + size * math.log(2 * math.pi) + size * tnp.log(cov))
    if cov.ndim < 2 or cov.shape[-2:] != (size, size):
        raise ShapeError("logpdf", "the covariance of n numbers is an n x n matrix", got=repr(cov.aval))
    factor = linalg.cholesky(cov)
    rest = x - mean
    lead = tnp.broadcast_shapes(rest.shape[:-1], factor.shape[:-2])
    column = tnp.broadcast_to(rest, (*lead, size))[..., None]
    solved = lax.linalg.triangular_solve(
        tnp.broadcast_to(factor, (*lead, size, size)), column, left_side=True, lower=True
    )
    log_determinant = tnp.sum(tnp.log(linalg.diagonal(factor)), axis=-1)
    return -0.5 * (tnp.sum(tnp.square(solved), axis=(-2, -1)) + size * math.log(2 * math.pi)) - log_determinant


def pdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """Returns the density.

    >>> round(float(pdf(tnp.zeros(2), tnp.zeros(2), tnp.eye(2))), 5)
    0.15915
    """
    return tnp.exp(logpdf(x, mean, cov))


__all__ = ["logpdf", "pdf"]
