"""Adam, with its decoupled, Nesterov, maximum and never-shrinking relatives."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import GradientTransformationExtraArgs, ScalarOrSchedule
from tvmfun.optim.combine import chain
from tvmfun.optim.transforms.adding import add_decayed_weights
from tvmfun.optim.transforms.moments import scale_by_adam, scale_by_adamax, scale_by_amsgrad
from tvmfun.optim.transforms.scaling import scale_by_learning_rate

__all__ = [
    "adam",
    "adamax",
    "adamaxw",
    "adamw",
    "amsgrad",
    "nadam",
    "nadamw",
]


def adam(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
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
) -> GradientTransformationExtraArgs:
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


def nadam(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Adam that looks ahead by one step, as Nesterov does: :func:`adam` with ``nesterov=True``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to keep the mean of the gradients in; ``None`` for that of the parameters.

    Returns:
        The optimizer.

    Raises:
        DtypeError: if the dtype is unknown.

    Reference: Dozat, "Incorporating Nesterov Momentum into Adam" (2016).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = nadam(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.147367
    """
    return adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=True)


def nadamw(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """AdamW that looks ahead by one step, as Nesterov does: :func:`adamw` with ``nesterov=True``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to keep the mean of the gradients in; ``None`` for that of the parameters.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if the dtype is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Dozat, "Incorporating Nesterov Momentum into Adam" (2016).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = nadamw(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.147387
    """
    return adamw(learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=True)


def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformationExtraArgs:
    """AMSGrad: Adam whose denominator never shrinks; :func:`scale_by_amsgrad` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to keep the mean of the gradients in; ``None`` for that of the parameters.
        bias_correction_mu: whether to remove the bias of the mean of the gradients.
        bias_correction_nu: whether to remove the bias of the mean of their squares.

    Returns:
        The optimizer.

    Raises:
        DtypeError: if the dtype is unknown.

    Reference: Reddi et al., "On the Convergence of Adam and Beyond" (2018).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = amsgrad(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.099999
    """
    scaling = scale_by_amsgrad(b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu)
    return chain(scaling, scale_by_learning_rate(learning_rate))


def adamax(
    learning_rate: ScalarOrSchedule, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8
) -> GradientTransformationExtraArgs:
    """AdaMax: Adam with a decaying maximum in place of the second moment; :func:`scale_by_adamax` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the maximum.
        eps: keeps the denominator away from zero.

    Returns:
        The optimizer.

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014), section 7.1.

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adamax(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.1
    """
    return chain(scale_by_adamax(b1, b2, eps), scale_by_learning_rate(learning_rate))


def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Any = None,
) -> GradientTransformationExtraArgs:
    """AdaMax with weight decay that does not pass through the moments.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        b1: the decay rate of the mean of the gradients.
        b2: the decay rate of the maximum.
        eps: keeps the denominator away from zero.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2017).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adamaxw(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.10002
    """
    decay = add_decayed_weights(weight_decay, mask)
    return chain(scale_by_adamax(b1, b2, eps), decay, scale_by_learning_rate(learning_rate))
