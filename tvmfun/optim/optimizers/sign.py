"""Optimizers that use the signs of gradients, but not their sizes."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import GradientTransformationExtraArgs, ScalarOrSchedule
from tvmfun.optim.combine import chain
from tvmfun.optim.transforms.adaptive import scale_by_rprop
from tvmfun.optim.transforms.adding import add_decayed_weights
from tvmfun.optim.transforms.deviations import scale_by_lion
from tvmfun.optim.transforms.momentum import ema
from tvmfun.optim.transforms.scaling import scale, scale_by_learning_rate, scale_by_sign

__all__ = [
    "lion",
    "rprop",
    "sign_sgd",
    "signum",
]


def lion(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.99,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """Lion: steps along the sign of a mean of the gradients; :func:`scale_by_lion` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean that is used.
        b2: the decay rate of the mean that is kept.
        mu_dtype: the dtype to keep the mean of the gradients in; ``None`` for that of the parameters.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

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
    learning_rate: Any, eta_minus: Any = 0.5, eta_plus: Any = 1.2, min_step_size: Any = 1e-6, max_step_size: Any = 50.0
) -> GradientTransformationExtraArgs:
    """Rprop: steps that grow while the sign of a gradient stays; :func:`scale_by_rprop` has the formulas.

    Args:
        learning_rate: the size of the first steps.
        eta_minus: the factor of a step when the sign changes.
        eta_plus: the factor while it stays.
        min_step_size: the least size of a step.
        max_step_size: the largest size.

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
    learning_rate: ScalarOrSchedule, beta: Any = 0.9, accumulator_dtype: Any = None
) -> GradientTransformationExtraArgs:
    """Steps along the sign of the running mean of the gradients.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        beta: the decay rate of the mean.
        accumulator_dtype: the dtype to keep the mean in; ``None`` for that of the parameters.

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
