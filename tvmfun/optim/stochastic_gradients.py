"""Scaling of gradients, and normal distributions for estimates of gradients."""

from __future__ import annotations

import math
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax, random, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.transforms import custom_vjp
from tvmfun.typing import ArrayLike, Key, PyTree, Scalar

__all__ = ["MultiNormalDiagFromLogScale", "multi_normal", "scale_gradient"]


def scale_gradient(inputs: PyTree, scale: Scalar) -> PyTree:
    """The identity, whose gradient is multiplied by a factor.

    Args:
        inputs: a tree of arrays.
        scale: the factor, a number or a 0-d array; 0 stops the gradient.

    Returns:
        The same tree.

    >>> from tvmfun import grad
    >>> float(grad(lambda x: scale_gradient(x, 0.5) ** 2)(3.0))
    3.0
    """
    if isinstance(scale, int | float) and scale in (0, 1):
        return inputs if scale else lax.stop_gradient(inputs)
    return _scale_gradient(tree.map(tnp.asarray, inputs), tnp.asarray(scale))


@custom_vjp
def _scale_gradient(inputs: PyTree, scale: Scalar) -> PyTree:
    return inputs


def _forward(inputs: PyTree, scale: Scalar) -> tuple[Any, Any]:
    return inputs, scale


def _backward(scale: Scalar, cotangents: PyTree) -> tuple[Any, Any]:
    scaled = tree.map(lambda c: (c * scale).astype(abstract(c).dtype), cotangents)
    return scaled, tnp.zeros_like(scale)


_scale_gradient.defvjp(_forward, _backward)


class MultiNormalDiagFromLogScale:
    """A normal distribution of independent elements, by their means and the logarithms of their deviations.

    Args:
        loc: the means.
        log_scale: the logarithms of the standard deviations, of the same shape or one that broadcasts with it.

    >>> normal = MultiNormalDiagFromLogScale(tnp.zeros(2), tnp.zeros(2))
    >>> round(float(normal.log_prob(tnp.zeros(2))), 4)
    -1.8379
    """

    def __init__(self, loc: ArrayLike, log_scale: ArrayLike) -> None:
        self._loc, self._log_scale = tnp.asarray(loc), tnp.asarray(log_scale)
        self._shape = tnp.broadcast_shapes(self._loc.shape, self._log_scale.shape)

    def sample(self, shape: tuple[int, ...], key: Key) -> Array:
        """Draws samples with a key of :mod:`tvmfun.random`: an array ``[*shape, *elements]``."""
        normal = random.normal(key, (*shape, *self._shape), self._loc.dtype)
        return normal * tnp.exp(self._log_scale) + self._loc

    def log_prob(self, x: ArrayLike) -> Array:
        """The logarithms of the densities at points ``[..., *elements]``, an array ``[...]``."""
        z = (x - self._loc) / tnp.exp(self._log_scale)
        densities = -0.5 * tnp.square(z) - self._log_scale - 0.5 * math.log(2 * math.pi)
        return tnp.sum(densities, axis=tuple(range(-len(self._shape), 0)))

    @property
    def log_scale(self) -> Array:
        """The logarithms of the standard deviations."""
        return self._log_scale

    @property
    def params(self) -> list:
        """The means and the logarithms of the standard deviations."""
        return [self._loc, self._log_scale]


def multi_normal(loc: ArrayLike, log_scale: ArrayLike) -> MultiNormalDiagFromLogScale:
    """A normal distribution of independent elements.

    Args:
        loc: the means.
        log_scale: the logarithms of the standard deviations.

    Returns:
        A distribution with ``sample(shape, key)`` and ``log_prob(x)``.

    >>> multi_normal(tnp.zeros(2), tnp.zeros(2)).sample((3,), random.key(0)).shape
    (3, 2)
    """
    return MultiNormalDiagFromLogScale(loc, log_scale)
