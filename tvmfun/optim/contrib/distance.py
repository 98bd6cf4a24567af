"""Learning rates from an estimate of the distance to the solution: Prodigy, D-Adaptation, DoG, DoWG."""

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
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.numerics import need_params, safe_increment, value_at, weight_so_far, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.typing import Scalar

__all__ = ["DAdaptAdamWState", "DoGState", "DoWGState", "ProdigyState", "dadapt_adamw", "dog", "dowg", "prodigy"]


class ProdigyState(NamedTuple):
    """The state of ``prodigy``.

    Attributes:
        exp_avg: the running mean of the gradients, times the estimate.
        exp_avg_sq: the running mean of their squares, times its square.
        grad_sum: the decaying sum of the gradients.
        params0: the first parameters.
        estim_lr: the estimate of the distance, a 0-d array.
        numerator_weighted: the decaying sum of the weighted ``<g, p_0 - p>``, a 0-d array.
        count: the number of updates so far, a 0-d int32 array.
    """

    exp_avg: Updates
    exp_avg_sq: Updates
    grad_sum: Updates
    params0: Params
    estim_lr: Array
    numerator_weighted: Array
    count: Array


class DAdaptAdamWState(NamedTuple):
    """The state of ``dadapt_adamw``.

    Attributes:
        exp_avg: the running mean of the gradients, times the step size.
        exp_avg_sq: the running mean of their squares.
        grad_sum: the running mean of the gradients, times the step size, with another decay rate.
        estim_lr: the estimate of the distance, a 0-d array.
        numerator_weighted: the running mean of the numerator of the estimate, a 0-d array.
        count: the number of updates so far, a 0-d int32 array.
    """

    exp_avg: Updates
    exp_avg_sq: Updates
    grad_sum: Updates
    estim_lr: Array
    numerator_weighted: Array
    count: Array


class DoGState(NamedTuple):
    """The state of ``dog``.

    Attributes:
        is_init_step: whether this is the first update, a 0-d array of bool.
        init_params: the first parameters.
        max_dist: the largest distance from them so far, a 0-d array.
        sum_sq_norm_grads: the sum of the squared norms of the gradients, a 0-d array.
    """

    is_init_step: Array
    init_params: Params
    max_dist: Updates
    sum_sq_norm_grads: Array


class DoWGState(NamedTuple):
    """The state of ``dowg``.

    Attributes:
        init_params: the first parameters.
        weighted_sq_norm_grads: the sum of the squared norms of the gradients, each times the squared distance.
        estim_sq_dist: the largest squared distance from the first parameters so far, a 0-d array.
    """

    init_params: Params
    weighted_sq_norm_grads: Array
    estim_sq_dist: Array


def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    beta3: Scalar | None = None,
    eps: Scalar = 1e-8,
    estim_lr0: Scalar = 1e-6,
    estim_lr_coef: Scalar = 1.0,
    weight_decay: Scalar = 0.0,
    safeguard_warmup: bool = False,
) -> GradientTransformationExtraArgs:
    """AdamW whose learning rate is the estimated distance to the solution.

    Adam's means are taken of ``d * g``. With its step size ``s = learning_rate * d * sqrt(1 - b2**t) / (1 - b1**t)``,
    ``r' = b3 * r + d / d_0 * s * <g, p_0 - p>``, ``q' = b3 * q + s / d_0 * d * g``, and
    ``d' = max(d, estim_lr_coef * r' / sum(|q'|))``; ``u = -s * (m' / (sqrt(v') + d' * eps) + weight_decay * p)``.

    Args:
        learning_rate: a factor, 1 or a schedule from 1 to 0.
        betas: the decay rates ``b1`` and ``b2`` of Adam.
        beta3: the decay rate of the estimate; ``None`` for ``sqrt(b2)``.
        eps: keeps the denominator away from zero.
        estim_lr0: the initial estimate, less than the distance.
        estim_lr_coef: a factor of later estimates.
        weight_decay: a number or a 0-d array.
        safeguard_warmup: whether ``q`` leaves the learning rate out, for schedules that begin with a warmup.

    Returns:
        The optimizer, with a ``ProdigyState``; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Mishchenko and Defazio, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner" (2023).

    >>> optimizer = prodigy(estim_lr0=0.5)
    >>> params = tnp.asarray(1.0)
    >>> updates, state = optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)
    >>> round(float(updates), 4)
    -0.5
    """
    beta1, beta2 = betas
    if beta3 is None:
        beta3 = beta2**0.5

    def init(params: Params) -> ProdigyState:
        dtype = optim_tree.dtype(params, "lowest")
        zeros = optim_tree.zeros_like(params)
        estimate = tnp.asarray(estim_lr0, dtype=dtype)
        return ProdigyState(zeros, zeros, zeros, params, estimate, tnp.zeros((), dtype=dtype), zero_count())

    def update(updates: Updates, state: ProdigyState, params: Params | None = None, **extra_args: Any) -> tuple:
        need_params("prodigy", params)
        estimate, count = state.estim_lr, safe_increment(state.count)
        rate = _adam_rate(learning_rate, state.estim_lr, state.count, beta1, beta2)
        scaled = optim_tree.scale(estimate, updates)
        back = optim_tree.vdot(updates, optim_tree.sub(state.params0, params)).astype(estimate.dtype)
        mean = optim_tree.update_moment(scaled, state.exp_avg, beta1)
        square = optim_tree.update_moment(scaled, state.exp_avg_sq, beta2, 2)
        weight = estimate if safeguard_warmup else rate
        total = tree.map(lambda q, g: beta3 * q + weight * g / estim_lr0, state.grad_sum, scaled)
        numerator = beta3 * state.numerator_weighted + (estimate / estim_lr0) * rate * back
        size = optim_tree.sum(tree.map(tnp.abs, total)).astype(estimate.dtype)
        estimate = tnp.maximum(estimate, estim_lr_coef * numerator / size)

        def step(m: Array, v: Array, p: Array) -> Array:
            return -weight_decay * rate * p - rate * m / (tnp.sqrt(v) + estimate * eps)

        new_updates = tree.map(step, mean, square, params)
        return new_updates, ProdigyState(mean, square, total, state.params0, estimate, numerator, count)

    return GradientTransformationExtraArgs(init, update)


