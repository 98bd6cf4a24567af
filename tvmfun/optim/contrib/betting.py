"""Parameter-free optimization by betting: COCOB, and Mechanic around any optimizer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    select,
    with_extra_args_support,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.numerics import need_params, safe_increment, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.typing import Scalar

__all__ = ["COCOBState", "MechanicState", "cocob", "mechanize", "scale_by_cocob"]


class COCOBState(NamedTuple):
    """The state of ``scale_by_cocob``.

    Attributes:
        init_particles: the first parameters.
        cumulative_gradients: the negative sum of the updates.
        scale: the largest absolute value of each update so far.
        subgradients: the sum of the absolute values.
        reward: the winnings so far.
    """

    init_particles: Params
    cumulative_gradients: Updates
    scale: Updates
    subgradients: Updates
    reward: Updates


class MechanicState(NamedTuple):
    """The state of ``mechanize``.

    Attributes:
        base_optimizer_state: the state of the optimizer.
        count: the number of updates so far, a 0-d int32 array.
        r: the winnings of each bettor so far, a vector.
        m: the decaying maximum of the size of a bet, a vector.
        v: the decaying sum of its square, a vector.
        s: the share of each bettor in the learning rate, a vector.
        x0: the first parameters.
    """

    base_optimizer_state: OptState
    count: Array
    r: Array
    m: Updates
    v: Updates
    s: Updates
    x0: Params


def scale_by_cocob(alpha: Scalar = 100.0, eps: Scalar = 1e-8) -> GradientTransformation:
    """Bets on the direction of each parameter, with the previous winnings as the stake.

    ``L' = max(L, |u|)``, ``G' = G + |u|``, ``R' = max(R - u * (p - p_0), 0)``, ``C' = C - u``, and the next parameter
    is ``p_0 + C' / (L' * max(G' + L', alpha * L')) * (L' + R')``.

    Args:
        alpha: how careful the first bets are.
        eps: the initial ``L``.

    Returns:
        A transformation whose state is a ``COCOBState``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Orabona and Tommasi, "Training Deep Networks without Learning Rates Through Coin Betting" (2017).

    >>> transform = scale_by_cocob()
    >>> params = tnp.asarray(1.0)
    >>> round(float(transform.update(tnp.asarray(4.0), transform.init(params), params)[0]), 6)
    -0.01
    """

    def init(params: Params) -> COCOBState:
        zeros = optim_tree.zeros_like(params)
        return COCOBState(params, zeros, optim_tree.full_like(params, eps), zeros, zeros)

    def update(updates: Updates, state: COCOBState, params: Params | None = None) -> tuple:
        need_params("scale_by_cocob", params)
        scale = tree.map(lambda s, u: tnp.maximum(s, tnp.abs(u)), state.scale, updates)
        total = tree.map(lambda g, u: g + tnp.abs(u), state.subgradients, updates)

        def win(r: Array, u: Array, p: Array, p0: Array) -> Array:
            return tnp.maximum(r - u * (p - p0), 0)

        reward = tree.map(win, state.reward, updates, params, state.init_particles)
        direction = optim_tree.sub(state.cumulative_gradients, updates)

        def step(p: Array, p0: Array, c: Array, s: Array, g: Array, r: Array) -> Array:
            return -p + (p0 + c / (s * tnp.maximum(g + s, alpha * s)) * (s + r))

        new_updates = tree.map(step, params, state.init_particles, direction, scale, total, reward)
        return new_updates, COCOBState(state.init_particles, direction, scale, total, reward)

    return GradientTransformation(init, update)


def cocob(
    learning_rate: ScalarOrSchedule = 1.0,
    alpha: Scalar = 100.0,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Optimization by betting on coins, without a learning rate; :func:`scale_by_cocob` has the formulas.

    Args:
        learning_rate: a factor of the gradients: a number, a 0-d array or a schedule.

    Other arguments: as :func:`scale_by_cocob` and :func:`tvmfun.optim.adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Orabona and Tommasi, "Training Deep Networks without Learning Rates Through Coin Betting" (2017).

    >>> optimizer = cocob()
    >>> params = tnp.asarray(1.0)
    >>> round(float(optimizer.update(tnp.asarray(4.0), optimizer.init(params), params)[0]), 6)
    -0.01
    """
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate, flip_sign=False),
        scale_by_cocob(alpha, eps),
    )


