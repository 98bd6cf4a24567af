"""Factors of the updates: constants, schedules, norms and distances."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun import dtypes, tree
from tvmfun.boundary import described
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import (
    EmptyState,
    GradientTransformation,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
    identity,
    map_updates,
    stateless,
)
from tvmfun.optim.numerics import (
    global_norm,
    in_dtype_of,
    need_params,
    safe_increment,
    safe_norm,
    safe_root_mean_squares,
    zero_count,
)
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "ScaleByDistanceOverGradientsState",
    "ScaleByScheduleState",
    "ScaleState",
    "normalize_by_update_norm",
    "scale",
    "scale_by_distance_over_gradients",
    "scale_by_learning_rate",
    "scale_by_param_block_norm",
    "scale_by_param_block_rms",
    "scale_by_schedule",
]

#: optax's name of the state of ``scale``, which is empty.
ScaleState = EmptyState


class ScaleByScheduleState(NamedTuple):
    """The state of ``scale_by_schedule``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
    """

    count: Array


def scale(step_size: Scalar) -> GradientTransformation:
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

    Raises:
        ArgumentError: if the learning rate is text, or a tree such as a model.

    >>> scale_by_learning_rate(0.5).update({"w": 1.0}, EmptyState())[0]
    {'w': -0.5}
    """
    if learning_rate is None:
        return identity()
    if isinstance(learning_rate, str) or not tree.structure(learning_rate).is_leaf():
        what = "learning_rate must be a number, a 0-d array or a function of the number of the step"
        raise ArgumentError("scale_by_learning_rate", what, got=described(learning_rate))
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


def scale_by_param_block_norm(min_scale: Scalar = 1e-3) -> GradientTransformation:
    """Multiplies each update by the norm of its parameter: ``u' = u * max(norm(p), min_scale)``.

    Args:
        min_scale: the lower bound of the norm.

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


def scale_by_param_block_rms(min_scale: Scalar = 1e-3) -> GradientTransformation:
    """Multiplies each update by the root mean square of its parameter: ``u' = u * max(rms(p), min_scale)``.

    Args:
        min_scale: the lower bound of the root mean square.

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


def normalize_by_update_norm(scale_factor: Scalar = 1.0, eps: Scalar = 1e-6) -> GradientTransformation:
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
        return map_updates(lambda u: in_dtype_of(u, u / divisor), updates)

    return stateless(apply)


class ScaleByDistanceOverGradientsState(NamedTuple):
    """The state of ``scale_by_distance_over_gradients``.

    Attributes:
        max_dist: the largest distance of each parameter from its initial value.
        grad_sum_of_squares: the sum of the squares of its gradients.
        init_params: the initial parameters.
    """

    max_dist: Updates
    grad_sum_of_squares: Updates
    init_params: Updates


def scale_by_distance_over_gradients(
    reps_rel: Scalar = 1e-6, eps: Scalar = 1e-8, param_dtype: DTypeLike = "float32", global_scale: Scalar = 1.0
) -> GradientTransformation:
    """Scales each update by the distance of its parameter from the start over the root of the sum of squared gradients.

    ``d' = max(d, norm(p - p_0))``, ``s' = s + norm(u)**2`` and ``u' = global_scale * d' / sqrt(s' + eps) * u``; ``d``
    starts from ``reps_rel * (1 + norm(p_0))``.

    Args:
        reps_rel: the size of the first step, relative to the parameter.
        eps: keeps the denominator away from zero.
        param_dtype: the dtype of the stored initial parameters.
        global_scale: a factor for all updates.

    Returns:
        A transformation whose state is a ``ScaleByDistanceOverGradientsState``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Ivgi et al., "DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule" (2023).

    >>> transform = scale_by_distance_over_gradients(0.5)
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)), tnp.asarray(2.0))
    >>> round(float(updates), 6)
    1.5
    """
    dtype = dtypes.canonical(param_dtype)

    def norm(x: Array) -> Array:
        return tnp.sqrt(tnp.sum(tnp.square(x)))

    def init(params: Params) -> ScaleByDistanceOverGradientsState:
        return ScaleByDistanceOverGradientsState(
            tree.map(lambda p: reps_rel * (1 + norm(p)), params),
            tree.map(lambda p: tnp.zeros((1,), dtype=abstract(p).dtype), params),
            tree.map(lambda p: tnp.asarray(p).astype(dtype), params),
        )

    def update(updates: Updates, state: ScaleByDistanceOverGradientsState, params: Params | None = None) -> tuple:
        need_params("scale_by_distance_over_gradients", params)
        max_dist = tree.map(lambda d, p, p0: tnp.maximum(d, norm(p - p0)), state.max_dist, params, state.init_params)
        total = tree.map(lambda s, u: s + tnp.sum(tnp.square(u)), state.grad_sum_of_squares, updates)
        # The sum has shape (1,); a 0-d update must stay 0-d.
        step = lambda u, d, s: (global_scale * (d / tnp.sqrt(s + eps)) * u).reshape(tnp.shape(u))
        new_updates = map_updates(step, updates, max_dist, total)
        return new_updates, ScaleByDistanceOverGradientsState(max_dist, total, state.init_params)

    return GradientTransformation(init, update)
