"""Schedule-free training: an average of the parameters instead of a schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    apply_updates,
    with_extra_args_support,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.numerics import need_params, optional_dtype, safe_increment, value_at
from tvmfun.optim.rmsprop import scale_by_rms
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.optim.schedules import warmup_constant_schedule
from tvmfun.optim.sgd import sgd
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "ScheduleFreeState",
    "schedule_free",
    "schedule_free_adamw",
    "schedule_free_eval_params",
    "schedule_free_sgd",
]


class ScheduleFreeState(NamedTuple):
    """The state of ``schedule_free``.

    Attributes:
        b1: how far the parameters are from ``z`` to their average, a 0-d array.
        weight_sum: the sum of the weights of the average, a 0-d array.
        step_count: the number of the next update, from 1, a 0-d int32 array.
        max_lr: the largest learning rate so far, a 0-d array.
        base_optimizer_state: the state of the optimizer.
        z: the parameters that the optimizer updates.
    """

    b1: Array
    weight_sum: Array
    step_count: Array
    max_lr: Array
    base_optimizer_state: OptState
    z: Params


def schedule_free_eval_params(state: ScheduleFreeState, params: Params) -> Params:
    """The averaged parameters, to evaluate a model with: ``x = (p - (1 - b1) * z) / b1``.

    Args:
        state: a state of :func:`schedule_free`.
        params: the parameters of the training.

    Returns:
        A tree of the same structure.

    Raises:
        ArgumentError: if the state is another one.

    >>> optimizer = schedule_free_sgd(0.5)
    >>> params = tnp.asarray(1.0)
    >>> float(schedule_free_eval_params(optimizer.init(params), params))
    1.0
    """
    if not isinstance(state, ScheduleFreeState):
        raise ArgumentError(
            "schedule_free_eval_params", "the state must be a ScheduleFreeState", got=type(state).__name__
        )
    return _average(params, state.z, state.b1)


def schedule_free(
    base_optimizer: GradientTransformation,
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    weight_lr_power: Scalar = 2.0,
    state_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """Replaces momentum and the decay of the learning rate by an average of the parameters.

    ``z' = z + u`` with the update ``u`` of an optimizer without momentum, ``x' = (1 - c) * x + c * z'``, and the
    parameters are ``p' = b1 * x' + (1 - b1) * z'``. The weight ``c = w / sum(w)`` comes from
    ``w = max(learning_rate)**weight_lr_power``. Evaluate with the ``x`` of :func:`schedule_free_eval_params`.

    Args:
        base_optimizer: the optimizer, without momentum.
        learning_rate: its learning rate, a number, a 0-d array or a schedule; a warmup, but no decay.
        b1: how far the parameters are from ``z`` to ``x``, more than 0.
        weight_lr_power: the weight of small learning rates; with 0 all updates count the same.
        state_dtype: the dtype of ``z``; ``None`` for the dtype of the parameters.

    Returns:
        The optimizer, with a ``ScheduleFreeState``; its ``update`` needs ``params``.

    Raises:
        DtypeError: if ``state_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Defazio et al., "The Road Less Scheduled" (2024).

    >>> optimizer = schedule_free(sgd(0.5), 0.5)
    >>> params = tnp.asarray(1.0)
    >>> updates, state = optimizer.update(tnp.asarray(1.0), optimizer.init(params), params)
    >>> float(updates)
    -0.5
    """
    base_optimizer = with_extra_args_support(base_optimizer)
    dtype = optional_dtype(state_dtype)

    def init(params: Params) -> ScheduleFreeState:
        # In a dtype that does not promote the parameters. Copies, so that both trees can be donated.
        lowest = optim_tree.dtype(params, "lowest")
        zero = tnp.zeros((), dtype=lowest)
        z = tree.map(tnp.copy, optim_tree.cast(params, dtype))
        count = tnp.ones((), dtype="int32")
        return ScheduleFreeState(tnp.asarray(b1, dtype=lowest), zero, count, zero, base_optimizer.init(params), z)

    def update(updates: Updates, state: ScheduleFreeState, params: Params | None = None, **extra_args: Any) -> tuple:
        need_params("schedule_free", params)
        rate = value_at(learning_rate, state.step_count, state.max_lr.dtype)
        max_lr = tnp.maximum(state.max_lr, rate)
        weight = max_lr**weight_lr_power
        weight_sum = state.weight_sum + weight
        # All weights are zero while the learning rate is zero.
        none = weight_sum == 0
        c = tnp.where(none, tnp.zeros_like(weight), weight / tnp.where(none, tnp.ones_like(weight), weight_sum))
        updates, base_state = base_optimizer.update(updates, state.base_optimizer_state, params, **extra_args)
        z = apply_updates(state.z, updates)

        def move(p: Array, x: Array, new_z: Array) -> Array:
            average = (1.0 - c) * x + c * new_z
            return b1 * average + (1.0 - b1) * new_z - p

        new_updates = tree.map(move, params, _average(params, state.z, b1), z)
        count = safe_increment(state.step_count)
        return new_updates, ScheduleFreeState(state.b1, weight_sum, count, max_lr, base_state, z)

    return GradientTransformationExtraArgs(init, update)


def _average(params: Params, z: Params, b1: Scalar) -> Params:
    return tree.map(lambda p, z: (p - (1.0 - b1) * z) / b1, params, z)


def schedule_free_sgd(
    learning_rate: Scalar = 1.0,
    warmup_steps: int | None = None,
    b1: Scalar = 0.9,
    weight_decay: ScalarOrSchedule | None = None,
    weight_lr_power: Scalar = 2.0,
    state_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """Gradient descent with :func:`schedule_free`.

    Args:
        learning_rate: a number or a 0-d array.
        warmup_steps: the number of steps in which the learning rate grows from 0; ``None`` for no warmup.
        weight_decay: a number, a 0-d array or a schedule; ``None`` for none.

    Other arguments: as :func:`schedule_free`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if ``state_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Defazio et al., "The Road Less Scheduled" (2024).

    >>> optimizer = schedule_free_sgd(0.5)
    >>> params = tnp.asarray(1.0)
    >>> updates, state = optimizer.update(tnp.asarray(1.0), optimizer.init(params), params)
    >>> float(updates)
    -0.5
    """
    rate = _warm(learning_rate, warmup_steps)
    optimizer = sgd(rate)
    if weight_decay is not None:
        optimizer = chain(add_decayed_weights(weight_decay), optimizer)
    return schedule_free(optimizer, rate, b1, weight_lr_power, state_dtype)


def schedule_free_adamw(
    learning_rate: Scalar = 0.0025,
    warmup_steps: int | None = None,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_lr_power: Scalar = 2.0,
    state_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """AdamW, without its momentum, with :func:`schedule_free`.

    Args:
        weight_decay: a number, a 0-d array or a schedule.

    Other arguments: as :func:`schedule_free_sgd` and :func:`tvmfun.optim.adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if ``state_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Defazio et al., "The Road Less Scheduled" (2024).

    >>> optimizer = schedule_free_adamw(0.5)
    >>> params = tnp.asarray(1.0)
    >>> updates, state = optimizer.update(tnp.asarray(3.0), optimizer.init(params), params)
    >>> round(float(updates), 4)
    -0.5
    """
    rate = _warm(learning_rate, warmup_steps)
    optimizer = chain(
        scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(rate),
    )
    return schedule_free(optimizer, rate, b1, weight_lr_power, state_dtype)


def _warm(learning_rate: Scalar, warmup_steps: int | None) -> ScalarOrSchedule:
    if warmup_steps is None:
        return learning_rate
    return warmup_constant_schedule(0.0, learning_rate, warmup_steps)
