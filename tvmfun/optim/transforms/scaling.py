"""Factors for the updates: constants, schedules, signs and norms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
    identity,
    init_empty_state,
    map_updates,
    stateless,
    stateless_with_tree_map,
)
from tvmfun.optim.transforms.common import (
    global_norm,
    in_dtype_of,
    need_params,
    safe_increment,
    safe_norm,
    safe_root_mean_squares,
    zero_count,
)

__all__ = [
    "ScaleByScheduleState",
    "normalize_by_update_norm",
    "scale",
    "scale_by_learning_rate",
    "scale_by_param_block_norm",
    "scale_by_param_block_rms",
    "scale_by_polyak",
    "scale_by_schedule",
    "scale_by_sign",
    "scale_by_trust_ratio",
]


class ScaleByScheduleState(NamedTuple):
    """The state of ``scale_by_schedule``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
    """

    count: Any


def scale(step_size: Any) -> GradientTransformation:
    """Multiplies the updates by a constant: ``u' = step_size * u``.

    Args:
        step_size: a number or a 0-d array.

    Returns:
        A transformation with an empty state.

    >>> scale(-0.1).update({"w": 10.0}, EmptyState())[0]
    {'w': -1.0}
    """
    return stateless(lambda updates, params: tree.map(lambda u: step_size * u, updates))


def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    """Multiplies the updates by the value of a schedule: ``u' = step_size_fn(count) * u``.

    Args:
        step_size_fn: a function from the number of updates so far, a 0-d int32 array, to a factor.

    Returns:
        A transformation that counts its updates.

    >>> transform = scale_by_schedule(lambda count: 1.0 / (count + 1))
    >>> state = transform.init(None)
    >>> for _ in range(2):
    ...     updates, state = transform.update(tnp.asarray(1.0), state)
    >>> float(updates), int(state.count)
    (0.5, 2)
    """

    def init(params: Params) -> ScaleByScheduleState:
        return ScaleByScheduleState(zero_count())

    def update(updates: Updates, state: ScaleByScheduleState, params: Params | None = None) -> tuple:
        factor = step_size_fn(state.count)
        scaled = map_updates(lambda u: in_dtype_of(u, factor) * u, updates)
        return scaled, ScaleByScheduleState(safe_increment(state.count))

    return GradientTransformation(init, update)


def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> GradientTransformation:
    """Multiplies the updates by the negative learning rate: ``u' = -learning_rate * u``.

    Args:
        learning_rate: a number, a 0-d array or a schedule; ``None`` leaves the updates as they are.
        flip_sign: whether to descend (the default) or ascend.

    Returns:
        A transformation that counts its updates if the learning rate is a schedule.

    >>> scale_by_learning_rate(0.5).update({"w": 1.0}, EmptyState())[0]
    {'w': -0.5}
    """
    if learning_rate is None:
        return identity()
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


def scale_by_sign() -> GradientTransformation:
    """Takes the signs of the updates: ``u' = sign(u)``.

    Returns:
        A transformation with an empty state.

    Reference: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems" (2018).

    >>> scale_by_sign().update(tnp.asarray([-3.0, 0.0, 0.5]), EmptyState())[0]
    Array([-1.,  0.,  1.], dtype=float32)
    """
    return stateless_with_tree_map(lambda u, p: tnp.sign(u))


def scale_by_trust_ratio(min_norm: Any = 0.0, trust_coefficient: Any = 1.0, eps: Any = 0.0) -> GradientTransformation:
    """Gives each update a size in proportion to its parameter.

    ``u' = u * trust_coefficient * norm(p) / (norm(u) + eps)``, and ``u' = u`` if one of the norms is zero.

    Args:
        min_norm: what both norms are at least.
        trust_coefficient: the size of an update of the size of its parameter.
        eps: keeps the denominator away from zero.

    Returns:
        A transformation with an empty state.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020).

    >>> transform = scale_by_trust_ratio()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)), tnp.asarray(2.0))
    >>> round(float(updates), 6)
    2.0
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        need_params("scale_by_trust_ratio", params)

        def rescale(u: Any, p: Any) -> Any:
            param_norm, update_norm = safe_norm(p, min_norm), safe_norm(u, min_norm)
            is_zero = (param_norm == 0) | (update_norm == 0)
            divisor = tnp.where(is_zero, tnp.ones_like(update_norm), update_norm + eps)
            return u * tnp.where(is_zero, tnp.ones_like(param_norm), trust_coefficient * param_norm / divisor)

        return map_updates(rescale, updates, params)

    return stateless(apply)


