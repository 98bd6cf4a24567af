"""The mean of the updates over the root of the mean of their squares: Adam and what is closest to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun.optim.base import GradientTransformation, Params, Updates, map_updates
from tvmfun.optim.transforms.common import corrected_mean, divide_by_root, optional_dtype, safe_increment, zero_count
from tvmfun.optim.tree import bias_correction, cast, update_moment, zeros_like

__all__ = [
    "ScaleByAdamState",
    "ScaleByAdanState",
    "ScaleByAmsgradState",
    "scale_by_adam",
    "scale_by_adamax",
    "scale_by_adan",
    "scale_by_amsgrad",
]


class ScaleByAdamState(NamedTuple):
    """The state of ``scale_by_adam``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
        nu: the running mean of their squares.
    """

    count: Any
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

    count: Any
    mu: Any
    nu: Any
    nu_max: Any


class ScaleByAdanState(NamedTuple):
    """The state of ``scale_by_adan``.

    Attributes:
        m: the running mean of the updates.
        v: the running mean of the differences between updates.
        n: the running mean of the squares of the updates one step ahead.
        g: the updates before.
        t: the number of updates so far, a 0-d int32 array.
    """

    m: Any
    v: Any
    n: Any
    g: Any
    t: Any


def scale_by_adam(
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Divides the mean of the updates by the root of the mean of their squares, as Adam does.

    ``m' = b1 * m + (1 - b1) * u`` and ``v' = b2 * v + (1 - b2) * u**2``; with the bias towards the zeros they
    start from removed, ``m^ = m' / (1 - b1**t)`` and ``v^ = v' / (1 - b2**t)``, the result is
    ``u' = m^ / (sqrt(v^ + eps_root) + eps)``. With ``nesterov``,
    ``m^ = b1 * m' / (1 - b1**(t+1)) + (1 - b1) * u / (1 - b1**t)``.

    Args:
        b1: the decay rate of the first moment ``m``.
        b2: the decay rate of the second moment ``v``.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to keep ``m`` in; ``None`` for that of the parameters.
        nesterov: whether to look ahead by one step, as Nesterov does.

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
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformation:
    """Divides as :func:`scale_by_adam` does, but by a denominator that never shrinks.

    ``w' = max(w, v^)`` and ``u' = m^ / (sqrt(w' + eps_root) + eps)`` with the means of :func:`scale_by_adam`.

    Args:
        b1: the decay rate of the mean of the updates.
        b2: the decay rate of the mean of their squares.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.
        mu_dtype: the dtype to keep the mean of the updates in; ``None`` for that of the parameters.
        bias_correction_mu: whether to remove the bias of the mean of the updates.
        bias_correction_nu: whether to remove the bias of the mean of their squares.

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


def scale_by_adamax(b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> GradientTransformation:
    """Divides as :func:`scale_by_adam` does, but by a decaying maximum.

    ``v' = max(b2 * v, |u| + eps)`` and ``u' = m^ / v'`` with the mean ``m^`` of :func:`scale_by_adam`.

    Args:
        b1: the decay rate of the mean of the updates.
        b2: the decay rate of the maximum.
        eps: keeps the maximum away from zero.

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


def scale_by_adan(
    b1: Any = 0.98, b2: Any = 0.92, b3: Any = 0.99, eps: Any = 1e-8, eps_root: Any = 0.0
) -> GradientTransformation:
    """Adds the change of the updates to the updates, and divides as :func:`scale_by_adam` does.

    With ``d = u - u_before`` (zero at first), ``m`` is the running mean of ``u``, ``v`` that of ``d`` and ``n`` that
    of ``(u + (1 - b2) * d)**2``; without their biases, ``u' = (m^ + (1 - b2) * v^) / (sqrt(n^ + eps_root) + eps)``.

    Args:
        b1: the decay rate of the mean of the updates.
        b2: the decay rate of the mean of their changes.
        b3: the decay rate of the mean of the squares.
        eps: keeps the denominator away from zero, outside the square root.
        eps_root: does so inside the square root, which derivatives through the update need.

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
