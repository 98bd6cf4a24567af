"""Densities of samples, estimated with Gaussian kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvmfun import numpy as tnp
from tvmfun import random
from tvmfun.boundary import described
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.nn.functional.softmax import logsumexp
from tvmfun.numpy import linalg
from tvmfun.scipy.linalg.solvers import solve_triangular
from tvmfun.scipy.special.error_functions import ndtr
from tvmfun.scipy.stats.standard import arrays
from tvmfun.tree_util import register_pytree_node_class
from tvmfun.typing import ArrayLike, Key


@register_pytree_node_class
class gaussian_kde:
    r"""A density estimated from a sample with Gaussian kernels, :math:`\sum_i w_i N(x; x_i, h^2 C)`.

    :math:`C` is the covariance of the sample.
    It is a tree of its arrays, so it may be made inside of a compiled function and passed to others.

    Args:
        dataset: the sample: numbers, or vectors of d elements as the columns of a matrix.
        bw_method: the factor :math:`h`: ``"scott"``, :math:`n^{-1/(d+4)}`, which is the default; ``"silverman"``,
            :math:`(n (d + 2) / 4)^{-1/(d+4)}`; a number; or a function of this object.
        weights: a weight for each element; they are scaled to the sum 1. Equal ones by default.

    Attributes:
        neff: the effective number of elements, :math:`1 / \sum_i w_i^2`; :math:`n` above.
        dataset: the sample as a matrix.
        weights: the weights.
        covariance: :math:`h^2 C`.
        inv_cov: its inverse.

    Raises:
        ArgumentError: for another ``bw_method``.
        ShapeError: if the sample has fewer than two elements or more than two axes, or the weights do not fit.

    Source: Scott, "Multivariate Density Estimation" (1992); Silverman, "Density Estimation" (1986).

    >>> density = gaussian_kde(tnp.asarray([0.0, 1.0]))
    >>> density.n, density.d, density(tnp.asarray([0.5])).shape
    (2, 1, (1,))
    """

    neff: Array
    dataset: Array
    weights: Array
    covariance: Array
    inv_cov: Array

    def __init__(
        self, dataset: Any, bw_method: str | float | Array | Callable | None = None, weights: Any = None
    ) -> None:
        name = "gaussian_kde"
        (x,) = arrays(name, tnp.asarray(dataset))
        x = tnp.atleast_2d(x)
        if x.ndim != 2 or x.size < 2:
            raise ShapeError(name, "the sample must be a vector or a matrix of several elements", got=repr(x.aval))
        self.dataset = x
        if weights is None:
            self.weights = tnp.full(x.shape[1], 1 / x.shape[1], x.dtype)
        else:
            w = tnp.atleast_1d(tnp.astype(tnp.asarray(weights), x.dtype))
            if w.shape != x.shape[1:]:
                raise ShapeError(name, f"there must be {x.shape[1]} weights", got=repr(w.aval))
            self.weights = w / tnp.sum(w)
        self.neff = 1 / tnp.sum(tnp.square(self.weights))
        covariance = tnp.atleast_2d(tnp.cov(x, bias=False, aweights=self.weights))
        factor = self._bandwidth(bw_method)
        self.covariance = covariance * factor**2
        self.inv_cov = linalg.inv(covariance) / factor**2

    def _bandwidth(self, method: Any) -> Any:
        if callable(method):
            return method(self)
        factors = {"scott": self.neff, "silverman": self.neff * (self.d + 2) / 4}
        if method is None or (isinstance(method, str) and method in factors):
            return factors[method or "scott"] ** (-1 / (self.d + 4))
        if isinstance(method, str) or tnp.ndim(method):
            what = "bw_method must be 'scott', 'silverman', a number or a function"
            raise ArgumentError("gaussian_kde", what, got=described(method))
        return method if isinstance(method, int | float) else tnp.asarray(method)

    @property
    def d(self) -> int:
        """The number of elements of a vector."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """The number of vectors of the sample."""
        return self.dataset.shape[1]

    def tree_flatten(self) -> tuple[tuple, None]:
        """The array leaves, as a tree container."""
        return (self.neff, self.dataset, self.weights, self.covariance, self.inv_cov), None

    @classmethod
    def tree_unflatten(cls, static: None, children: Any) -> gaussian_kde:
        """The object with these arrays."""
        instance = object.__new__(cls)
        instance.neff, instance.dataset, instance.weights, instance.covariance, instance.inv_cov = children
        return instance

    def evaluate(self, points: ArrayLike) -> Array:
        """Returns the density at points: numbers if ``d`` is 1, otherwise vectors as the columns of a matrix.

        Raises:
            ShapeError: if the points have another number of elements.
        """
        return self._mixture(self._columns("evaluate", points), self.covariance)

    def __call__(self, points: Any) -> Array:
        """Returns :meth:`evaluate` of the points."""
        return self.evaluate(points)

    def pdf(self, x: ArrayLike) -> Array:
        """Returns :meth:`evaluate` of ``x``."""
        return self.evaluate(x)

    def logpdf(self, x: ArrayLike) -> Array:
        """Returns the logarithm of the density at points, which is finite also where the density is 0 as a float."""
        energy, constant = self._energies(self._columns("logpdf", x), self.covariance)
        return logsumexp(-energy, axis=0, b=self.weights[:, None]) - constant

    def integrate_gaussian(self, mean: Any, cov: Any) -> Array:
        """Returns the integral of the density times that of a normal distribution.

        Args:
            mean: its mean, ``d`` numbers.
            cov: its covariance, a ``d`` x ``d`` matrix.

        Raises:
            ShapeError: if the shapes do not fit.
        """
        name = "integrate_gaussian"
        mean, cov = (tnp.asarray(x) for x in arrays(name, tnp.asarray(mean), tnp.asarray(cov)))
        mean, cov = tnp.atleast_1d(tnp.squeeze(mean)), tnp.atleast_2d(cov)
        if mean.shape != (self.d,) or cov.shape != (self.d, self.d):
            what = f"the mean must have {self.d} elements, and the covariance as many rows and columns"
            raise ShapeError(name, what, got=f"{mean.aval} and {cov.aval}")
        return self._mixture(mean[:, None], self.covariance + cov)[0]

    def integrate_box_1d(self, low: ArrayLike, high: ArrayLike) -> Array:
        """Returns the integral of a density of numbers from ``low`` to ``high``.

        Raises:
            ShapeError: if ``d`` is not 1, or the limits are not scalars.
        """
        name = "integrate_box_1d"
        low, high = arrays(name, tnp.asarray(low), tnp.asarray(high))
        if self.d != 1 or low.ndim or high.ndim:
            got = f"d={self.d}, {low.aval} and {high.aval}"
            raise ShapeError(name, "there must be one dimension, and both limits must be scalars", got=got)
        standard = lambda limit: ndtr((limit - self.dataset[0]) / tnp.sqrt(self.covariance[0, 0]))
        return tnp.sum(self.weights * (standard(high) - standard(low)))

    def integrate_kde(self, other: gaussian_kde) -> Array:
        """Returns the integral of the product of two estimated densities.

        Raises:
            ShapeError: if they have different dimensions.
        """
        if other.d != self.d:
            what = "both densities must have the same number of dimensions"
            raise ShapeError("integrate_kde", what, got=f"{self.d} and {other.d}")
        return tnp.sum(other.weights * self._mixture(other.dataset, self.covariance + other.covariance))

    def resample(self, key: Key, shape: tuple[int, ...] = ()) -> Array:
        """Returns random vectors from the estimated distribution, an array of shape ``(d, *shape)``.

        Args:
            key: a key.
            shape: how many.
        """
        index_key, noise_key = random.split(key)
        index = random.choice(index_key, self.n, shape=shape, p=self.weights)
        zeros = tnp.zeros(self.d, self.dataset.dtype)
        noise = random.multivariate_normal(noise_key, zeros, self.covariance, shape=shape, dtype=self.dataset.dtype)
        return tnp.take(self.dataset, index, axis=1) + tnp.moveaxis(noise, -1, 0)

    def _columns(self, name: str, points: Any) -> Array:
        (x,) = arrays(name, tnp.asarray(points))
        x = tnp.atleast_2d(x)
        if x.shape == (1, self.d):  # one vector
            x = x.T
        if x.ndim != 2 or x.shape[0] != self.d:
            raise ShapeError(name, f"the points must be vectors of {self.d} elements", got=repr(x.aval))
        return x

    def _energies(self, points: Array, covariance: Array) -> tuple[Array, Array]:
        """Negative logarithms of the kernels at ``points``, a row for each element of the sample, and a constant."""
        factor = linalg.cholesky(covariance)
        whiten = lambda columns: solve_triangular(factor, columns, lower=True)
        apart = whiten(self.dataset)[:, :, None] - whiten(points)[:, None, :]
        constant = tnp.sum(tnp.log(tnp.diag(factor))) + 0.5 * self.d * math.log(2 * math.pi)
        return tnp.sum(apart**2, axis=0) / 2, constant

    def _mixture(self, points: Array, covariance: Array) -> Array:
        energy, constant = self._energies(points, covariance)
        return tnp.sum(self.weights[:, None] * tnp.exp(-energy), axis=0) * tnp.exp(-constant)
