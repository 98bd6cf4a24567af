"""Optimizers that use only the signs of gradients: signSGD, Signum, Lion and Rprop."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    map_updates,
    stateless_with_tree_map,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.momentum import ema
from tvmfun.optim.numerics import (
    optional_dtype,
    safe_increment,
    zero_count,
)
from tvmfun.optim.scaling import scale, scale_by_learning_rate
from tvmfun.optim.tree import cast, full_like, update_moment, zeros_like
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "ScaleByLionState",
    "ScaleByRpropState",
    "lion",
    "rprop",
    "scale_by_lion",
    "scale_by_rprop",
    "scale_by_sign",
    "sign_sgd",
    "signum",
]


class ScaleByLionState(NamedTuple):
    """The state of ``scale_by_lion``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
    """

    count: Array
    mu: Updates


class ScaleByRpropState(NamedTuple):
    """The state of ``scale_by_rprop``.

    Attributes:
        step_sizes: the size of the step of every element.
        prev_updates: the previous steps.
    """

    step_sizes: Updates
    prev_updates: Updates


def scale_by_sign() -> GradientTransformation:
    """Takes the signs of the updates: ``u' = sign(u)``.

    Returns:
        A transformation with an empty state.

    Reference: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems" (2018).

    >>> from tvmfun.optim import EmptyState
    >>> scale_by_sign().update(tnp.asarray([-3.0, 0.0, 0.5]), EmptyState())[0]
    Array([-1.,  0.,  1.], dtype=float32)
    """
    return stateless_with_tree_map(lambda u, p: tnp.sign(u))


def scale_by_lion(
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    mu_dtype: DTypeLike | None = None,
    *,
    mode: str = "hard",
    smooth_beta: Scalar = 1.0,
) -> GradientTransformation:
    """Takes the sign of a mean of the updates: ``u' = sign(b1 * m + (1 - b1) * u)``.

    Then ``m' = b2 * m + (1 - b2) * u``. With ``mode="smooth"``, ``tanh(smooth_beta * x)`` replaces the
    sign, with ``"refined"``, ``min(max(x, -1), 1)``.

    Args:
        b1: the decay rate of the mean in the update.
        b2: the decay rate of the mean in the state.
        mu_dtype: the dtype of the mean of the updates; ``None`` for the dtype of the parameters.
        mode: ``"hard"``, ``"smooth"`` or ``"refined"``.
        smooth_beta: how steep the ``"smooth"`` sign is.

    Returns:
        A transformation whose state is a ``ScaleByLionState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.
        ArgumentError: if ``mode`` is unknown.

    Reference: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023).

    >>> transform = scale_by_lion()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    1.0
    """
    dtype = optional_dtype(mu_dtype)
    signs = {
        "hard": tnp.sign,
        "smooth": lambda x: tnp.tanh(smooth_beta * x),
        "refined": lambda x: tnp.clip(x, -1, 1),
    }
    if mode not in signs:
        raise ArgumentError("scale_by_lion", f"mode must be one of {', '.join(map(repr, signs))}", got=repr(mode))

    def init(params: Params) -> ScaleByLionState:
        return ScaleByLionState(zero_count(), zeros_like(params, dtype))

    def update(updates: Updates, state: ScaleByLionState, params: Params | None = None) -> tuple:
        new_updates = map_updates(signs[mode], update_moment(updates, state.mu, b1))
        mu = cast(update_moment(updates, state.mu, b2), dtype)
        return new_updates, ScaleByLionState(safe_increment(state.count), mu)

    return GradientTransformation(init, update)


def scale_by_rprop(
    learning_rate: Scalar,
    eta_minus: Scalar = 0.5,
    eta_plus: Scalar = 1.2,
    min_step_size: Scalar = 1e-6,
    max_step_size: Scalar = 50.0,
) -> GradientTransformation:
    """Steps along the sign of each element, larger ones while the sign stays, smaller ones when it changes.

    Where ``u * s > 0`` with the previous step ``s``, the step size is multiplied by ``eta_plus``; where it is negative,
    by ``eta_minus``, and ``s' = 0``; otherwise ``s' = size * sign(u)``. Steps are taken one update late, when the sign
    of the next is known: ``u' = s``, or 0 where it has changed.

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

        def resize(a: Array, size: Array) -> Array:
            # where(a > 0, eta_plus, eta_minus) would be float32.
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


def sign_sgd(
    learning_rate: ScalarOrSchedule,
) -> GradientTransformationExtraArgs:
    """Steps along the sign of the gradient: ``u = -learning_rate * sign(g)``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.

    Returns:
        The optimizer.

    Reference: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems" (2018).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = sign_sgd(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.1
    """
    return chain(scale_by_sign(), scale_by_learning_rate(learning_rate))


def signum(
    learning_rate: ScalarOrSchedule, beta: Scalar = 0.9, accumulator_dtype: DTypeLike | None = None
) -> GradientTransformationExtraArgs:
    """Steps along the sign of the running mean of the gradients.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        beta: the decay rate of the mean.

    Other arguments: as :func:`ema`.

    Returns:
        The optimizer.

    Raises:
        DtypeError: if the dtype is unknown.

    Reference: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems" (2018).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = signum(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.1
    """
    return chain(ema(beta, False, accumulator_dtype), scale_by_sign(), scale_by_learning_rate(learning_rate))


def lion(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Lion: steps along the sign of a mean of the gradients; :func:`scale_by_lion` has the formulas.

    Args: as :func:`scale_by_lion` and :func:`adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if the dtype is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = lion(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.1002
    """
    decay = add_decayed_weights(weight_decay, mask)
    return chain(scale_by_lion(b1, b2, mu_dtype), decay, scale_by_learning_rate(learning_rate))


def rprop(
    learning_rate: Scalar,
    eta_minus: Scalar = 0.5,
    eta_plus: Scalar = 1.2,
    min_step_size: Scalar = 1e-6,
    max_step_size: Scalar = 50.0,
) -> GradientTransformationExtraArgs:
    """Rprop: steps that grow while the sign of a gradient stays; :func:`scale_by_rprop` has the formulas.

    Args: as :func:`scale_by_rprop`.

    Returns:
        The optimizer.

    Reference: Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP
    algorithm" (1993).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = rprop(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.0
    """
    scaling = scale_by_rprop(learning_rate, eta_minus, eta_plus, min_step_size, max_step_size)
    return chain(scaling, scale(-1.0))
