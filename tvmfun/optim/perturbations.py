"""Derivatives of nondifferentiable functions by random perturbations, by the names of ``optax.perturbations``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, random, tree
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.names import missing as _missing
from tvmfun.optim.tree import random_like
from tvmfun.transforms import vmap
from tvmfun.typing import DTypeLike, Key, PyTree, Scalar, Shape

__all__ = ["Gumbel", "Normal", "make_perturbed_fun"]


@dataclass(frozen=True)
class Gumbel:
    """The Gumbel distribution, with the density ``exp(-x - exp(-x))``.

    >>> float(Gumbel().log_prob(0.0))
    -1.0
    """

    def sample(self, key: Key, sample_shape: Shape = (), dtype: DTypeLike = float) -> Array:
        """Draws samples."""
        kind = dtypes.canonical(dtype)
        uniform = random.uniform(key, sample_shape, kind, minval=float(np.finfo(kind).tiny), maxval=1.0)
        return -tnp.log(-tnp.log(uniform))

    def log_prob(self, inputs: Array) -> Array:
        """The logarithm of the density."""
        inputs = tnp.asarray(inputs)
        return -inputs - tnp.exp(-inputs)


@dataclass(frozen=True)
class Normal:
    """The normal distribution, with a density proportional to ``exp(-x**2 / 2)``.

    >>> float(Normal().log_prob(2.0))
    -2.0
    """

    def sample(self, key: Key, sample_shape: Shape = (), dtype: DTypeLike = float) -> Array:
        """Draws samples."""
        return random.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: Array) -> Array:
        """The logarithm of the density, up to a constant."""
        inputs = tnp.asarray(inputs)
        return -0.5 * inputs * inputs


def make_perturbed_fun(
    fun: Callable[[PyTree], PyTree],
    num_samples: int = 1000,
    sigma: Scalar = 0.1,
    noise: Gumbel | Normal = Gumbel(),  # it is immutable
    use_baseline: bool = True,
) -> Callable[[Key, PyTree], PyTree]:
    r"""Smooths a function without useful derivatives: its mean over perturbed arguments.

    .. math::

        f_\sigma(x) = \mathbb{E}_z f(x + \sigma z), \qquad
        \nabla f_\sigma(x) = -\tfrac{1}{\sigma}\, \mathbb{E}_z f(x + \sigma z)\, \nabla \log p(z)

    Both are estimated from the same samples. Derivatives, of any order, use values of ``fun`` only.

    Args:
        fun: a function from a tree of float arrays to a tree of float arrays.
        num_samples: the number of samples.
        sigma: the size of the perturbations.
        noise: their distribution, with methods ``sample(key, shape, dtype)`` and ``log_prob(x)``.
        use_baseline: whether to subtract ``fun(x)`` where only derivatives see it, so that these vary less.

    Returns:
        A function of a key and the argument.

    Raises:
        ArgumentError: if there are no samples.

    Source: follows ``optax.perturbations.make_perturbed_fun``; Berthet et al., "Learning with Differentiable
    Perturbed Optimizers" (2020); Foerster et al., "DiCE: The Infinitely Differentiable Monte Carlo Estimator" (2018).

    >>> import tvmfun
    >>> smooth = make_perturbed_fun(lambda x: tnp.sum(tnp.sign(x)), 100, sigma=1.0, noise=Normal())
    >>> bool(tvmfun.grad(smooth, argnums=1)(random.key(0), tnp.zeros(1))[0] > 0.5)
    True
    """
    if num_samples < 1:
        raise ArgumentError("make_perturbed_fun", "there must be samples", got=str(num_samples))

    def estimate(key: Key, x: Array) -> PyTree:
        baseline = fun(tree.map(lax.stop_gradient, x)) if use_baseline else None

        def one(key: Key) -> PyTree:
            noises = random_like(key, x, sampler=noise.sample)
            shifted = tree.map(lambda x, z: lax.stop_gradient(x + sigma * z), x, noises)
            # The likelihood of the same point for another x has a derivative.
            likelihoods = tree.map(lambda x, y: tnp.sum(noise.log_prob((y - x) / sigma)), x, shifted)
            total = sum(tree.leaves(likelihoods))
            # Equal to 1, with the derivatives of the log-likelihood.
            weight = tnp.exp(total - lax.stop_gradient(total))
            values = tree.map(lambda y: weight * y, fun(shifted))
            return tree.map(lambda y, b: y + (1 - weight) * b, values, baseline) if use_baseline else values

        results = vmap(one)(random.split(key, num_samples))
        return tree.map(lambda y: tnp.mean(y, axis=0), results)

    return estimate


__getattr__ = _missing(__name__)
publish(globals())
