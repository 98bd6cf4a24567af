"""Adam, AdamW, NAdam, AMSGrad and AdaMax."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    map_updates,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.numerics import corrected_mean, divide_by_root, optional_dtype, safe_increment, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.optim.tree import bias_correction, cast, update_moment, zeros_like
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "ScaleByAdamState",
    "ScaleByAmsgradState",
    "adam",
    "adamax",
    "adamaxw",
    "adamw",
    "amsgrad",
    "nadam",
    "nadamw",
    "scale_by_adam",
    "scale_by_adamax",
    "scale_by_amsgrad",
]


class ScaleByAdamState(NamedTuple):
    """The state of ``scale_by_adam``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
        nu: the running mean of their squares.
    """

    count: Array
    mu: Updates
    nu: Updates


class ScaleByAmsgradState(NamedTuple):
    """The state of ``scale_by_amsgrad``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
        nu: the running mean of their squares.
        nu_max: the largest ``nu``, without bias, of all updates so far.
    """

    count: Array
    mu: Updates
    nu: Updates
    nu_max: Updates


def scale_by_adam(
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Divides the mean of the updates by the root of the mean of their squares, as Adam does.

    ``m' = b1 * m + (1 - b1) * u`` and ``v' = b2 * v + (1 - b2) * u**2``; with the bias towards the zeros they
    start from removed, ``m^ = m' / (1 - b1**t)`` and ``v^ = v' / (1 - b2**t)``, the result is
    ``u' = m^ / (sqrt(v^ + eps_root) + eps)``. With ``nesterov``,
    ``m^ = b1 * m' / (1 - b1**(t+1)) + (1 - b1) * u / (1 - b1**t)``.

    Args: as :func:`adam`.

    Returns:
        A transformation whose state is a ``ScaleByAdamState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.

    References: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014); Dozat, "Incorporating
    Nesterov Momentum into Adam" (2016).

    >>> transform = scale_by_adam()
    >>> state = transform.init(tnp.asarray(0.0))
    >>> updates, state = transform.update(tnp.asarray(3.0), state)
    >>> f"{float(updates):.4f}"
    '1.0000'
    """
    dtype = optional_dtype(mu_dtype)

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(zero_count(), zeros_like(params, dtype), zeros_like(params))

    def update(updates: Updates, state: ScaleByAdamState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        mu = update_moment(updates, state.mu, b1)
        nu = update_moment(updates, state.nu, b2, 2)
        mu_hat = corrected_mean(updates, mu, b1, count, nesterov)
        new_updates = divide_by_root(mu_hat, bias_correction(nu, b2, count), eps, eps_root)
        nu = map_updates(lambda new, old: new.astype(old.dtype), nu, state.nu)
        return new_updates, ScaleByAdamState(count, cast(mu, dtype), nu)

    return GradientTransformation(init, update)


def scale_by_amsgrad(
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformation:
    """Divides as :func:`scale_by_adam` does, but by a denominator that never shrinks.

    ``w' = max(w, v^)`` and ``u' = m^ / (sqrt(w' + eps_root) + eps)`` with the means of :func:`scale_by_adam`.

    Args: as :func:`amsgrad`.

    Returns:
        A transformation whose state is a ``ScaleByAmsgradState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.

    Reference: Reddi et al., "On the Convergence of Adam and Beyond" (2018).

    >>> transform = scale_by_amsgrad()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 4)
    1.0
    """
    dtype = optional_dtype(mu_dtype)

    def init(params: Params) -> ScaleByAmsgradState:
        return ScaleByAmsgradState(zero_count(), zeros_like(params, dtype), zeros_like(params), zeros_like(params))

    def update(updates: Updates, state: ScaleByAmsgradState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        mu = update_moment(updates, state.mu, b1)
        nu = update_moment(updates, state.nu, b2, 2)
        mu_hat = bias_correction(mu, b1, count) if bias_correction_mu else mu
        nu_hat = bias_correction(nu, b2, count) if bias_correction_nu else nu
        nu_max = map_updates(tnp.maximum, nu_hat, state.nu_max)
        new_updates = divide_by_root(mu_hat, nu_max, eps, eps_root)
        return new_updates, ScaleByAmsgradState(count, cast(mu, dtype), nu, nu_max)

    return GradientTransformation(init, update)


def scale_by_adamax(b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-8) -> GradientTransformation:
    """Divides as :func:`scale_by_adam` does, but by a decaying maximum.

    ``v' = max(b2 * v, |u| + eps)`` and ``u' = m^ / v'`` with the mean ``m^`` of :func:`scale_by_adam`.

    Args: as :func:`adamax`.

    Returns:
        A transformation whose state is a ``ScaleByAdamState``.

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014), section 7.1.

    >>> transform = scale_by_adamax()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    1.0
    """

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(zero_count(), zeros_like(params), zeros_like(params))

    def update(updates: Updates, state: ScaleByAdamState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        mu = update_moment(updates, state.mu, b1)
        nu = map_updates(lambda u, v: tnp.maximum(tnp.abs(u) + eps, b2 * v), updates, state.nu)
        new_updates = map_updates(lambda m, v: m / v, bias_correction(mu, b1, count), nu)
        return new_updates, ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


def adam(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
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
        eps_root: the same inside the square root; derivatives through the update need it to be positive.
        mu_dtype: the dtype of the mean of the gradients; ``None`` for the dtype of the parameters.
        nesterov: whether to use Nesterov momentum (Nadam).

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
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Adam with decoupled weight decay: the decay is not a part of the moments.

    ``u = -learning_rate * (m^ / (sqrt(v^ + eps_root) + eps) + weight_decay * p)``; :func:`scale_by_adam` has
    the formulas of ``m^`` and ``v^``.

    Args:
        learning_rate: a number, a 0-d array or a schedule; it also multiplies the weight decay.
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Other arguments: as :func:`adam`.

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
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """Adam with Nesterov momentum: :func:`adam` with ``nesterov=True``.

    Args: as :func:`adam`.

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
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """AdamW with Nesterov momentum: :func:`adamw` with ``nesterov=True``.

    Args: as :func:`adamw`.

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
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformationExtraArgs:
    """AMSGrad: Adam whose denominator never shrinks; :func:`scale_by_amsgrad` has the formulas.

    Args:
        bias_correction_mu: whether to remove the bias of the mean of the gradients.
        bias_correction_nu: whether to remove the bias of the mean of their squares.

    Other arguments: as :func:`adam`.

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
    learning_rate: ScalarOrSchedule, b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-8
) -> GradientTransformationExtraArgs:
    """AdaMax: Adam with a decaying maximum instead of the second moment; :func:`scale_by_adamax` has the formulas.

    Args:
        b2: the decay rate of the maximum.

    Other arguments: as :func:`adam`.

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
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """AdaMax with decoupled weight decay.

    Args: as :func:`adamax` and :func:`adamw`.

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
