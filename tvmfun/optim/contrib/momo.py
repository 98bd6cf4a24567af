"""Step sizes from a model of the loss: a lower bound, and the mean of its linearizations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.base import GradientTransformationExtraArgs, Params, ScalarOrSchedule, Updates
from tvmfun.optim.numerics import need_params, safe_increment, value_at, weight_so_far, zero_count
from tvmfun.typing import Scalar

__all__ = ["MomoAdamState", "MomoState", "momo", "momo_adam"]


class MomoState(NamedTuple):
    """The state of ``momo``.

    Attributes:
        exp_avg: the running mean of the gradients.
        barf: the running mean of the losses, a 0-d array.
        gamma: the running mean of the inner products of gradients and parameters, a 0-d array.
        lb: the lower bound of the loss, a 0-d array.
        count: the number of updates so far, a 0-d int32 array.
    """

    exp_avg: Updates
    barf: Array
    gamma: Array
    lb: Array
    count: Array


class MomoAdamState(NamedTuple):
    """The state of ``momo_adam``.

    Attributes:
        exp_avg: the running mean of the gradients.
        exp_avg_sq: the running mean of their squares.
        barf: the running mean of the losses, a 0-d array.
        gamma: the running mean of the inner products of gradients and parameters, a 0-d array.
        lb: the lower bound of the loss, a 0-d array.
        count: the number of updates so far, a 0-d int32 array.
    """

    exp_avg: Updates
    exp_avg_sq: Updates
    barf: Array
    gamma: Array
    lb: Array
    count: Array


def momo(
    learning_rate: ScalarOrSchedule = 1.0,
    beta: Scalar = 0.9,
    lower_bound: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransformationExtraArgs:
    """Gradient descent with momentum whose steps end where the model of the loss meets its bound.

    With the running means ``m`` of ``g``, ``f`` of the loss and ``c`` of ``<g, p>``, ``a = learning_rate`` and
    ``w = weight_decay``, ``s = min(a, max((1 + a * w) * (f - lower_bound - c) + <m, p>, 0) / norm(m)**2)``, and
    ``u = -s * m - a * w / (1 + a * w) * p``.

    Args:
        learning_rate: the largest step size: a number, a 0-d array or a schedule.
        beta: the decay rate of the means.
        lower_bound: a lower bound of the loss.
        weight_decay: a number or a 0-d array.
        adapt_lower_bound: whether to raise the bound by the model.

    Returns:
        The optimizer, with a ``MomoState``; its ``update`` needs ``params``, and ``value=loss``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Schaipp et al., "MoMo: Momentum Models for Adaptive Learning Rates" (2023).

    >>> optimizer = momo()
    >>> params = tnp.asarray(2.0)
    >>> float(optimizer.update(tnp.asarray(4.0), optimizer.init(params), params, value=2.0)[0])
    -0.5
    """

    def init(params: Params) -> MomoState:
        bound, zero = _start(params, lower_bound)
        return MomoState(optim_tree.zeros_like(params), zero, zero, bound, zero_count())

    def update(
        updates: Updates, state: MomoState, params: Params | None = None, *, value: Scalar, **extra_args: Any
    ) -> tuple:
        need_params("momo", params)
        dtype, first = state.barf.dtype, state.count == 0

        def mean(before: Array, new: Array) -> Array:
            return tnp.where(first, new, beta * before + (1 - beta) * new)

        f = mean(state.barf, tnp.asarray(value).astype(dtype))
        m = tree.map(mean, state.exp_avg, updates)
        c = mean(state.gamma, optim_tree.vdot(updates, params).astype(dtype))
        square = optim_tree.norm(m, squared=True).astype(dtype)
        product = optim_tree.vdot(m, params).astype(dtype)
        rate = value_at(learning_rate, state.count, dtype)
        shrink = 1 + rate * weight_decay
        bound = state.lb
        if adapt_lower_bound:
            cap = shrink * (f - c) + product
            bound = tnp.where(cap < shrink * bound, tnp.maximum(cap / (2 * shrink), lower_bound), bound)
        step = tnp.minimum(rate, _quotient(shrink * (f - bound - c) + product, square))
        new_updates = tree.map(lambda m, p: -(rate * weight_decay) / shrink * p - step * m, m, params)
        new_bound = state.lb
        if adapt_lower_bound:
            new_bound = tnp.maximum(f + product - c - step * square / 2, lower_bound)
        return new_updates, MomoState(m, f, c, new_bound, safe_increment(state.count))

    return GradientTransformationExtraArgs(init, update)


def momo_adam(
    learning_rate: ScalarOrSchedule = 1e-2,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    lower_bound: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransformationExtraArgs:
    """:func:`momo` with the means and the preconditioner of Adam.

    With ``d = eps + sqrt(v / (1 - b2**t))`` and ``k = 1 - b1**t``,
    ``s = min(a / k, max((1 + a * w) * (f - k * lower_bound - c) + <m, p>, 0) / <m, m / d>)``, and
    ``u = -s * m / d - a * w / (1 + a * w) * p``.

    Args:
        b1: the decay rate of the means of gradients and losses.

    Other arguments: as :func:`momo` and :func:`tvmfun.optim.adam`.

    Returns:
        The optimizer, with a ``MomoAdamState``; its ``update`` needs ``params``, and ``value=loss``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Schaipp et al., "MoMo: Momentum Models for Adaptive Learning Rates" (2023).

    >>> optimizer = momo_adam(0.5)
    >>> params = tnp.asarray(2.0)
    >>> round(float(optimizer.update(tnp.asarray(4.0), optimizer.init(params), params, value=2.0)[0]), 4)
    -0.5
    """

    def init(params: Params) -> MomoAdamState:
        bound, zero = _start(params, lower_bound)
        zeros = optim_tree.zeros_like(params)
        return MomoAdamState(zeros, zeros, zero, zero, bound, zero_count())

    def update(
        updates: Updates, state: MomoAdamState, params: Params | None = None, *, value: Scalar, **extra_args: Any
    ) -> tuple:
        need_params("momo_adam", params)
        dtype, count = state.barf.dtype, safe_increment(state.count)
        f = b1 * state.barf + (1 - b1) * tnp.asarray(value).astype(dtype)
        m = optim_tree.update_moment(updates, state.exp_avg, b1)
        v = optim_tree.update_moment(updates, state.exp_avg_sq, b2, 2)
        there, there_square = weight_so_far(b1, count, dtype), weight_so_far(b2, count, dtype)
        divisor = tree.map(lambda v: eps + tnp.sqrt(v / there_square), v)
        square = optim_tree.vdot(m, optim_tree.div(m, divisor)).astype(dtype)
        c = b1 * state.gamma + (1 - b1) * optim_tree.vdot(updates, params).astype(dtype)
        product = optim_tree.vdot(m, params).astype(dtype)
        rate = value_at(learning_rate, state.count, dtype)
        shrink = 1 + rate * weight_decay
        bound = state.lb
        if adapt_lower_bound:
            cap = shrink * (f - c) + product
            bound = tnp.where(cap < shrink * there * bound, tnp.maximum(cap / (2 * there * shrink), lower_bound), bound)
        step = tnp.minimum(rate / there, _quotient(shrink * (f - there * bound - c) + product, square))
        new_updates = tree.map(lambda m, d, p: -(rate * weight_decay) / shrink * p - step * m / d, m, divisor, params)
        new_bound = state.lb
        if adapt_lower_bound:
            new_bound = tnp.maximum((f + product - c - step * square / 2) / there, lower_bound)
        return new_updates, MomoAdamState(m, v, f, c, new_bound, count)

    return GradientTransformationExtraArgs(init, update)


def _start(params: Params, lower_bound: Scalar) -> tuple[Array, Array]:
    dtype = optim_tree.dtype(params, "lowest")
    return tnp.asarray(lower_bound, dtype=dtype), tnp.zeros((), dtype=dtype)


def _quotient(gap: Array, square: Array) -> Array:
    # Below this the direction is rounding noise.
    none = square <= float(np.finfo("float64").eps)
    return tnp.where(none, 0, tnp.maximum(gap, 0) / tnp.where(none, tnp.ones_like(square), square))
