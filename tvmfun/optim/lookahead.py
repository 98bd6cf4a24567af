"""Lookahead: slow parameters that follow fast ones."""

from __future__ import annotations

from typing import NamedTuple, cast

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import GradientTransformation, OptState, Params, Updates, select
from tvmfun.optim.numerics import need_params, zero_count
from tvmfun.typing import Scalar

__all__ = [
    "LookaheadParams",
    "LookaheadState",
    "lookahead",
]


class LookaheadState(NamedTuple):
    """The state of ``lookahead``.

    Attributes:
        fast_state: the state of the optimizer of the fast parameters.
        steps_since_sync: the number of updates since the last synchronization, a 0-d int32 array.
    """

    fast_state: OptState
    steps_since_sync: Array


class LookaheadParams(NamedTuple):
    """Pairs of fast and slow parameters.

    Attributes:
        fast: the parameters that an optimizer updates at every step.
        slow: the parameters that follow them.
    """

    fast: Params
    slow: Params

    @classmethod
    def init_synced(cls, params: Params) -> LookaheadParams:
        """Equal fast and slow parameters."""
        return cls(params, params)


def lookahead(
    fast_optimizer: GradientTransformation, sync_period: int, slow_step_size: Scalar, reset_state: bool = False
) -> GradientTransformation:
    """Lets slow parameters follow fast ones every few steps, and the fast ones go on from there.

    At every ``sync_period``-th step, ``slow' = slow + slow_step_size * (fast + u - slow)`` and ``fast' = slow'``.

    Args:
        fast_optimizer: the optimizer of the fast parameters.
        sync_period: the number of steps between synchronizations.
        slow_step_size: the weight of the fast parameters, a number or a 0-d array.
        reset_state: whether to reset the state of the optimizer then.

    Returns:
        A transformation whose parameters and updates are ``LookaheadParams``, and its state a ``LookaheadState``; it
        takes the gradients of the fast parameters.

    Raises:
        ArgumentError: if ``sync_period`` is less than 1; on ``update``, if it gets no ``params``.

    Reference: Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back" (2019).

    >>> from tvmfun.optim import sgd
    >>> optimizer = lookahead(sgd(1.0), 1, 0.5)
    >>> params = LookaheadParams.init_synced(tnp.asarray(4.0))
    >>> updates, state = optimizer.update(tnp.asarray(2.0), optimizer.init(params), params)
    >>> float(updates.fast), float(updates.slow)
    (-1.0, -1.0)
    """
    if sync_period < 1:
        raise ArgumentError("lookahead", "sync_period must be at least 1", got=str(sync_period))

    def init(params: Params) -> LookaheadState:
        return LookaheadState(fast_optimizer.init(getattr(params, "fast", params)), zero_count())

    def update(updates: Updates, state: LookaheadState, params: Params | None = None) -> tuple:
        need_params("lookahead", params)
        fast, slow = cast("LookaheadParams", params)
        updates, fast_state = fast_optimizer.update(updates, state.fast_state, fast)
        sync = state.steps_since_sync == sync_period - 1
        lead = tree.map(lambda f, u, s: f + u - s, fast, updates, slow)
        slow_updates = tree.map(lambda d: tnp.where(sync, slow_step_size * d, tnp.zeros_like(d)), lead)
        fast_updates = tree.map(lambda u, d: tnp.where(sync, u - (1 - slow_step_size) * d, u), updates, lead)
        if reset_state:
            fast_state = select(sync, fast_optimizer.init(fast), fast_state)
        steps = ((state.steps_since_sync + 1) % sync_period).astype("int32")
        return LookaheadParams(fast_updates, slow_updates), LookaheadState(fast_state, steps)

    return GradientTransformation(init, update)
