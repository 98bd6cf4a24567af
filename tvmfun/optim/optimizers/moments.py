"""Optimizers that divide one running mean by another, as Adam does, with means of their own."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import GradientTransformationExtraArgs, ScalarOrSchedule
from tvmfun.optim.combine import chain
from tvmfun.optim.transforms.adaptive import scale_by_optimistic_gradient
from tvmfun.optim.transforms.adding import add_decayed_weights
from tvmfun.optim.transforms.deviations import scale_by_belief, scale_by_radam, scale_by_yogi
from tvmfun.optim.transforms.moments import scale_by_adam, scale_by_adan
from tvmfun.optim.transforms.scaling import scale_by_learning_rate

__all__ = [
    "adabelief",
    "adan",
    "optimistic_adam_v2",
    "radam",
    "yogi",
]


def adan(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.98,
    b2: Any = 0.92,
    b3: Any = 0.99,
    eps: Any = 1e-8,
    eps_root: Any = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """Adan: Adam with Nesterov momentum from the changes of the gradients; :func:`scale_by_adan` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their changes.
        b3: the decay rate of the mean of the squares.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Xie et al., "Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep Models" (2022).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adan(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.1
    """
    decay = add_decayed_weights(weight_decay, mask)
    return chain(scale_by_adan(b1, b2, b3, eps, eps_root), decay, scale_by_learning_rate(learning_rate))


def adabelief(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-16,
    eps_root: Any = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """AdaBelief: small steps where the gradient is far from its running mean; :func:`scale_by_belief` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squared distances from it.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        nesterov: whether to look ahead by one step, as Nesterov does.

    Returns:
        The optimizer.

    Reference: Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients" (2020).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adabelief(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.11111
    """
    scaling = scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov)
    return chain(scaling, scale_by_learning_rate(learning_rate))


def radam(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    threshold: Any = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """RAdam: Adam that warms up as its second moment becomes known; :func:`scale_by_radam` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        threshold: how long the average of the squares must be for a division by its root.
        nesterov: whether to look ahead by one step, as Nesterov does.

    Returns:
        The optimizer.

    Reference: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond" (2020).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = radam(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.4
    """
    scaling = scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov=nesterov)
    return chain(scaling, scale_by_learning_rate(learning_rate))


def yogi(
    learning_rate: ScalarOrSchedule, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-3
) -> GradientTransformationExtraArgs:
    """Yogi: Adam whose second moment moves by small steps; :func:`scale_by_yogi` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero.

    Returns:
        The optimizer.

    Reference: Zaheer et al., "Adaptive Methods for Nonconvex Optimization" (2018).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = yogi(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.099971
    """
    return chain(scale_by_yogi(b1, b2, eps), scale_by_learning_rate(learning_rate))


def optimistic_adam_v2(
    learning_rate: ScalarOrSchedule,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs:
    """Adam that expects its updates to change on: :func:`scale_by_optimistic_gradient` after :func:`scale_by_adam`.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        alpha: the factor of the updates.
        beta: the factor of their change.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to keep the mean of the gradients in; ``None`` for that of the parameters.
        nesterov: whether to look ahead by one step, as Nesterov does.

    Returns:
        The optimizer.

    Raises:
        DtypeError: if the dtype is unknown.

    Reference: Daskalakis et al., "Training GANs with Optimism" (2017).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = optimistic_adam_v2(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.147367
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_optimistic_gradient(alpha, beta),
        scale_by_learning_rate(learning_rate),
    )