def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    estim_lr0: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
) -> GradientTransformationExtraArgs:
    """AdamW whose learning rate is a lower bound of the distance to the solution.

    With Adam's step size ``s = learning_rate * d * sqrt(1 - b2**t) / (1 - b1**t)`` and ``c = sqrt(b2)``,
    ``r' = c * r + (1 - c) * s * <g, q / (sqrt(v) + eps)>``, ``q' = c * q + (1 - c) * s * g``, and
    ``d' = max(d, r' / ((1 - c) * sum(|q'|)))``; ``m`` is the running mean of ``s * g``, and
    ``u = -m' / (sqrt(v') + eps) - weight_decay * s * p``.

    Args: as :func:`prodigy`.

    Returns:
        The optimizer, with a ``DAdaptAdamWState``; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Defazio and Mishchenko, "Learning-Rate-Free Learning by D-Adaptation" (2023).

    >>> optimizer = dadapt_adamw(estim_lr0=0.5)
    >>> params = tnp.asarray(1.0)
    >>> updates, state = optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)
    >>> round(float(updates), 4)
    -0.5
    """
    beta1, beta2 = betas
    root = beta2**0.5

    def init(params: Params) -> DAdaptAdamWState:
        dtype = optim_tree.dtype(params, "lowest")
        zeros, zero = optim_tree.zeros_like(params), tnp.zeros((), dtype=dtype)
        return DAdaptAdamWState(zeros, zeros, zeros, tnp.asarray(estim_lr0, dtype=dtype), zero, zero_count())

    def update(updates: Updates, state: DAdaptAdamWState, params: Params | None = None, **extra_args: Any) -> tuple:
        need_params("dadapt_adamw", params)
        dtype = state.estim_lr.dtype
        rate = _adam_rate(learning_rate, state.estim_lr, state.count, beta1, beta2)
        weighted = tree.map(lambda q, v: q / (tnp.sqrt(v) + eps), state.grad_sum, state.exp_avg_sq)
        back = optim_tree.vdot(updates, weighted).astype(dtype)
        mean = tree.map(lambda m, g: beta1 * m + (1 - beta1) * rate * g, state.exp_avg, updates)
        square = optim_tree.update_moment(updates, state.exp_avg_sq, beta2, 2)
        total = tree.map(lambda q, g: root * q + (1 - root) * rate * g, state.grad_sum, updates)
        numerator = root * state.numerator_weighted + (1 - root) * rate * back
        size = optim_tree.sum(tree.map(tnp.abs, total)).astype(dtype)
        estimate = tnp.maximum(state.estim_lr, numerator / ((1 - root) * size))

        def step(m: Array, v: Array, p: Array) -> Array:
            return -weight_decay * rate * p - m / (tnp.sqrt(v) + eps)

        new_updates = tree.map(step, mean, square, params)
        count = safe_increment(state.count)
        return new_updates, DAdaptAdamWState(mean, square, total, estimate, numerator, count)

    return GradientTransformationExtraArgs(init, update)


def _adam_rate(learning_rate: ScalarOrSchedule, estimate: Array, count: Array, beta1: Scalar, beta2: Scalar) -> Array:
    """The learning rate times the estimate, with Adam's bias correction."""
    dtype, t = estimate.dtype, safe_increment(count)
    unbiased = tnp.sqrt(weight_so_far(beta2, t, dtype)) / weight_so_far(beta1, t, dtype)
    return (estimate * value_at(learning_rate, count, dtype) * unbiased).astype(dtype)


