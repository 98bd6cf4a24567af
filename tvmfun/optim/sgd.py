"""Gradient descent: with momentum, noise, optimism, and Polyak's step size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.optim.adding import add_noise
from tvmfun.optim.base import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
    init_empty_state,
    map_updates,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.momentum import trace
from tvmfun.optim.numerics import (
    global_norm,
    in_dtype_of,
)
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.optim.tree import zeros_like
from tvmfun.typing import DTypeLike, Key, Scalar

__all__ = [
    "ScaleByOptimisticGradientState",
    "noisy_sgd",
    "optimistic_gradient_descent",
    "polyak_sgd",
    "scale_by_optimistic_gradient",
    "scale_by_polyak",
    "sgd",
]


class ScaleByOptimisticGradientState(NamedTuple):
    """The state of ``scale_by_optimistic_gradient``.

    Attributes:
        is_initial_step: whether this is the first update, a 0-d array of bool.
        previous_gradient: the previous updates.
    """

    is_initial_step: Array
    previous_gradient: Updates


def scale_by_optimistic_gradient(alpha: Scalar = 1.0, beta: Scalar = 1.0) -> GradientTransformation:
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
        def step(u: Array, before: Array) -> Array:
            return (alpha + beta) * u - beta * tnp.where(state.is_initial_step, u, before)

        new_updates = map_updates(step, updates, state.previous_gradient)
        return new_updates, ScaleByOptimisticGradientState(tnp.zeros((), dtype="bool"), updates)

    return GradientTransformation(init, update)


def scale_by_polyak(
    f_min: Scalar = 0.0, max_learning_rate: Scalar = 1.0, eps: Scalar = 0.0, variant: str = "sps"
) -> GradientTransformationExtraArgs:
    """Polyak's step size: scales the updates by the distance of the loss from its minimum.

    ``u' = u * min((value - f_min) / (global_norm(u)**2 + eps), max_learning_rate)``, and zero if the updates are zero.
    With ``variant="sps+"``, a negative distance counts as 0.

    Args:
        f_min: the least value of the loss.
        max_learning_rate: the largest factor.
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
        updates: Updates, state: EmptyState, params: Params | None = None, *, value: Scalar, **extra_args: Any
    ) -> tuple:
        square = tnp.square(global_norm(updates))
        gap = tnp.asarray(value - f_min).astype(square.dtype)
        if variant == "sps+":
            gap = tnp.maximum(gap, 0)
        divisor = square + eps
        # Below this the quotient would be rounding noise, in any dtype.
        is_zero = divisor <= float(np.finfo("float32").eps)
        step = tnp.minimum(gap / tnp.where(is_zero, tnp.ones_like(divisor), divisor), max_learning_rate)
        step = tnp.where(is_zero, tnp.zeros_like(step), step)
        return map_updates(lambda u: in_dtype_of(u, step * u), updates), state

    return GradientTransformationExtraArgs(init_empty_state, update)


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    accumulator_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """Stochastic gradient descent, optionally with momentum.

    ``u = -learning_rate * g`` without momentum. With it, ``m' = g + momentum * m`` and
    ``u = -learning_rate * m'``, or ``u = -learning_rate * (g + momentum * m')`` with ``nesterov``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        momentum: the decay rate of ``m``; ``None`` for no momentum.
        nesterov: whether to use Nesterov momentum.
        accumulator_dtype: the dtype of ``m``; ``None`` for the dtype of the parameters.

    Returns:
        The optimizer.

    Raises:
        DtypeError: if ``accumulator_dtype`` is unknown.

    Reference: Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = sgd(0.5)
    >>> params = {"w": tnp.asarray(1.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> updates["w"]
    Array(-2., dtype=float32)
    """
    accumulate = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(accumulate, scale_by_learning_rate(learning_rate))


def noisy_sgd(
    learning_rate: ScalarOrSchedule, eta: Scalar = 0.01, gamma: Scalar = 0.55, key: Key | int = 0
) -> GradientTransformationExtraArgs:
    """Stochastic gradient descent with fading noise: ``u = -learning_rate * (g + sqrt(eta / t**gamma) * normal)``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.

    Other arguments: as :func:`add_noise`.

    Returns:
        The optimizer.

    Reference: Neelakantan et al., "Adding Gradient Noise Improves Learning for Very Deep Networks" (2015).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = noisy_sgd(0.1, eta=0.0)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.4
    """
    return chain(add_noise(eta, gamma, key), scale_by_learning_rate(learning_rate))


def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule, alpha: Scalar = 1.0, beta: Scalar = 1.0
) -> GradientTransformationExtraArgs:
    """Optimistic gradient descent: ``u = -learning_rate * (alpha * g + beta * (g - g_before))``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.

    Other arguments: as :func:`scale_by_optimistic_gradient`.

    Returns:
        The optimizer.

    Reference: Mokhtari et al., "A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for Saddle Point
    Problems" (2019).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = optimistic_gradient_descent(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.4
    """
    return chain(scale_by_optimistic_gradient(alpha, beta), scale_by_learning_rate(learning_rate))


def polyak_sgd(
    max_learning_rate: Scalar = 1.0,
    scaling: ScalarOrSchedule = 1.0,
    f_min: Scalar = 0.0,
    eps: Scalar = 0.0,
    variant: str = "sps",
) -> GradientTransformationExtraArgs:
    """Gradient descent with Polyak's step size, in proportion to the distance of the loss from its minimum.

    :func:`scale_by_polyak` has the formula.

    Args:
        scaling: a further factor: a number, a 0-d array or a schedule.

    Other arguments: as :func:`scale_by_polyak`.

    Returns:
        The optimizer; its ``update`` needs ``value=loss``.

    Raises:
        ArgumentError: if ``variant`` is unknown.

    Reference: Loizou et al., "Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast
    Convergence" (2021).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = polyak_sgd()
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), value=2.0)
    >>> round(float(updates["w"]), 6)
    -0.5
    """
    return chain(
        sgd(scaling), scale_by_polyak(f_min=f_min, max_learning_rate=max_learning_rate, eps=eps, variant=variant)
    )
