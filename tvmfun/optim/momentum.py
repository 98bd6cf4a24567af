"""Momentum, running means and sums of the updates."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.optim.base import GradientTransformation, Params, Updates, map_updates
from tvmfun.optim.numerics import optional_dtype, safe_increment, zero_count
from tvmfun.optim.tree import bias_correction, cast, update_moment, zeros_like
from tvmfun.typing import DTypeLike, Scalar

__all__ = [
    "ApplyEvery",
    "EmaState",
    "TraceState",
    "apply_every",
    "ema",
    "trace",
]


class TraceState(NamedTuple):
    """The state of ``trace``.

    Attributes:
        trace: the decaying sum of the updates so far.
    """

    trace: Updates


class EmaState(NamedTuple):
    """The state of ``ema``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        ema: the running mean of the updates, with its bias towards zero.
    """

    count: Array
    ema: Updates


class ApplyEvery(NamedTuple):
    """The state of ``apply_every``.

    Attributes:
        count: the number of updates since the last one that was applied, a 0-d int32 array.
        grad_acc: their sum.
    """

    count: Array
    grad_acc: Updates


def trace(decay: Scalar, nesterov: bool = False, accumulator_dtype: DTypeLike | None = None) -> GradientTransformation:
    """Replaces the updates by their decaying sum: ``m' = u + decay * m``, and ``u' = m'``.

    With ``nesterov``, ``u' = u + decay * m'``.

    Args:
        decay: the decay rate, a number or a 0-d array.
        nesterov: whether to use Nesterov momentum.
        accumulator_dtype: the dtype of ``m``; ``None`` for the dtype of the parameters.

    Returns:
        A transformation whose state is a ``TraceState``.

    Raises:
        DtypeError: if ``accumulator_dtype`` is unknown.

    Reference: Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).

    >>> momentum = trace(0.5)
    >>> state = momentum.init({"w": tnp.asarray(0.0)})
    >>> for _ in range(2):
    ...     updates, state = momentum.update({"w": tnp.asarray(1.0)}, state)
    >>> updates["w"]
    Array(1.5, dtype=float32)
    """
    dtype = optional_dtype(accumulator_dtype)

    def init(params: Params) -> TraceState:
        return TraceState(zeros_like(params, dtype))

    def update(updates: Updates, state: TraceState, params: Params | None = None) -> tuple[Updates, TraceState]:
        def accumulate(u: Array, m: Array) -> Array:
            return u + decay * m

        new_trace = map_updates(accumulate, updates, state.trace)
        new_updates = map_updates(accumulate, updates, new_trace) if nesterov else new_trace
        return new_updates, TraceState(cast(new_trace, dtype))

    return GradientTransformation(init, update)


def ema(decay: Scalar, debias: bool = True, accumulator_dtype: DTypeLike | None = None) -> GradientTransformation:
    """Replaces the updates by their running mean: ``m' = decay * m + (1 - decay) * u``.

    With ``debias``, ``u' = m' / (1 - decay**t)``, else ``u' = m'``.

    Args:
        decay: the decay rate, a number or a 0-d array.
        debias: whether to remove the bias towards the zeros that the mean starts from.
        accumulator_dtype: the dtype of the mean; ``None`` for the dtype of the parameters.

    Returns:
        A transformation whose state is a ``EmaState``.

    Raises:
        DtypeError: if ``accumulator_dtype`` is unknown.

    >>> transform = ema(0.9)
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    3.0
    """
    dtype = optional_dtype(accumulator_dtype)

    def init(params: Params) -> EmaState:
        return EmaState(zero_count(), zeros_like(params, dtype))

    def update(updates: Updates, state: EmaState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        mean = update_moment(updates, state.ema, decay)
        new_updates = bias_correction(mean, decay, count) if debias else mean
        return new_updates, EmaState(count, cast(mean, dtype))

    return GradientTransformation(init, update)


def apply_every(k: Scalar = 1) -> GradientTransformation:
    """Accumulates ``k`` updates: their sum at every ``k``-th step, and zeros at the others.

    Args:
        k: the number of updates to add up.

    Returns:
        A transformation whose state is a ``ApplyEvery``.

    >>> transform = apply_every(2)
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    0.0
    """

    def init(params: Params) -> ApplyEvery:
        return ApplyEvery(zero_count(), zeros_like(params))

    def update(updates: Updates, state: ApplyEvery, params: Params | None = None) -> tuple:
        turn = state.count % k
        first, last = turn == 0, turn == k - 1
        total = map_updates(lambda u, a: u + tnp.where(first, tnp.zeros_like(a), a), updates, state.grad_acc)
        new_updates = map_updates(lambda a: tnp.where(last, a, tnp.zeros_like(a)), total)
        return new_updates, ApplyEvery((safe_increment(state.count) % k).astype("int32"), total)

    return GradientTransformation(init, update)
