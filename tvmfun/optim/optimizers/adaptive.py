"""Optimizers that divide gradients by the size of those before, without or before momentum."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import GradientTransformationExtraArgs, ScalarOrSchedule, identity
from tvmfun.optim.combine import chain
from tvmfun.optim.transforms.adding import add_decayed_weights
from tvmfun.optim.transforms.clipping import clip_by_block_rms
from tvmfun.optim.transforms.factored import scale_by_factored_rms
from tvmfun.optim.transforms.momentum import ema, trace
from tvmfun.optim.transforms.scaling import scale, scale_by_learning_rate, scale_by_param_block_rms
from tvmfun.optim.transforms.squares import (
    scale_by_adadelta,
    scale_by_rms,
    scale_by_rowwise_rss,
    scale_by_rss,
    scale_by_sm3,
    scale_by_stddev,
)

__all__ = [
    "adadelta",
    "adafactor",
    "adagrad",
    "rmsprop",
    "rowwise_adagrad",
    "sm3",
]


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


def rowwise_adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: Any = 0.1, eps: Any = 1e-7
) -> GradientTransformationExtraArgs:
    """AdaGrad with one sum per row, for tables of embeddings; :func:`scale_by_rowwise_rss` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        initial_accumulator_value: what the sums start from.
        eps: keeps the denominator away from zero.

    Returns:
        The optimizer.

    Reference: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems"
    (2019).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = rowwise_adagrad(0.1)
    >>> table = tnp.zeros((3, 2))
    >>> updates, state = optimizer.update(tnp.ones((3, 2)), optimizer.init(table), table)
    >>> tnp.round(updates[0], 4), state[0].sum_of_squares.shape
    (Array([-0.0953, -0.0953], dtype=float32), (3,))
    """
    return chain(scale_by_rowwise_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))


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
