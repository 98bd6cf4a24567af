"""Weight and spectral normalization: layers whose weight is computed from other parameters at each call."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import lax, random
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.jit import jit
from tvmfun.nn.layers.parameters import check_positive, layer, with_fields
from tvmfun.nn.state import init_state
from tvmfun.typing import ArrayLike

__all__ = ["SpectralNorm", "SpectralNormState", "WeightNorm"]


def _weight(where: str, layer: Any, name: str, dim: int | None = None) -> Array:
    weight = getattr(layer, name, None)
    if not isinstance(weight, Array):
        what = f"the layer must have an array named {name!r}"
        raise ArgumentError(where, what, got=type(layer).__name__, hint="name= of another parameter")
    if dim is not None and not -weight.ndim <= dim < weight.ndim:
        raise ArgumentError(where, f"dim must be an axis of the weight {weight.shape}", got=str(dim))
    return weight


@partial(jit, static_argnames="dim")
def _norm(weight: Array, dim: int | None) -> Array:
    """The norm over all axes but ``dim``; the axes stay, with size 1."""
    axes = tuple(axis for axis in range(weight.ndim) if dim is None or axis != dim % weight.ndim)
    return tnp.sqrt(tnp.sum(weight * weight, axis=axes, keepdims=True))


@layer
class WeightNorm:
    """A layer whose weight is parametrized by lengths and directions: ``weight = g * v / norm(v)``.

    The directions ``v`` are the weight of the wrapped layer, and the lengths ``g`` are the field ``scale``, initialized
    to ``norm(v)``, so that the weight is unchanged at first.

    Args:
        layer: a layer.
        name: the field of the layer that holds the weight.
        dim: the axis with a length per index, by default the axis of the outputs; ``None`` for a single length.

    Raises:
        ArgumentError: if the layer has no such weight.

    Reference: Salimans and Kingma, "Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep
    Neural Networks" (2016).

    >>> from tvmfun import nn
    >>> WeightNorm(nn.Linear(3, 2, key=random.key(0))).scale.shape
    (1, 2)
    """

    layer: Any
    scale: Array
    name: str = field(metadata={"static": True})
    dim: int | None = field(metadata={"static": True})

    def __init__(self, layer: Any, name: str = "weight", dim: int | None = -1) -> None:
        self.scale = _norm(_weight("WeightNorm", layer, name, dim), dim)
        self.layer = layer
        self.name = name
        self.dim = dim

    def init_state(self) -> Any:
        """The initial state of the wrapped layer."""
        return init_state(self.layer)

    @property
    def weight(self) -> Any:
        """The normalized weight."""
        direction = getattr(self.layer, self.name)
        return direction * (self.scale / _norm(direction, self.dim))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped layer with the normalized weight."""
        return with_fields(self.layer, **{self.name: self.weight})(*args, **kwargs)


class SpectralNormState(NamedTuple):
    """The state of :class:`SpectralNorm`: estimates of the left and right singular vectors of the largest value."""

    u: Any
    v: Any


@layer
class SpectralNorm:
    """A layer whose weight is divided by its largest singular value.

    The estimated singular vectors are its state, which each call refines while training:
    ``y, state = layer(x, state, train=True)``. The weight is taken as a matrix with a row per output.

    Args:
        layer: a layer without a state.
        name: the field of the layer that holds the weight.
        n_power_iterations: the number of power iterations per call.
        eps: a small number against division by zero.
        dim: the axis of the outputs.

    Raises:
        ArgumentError: if the layer has no such weight, or the number of iterations is not positive.

    Reference: Miyato et al., "Spectral Normalization for Generative Adversarial Networks" (2018).

    >>> from tvmfun import nn
    >>> norm = SpectralNorm(nn.Linear(2, 2, key=random.key(0), bias=False, weight_init=nn.init.constant(3.0)))
    >>> y, state = norm(tnp.ones((1, 2)), norm.init_state())
    >>> [f"{float(element):.5f}" for element in y[0]]
    ['1.00000', '1.00000']
    """

    layer: Any
    name: str = field(metadata={"static": True})
    n_power_iterations: int = field(metadata={"static": True})
    eps: float = field(metadata={"static": True})
    dim: int = field(metadata={"static": True})

    def __init__(
        self, layer: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int = -1
    ) -> None:
        check_positive("SpectralNorm", n_power_iterations=n_power_iterations)
        _weight("SpectralNorm", layer, name, dim)
        self.layer = layer
        self.name = name
        self.n_power_iterations = n_power_iterations
        self.eps = eps
        self.dim = dim

    def init_state(self) -> SpectralNormState:
        """The initial state: fifteen power iterations from fixed random vectors."""
        return _first_vectors(self)

    def __call__(self, x: ArrayLike, state: SpectralNormState, *, train: bool = True) -> tuple[Any, SpectralNormState]:
        """Calls the wrapped layer with the normalized weight; returns the result and the new state."""
        matrix = self._matrix()
        if train:
            state = self._iterated(lax.stop_gradient(matrix), state, self.n_power_iterations)
        sigma = tnp.vecdot(lax.stop_gradient(state.u), matrix @ lax.stop_gradient(state.v))
        weight = getattr(self.layer, self.name) / sigma
        return with_fields(self.layer, **{self.name: weight})(x), state

    def _matrix(self) -> Array:
        weight = tnp.moveaxis(getattr(self.layer, self.name), self.dim, 0)
        return weight.reshape(weight.shape[0], -1)

    def _normalized(self, vector: Array) -> Array:
        return vector / tnp.maximum(tnp.sqrt(tnp.vecdot(vector, vector)), self.eps)

    def _iterated(self, matrix: Array, state: SpectralNormState, times: int) -> SpectralNormState:
        for _ in range(times):
            u = self._normalized(matrix @ state.v)
            state = SpectralNormState(u, self._normalized(u @ matrix))
        return state


@jit
def _first_vectors(norm: SpectralNorm) -> SpectralNormState:
    matrix = norm._matrix()
    keys = random.split(random.key(0))
    vectors = (random.normal(key, (n,), matrix.dtype) for key, n in zip(keys, matrix.shape, strict=True))
    state = SpectralNormState(*(norm._normalized(vector) for vector in vectors))
    return norm._iterated(matrix, state, 15)
