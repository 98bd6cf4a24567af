"""The optimizers people use, each a chain of transformations."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import GradientTransformation, ScalarOrSchedule, identity
from tvmfun.optim.combine import chain
from tvmfun.optim.transforms import (
    add_decayed_weights,
    scale_by_adadelta,
    scale_by_adam,
    scale_by_learning_rate,
    trace,
)

__all__ = ["adadelta", "adam", "adamw", "sgd"]


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: Any = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> GradientTransformation:
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


def adam(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam: steps of about the learning rate in every coordinate, whatever the scale of the gradient.

    ``u = -learning_rate * m^ / (sqrt(v^ + eps_root) + eps)`` with the unbiased running means ``m^`` of the
    gradients and ``v^`` of their squares; :func:`scale_by_adam` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to keep the mean of the gradients in; ``None`` for that of the parameters.
        nesterov: whether to look ahead by one step, as Nesterov does (Nadam).

    Returns:
        The optimizer.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.

    References: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014); Dozat, "Incorporating
    Nesterov Momentum into Adam" (2016).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adam(0.1)
    >>> params = {"w": tnp.asarray(1.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> f"{float(updates['w']):.4f}"
    '-0.1000'
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_learning_rate(learning_rate),
    )


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam with weight decay that does not pass through the moments.

    ``u = -learning_rate * (m^ / (sqrt(v^ + eps_root) + eps) + weight_decay * p)``; :func:`scale_by_adam` has
    the formulas of ``m^`` and ``v^``.

    Args:
        learning_rate: a number, a 0-d array or a schedule; it multiplies the weight decay, too.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to keep the mean of the gradients in; ``None`` for that of the parameters.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.
        nesterov: whether to look ahead by one step, as Nesterov does (NadamW).

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2017).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adamw(0.1, weight_decay=0.5)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> f"{float(updates['w']):.4f}"
    '-0.2000'
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: Any = 0.9,
    eps: Any = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
) -> GradientTransformation:
    """Adadelta: step sizes from the ratio of the sizes of past updates and gradients.

    ``g' = g + weight_decay * p`` and ``u = -learning_rate * sqrt(X + eps) / sqrt(G + eps) * g'`` with the
    running means ``G`` of squared gradients and ``X`` of squared updates; :func:`scale_by_adadelta` has the
    formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule; ``None`` for no scaling at all, not even by -1.
        rho: the decay rate of the running means.
        eps: keeps the numerator and the denominator away from zero.
        weight_decay: a number, a 0-d array or a schedule.
        weight_decay_mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Zeiler, "ADADELTA: An Adaptive Learning Rate Method" (2012).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adadelta(1.0)
    >>> params = {"w": tnp.asarray(1.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(1.0)}, optimizer.init(params), params)
    >>> f"{float(updates['w']):.6f}"
    '-0.003162'
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(learning_rate),
    )
