"""Gradient descent: with momentum, noise, foresight, and steps from the value of the loss."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import GradientTransformationExtraArgs, ScalarOrSchedule, identity
from tvmfun.optim.combine import chain
from tvmfun.optim.transforms.adaptive import scale_by_optimistic_gradient
from tvmfun.optim.transforms.adding import add_noise
from tvmfun.optim.transforms.momentum import trace
from tvmfun.optim.transforms.scaling import scale_by_learning_rate, scale_by_polyak

__all__ = [
    "noisy_sgd",
    "optimistic_gradient_descent",
    "polyak_sgd",
    "sgd",
]


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: Any = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Stochastic gradient descent, with momentum if asked for.

    ``u = -learning_rate * g`` without momentum. With it, ``m' = g + momentum * m`` and
    ``u = -learning_rate * m'``, or ``u = -learning_rate * (g + momentum * m')`` with ``nesterov``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        momentum: the decay rate of ``m``; ``None`` for no momentum.
        nesterov: whether to look ahead by one step, as Nesterov does.
        accumulator_dtype: the dtype to keep ``m`` in; ``None`` for that of the parameters.

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
    learning_rate: ScalarOrSchedule, eta: Any = 0.01, gamma: Any = 0.55, key: Any = 0
) -> GradientTransformationExtraArgs:
    """Stochastic gradient descent with fading noise: ``u = -learning_rate * (g + sqrt(eta / t**gamma) * normal)``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        eta: the variance of the noise at the first step.
        gamma: how fast it fades out.
        key: a key of :mod:`tvmfun.random`, or an integer to make one of.

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
    learning_rate: ScalarOrSchedule, alpha: Any = 1.0, beta: Any = 1.0
) -> GradientTransformationExtraArgs:
    """Gradient descent that looks ahead: ``u = -learning_rate * (alpha * g + beta * (g - g_before))``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        alpha: the factor of the gradient.
        beta: the factor of its change.

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
    max_learning_rate: Any = 1.0,
    scaling: ScalarOrSchedule = 1.0,
    f_min: Any = 0.0,
    eps: Any = 0.0,
    variant: str = "sps",
) -> GradientTransformationExtraArgs:
    """Gradient descent with steps in proportion to how far the loss is from its minimum.

    :func:`scale_by_polyak` has the formula.

    Args:
        max_learning_rate: the largest factor of the gradient.
        scaling: a further factor: a number, a 0-d array or a schedule.
        f_min: the least value of the loss.
        eps: keeps the denominator away from zero.
        variant: ``"sps"``, or ``"sps+"`` for no steps upwards where the loss is below ``f_min``.

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
