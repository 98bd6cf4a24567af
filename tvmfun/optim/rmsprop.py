"""RMSProp and Adadelta: division by the root of running means of squares."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
    map_updates,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.momentum import trace
from tvmfun.optim.numerics import safe_increment, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.optim.tree import bias_correction as unbiased
from tvmfun.optim.tree import full_like, update_moment, zeros_like
from tvmfun.typing import Scalar

__all__ = [
    "ScaleByAdaDeltaState",
    "ScaleByRStdDevState",
    "ScaleByRStdDevWithCountState",
    "ScaleByRmsState",
    "ScaleByRmsWithCountState",
    "adadelta",
    "rmsprop",
    "scale_by_adadelta",
    "scale_by_rms",
    "scale_by_stddev",
]


class ScaleByRmsState(NamedTuple):
    """The state of ``scale_by_rms``.

    Attributes:
        nu: the running mean of the squares of the updates.
    """

    nu: Updates


class ScaleByRmsWithCountState(NamedTuple):
    """The state of ``scale_by_rms`` with ``bias_correction``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        nu: the running mean of the squares of the updates.
    """

    count: Array
    nu: Updates


class ScaleByRStdDevState(NamedTuple):
    """The state of ``scale_by_stddev``.

    Attributes:
        mu: the running mean of the updates.
        nu: the running mean of their squares.
    """

    mu: Updates
    nu: Updates


class ScaleByRStdDevWithCountState(NamedTuple):
    """The state of ``scale_by_stddev`` with ``bias_correction``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
        nu: the running mean of their squares.
    """

    count: Array
    mu: Updates
    nu: Updates


class ScaleByAdaDeltaState(NamedTuple):
    """The state of ``scale_by_adadelta``.

    Attributes:
        e_g: the running mean of the squared gradients.
        e_x: the running mean of the squared updates.
    """

    e_g: Updates
    e_x: Updates


def scale_by_rms(
    decay: Scalar = 0.9,
    eps: Scalar = 1e-8,
    initial_scale: Scalar = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divides by the root of the running mean of squares: ``v' = decay * v + (1 - decay) * u**2``.

    ``u' = u / sqrt(v' + eps)``, or ``u / (sqrt(v') + eps)`` without ``eps_in_sqrt``.

    Args:
        decay: the decay rate of the running mean.
        eps: keeps the denominator away from zero.
        initial_scale: the initial value of the mean of the squares.
        eps_in_sqrt: whether ``eps`` is added inside the square root.
        bias_correction: whether to remove the bias of the means; it makes the state count the updates.

    Returns:
        A transformation whose state is a ``ScaleByRmsState``, or a ``ScaleByRmsWithCountState``.

    Reference: Tieleman and Hinton, "Lecture 6.5: rmsprop" (2012).

    >>> transform = scale_by_rms()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    3.162278
    """

    def init(params: Params) -> OptState:
        nu = full_like(params, initial_scale)
        return ScaleByRmsWithCountState(zero_count(), nu) if bias_correction else ScaleByRmsState(nu)

    def update(updates: Updates, state: Any, params: Params | None = None) -> tuple:
        nu = nu_hat = update_moment(updates, state.nu, decay, 2)
        new_state: OptState = ScaleByRmsState(nu)
        if bias_correction:
            count = safe_increment(state.count)
            nu_hat = unbiased(nu, decay, count)
            new_state = ScaleByRmsWithCountState(count, nu)
        return map_updates(lambda u, v: u / _root(v, eps, eps_in_sqrt), updates, nu_hat), new_state

    return GradientTransformation(init, update)