def mechanize(
    base_optimizer: GradientTransformation,
    weight_decay: Scalar = 0.01,
    eps: Scalar = 1e-8,
    s_init: Scalar = 1e-6,
    num_betas: int = 6,
) -> GradientTransformationExtraArgs:
    """Learns the learning rate of an optimizer: ``p' = p_0 + sum(s) * (sum of its updates)``.

    Each of ``num_betas`` bettors has a decay rate ``b = 1 - 0.1**i``. With ``h = <g + weight_decay * sum(s) *
    norm(g) / norm(p) * p, D>`` and the negative sum ``D`` of the updates before, ``m' = max(b * m, |h| + eps)``,
    ``v' = b**2 * v + h**2``, ``r' = b * r + min(max(h, -m), m) * s`` and
    ``s' = (s_init / num_betas * m' + max(r', 0)) / (sqrt(v') + eps)``.

    Args:
        base_optimizer: the optimizer, with a learning rate of 1, or a schedule from 1.
        weight_decay: a number or a 0-d array.
        eps: keeps denominators away from zero.
        s_init: the initial ``s``.
        num_betas: the number of bettors.

    Returns:
        The optimizer, with a ``MechanicState``; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Cutkosky et al., "Mechanic: A Learning Rate Tuner" (2023).

    >>> from tvmfun.optim import sgd
    >>> optimizer = mechanize(sgd(1.0), s_init=0.1, num_betas=1)
    >>> params = tnp.asarray(1.0)
    >>> updates, state = optimizer.update(tnp.asarray(2.0), optimizer.init(params), params)
    >>> [round(float(x), 6) for x in (updates, state.s[0])]
    [-0.2, 0.1]
    """
    base_optimizer = with_extra_args_support(base_optimizer)

    def init(params: Params) -> MechanicState:
        dtype = optim_tree.dtype(params, "lowest")
        zeros = tnp.zeros((num_betas,), dtype=dtype)
        shares = tnp.full((num_betas,), s_init, dtype=dtype)
        return MechanicState(base_optimizer.init(params), zero_count(), zeros, zeros, zeros, shares, params)

    def update(updates: Updates, state: MechanicState, params: Params | None = None, **extra_args: Any) -> tuple:
        need_params("mechanize", params)
        dtype = state.s.dtype
        step, base_state = base_optimizer.update(updates, state.base_optimizer_state, params, **extra_args)
        x0 = select(state.count == 0, params, state.x0)
        rate = tnp.sum(state.s)
        decay = weight_decay * rate * optim_tree.norm(updates) / (optim_tree.norm(params) + eps)
        decayed = optim_tree.add_scale(updates, decay, params)
        before = tree.map(lambda p, p0: (p0 - p) / (rate + eps), params, x0)
        bet = optim_tree.vdot(decayed, before).astype(dtype)
        betas = tnp.asarray(1.0 - 0.1 ** np.arange(1, num_betas + 1), dtype=dtype)
        m = tnp.maximum(betas * state.m, tnp.abs(bet) + eps)
        v = betas**2 * state.v + bet**2
        r = betas * state.r + tnp.clip(bet, -state.m, state.m) * state.s
        wealth = s_init / num_betas * m + tnp.maximum(r, 0)
        s = wealth / (tnp.sqrt(v) + eps)
        new_rate = tnp.sum(s)
        new_updates = tree.map(lambda p0, d, u, p: p0 - new_rate * (d - u) - p, x0, before, step, params)
        return new_updates, MechanicState(base_state, safe_increment(state.count), r, m, v, s, x0)

    return GradientTransformationExtraArgs(init, update)
