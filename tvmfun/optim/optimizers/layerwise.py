"""Optimizers whose steps depend on the norm of a whole array."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import GradientTransformationExtraArgs, ScalarOrSchedule
from tvmfun.optim.combine import chain, masked
from tvmfun.optim.transforms.adding import add_decayed_weights
from tvmfun.optim.transforms.deviations import scale_by_novograd
from tvmfun.optim.transforms.moments import scale_by_adam
from tvmfun.optim.transforms.momentum import trace
from tvmfun.optim.transforms.scaling import scale_by_learning_rate, scale_by_trust_ratio

__all__ = [
    "fromage",
    "lamb",
    "lars",
    "novograd",
]


def lamb(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-6,
    eps_root: Any = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """LAMB: Adam with steps in proportion to their parameter; :func:`scale_by_trust_ratio` has the formula.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = lamb(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.2
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )


def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = True,
    trust_coefficient: Any = 0.001,
    eps: Any = 0.0,
    trust_ratio_mask: Any = True,
    momentum: Any = 0.9,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """LARS: momentum with steps in proportion to their parameter; :func:`scale_by_trust_ratio` has the formula.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        weight_decay: a number, a 0-d array or a schedule.
        weight_decay_mask: which parameters to decay, as for :func:`masked`.
        trust_coefficient: the size of an update of the size of its parameter.
        eps: keeps the denominator away from zero.
        trust_ratio_mask: which updates to scale, as for :func:`masked`.
        momentum: the decay rate of the momentum.
        nesterov: whether to look ahead by one step, as Nesterov does.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: You et al., "Large Batch Training of Convolutional Networks" (2017).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = lars(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.0002
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps), trust_ratio_mask),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )


def fromage(learning_rate: ScalarOrSchedule, min_norm: Any = 1e-6) -> GradientTransformationExtraArgs:
    """Fromage: steps in proportion to the parameters, and a shrinkage that keeps these bounded.

    ``u = -r * learning_rate * g * norm(p) / norm(g) + (r - 1) * p`` with ``r = 1 / sqrt(1 + learning_rate**2)``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        min_norm: what the norms are at least.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Bernstein et al., "On the distance between two neural networks and the stability of learning" (2020).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = fromage(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.208933
    """

    def shrinkage(rate: Any) -> Any:
        return 1 / (1 + rate**2) ** 0.5

    if callable(learning_rate):
        rate = learning_rate
        step: ScalarOrSchedule = lambda count: shrinkage(rate(count)) * rate(count)
        decay: ScalarOrSchedule = lambda count: shrinkage(rate(count)) - 1
    else:
        step, decay = learning_rate * shrinkage(learning_rate), shrinkage(learning_rate) - 1
    return chain(scale_by_trust_ratio(min_norm), scale_by_learning_rate(step), add_decayed_weights(decay))


def novograd(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.25,
    eps: Any = 1e-6,
    eps_root: Any = 0.0,
    weight_decay: Any = 0.0,
) -> GradientTransformationExtraArgs:
    """NovoGrad: gradients divided by the running mean of their norm; :func:`scale_by_novograd` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the momentum.
        b2: the decay rate of the mean of the squared norms.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        weight_decay: a number or a 0-d array.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments" (2019).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = novograd(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.1
    """
    scaling = scale_by_novograd(b1, b2, eps, eps_root, weight_decay)
    return chain(scaling, scale_by_learning_rate(learning_rate))