def scale_by_stddev(
    decay: Scalar = 0.9,
    eps: Scalar = 1e-8,
    initial_scale: Scalar = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divides by the running standard deviation: ``u' = u / sqrt(v' - m'**2 + eps)``.

    ``m`` and ``v`` are the running means of the updates and of their squares; without ``eps_in_sqrt``,
    ``u' = u / (sqrt(v' - m'**2) + eps)``.

    Args:
        decay: the decay rate of both running means.

    Other arguments: as :func:`scale_by_rms`.

    Returns:
        A transformation whose state is a ``ScaleByRStdDevState``, or a ``ScaleByRStdDevWithCountState``.

    Reference: Graves, "Generating Sequences With Recurrent Neural Networks" (2013).

    >>> transform = scale_by_stddev()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    3.333333
    """

    def init(params: Params) -> OptState:
        mu, nu = zeros_like(params), full_like(params, initial_scale)
        return ScaleByRStdDevWithCountState(zero_count(), mu, nu) if bias_correction else ScaleByRStdDevState(mu, nu)

    def update(updates: Updates, state: Any, params: Params | None = None) -> tuple:
        mu = mu_hat = update_moment(updates, state.mu, decay)
        nu = nu_hat = update_moment(updates, state.nu, decay, 2)
        new_state: OptState = ScaleByRStdDevState(mu, nu)
        if bias_correction:
            count = safe_increment(state.count)
            mu_hat, nu_hat = unbiased(mu, decay, count), unbiased(nu, decay, count)
            new_state = ScaleByRStdDevWithCountState(count, mu, nu)
        variance = map_updates(lambda m, v: v - tnp.square(m), mu_hat, nu_hat)
        return map_updates(lambda u, v: u / _root(v, eps, eps_in_sqrt), updates, variance), new_state

    return GradientTransformation(init, update)


def scale_by_adadelta(rho: Scalar = 0.9, eps: Scalar = 1e-6) -> GradientTransformation:
    """Gives the updates the units of the parameters, as Adadelta does.

    ``G' = rho * G + (1 - rho) * g**2``, ``u = sqrt(X + eps) / sqrt(G' + eps) * g``, and
    ``X' = rho * X + (1 - rho) * u**2``.

    Args:
        rho: the decay rate of both running means.
        eps: keeps the numerator and the denominator away from zero.

    Returns:
        A transformation whose state is a ``ScaleByAdaDeltaState``.

    Reference: Zeiler, "ADADELTA: An Adaptive Learning Rate Method" (2012).

    >>> transform = scale_by_adadelta()
    >>> updates, state = transform.update(tnp.asarray(1.0), transform.init(tnp.asarray(0.0)))
    >>> f"{float(updates):.6f}"
    '0.003162'
    """

    def mean_square(u: Array, mean: Array) -> Array:
        return (1 - rho) * tnp.square(u) + rho * mean

    def init(params: Params) -> ScaleByAdaDeltaState:
        return ScaleByAdaDeltaState(zeros_like(params), zeros_like(params))

    def update(updates: Updates, state: ScaleByAdaDeltaState, params: Params | None = None) -> tuple:
        e_g = map_updates(mean_square, updates, state.e_g)
        new_updates = map_updates(lambda u, g, x: tnp.sqrt(x + eps) / tnp.sqrt(g + eps) * u, updates, e_g, state.e_x)
        e_x = map_updates(mean_square, new_updates, state.e_x)
        return new_updates, ScaleByAdaDeltaState(e_g, e_x)

    return GradientTransformation(init, update)


def _root(square: Array, eps: Scalar, eps_in_sqrt: bool) -> Array:
    return tnp.sqrt(square + eps) if eps_in_sqrt else tnp.sqrt(square) + eps


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: Scalar = 0.9,
    eps: Scalar = 1e-8,
    initial_scale: Scalar = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformationExtraArgs:
    """RMSProp: division by the root of the running mean of squared gradients.

    :func:`scale_by_rms` has the formulas, or with ``centered`` :func:`scale_by_stddev`; momentum is applied last.

    Args:
        centered: whether to subtract the square of the mean from the mean of the squares.

    Other arguments: as :func:`scale_by_rms` and :func:`sgd`.

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


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: Scalar = 0.9,
    eps: Scalar = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Adadelta: step sizes from the ratio of the sizes of past updates and gradients.

    ``g' = g + weight_decay * p`` and ``u = -learning_rate * sqrt(X + eps) / sqrt(G + eps) * g'`` with the
    running means ``G`` of squared gradients and ``X`` of squared updates; :func:`scale_by_adadelta` has the
    formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule; ``None`` for no scaling at all, not even by -1.
        weight_decay: a number, a 0-d array or a schedule.
        weight_decay_mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Other arguments: as :func:`scale_by_adadelta`.

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
