"""The steps that optimizers are chains of."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, tree
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.optim.base import (
    EmptyState,
    GradientTransformation,
    OptState,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
    identity,
    map_updates,
    stateless,
)
from tvmfun.optim.combine import masked

__all__ = [
    "ScaleByAdaDeltaState",
    "ScaleByAdamState",
    "ScaleByScheduleState",
    "TraceState",
    "WeightDecaySchedule",
    "add_decayed_weights",
    "clip",
    "clip_by_global_norm",
    "global_norm",
    "safe_increment",
    "scale",
    "scale_by_adadelta",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_schedule",
    "trace",
]


def safe_increment(count: Any) -> Any:
    """Counts one further without overflow: ``min(count + 1, max)``.

    Args:
        count: a 0-d array of integers or floats.

    Returns:
        The next count, of the same dtype.

    Raises:
        DtypeError: if ``count`` is neither an integer nor a float.

    >>> safe_increment(tnp.asarray(2**31 - 1, dtype="int32"))
    Array(2147483647, dtype=int32)
    """
    count = tnp.asarray(count)
    if dtypes.is_float(count.dtype):
        return count + 1  # the largest float absorbs a 1
    if not dtypes.is_integer(count.dtype):
        raise DtypeError("safe_increment", "the count must be a number", got=str(count.dtype))
    return tnp.minimum(count, np.iinfo(count.dtype).max - 1) + 1


# -- scaling -------------------------------------------------------------------------------------------------


class ScaleByScheduleState(NamedTuple):
    """The state of ``scale_by_schedule``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
    """

    count: Any


def scale(step_size: Any) -> GradientTransformation:
    """Multiplies the updates by a constant: ``u' = step_size * u``.

    Args:
        step_size: a number or a 0-d array.

    Returns:
        A transformation with an empty state.

    >>> scale(-0.1).update({"w": 10.0}, EmptyState())[0]
    {'w': -1.0}
    """
    return stateless(lambda updates, params: tree.map(lambda u: step_size * u, updates))


def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    """Multiplies the updates by the value of a schedule: ``u' = step_size_fn(count) * u``.

    Args:
        step_size_fn: a function from the number of updates so far, a 0-d int32 array, to a factor.

    Returns:
        A transformation that counts its updates.

    >>> transform = scale_by_schedule(lambda count: 1.0 / (count + 1))
    >>> state = transform.init(None)
    >>> for _ in range(2):
    ...     updates, state = transform.update(tnp.asarray(1.0), state)
    >>> float(updates), int(state.count)
    (0.5, 2)
    """

    def init(params: Params) -> ScaleByScheduleState:
        return ScaleByScheduleState(_zero_count())

    def update(updates: Updates, state: ScaleByScheduleState, params: Params | None = None) -> tuple:
        factor = step_size_fn(state.count)
        scaled = tree.map(lambda u: _in_dtype_of(u, factor) * u, updates)
        return scaled, ScaleByScheduleState(safe_increment(state.count))

    return GradientTransformation(init, update)


def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> GradientTransformation:
    """Multiplies the updates by the negative learning rate: ``u' = -learning_rate * u``.

    Args:
        learning_rate: a number, a 0-d array or a schedule; ``None`` leaves the updates as they are.
        flip_sign: whether to descend (the default) or ascend.

    Returns:
        A transformation that counts its updates if the learning rate is a schedule.

    >>> scale_by_learning_rate(0.5).update({"w": 1.0}, EmptyState())[0]
    {'w': -0.5}
    """
    if learning_rate is None:
        return identity()
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


# -- momentum and moments ------------------------------------------------------------------------------------


class TraceState(NamedTuple):
    """The state of ``trace``.

    Attributes:
        trace: the decaying sum of the updates so far.
    """

    trace: Updates


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


class ScaleByAdaDeltaState(NamedTuple):
    """The state of ``scale_by_adadelta``.

    Attributes:
        e_g: the running mean of the squared gradients.
        e_x: the running mean of the squared updates.
    """

    e_g: Updates
    e_x: Updates


def trace(decay: Any, nesterov: bool = False, accumulator_dtype: Any = None) -> GradientTransformation:
    """Replaces the updates by their decaying sum: ``m' = u + decay * m``, and ``u' = m'``.

    With ``nesterov``, ``u' = u + decay * m'``.

    Args:
        decay: the decay rate, a number or a 0-d array.
        nesterov: whether to look ahead by one step, as Nesterov does.
        accumulator_dtype: the dtype to keep ``m`` in; ``None`` for that of the parameters.

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
    dtype = _optional_dtype(accumulator_dtype)

    def init(params: Params) -> TraceState:
        return TraceState(_zeros_like(params, dtype))

    def update(updates: Updates, state: TraceState, params: Params | None = None) -> tuple[Updates, TraceState]:
        def accumulate(u: Any, m: Any) -> Any:
            return u + decay * m

        new_trace = map_updates(accumulate, updates, state.trace)
        new_updates = map_updates(accumulate, updates, new_trace) if nesterov else new_trace
        return new_updates, TraceState(_cast(new_trace, dtype))

    return GradientTransformation(init, update)


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
    dtype = _optional_dtype(mu_dtype)

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(_zero_count(), _zeros_like(params, dtype), _zeros_like(params))

    def update(updates: Updates, state: ScaleByAdamState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        mu = map_updates(lambda u, m: (1 - b1) * u + b1 * m, updates, state.mu)
        nu = map_updates(lambda u, v: (1 - b2) * tnp.square(u) + b2 * v, updates, state.nu)
        if nesterov:
            ahead = _bias_correction(mu, b1, safe_increment(count))
            mu_hat = map_updates(lambda m, u: b1 * m + (1 - b1) * u, ahead, _bias_correction(updates, b1, count))
        else:
            mu_hat = _bias_correction(mu, b1, count)
        nu_hat = _bias_correction(nu, b2, count)
        new_updates = map_updates(lambda m, v: m / (tnp.sqrt(v + eps_root) + eps), mu_hat, nu_hat)
        nu = map_updates(lambda new, old: new.astype(old.dtype), nu, state.nu)
        return new_updates, ScaleByAdamState(count, _cast(mu, dtype), nu)

    return GradientTransformation(init, update)


def scale_by_adadelta(rho: Any = 0.9, eps: Any = 1e-6) -> GradientTransformation:
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

    def mean_square(u: Any, mean: Any) -> Any:
        return (1 - rho) * tnp.square(u) + rho * mean

    def init(params: Params) -> ScaleByAdaDeltaState:
        return ScaleByAdaDeltaState(_zeros_like(params), _zeros_like(params))

    def update(updates: Updates, state: ScaleByAdaDeltaState, params: Params | None = None) -> tuple:
        e_g = map_updates(mean_square, updates, state.e_g)
        new_updates = map_updates(lambda u, g, x: tnp.sqrt(x + eps) / tnp.sqrt(g + eps) * u, updates, e_g, state.e_x)
        e_x = map_updates(mean_square, new_updates, state.e_x)
        return new_updates, ScaleByAdaDeltaState(e_g, e_x)

    return GradientTransformation(init, update)


# -- weight decay --------------------------------------------------------------------------------------------


class WeightDecaySchedule(NamedTuple):
    """The state of ``add_decayed_weights`` with a schedule.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
    """

    count: Any


def add_decayed_weights(weight_decay: ScalarOrSchedule = 0.0, mask: Any = None) -> GradientTransformation:
    """Adds a multiple of the parameters to the updates: ``u' = u + weight_decay * p``.

    Args:
        weight_decay: a number, a 0-d array or a schedule.
        mask: which parameters to decay, as for :func:`masked`; ``None`` for all.

    Returns:
        A transformation that counts its updates if ``weight_decay`` is a schedule.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2017).

    >>> transform = add_decayed_weights(0.5)
    >>> transform.update({"w": 1.0}, EmptyState(), {"w": 4.0})[0]
    {'w': 3.0}
    """

    def init(params: Params) -> OptState:
        return WeightDecaySchedule(_zero_count()) if callable(weight_decay) else EmptyState()

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        if params is None:
            raise ArgumentError(
                "add_decayed_weights",
                "the parameters are needed",
                got="params=None",
                hint="optimizer.update(grads, state, params)",
            )
        if callable(weight_decay):
            rate = weight_decay(state.count)
            decayed = map_updates(lambda u, p: u + _in_dtype_of(p, rate) * p, updates, params)
            return decayed, WeightDecaySchedule(safe_increment(state.count))
        if isinstance(weight_decay, int | float) and weight_decay == 0:
            return updates, state
        return map_updates(lambda u, p: u + weight_decay * p, updates, params), state

    transform = GradientTransformation(init, update)
    return transform if mask is None else masked(transform, mask)


# -- clipping ------------------------------------------------------------------------------------------------


def global_norm(updates: Updates) -> Any:
    """The Euclidean norm of all leaves together: ``sqrt(sum of squares)``.

    Args:
        updates: a tree of arrays.

    Returns:
        A 0-d array.

    >>> float(global_norm({"w": tnp.asarray([3.0, 0.0]), "b": tnp.asarray(4.0)}))
    5.0
    """
    return tnp.sqrt(sum(tnp.sum(tnp.square(leaf)) for leaf in tree.leaves(updates)))


def clip(max_delta: Any) -> GradientTransformation:
    """Limits every element of the updates: ``u' = min(max(u, -max_delta), max_delta)``.

    Args:
        max_delta: the largest absolute value, a number or a 0-d array.

    Returns:
        A transformation with an empty state.

    >>> clip(1.0).update(tnp.asarray([-3.0, 0.5]), EmptyState())[0]
    Array([-1. ,  0.5], dtype=float32)
    """
    return stateless(lambda updates, params: tree.map(lambda u: tnp.clip(u, -max_delta, max_delta), updates))


def clip_by_global_norm(max_norm: Any) -> GradientTransformation:
    """Limits the norm of all updates together: ``u' = u * min(1, max_norm / global_norm(u))``.

    Args:
        max_norm: the largest norm, a number or a 0-d array.

    Returns:
        A transformation with an empty state.

    Reference: Pascanu et al., "On the difficulty of training Recurrent Neural Networks" (2012).

    >>> clip_by_global_norm(1.0).update(tnp.asarray([6.0, 8.0]), EmptyState())[0]
    Array([0.6, 0.8], dtype=float32)
    """

    def limit(updates: Updates, params: Params | None) -> Updates:
        norm = global_norm(updates)
        factor = tnp.where(norm < max_norm, 1.0, max_norm / norm)
        return tree.map(lambda u: u * _in_dtype_of(u, factor), updates)

    return stateless(limit)


# -- helpers -------------------------------------------------------------------------------------------------


def _optional_dtype(dtype: Any) -> np.dtype | None:
    return None if dtype is None else dtypes.canonical(dtype)


def _zero_count() -> Any:
    return tnp.zeros((), dtype="int32")


def _zeros_like(params: Params, dtype: np.dtype | None = None) -> Updates:
    return tree.map(lambda p: tnp.zeros_like(p, dtype=dtype), params)


def _cast(updates: Updates, dtype: np.dtype | None) -> Updates:
    return updates if dtype is None else tree.map(lambda u: u.astype(dtype), updates)


def _in_dtype_of(leaf: Any, factor: Any) -> Any:
    # Numbers stay numbers: they take the dtype of what they meet.
    return factor if isinstance(factor, int | float) else tnp.asarray(factor).astype(abstract(leaf).dtype)


def _bias_correction(moments: Updates, decay: Any, count: Any) -> Updates:
    @cache  # one power for all leaves of a dtype
    def missing(dtype: np.dtype) -> Any:
        # In half precision decay**count would round to 1, and the result be infinite.
        wide = dtypes.result_type(dtype, "float32")
        return (1 - decay ** count.astype(wide)).astype(dtype)

    return map_updates(lambda m: m / missing(abstract(m).dtype), moments)