def scale_by_param_block_norm(min_scale: Any = 1e-3) -> GradientTransformation:
    """Multiplies each update by the norm of its parameter: ``u' = u * max(norm(p), min_scale)``.

    Args:
        min_scale: what the norm is at least.

    Returns:
        A transformation with an empty state.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    >>> transform = scale_by_param_block_norm()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)), tnp.asarray(2.0))
    >>> round(float(updates), 6)
    6.0
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        need_params("scale_by_param_block_norm", params)
        return map_updates(lambda u, p: u * safe_norm(p, min_scale), updates, params)

    return stateless(apply)


def scale_by_param_block_rms(min_scale: Any = 1e-3) -> GradientTransformation:
    """Multiplies each update by the root mean square of its parameter: ``u' = u * max(rms(p), min_scale)``.

    Args:
        min_scale: what the root mean square is at least.

    Returns:
        A transformation with an empty state.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    >>> transform = scale_by_param_block_rms()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)), tnp.asarray(2.0))
    >>> round(float(updates), 6)
    6.0
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        need_params("scale_by_param_block_rms", params)
        return map_updates(lambda u, p: u * safe_root_mean_squares(p, min_scale), updates, params)

    return stateless(apply)


def normalize_by_update_norm(scale_factor: Any = 1.0, eps: Any = 1e-6) -> GradientTransformation:
    """Divides the updates by the norm of all of them: ``u' = scale_factor * u / (global_norm(u) + eps)``.

    Args:
        scale_factor: the norm of the result.
        eps: keeps the denominator away from zero.

    Returns:
        A transformation with an empty state.

    >>> normalize_by_update_norm(eps=0.0).update(tnp.asarray([6.0, 8.0]), EmptyState())[0]
    Array([0.6, 0.8], dtype=float32)
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        divisor = (global_norm(updates) + eps) / scale_factor
        return map_updates(lambda u: u / divisor, updates)

    return stateless(apply)


def scale_by_polyak(
    f_min: Any = 0.0, max_learning_rate: Any = 1.0, eps: Any = 0.0, variant: str = "sps"
) -> GradientTransformationExtraArgs:
    """Scales the updates by how far the loss is from its minimum.

    ``u' = u * min((value - f_min) / (global_norm(u)**2 + eps), max_learning_rate)``, and zero if the updates are.
    With ``variant="sps+"``, a negative distance counts as 0.

    Args:
        f_min: the least value of the loss.
        max_learning_rate: what the factor is at most.
        eps: keeps the denominator away from zero.
        variant: ``"sps"`` or ``"sps+"``.

    Returns:
        A transformation with an empty state; its ``update`` needs ``value=loss``.

    Raises:
        ArgumentError: if ``variant`` is unknown.

    Reference: Loizou et al., "Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast
    Convergence" (2021).

    >>> scale_by_polyak().update(tnp.asarray(4.0), EmptyState(), value=2.0)[0]
    Array(0.5, dtype=float32)
    """
    if variant not in ("sps", "sps+"):
        raise ArgumentError("scale_by_polyak", "variant must be 'sps' or 'sps+'", got=repr(variant))

    def update(
        updates: Updates, state: EmptyState, params: Params | None = None, *, value: Any, **extra_args: Any
    ) -> tuple:
        square = tnp.square(global_norm(updates))
        gap = tnp.asarray(value - f_min).astype(square.dtype)
        if variant == "sps+":
            gap = tnp.maximum(gap, 0)
        divisor = square + eps
        # Below this the quotient would be noise, in any dtype.
        is_zero = divisor <= float(np.finfo("float32").eps)
        step = tnp.minimum(gap / tnp.where(is_zero, tnp.ones_like(divisor), divisor), max_learning_rate)
        step = tnp.where(is_zero, tnp.zeros_like(step), step)
        return map_updates(lambda u: step * u, updates), state

    return GradientTransformationExtraArgs(init_empty_state, update)