def dog(
    learning_rate: ScalarOrSchedule = 1.0,
    init_step: tuple[str, Scalar] = ("heuristic", 1e-6),
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule | None = None,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Gradient descent with the step size: distance from the start over the root of the sum of squared gradients.

    ``d' = max(d, norm(p - p_0))``, ``s' = s + norm(g)**2`` and ``u = -learning_rate * d' / sqrt(s' + eps) * g``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        init_step: the initial ``d``: ``("distance", r)`` for ``r``, ``("heuristic", a)`` for
            ``a * (1 + norm(p_0))``, or ``("learning_rate", a)`` for a first update of ``-learning_rate * a * g``.
        eps: keeps the denominator away from zero.
        weight_decay: a number, a 0-d array or a schedule; ``None`` for none.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: if ``init_step`` has an unknown kind; on ``update``, if it gets no ``params``.

    Reference: Ivgi et al., "DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule" (2023).

    >>> optimizer = dog(init_step=("distance", 0.5))
    >>> params = tnp.asarray(1.0)
    >>> updates, state = optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)
    >>> float(updates)
    -0.5
    """
    kind, first = init_step
    if kind not in ("distance", "heuristic", "learning_rate"):
        raise ArgumentError(
            "dog", "init_step must begin with 'distance', 'heuristic' or 'learning_rate'", got=repr(kind)
        )

    def init(params: Params) -> DoGState:
        dtype = optim_tree.dtype(params, "lowest")
        distance = {
            "distance": lambda: first,
            "heuristic": lambda: first * (1 + optim_tree.norm(params)),
            "learning_rate": lambda: 0.0,
        }[kind]()
        zero = tnp.zeros((), dtype=dtype)
        return DoGState(tnp.ones((), dtype="bool"), params, tnp.asarray(distance, dtype=dtype), zero)

    def update(updates: Updates, state: DoGState, params: Params | None = None) -> tuple:
        need_params("dog", params)
        dtype = state.max_dist.dtype
        come = optim_tree.norm(optim_tree.sub(state.init_params, params)).astype(dtype)
        distance = tnp.maximum(state.max_dist, come)
        total = state.sum_sq_norm_grads + optim_tree.norm(updates, squared=True).astype(dtype)
        rate = distance / tnp.sqrt(total + eps)
        if kind == "learning_rate":
            rate = tnp.where(state.is_init_step, tnp.full_like(rate, first), rate)
        new_state = DoGState(tnp.zeros((), dtype="bool"), state.init_params, distance, total)
        return optim_tree.scale(rate, updates), new_state

    return _with_decay(GradientTransformation(init, update), learning_rate, weight_decay, mask)


def dowg(
    learning_rate: ScalarOrSchedule = 1.0,
    init_estim_sq_dist: Scalar | None = None,
    eps: Scalar = 1e-4,
    weight_decay: ScalarOrSchedule | None = None,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """The variant of :func:`dog` that weights gradients by their distance from the start.

    ``d' = max(d, norm(p - p_0)**2)``, ``s' = s + d' * norm(g)**2`` and
    ``u = -learning_rate * d' / (sqrt(s') + eps) * g``.

    Args:
        init_estim_sq_dist: the initial ``d``; ``None`` for ``eps``.

    Other arguments: as :func:`dog`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Khaled et al., "DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent Method" (2023).

    >>> optimizer = dowg(init_estim_sq_dist=0.25, eps=0.0)
    >>> params = tnp.asarray(1.0)
    >>> updates, state = optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)
    >>> float(updates)
    -0.5
    """

    def init(params: Params) -> DoWGState:
        dtype = optim_tree.dtype(params, "lowest")
        first = eps if init_estim_sq_dist is None else init_estim_sq_dist
        return DoWGState(params, tnp.zeros((), dtype=dtype), tnp.asarray(first, dtype=dtype))

    def update(updates: Updates, state: DoWGState, params: Params | None = None) -> tuple:
        need_params("dowg", params)
        dtype = state.estim_sq_dist.dtype
        come = optim_tree.norm(optim_tree.sub(state.init_params, params), squared=True).astype(dtype)
        distance = tnp.maximum(state.estim_sq_dist, come)
        size = optim_tree.norm(updates, squared=True).astype(dtype)
        total = distance * size + state.weighted_sq_norm_grads
        new_updates = optim_tree.scale(distance / (tnp.sqrt(total) + eps), updates)
        return new_updates, DoWGState(state.init_params, total, distance)

    return _with_decay(GradientTransformation(init, update), learning_rate, weight_decay, mask)


def _with_decay(
    transform: GradientTransformation,
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule | None,
    mask: MaskOrFn | None,
) -> GradientTransformationExtraArgs:
    decay = identity() if weight_decay is None else add_decayed_weights(weight_decay, mask)
    return chain(decay, transform, scale_by_learning_rate(learning_rate))
