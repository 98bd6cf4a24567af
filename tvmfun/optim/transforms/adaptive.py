"""Step sizes from the changes of the updates, and of the parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import dtypes, tree
from tvmfun.core.leaf import abstract
from tvmfun.optim.base import GradientTransformation, Params, Updates, map_updates
from tvmfun.optim.transforms.common import need_params
from tvmfun.optim.tree import full_like, zeros_like

__all__ = [
    "ScaleByDistanceOverGradientsState",
    "ScaleByOptimisticGradientState",
    "ScaleByRpropState",
    "scale_by_distance_over_gradients",
    "scale_by_optimistic_gradient",
    "scale_by_rprop",
]


class ScaleByRpropState(NamedTuple):
    """The state of ``scale_by_rprop``.

    Attributes:
        step_sizes: the size of the step of every element.
        prev_updates: the steps before.
    """

    step_sizes: Any
    prev_updates: Any


class ScaleByOptimisticGradientState(NamedTuple):
    """The state of ``scale_by_optimistic_gradient``.

    Attributes:
        is_initial_step: whether there was no update yet, a 0-d array of bool.
        previous_gradient: the updates before.
    """

    is_initial_step: Any
    previous_gradient: Any


class ScaleByDistanceOverGradientsState(NamedTuple):
    """The state of ``scale_by_distance_over_gradients``.

    Attributes:
        max_dist: the largest distance of each parameter from where it began.
        grad_sum_of_squares: the sum of the squares of its gradients.
        init_params: where the parameters began.
    """

    max_dist: Any
    grad_sum_of_squares: Any
    init_params: Any


def scale_by_rprop(
    learning_rate: Any,
    eta_minus: Any = 0.5,
    eta_plus: Any = 1.2,
    min_step_size: Any = 1e-6,
    max_step_size: Any = 50.0,
) -> GradientTransformation:
    """Steps along the sign of each element, larger ones while the sign stays, smaller ones when it changes.

    Where ``u * s > 0`` with the step ``s`` before, the step size is multiplied by ``eta_plus``, where it is negative by
    ``eta_minus``, and ``s' = 0``; else ``s' = size * sign(u)``. Steps are taken one update late, once the sign of the
    next is known: ``u' = s``, or 0 where it has changed.

    Args:
        learning_rate: the size of the first steps.
        eta_minus: the factor when the sign changes.
        eta_plus: the factor while it stays.
        min_step_size: the least size.
        max_step_size: the largest size.

    Returns:
        A transformation whose state is a ``ScaleByRpropState``.

    Reference: Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP
    algorithm" (1993).

    >>> transform = scale_by_rprop(0.5)
    >>> state = transform.init(tnp.asarray(2.0))
    >>> for _ in range(3):
    ...     updates, state = transform.update(tnp.asarray(3.0), state)
    ...     print(round(float(updates), 6))
    0.0
    0.5
    0.6
    """

    def init(params: Params) -> ScaleByRpropState:
        return ScaleByRpropState(full_like(params, learning_rate), zeros_like(params))

    def update(updates: Updates, state: ScaleByRpropState, params: Params | None = None) -> tuple:
        agreement = map_updates(lambda u, before: u * before, updates, state.prev_updates)

        def resize(a: Any, size: Any) -> Any:
            # Not a choice between the factors, whose dtype would be float32.
            resized = tnp.clip(tnp.where(a > 0, size * eta_plus, size * eta_minus), min_step_size, max_step_size)
            return tnp.where(a == 0, size, resized.astype(size.dtype))

        sizes = map_updates(resize, agreement, state.step_sizes)
        steps = map_updates(
            lambda a, u, size: tnp.where(a < 0, tnp.zeros_like(u), size * tnp.sign(u)), agreement, updates, sizes
        )
        new_updates = map_updates(
            lambda a, step: tnp.where(a < 0, tnp.zeros_like(step), step), agreement, state.prev_updates
        )
        return new_updates, ScaleByRpropState(sizes, steps)

    return GradientTransformation(init, update)


def scale_by_optimistic_gradient(alpha: Any = 1.0, beta: Any = 1.0) -> GradientTransformation:
    """Adds the change of the updates to them: ``u' = alpha * u + beta * (u - u_before)``; at first ``u' = alpha * u``.

    Args:
        alpha: the factor of the updates.
        beta: the factor of their change.

    Returns:
        A transformation whose state is a ``ScaleByOptimisticGradientState``.

    Reference: Mokhtari et al., "A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for Saddle
    Point Problems" (2019).

    >>> transform = scale_by_optimistic_gradient()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    3.0
    """

    def init(params: Params) -> ScaleByOptimisticGradientState:
        return ScaleByOptimisticGradientState(tnp.ones((), dtype="bool"), zeros_like(params))

    def update(updates: Updates, state: ScaleByOptimisticGradientState, params: Params | None = None) -> tuple:
        def step(u: Any, before: Any) -> Any:
            return (alpha + beta) * u - beta * tnp.where(state.is_initial_step, u, before)

        new_updates = map_updates(step, updates, state.previous_gradient)
        return new_updates, ScaleByOptimisticGradientState(tnp.zeros((), dtype="bool"), updates)

    return GradientTransformation(init, update)


def scale_by_distance_over_gradients(
    reps_rel: Any = 1e-6, eps: Any = 1e-8, param_dtype: Any = "float32", global_scale: Any = 1.0
) -> GradientTransformation:
    """Scales each update by the distance its parameter has come, over the root of the sum of squared gradients.

    ``d' = max(d, norm(p - p_0))``, ``s' = s + norm(u)**2`` and ``u' = global_scale * d' / sqrt(s' + eps) * u``; ``d``
    starts from ``reps_rel * (1 + norm(p_0))``.

    Args:
        reps_rel: the size of the first step, relative to the parameter.
        eps: keeps the denominator away from zero.
        param_dtype: the dtype to keep the first parameters in.
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

    def norm(x: Any) -> Any:
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
        # The sum has one axis, which a 0-d update must not get.
        step = lambda u, d, s: (global_scale * (d / tnp.sqrt(s + eps)) * u).reshape(tnp.shape(u))
        new_updates = map_updates(step, updates, max_dist, total)
        return new_updates, ScaleByDistanceOverGradientsState(max_dist, total, state.init_params)

    return GradientTransformation(init, update)
