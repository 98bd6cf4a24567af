"""Variants of Adam with other moments: AdaBelief, Adan, RAdam, Yogi and optimistic Adam."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.optim.adam import ScaleByAdamState, scale_by_adam
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
from tvmfun.optim.numerics import (
    corrected_mean,
    divide_by_root,
    in_dtype_of,
    safe_increment,
    zero_count,
)
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.optim.sgd import scale_by_optimistic_gradient
from tvmfun.optim.tree import bias_correction, full_like, update_moment, zeros_like
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "ScaleByAdanState",
    "ScaleByBeliefState",
    "adabelief",
    "adan",
    "optimistic_adam_v2",
    "radam",
    "scale_by_adan",
    "scale_by_belief",
    "scale_by_radam",
    "scale_by_yogi",
    "yogi",
]


class ScaleByAdanState(NamedTuple):
    """The state of ``scale_by_adan``.

    Attributes:
        m: the running mean of the updates.
        v: the running mean of the differences between updates.
        n: the running mean of the squares of the updates one step ahead.
        g: the previous updates.
        t: the number of updates so far, a 0-d int32 array.
    """

    m: Updates
    v: Updates
    n: Updates
    g: Updates
    t: Array


class ScaleByBeliefState(NamedTuple):
    """The state of ``scale_by_belief``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
        nu: the running mean of the squared distances of the updates from ``mu``.
    """

    count: Array
    mu: Updates
    nu: Updates


def scale_by_adan(
    b1: Scalar = 0.98, b2: Scalar = 0.92, b3: Scalar = 0.99, eps: Scalar = 1e-8, eps_root: Scalar = 0.0
) -> GradientTransformation:
    """Adds the change of the updates to the updates, and divides as :func:`scale_by_adam` does.

    With ``d = u - u_before`` (zero at first), ``m``, ``v`` and ``n`` are the running means of ``u``, ``d`` and
    ``(u + (1 - b2) * d)**2``; without their biases, ``u' = (m^ + (1 - b2) * v^) / (sqrt(n^ + eps_root) + eps)``.

    Args:
        b1: the decay rate of the mean of the updates.
        b2: the decay rate of the mean of their changes.
        b3: the decay rate of the mean of the squares.

    Other arguments: as :func:`adam`.

    Returns:
        A transformation whose state is a ``ScaleByAdanState``.

    Reference: Xie et al., "Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep Models" (2022).

    >>> transform = scale_by_adan()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    1.0
    """

    def init(params: Params) -> ScaleByAdanState:
        m, v, n, g = (zeros_like(params) for _ in range(4))
        return ScaleByAdanState(m, v, n, g, zero_count())

    def update(updates: Updates, state: ScaleByAdanState, params: Params | None = None) -> tuple:
        first, t = state.t == 0, safe_increment(state.t)
        change = map_updates(lambda u, g: tnp.where(first, tnp.zeros_like(u), u - g), updates, state.g)
        m = update_moment(updates, state.m, b1)
        v = update_moment(change, state.v, b2)
        ahead = lambda u, d: u + (1 - b2) * d
        n = update_moment(map_updates(ahead, updates, change), state.n, b3, 2)
        mean = map_updates(ahead, bias_correction(m, b1, t), bias_correction(v, b2, t))
        new_updates = divide_by_root(mean, bias_correction(n, b3, t), eps, eps_root)
        return new_updates, ScaleByAdanState(m, v, n, updates, t)

    return GradientTransformation(init, update)


def scale_by_belief(
    b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-16, eps_root: Scalar = 1e-16, *, nesterov: bool = False
) -> GradientTransformation:
    """Divides the mean of the updates by the root of their mean squared distance from it.

    As :func:`scale_by_adam`, but with ``v' = b2 * v + (1 - b2) * (u - m')**2 + eps_root``.

    Args:
        b2: the decay rate of the mean of the squared distances.
        eps_root: the same inside the square root, added to the running mean itself.

    Other arguments: as :func:`adam`.

    Returns:
        A transformation whose state is a ``ScaleByBeliefState``.

    Reference: Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients" (2020).

    >>> transform = scale_by_belief()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    1.111104
    """

    def init(params: Params) -> ScaleByBeliefState:
        return ScaleByBeliefState(zero_count(), zeros_like(params), zeros_like(params))

    def update(updates: Updates, state: ScaleByBeliefState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        mu = update_moment(updates, state.mu, b1)
        surprise = map_updates(lambda u, m: u - m, updates, mu)
        nu = map_updates(lambda v: v + eps_root, update_moment(surprise, state.nu, b2, 2))
        mu_hat = corrected_mean(updates, mu, b1, count, nesterov)
        new_updates = divide_by_root(mu_hat, bias_correction(nu, b2, count), eps)
        return new_updates, ScaleByBeliefState(count, mu, nu)

    return GradientTransformation(init, update)


def scale_by_yogi(
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-3,
    eps_root: Scalar = 0.0,
    initial_accumulator_value: Scalar = 1e-6,
) -> GradientTransformation:
    """Divides as :func:`scale_by_adam` does, with a second moment that moves by steps of the size of ``u**2``.

    ``v' = v - (1 - b2) * sign(v - u**2) * u**2``.

    Args:
        initial_accumulator_value: the initial value of both moments.

    Other arguments: as :func:`adam`.

    Returns:
        A transformation whose state is a ``ScaleByAdamState``.

    Reference: Zaheer et al., "Adaptive Methods for Nonconvex Optimization" (2018).

    >>> transform = scale_by_yogi()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    0.999608
    """

    def init(params: Params) -> ScaleByAdamState:
        mu, nu = (full_like(params, initial_accumulator_value) for _ in range(2))
        return ScaleByAdamState(zero_count(), mu, nu)

    def update(updates: Updates, state: ScaleByAdamState, params: Params | None = None) -> tuple:
        def move(u: Array, v: Array) -> Array:
            return v - (1 - b2) * tnp.sign(v - u * u) * (u * u)

        count = safe_increment(state.count)
        mu, nu = update_moment(updates, state.mu, b1), map_updates(move, updates, state.nu)
        mu_hat, nu_hat = bias_correction(mu, b1, count), bias_correction(nu, b2, count)
        return divide_by_root(mu_hat, nu_hat, eps, eps_root), ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


def scale_by_radam(
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    threshold: Scalar = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Divides as :func:`scale_by_adam` does, once the variance of the second moment is small enough.

    With ``s = 2 / (1 - b2) - 1`` and ``r = s - 2 * t * b2**t / (1 - b2**t)``,
    ``u' = sqrt((r - 4) * (r - 2) * s / ((s - 4) * (s - 2) * r)) * m^ / (sqrt(v^ + eps_root) + eps)`` if
    ``r >= threshold``, else ``u' = m^``; :func:`scale_by_adam` has the formulas of ``m^`` and ``v^``.

    Args:
        threshold: the least ``r``, the effective number of updates in ``v``, for which to divide.

    Other arguments: as :func:`adam`.

    Returns:
        A transformation whose state is a ``ScaleByAdamState``.

    Reference: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond" (2020).

    >>> transform = scale_by_radam()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    3.0
    """
    full = 2.0 / (1.0 - b2) - 1.0

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(zero_count(), zeros_like(params), zeros_like(params))

    def update(updates: Updates, state: ScaleByAdamState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        # In float64, because it is a difference of large numbers.
        t = count.astype("float64")
        left = b2**t
        length = full - 2 * t * left / (1 - left)
        enough = length >= threshold
        # Below 4 the product may be negative; the result is not used there.
        product = (length - 4) * (length - 2) * full / ((full - 4) * (full - 2) * length)
        factor = tnp.sqrt(tnp.where(enough, product, 1.0))
        mu = update_moment(updates, state.mu, b1)
        nu = update_moment(updates, state.nu, b2, 2)
        mu_hat = corrected_mean(updates, mu, b1, count, nesterov)
        scaled = divide_by_root(mu_hat, bias_correction(nu, b2, count), eps, eps_root)
        new_updates = map_updates(lambda s, m: tnp.where(enough, in_dtype_of(s, factor) * s, m), scaled, mu_hat)
        return new_updates, ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


def adan(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.98,
    b2: Scalar = 0.92,
    b3: Scalar = 0.99,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Adan: Adam with Nesterov momentum from the changes of the gradients; :func:`scale_by_adan` has the formulas.

    Args: as :func:`scale_by_adan` and :func:`adamw`.

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
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-16,
    eps_root: Scalar = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """AdaBelief: small steps where the gradient is far from its running mean; :func:`scale_by_belief` has the formulas.

    Args: as :func:`scale_by_belief` and :func:`adam`.

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
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    threshold: Scalar = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """RAdam: Adam with a warmup from the variance of its second moment; :func:`scale_by_radam` has the formulas.

    Args: as :func:`scale_by_radam` and :func:`adam`.

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
    learning_rate: ScalarOrSchedule, b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-3
) -> GradientTransformationExtraArgs:
    """Yogi: Adam whose second moment moves by small steps; :func:`scale_by_yogi` has the formulas.

    Args:
        eps: keeps the denominator away from zero; larger than for Adam, as in the paper.

    Other arguments: as :func:`adam`.

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
    alpha: Scalar = 1.0,
    beta: Scalar = 1.0,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: DTypeLike | None = None,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs:
    """Optimistic Adam: :func:`scale_by_optimistic_gradient` after :func:`scale_by_adam`.

    Args: as :func:`adam` and :func:`scale_by_optimistic_gradient`.

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
