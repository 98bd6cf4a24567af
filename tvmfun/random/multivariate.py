"""Distributions of vectors and matrices."""

from __future__ import annotations

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy import linalg
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.numpy.promotion import operands
from tvmfun.random.continuous import exponential
from tvmfun.random.gammas import generalized_normal
from tvmfun.random.keys import check_key, split
from tvmfun.random.normals import normal
from tvmfun.random.parameters import common_shape
from tvmfun.random.uniforms import float_dtype
from tvmfun.typing import ArrayLike, DTypeLike, Key, Scalar


def multivariate_normal(
    key: Key,
    mean: ArrayLike,
    cov: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    method: str = "cholesky",
) -> Array:
    r"""Returns vectors :math:`\mu + F x` with standard normal :math:`x` and :math:`F F^\top` the covariance.

    Args:
        key: the key.
        mean: :math:`\mu`, the last axis that of the vectors.
        cov: the covariance matrices, the last two axes, float32 or float64.
        shape: of the result without its last axis; by default that of the parameters together.
        dtype: of the normal numbers, a float; by default that of the parameters.
        method: how to find :math:`F`: ``"cholesky"``, or ``"eigh"`` or ``"svd"``, which take singular matrices too.

    Raises:
        ShapeError: if the shapes do not fit.
        ArgumentError: for another method.

    >>> from tvmfun import random
    >>> multivariate_normal(random.key(0), tnp.zeros(2), tnp.eye(2), (3,)).shape
    (3, 2)
    """
    name = "multivariate_normal"
    key = check_key(name, key)
    mean, cov = (tnp.asarray(x) for x in operands(name, tnp.asarray(mean), tnp.asarray(cov), floating=True))
    if method not in ("cholesky", "eigh", "svd"):
        raise ArgumentError(name, "the method must be 'cholesky', 'eigh' or 'svd'", got=repr(method))
    if not mean.ndim or cov.shape[-2:] != (mean.shape[-1],) * 2:
        raise ShapeError(name, "the covariance of n numbers is an n x n matrix", got=f"{mean.aval} and {cov.aval}")
    dtype = mean.dtype if dtype is None else float_dtype(name, dtype)
    sizes = common_shape(name, shape, mean.shape[:-1], cov.shape[:-2])
    if method == "cholesky":
        factor = linalg.cholesky(cov)
    elif method == "eigh":
        values, vectors = linalg.eigh(cov)
        factor = vectors * tnp.sqrt(values)[..., None, :]
    else:
        vectors, values, _ = linalg.svd(cov)
        factor = vectors * tnp.sqrt(values)[..., None, :]
    return mean + tnp.matvec(factor, normal(key, (*sizes, mean.shape[-1]), dtype))


def orthogonal(key: Key, n: int, shape: Shape = (), dtype: DTypeLike | None = "float32", m: int | None = None) -> Array:
    """Returns uniformly distributed matrices with orthonormal columns, or orthonormal rows if there are fewer rows.

    Args:
        key: the key.
        n: the number of rows.
        shape: the leading axes, before those of the matrices.
        dtype: of the result, float32 or float64.
        m: the number of columns, by default ``n``.

    >>> from tvmfun import random
    >>> q = orthogonal(random.key(0), 3)
    >>> bool(tnp.allclose(q @ q.T, tnp.eye(3), atol=1e-6))
    True
    """
    key = check_key("orthogonal", key)
    rows, columns = as_shape("orthogonal", (n, n if m is None else m))
    sizes = (*as_shape("orthogonal", shape), max(rows, columns), min(rows, columns))
    q, r = linalg.qr(normal(key, sizes, float_dtype("orthogonal", dtype)))
    q = q * tnp.sign(linalg.diagonal(r))[..., None, :]
    return tnp.matrix_transpose(q) if rows < columns else q


def ball(key: Key, d: int, p: Scalar = 2, shape: Shape = (), dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns vectors uniform in the unit ball, :math:`\sum_i |x_i|^p \le 1`.

    Args:
        key: the key.
        d: the number of elements of a vector.
        p: the exponent of the norm, positive.
        shape: of the result without its last axis.
        dtype: of the result, a float.

    Source: Barthe et al., "A probabilistic approach to the geometry of the l_p^n-ball" (2005).

    >>> from tvmfun import random
    >>> bool(tnp.linalg.norm(ball(random.key(0), 3)) <= 1)
    True
    """
    key = check_key("ball", key)
    sizes, (size,) = as_shape("ball", shape), as_shape("ball", d)
    first, second = split(key)
    x = generalized_normal(first, p, (*sizes, size), dtype)
    radius = (tnp.sum(tnp.abs(x) ** p, axis=-1) + exponential(second, sizes, dtype)) ** (1 / p)
    return x / radius[..., None]
