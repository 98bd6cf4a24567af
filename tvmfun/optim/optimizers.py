"""The optimizers people use, each a chain of transformations."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import GradientTransformationExtraArgs, ScalarOrSchedule, identity
from tvmfun.optim.combine import chain, masked
from tvmfun.optim.transforms.adaptive import (
    scale_by_adadelta,
    scale_by_optimistic_gradient,
    scale_by_rms,
    scale_by_rprop,
    scale_by_rss,
    scale_by_sm3,
    scale_by_stddev,
)
from tvmfun.optim.transforms.adding import add_decayed_weights, add_noise
from tvmfun.optim.transforms.clipping import clip_by_block_rms
from tvmfun.optim.transforms.factored import scale_by_factored_rms
from tvmfun.optim.transforms.moments import (
    ema,
    scale_by_adam,
    scale_by_adamax,
    scale_by_adan,
    scale_by_amsgrad,
    scale_by_belief,
    scale_by_lion,
    scale_by_novograd,
    scale_by_radam,
    scale_by_yogi,
    trace,
)
from tvmfun.optim.transforms.scaling import (
    scale,
    scale_by_learning_rate,
    scale_by_param_block_rms,
    scale_by_polyak,
    scale_by_sign,
    scale_by_trust_ratio,
)

__all__ = [
    "adabelief",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamaxw",
    "adamw",
    "adan",
    "amsgrad",
    "fromage",
    "lamb",
    "lars",
    "lion",
    "nadam",
    "nadamw",
    "noisy_sgd",
    "novograd",
    "optimistic_adam_v2",
    "optimistic_gradient_descent",
    "polyak_sgd",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
    "sign_sgd",
    "signum",
    "sm3",
    "yogi",
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


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: Any = 0.9,
    eps: Any = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
) -> GradientTransformationExtraArgs:
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


def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: Any = 0.1, eps: Any = 1e-7
) -> GradientTransformationExtraArgs:
    """AdaGrad: division by the root of the sum of all squared gradients; :func:`scale_by_rss` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        initial_accumulator_value: what the sum starts from.
        eps: keeps the denominator away from zero.

    Returns:
        The optimizer.

    Reference: Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization" (2011).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adagrad(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.099689
    """
    return chain(scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: Any = 0.9,
    eps: Any = 1e-8,
    initial_scale: Any = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Any = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformationExtraArgs:
    """RMSProp: division by the root of the running mean of squared gradients.

    :func:`scale_by_rms` has the formulas, or with ``centered`` :func:`scale_by_stddev`; the momentum comes last.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        decay: the decay rate of the running mean.
        eps: keeps the denominator away from zero.
        initial_scale: what the mean of the squares starts from.
        eps_in_sqrt: whether ``eps`` is added inside the square root.
        centered: whether to subtract the square of the mean from the mean of the squares.
        momentum: the decay rate of the momentum; ``None`` for none.
        nesterov: whether to look ahead by one step, as Nesterov does.
        bias_correction: whether to remove the bias of the means.

    Returns:
        The optimizer.

    References: Tieleman and Hinton, "Lecture 6.5: rmsprop" (2012); Graves, "Generating Sequences With Recurrent
    Neural Networks" (2013).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = rmsprop(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.316228
    """
    scaling = scale_by_stddev if centered else scale_by_rms
    return chain(
        scaling(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
        identity() if momentum is None else trace(momentum, nesterov),
    )


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


def sm3(learning_rate: Any, momentum: Any = 0.9) -> GradientTransformationExtraArgs:
    """SM3: AdaGrad with one accumulator for each row and column; :func:`scale_by_sm3` has the formulas.

    Args:
        learning_rate: a number or a 0-d array.
        momentum: the decay rate of the mean of the updates.

    Returns:
        The optimizer.

    Reference: Anil et al., "Memory-Efficient Adaptive Optimization" (2019).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = sm3(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.01
    """
    return chain(scale_by_sm3(momentum), scale(-learning_rate))


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


def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: Any = 0.8,
    decay_offset: Any = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: Any = 1.0,
    momentum: Any = None,
    dtype_momentum: Any = "float32",
    weight_decay_rate: ScalarOrSchedule | None = None,
    eps: Any = 1e-30,
    factored: bool = True,
    weight_decay_mask: Any = None,
) -> GradientTransformationExtraArgs:
    """Adafactor: second moments of matrices as pairs of vectors; :func:`scale_by_factored_rms` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule; ``None`` for 1.
        min_dim_size_to_factor: an array is factored if its two longest axes are at least this long.
        decay_rate: how fast the decay rate of the running mean comes close to 1.
        decay_offset: the count at which the training began, for fine-tuning.
        multiply_by_parameter_scale: whether steps are in proportion to the root mean square of the parameter.
        clipping_threshold: the largest root mean square of a step before that; ``None`` for no limit.
        momentum: the decay rate of the momentum; ``None`` for none.
        dtype_momentum: the dtype to keep the momentum in.
        weight_decay_rate: a number, a 0-d array or a schedule; the learning rate does not multiply it.
        eps: keeps the denominator away from zero.
        factored: whether to factor at all.
        weight_decay_mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        DtypeError: if the dtype is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adafactor(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.2
    """
    steps = [scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)]
    if clipping_threshold is not None:
        steps.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        steps.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        steps.append(scale_by_param_block_rms())
    if momentum is not None:
        steps.append(ema(momentum, False, dtype_momentum))
    if weight_decay_rate is not None:
        steps.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*steps, scale(-1))


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
