"""Weight decay and noise, added to the updates."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun import dtypes, random, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.optim.base import (
    EmptyState,
    GradientTransformation,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    map_updates,
)
from tvmfun.optim.combine import masked
from tvmfun.optim.numerics import in_dtype_of, need_params, safe_increment, zero_count
from tvmfun.typing import Key, Scalar

__all__ = [
    "AddDecayedWeightsState",
    "AddNoiseState",
    "WeightDecaySchedule",
    "add_decayed_weights",
    "add_noise",
]

#: optax's name of the state of ``add_decayed_weights`` without a schedule.
AddDecayedWeightsState = EmptyState


class WeightDecaySchedule(NamedTuple):
    """The state of ``add_decayed_weights`` with a schedule.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
    """

    count: Array


class AddNoiseState(NamedTuple):
    """The state of ``add_noise``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        rng_key: the key of the next noise.
    """

    count: Array
    rng_key: Array


def add_decayed_weights(weight_decay: ScalarOrSchedule = 0.0, mask: MaskOrFn | None = None) -> GradientTransformation:
    """Adds a multiple of the parameters to the updates: ``u' = u + weight_decay * p``.

    Args:
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        A transformation that counts its updates if ``weight_decay`` is a schedule.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2017).

    >>> transform = add_decayed_weights(0.5)
    >>> transform.update({"w": 1.0}, EmptyState(), {"w": 4.0})[0]
    {'w': 3.0}
    """

    def init(params: Params) -> OptState:
        return WeightDecaySchedule(zero_count()) if callable(weight_decay) else EmptyState()

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        need_params("add_decayed_weights", params)
        if callable(weight_decay):
            rate = weight_decay(state.count)
            decayed = map_updates(lambda u, p: u + in_dtype_of(p, rate) * p, updates, params)
            return decayed, WeightDecaySchedule(safe_increment(state.count))
        if isinstance(weight_decay, int | float) and weight_decay == 0:
            return updates, state
        return map_updates(lambda u, p: u + weight_decay * p, updates, params), state

    transform = GradientTransformation(init, update)
    return transform if mask is None else masked(transform, mask)


def add_noise(eta: Scalar, gamma: Scalar, key: Key | int) -> GradientTransformation:
    """Adds normal noise that fades out: ``u' = u + sqrt(eta / t**gamma) * normal``.

    Args:
        eta: the variance of the noise at the first update.
        gamma: how fast it fades out.
        key: a key of :mod:`tvmfun.random`, or an integer seed.

    Returns:
        A transformation whose state is an ``AddNoiseState``.

    Reference: Neelakantan et al., "Adding Gradient Noise Improves Learning for Very Deep Networks" (2015).

    >>> transform = add_noise(0.01, 0.55, key=0)
    >>> updates, state = transform.update(tnp.zeros((1000,)), transform.init(None))
    >>> bool(abs(tnp.std(updates) - 0.1) < 0.01)
    True
    """

    def init(params: Params) -> AddNoiseState:
        return AddNoiseState(zero_count(), random.key(key) if tnp.ndim(key) == 0 else tnp.asarray(key))

    def update(updates: Updates, state: AddNoiseState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        keys = random.split(state.rng_key)
        leaves, structure = tree.flatten(updates)
        leaf_keys = random.split(keys[1], len(leaves)) if leaves else []

        def disturb(u: Array, leaf_key: Array) -> Array:
            wide = dtypes.result_type(abstract(u).dtype, "float32")
            deviation = tnp.sqrt(eta / count.astype(wide) ** gamma)
            return u + in_dtype_of(u, deviation) * random.normal(leaf_key, abstract(u).shape, abstract(u).dtype)

        noisy = [disturb(u, leaf_keys[i]) for i, u in enumerate(leaves)]
        return tree.unflatten(structure, noisy), AddNoiseState(count, keys[0])

    return GradientTransformation(init, update)
