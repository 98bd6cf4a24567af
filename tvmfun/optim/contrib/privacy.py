"""Differential privacy: gradients of single examples, clipped, with noise."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun import random, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.constraining import per_example_global_norm_clip
from tvmfun.optim.momentum import trace
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.typing import Key, Scalar

__all__ = ["DifferentiallyPrivateAggregateState", "differentially_private_aggregate", "dpsgd"]


class DifferentiallyPrivateAggregateState(NamedTuple):
    """The state of ``differentially_private_aggregate``.

    Attributes:
        rng_key: the key of the next noise.
    """

    rng_key: Array


def differentially_private_aggregate(
    l2_norm_clip: Scalar, noise_multiplier: Scalar, key: Key | int
) -> GradientTransformation:
    """Clips the gradient of each example, adds them up, adds noise, and divides by their number.

    ``u = (sum_i g_i * min(1, l2_norm_clip / norm(g_i)) + l2_norm_clip * noise_multiplier * normal) / batch``.

    Args:
        l2_norm_clip: the largest norm of the gradient of an example.
        noise_multiplier: the standard deviation of the noise, in units of ``l2_norm_clip``.
        key: a key of :mod:`tvmfun.random`, or an integer seed.

    Returns:
        A transformation of gradients with a leading batch axis, as :func:`tvmfun.vmap` of ``grad`` gives them; its
        state is a ``DifferentiallyPrivateAggregateState``.

    Raises:
        ShapeError: on ``update``, if the gradients differ in their first axis.

    Reference: Abadi et al., "Deep Learning with Differential Privacy" (2016).

    >>> transform = differentially_private_aggregate(1.0, 0.0, 0)
    >>> float(transform.update(tnp.asarray([0.5, 3.0]), transform.init(tnp.asarray(0.0)))[0])
    0.75
    """

    def init(params: Params) -> DifferentiallyPrivateAggregateState:
        return DifferentiallyPrivateAggregateState(random.key(key) if isinstance(key, int) else tnp.asarray(key))

    def update(
        updates: Updates, state: DifferentiallyPrivateAggregateState, params: Params | None = None
    ) -> tuple[Updates, DifferentiallyPrivateAggregateState]:
        leaves, structure = tree.flatten(updates)
        batch = tnp.shape(leaves[0])[0]
        clipped, _ = per_example_global_norm_clip(leaves, l2_norm_clip)
        keys = random.split(state.rng_key, len(leaves) + 1)
        noisy = [
            (g + l2_norm_clip * noise_multiplier * random.normal(keys[i + 1], g.shape, abstract(g).dtype)) / batch
            for i, g in enumerate(clipped)
        ]
        return tree.unflatten(structure, noisy), DifferentiallyPrivateAggregateState(keys[0])

    return GradientTransformation(init, update)


def dpsgd(
    learning_rate: ScalarOrSchedule,
    l2_norm_clip: Scalar,
    noise_multiplier: Scalar,
    seed: Key | int,
    momentum: Scalar | None = None,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Gradient descent with differential privacy; :func:`differentially_private_aggregate` has the formula.

    Args:
        seed: an integer seed, or a key of :mod:`tvmfun.random`.

    Other arguments: as :func:`differentially_private_aggregate` and :func:`tvmfun.optim.sgd`.

    Returns:
        The optimizer, of gradients with a leading batch axis.

    Raises:
        ShapeError: on ``update``, if the gradients differ in their first axis.

    Reference: Abadi et al., "Deep Learning with Differential Privacy" (2016).

    >>> optimizer = dpsgd(0.5, 1.0, 0.0, 0)
    >>> float(optimizer.update(tnp.asarray([0.5, 3.0]), optimizer.init(tnp.asarray(0.0)))[0])
    -0.375
    """
    return chain(
        differentially_private_aggregate(l2_norm_clip, noise_multiplier, seed),
        identity() if momentum is None else trace(momentum, nesterov),
        scale_by_learning_rate(learning_rate),
    )
