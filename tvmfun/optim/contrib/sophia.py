"""Sophia: gradients divided by an estimate of the diagonal of the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import lax, random, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    map_updates,
    with_extra_args_support,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.numerics import need_params, optional_dtype, safe_increment, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.transforms import grad, jvp
from tvmfun.typing import DTypeLike, Key, Scalar

__all__ = ["HutchinsonState", "SophiaState", "hutchinson_estimator_diag_hessian", "sophia"]


class HutchinsonState(NamedTuple):
    """The state of ``hutchinson_estimator_diag_hessian``.

    Attributes:
        key: the key of the next signs.
    """

    key: Array


class SophiaState(NamedTuple):
    """The state of ``sophia``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the gradients.
        nu: the running mean of the diagonals.
        hessian_fn_state: the state of their estimator.
    """

    count: Array
    mu: Updates
    nu: Updates
    hessian_fn_state: OptState


def hutchinson_estimator_diag_hessian(random_seed: Key | int | None = None) -> GradientTransformationExtraArgs:
    """Replaces the updates by an estimate of the diagonal of the Hessian: ``s * (H s)`` with random signs ``s``.

    Args:
        random_seed: a key of :mod:`tvmfun.random`; ``None`` for ``key(0)``.

    Returns:
        A transformation whose state is a ``HutchinsonState``; its ``update`` needs ``params``, and ``obj_fn=``, a
        function from parameters to the loss.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params`` or no ``obj_fn``.

    Reference: Hutchinson, "A stochastic estimator of the trace of the influence matrix for Laplacian smoothing
    splines" (1989).

    >>> transform = hutchinson_estimator_diag_hessian()
    >>> params = tnp.asarray([1.0, 2.0])
    >>> loss = lambda p: tnp.sum(p**3)
    >>> transform.update(params, transform.init(params), params, obj_fn=loss)[0]
    Array([ 6., 12.], dtype=float32)
    """

    def init(params: Params) -> HutchinsonState:
        return HutchinsonState(random.key(0) if random_seed is None else tnp.asarray(random_seed))

    def update(
        updates: Updates,
        state: HutchinsonState,
        params: Params | None = None,
        obj_fn: Callable[[Params], Array] | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, HutchinsonState]:
        need_params("hutchinson_estimator_diag_hessian", params)
        if obj_fn is None:
            raise ArgumentError(
                "hutchinson_estimator_diag_hessian",
                "the loss is needed as a function",
                got="obj_fn=None",
                hint="optimizer.update(grads, state, params, obj_fn=loss)",
            )
        keys = random.split(state.key)

        def signs(key: Array, shape: tuple, dtype: DTypeLike) -> Array:
            return tnp.where(random.bernoulli(key, 0.5, shape), 1.0, -1.0).astype(dtype)

        tangent = optim_tree.random_like(keys[1], params, signs)
        _, product = jvp(grad(obj_fn), (tree.map(tnp.asarray, params),), (tangent,))
        return optim_tree.mul(product, tangent), HutchinsonState(keys[0])

    return GradientTransformationExtraArgs(init, update)


def sophia(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.965,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    weight_decay_mask: MaskOrFn | None = None,
    gamma: Scalar = 0.01,
    clip_threshold: Scalar | None = 1.0,
    update_interval: int = 10,
    hessian_diagonal_fn: GradientTransformation | None = None,
    mu_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """Sophia: divides the mean of the gradients by the mean of the diagonal of the Hessian, and clips the result.

    ``m' = b1 * m + (1 - b1) * g`` and ``u = -learning_rate * (c + weight_decay * p)`` with
    ``c = m^ / max(gamma * h, eps)``, limited to ``clip_threshold``. Every ``update_interval`` updates
    ``h' = b2 * h + (1 - b2) * d`` with a new estimate ``d`` of the diagonal.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of the diagonals.
        eps: keeps the denominator away from zero, and from negative curvature.
        weight_decay: a number, a 0-d array or a schedule.
        weight_decay_mask: which parameters to decay, as for :func:`masked`; ``None`` for all.
        gamma: a factor of the diagonal; the larger, the fewer elements are limited.
        clip_threshold: the limit; ``None`` for none.
        update_interval: the number of updates between estimates of the diagonal.
        hessian_diagonal_fn: a transformation of gradients to diagonals, which gets all keyword arguments of
            ``update``; ``None`` for :func:`hutchinson_estimator_diag_hessian`, which needs ``obj_fn=``.
        mu_dtype: the dtype of the mean of the gradients; ``None`` for the dtype of the parameters.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Liu et al., "Sophia: A Scalable Stochastic Second-order Optimizer for Language Model Pre-training"
    (2023).

    >>> optimizer = sophia(0.5, weight_decay=0.0)
    >>> params = tnp.asarray([1.0, 2.0])
    >>> loss = lambda p: tnp.sum(p**3)
    >>> optimizer.update(grad(loss)(params), optimizer.init(params), params, obj_fn=loss)[0]
    Array([-0.5, -0.5], dtype=float32)
    """
    estimator = hutchinson_estimator_diag_hessian() if hessian_diagonal_fn is None else hessian_diagonal_fn
    estimator = with_extra_args_support(estimator)
    dtype = optional_dtype(mu_dtype)

    def init(params: Params) -> SophiaState:
        mu, nu = optim_tree.zeros_like(params, dtype), optim_tree.zeros_like(params)
        return SophiaState(zero_count(), mu, nu, estimator.init(params))

    def update(updates: Updates, state: SophiaState, params: Params | None = None, **extra_args: Any) -> tuple:
        need_params("sophia", params)
        count = safe_increment(state.count)
        mu = optim_tree.update_moment(updates, state.mu, b1)
        mean = optim_tree.bias_correction(mu, b1, count)

        def step(m: Array, h: Array) -> Array:
            quotient = m / tnp.maximum(gamma * h, eps)
            return quotient if clip_threshold is None else tnp.clip(quotient, -clip_threshold, clip_threshold)

        def estimate(inner: OptState, nu: Updates) -> tuple:
            diagonal, inner = estimator.update(updates, inner, params, **extra_args)
            moved = optim_tree.update_moment(diagonal, nu, b2)
            return inner, tree.map(lambda new, old: new.astype(abstract(old).dtype), moved, nu)

        due = state.count % update_interval == 0
        inner, nu = lax.cond(due, estimate, lambda inner, nu: (inner, nu), state.hessian_fn_state, state.nu)
        new_updates = map_updates(step, mean, state.nu)
        return new_updates, SophiaState(count, optim_tree.cast(mu, dtype), nu, inner)

    return chain(
        GradientTransformationExtraArgs(init, update),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
