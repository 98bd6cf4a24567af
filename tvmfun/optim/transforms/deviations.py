"""Running means of the updates, divided by other things than Adam divides by, or by nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import GradientTransformation, Params, Updates, map_updates
from tvmfun.optim.transforms.common import (
    corrected_mean,
    divide_by_root,
    in_dtype_of,
    need_params,
    optional_dtype,
    safe_increment,
    zero_count,
)
from tvmfun.optim.transforms.moments import ScaleByAdamState
from tvmfun.optim.tree import bias_correction, cast, full_like, update_moment, zeros_like

__all__ = [
    "ScaleByBeliefState",
    "ScaleByLionState",
    "ScaleByNovogradState",
    "scale_by_belief",
    "scale_by_lion",
    "scale_by_novograd",
    "scale_by_radam",
    "scale_by_yogi",
]


class ScaleByBeliefState(NamedTuple):
    """The state of ``scale_by_belief``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
        nu: the running mean of the squared distances of the updates from ``mu``.
    """

    count: Any
    mu: Any
    nu: Any


class ScaleByLionState(NamedTuple):
    """The state of ``scale_by_lion``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
    """

    count: Any
    mu: Any


class ScaleByNovogradState(NamedTuple):
    """The state of ``scale_by_novograd``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the decaying sum of the normalized updates.
        nu: the running mean of the squared norm of each update, a 0-d array.
    """

    count: Any
    mu: Any
    nu: Any


def scale_by_belief(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16, eps_root: Any = 1e-16, *, nesterov: bool = False
) -> GradientTransformation:
    """Divides the mean of the updates by the root of their mean squared distance from it.

    As :func:`scale_by_adam`, but with ``v' = b2 * v + (1 - b2) * (u - m')**2 + eps_root``.

    Args:
        b1: the decay rate of the mean of the updates.
        b2: the decay rate of the mean of the squared distances.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root; it is added to the state.
        nesterov: whether to look ahead by one step, as Nesterov does.

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
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-3,
    eps_root: Any = 0.0,
    initial_accumulator_value: Any = 1e-6,
) -> GradientTransformation:
    """Divides as :func:`scale_by_adam` does, with a second moment that moves by steps of the size of ``u**2``.

    ``v' = v - (1 - b2) * sign(v - u**2) * u**2``.

    Args:
        b1: the decay rate of the mean of the updates.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.
        initial_accumulator_value: what both moments start from.

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
        def move(u: Any, v: Any) -> Any:
            return v - (1 - b2) * tnp.sign(v - u * u) * (u * u)

        count = safe_increment(state.count)
        mu, nu = update_moment(updates, state.mu, b1), map_updates(move, updates, state.nu)
        mu_hat, nu_hat = bias_correction(mu, b1, count), bias_correction(nu, b2, count)
        return divide_by_root(mu_hat, nu_hat, eps, eps_root), ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


def scale_by_radam(
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    threshold: Any = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Divides as :func:`scale_by_adam` does, once enough updates have been seen to know the second moment.

    With ``s = 2 / (1 - b2) - 1`` and ``r = s - 2 * t * b2**t / (1 - b2**t)``,
    ``u' = sqrt((r - 4) * (r - 2) * s / ((s - 4) * (s - 2) * r)) * m^ / (sqrt(v^ + eps_root) + eps)`` if
    ``r >= threshold``, else ``u' = m^``; :func:`scale_by_adam` has the formulas of ``m^`` and ``v^``.

    Args:
        b1: the decay rate of the mean of the updates.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.
        threshold: how large ``r``, the length of the average that ``v`` is, must be for a division.
        nesterov: whether to look ahead by one step, as Nesterov does.

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
        # The length is a difference of large numbers, hence in float64; one scalar costs nothing.
        t = count.astype("float64")
        left = b2**t
        length = full - 2 * t * left / (1 - left)
        enough = length >= threshold
        # Below 4 the product may be negative; its root is not used there.
        product = (length - 4) * (length - 2) * full / ((full - 4) * (full - 2) * length)
        factor = tnp.sqrt(tnp.where(enough, product, 1.0))
        mu = update_moment(updates, state.mu, b1)
        nu = update_moment(updates, state.nu, b2, 2)
        mu_hat = corrected_mean(updates, mu, b1, count, nesterov)
        scaled = divide_by_root(mu_hat, bias_correction(nu, b2, count), eps, eps_root)
        new_updates = map_updates(lambda s, m: tnp.where(enough, in_dtype_of(s, factor) * s, m), scaled, mu_hat)
        return new_updates, ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


def scale_by_lion(
    b1: Any = 0.9, b2: Any = 0.99, mu_dtype: Any = None, *, mode: str = "hard", smooth_beta: Any = 1.0
) -> GradientTransformation:
    """Takes the sign of a mean of the updates: ``u' = sign(b1 * m + (1 - b1) * u)``.

    Then ``m' = b2 * m + (1 - b2) * u``. With ``mode="smooth"``, ``tanh(smooth_beta * x)`` takes the place of the
    sign, with ``"refined"``, ``min(max(x, -1), 1)``.

    Args:
        b1: the decay rate of the mean that is used.
        b2: the decay rate of the mean that is kept.
        mu_dtype: the dtype to keep the mean of the updates in; ``None`` for that of the parameters.
        mode: ``"hard"``, ``"smooth"`` or ``"refined"``.
        smooth_beta: how steep the ``"smooth"`` sign is.

    Returns:
        A transformation whose state is a ``ScaleByLionState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.
        ArgumentError: if ``mode`` is unknown.

    Reference: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023).

    >>> transform = scale_by_lion()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    1.0
    """
    dtype = optional_dtype(mu_dtype)
    signs = {
        "hard": tnp.sign,
        "smooth": lambda x: tnp.tanh(smooth_beta * x),
        "refined": lambda x: tnp.clip(x, -1, 1),
    }
    if mode not in signs:
        raise ArgumentError("scale_by_lion", f"mode must be one of {', '.join(map(repr, signs))}", got=repr(mode))

    def init(params: Params) -> ScaleByLionState:
        return ScaleByLionState(zero_count(), zeros_like(params, dtype))

    def update(updates: Updates, state: ScaleByLionState, params: Params | None = None) -> tuple:
        new_updates = map_updates(signs[mode], update_moment(updates, state.mu, b1))
        mu = cast(update_moment(updates, state.mu, b2), dtype)
        return new_updates, ScaleByLionState(safe_increment(state.count), mu)

    return GradientTransformation(init, update)


def scale_by_novograd(
    b1: Any = 0.9,
    b2: Any = 0.25,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    weight_decay: Any = 0.0,
    mu_dtype: Any = None,
) -> GradientTransformation:
    """Divides each update by a running mean of its norm, decays the weights, and adds momentum.

    ``v' = b2 * v + (1 - b2) * norm(u)**2`` (at first ``norm(u)**2``),
    ``m' = b1 * m + u / (sqrt(v' + eps_root) + eps) + weight_decay * p``, and ``u' = m'``.

    Args:
        b1: the decay rate of the sum of the normalized updates.
        b2: the decay rate of the mean of the squared norms.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.
        weight_decay: the factor of the parameters, a number or a 0-d array.
        mu_dtype: the dtype to keep the sum in; ``None`` for that of the parameters.

    Returns:
        A transformation whose state is a ``ScaleByNovogradState``.

    Raises:
        DtypeError: if ``mu_dtype`` is unknown.
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments" (2019).

    >>> transform = scale_by_novograd()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)), tnp.asarray(2.0))
    >>> round(float(updates), 6)
    1.0
    """
    dtype = optional_dtype(mu_dtype)

    def init(params: Params) -> ScaleByNovogradState:
        norms = tree.map(lambda p: tnp.zeros((), dtype=abstract(p).dtype), params)
        return ScaleByNovogradState(zero_count(), zeros_like(params, dtype), norms)

    def update(updates: Updates, state: ScaleByNovogradState, params: Params | None = None) -> tuple:
        need_params("scale_by_novograd", params)
        first, count = state.count == 0, safe_increment(state.count)

        def mean_norm(u: Any, v: Any) -> Any:
            square = tnp.sum(tnp.square(u)).astype(v.dtype)
            return tnp.where(first, square, (1 - b2) * square + b2 * v)

        def add(u: Any, p: Any, v: Any, m: Any) -> Any:
            normalized = u / (tnp.sqrt(v + eps_root) + eps) + weight_decay * p
            return normalized + tnp.where(first, tnp.zeros_like(m), b1 * m)

        nu = map_updates(mean_norm, updates, state.nu)
        mu = cast(map_updates(add, updates, params, nu, state.mu), dtype)
        return mu, ScaleByNovogradState(count, mu, nu)

    return GradientTransformation(init, update)
