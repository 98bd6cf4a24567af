"""Divisors from running means or sums of the squares of the updates."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.leaf import abstract
from tvmfun.optim.base import GradientTransformation, OptState, Params, Updates, map_updates
from tvmfun.optim.transforms.common import safe_increment, zero_count
from tvmfun.optim.tree import bias_correction as unbiased
from tvmfun.optim.tree import full_like, update_moment, zeros_like

__all__ = [
    "ScaleByAdaDeltaState",
    "ScaleByRStdDevState",
    "ScaleByRStdDevWithCountState",
    "ScaleByRmsState",
    "ScaleByRmsWithCountState",
    "ScaleByRssState",
    "ScaleBySM3State",
    "scale_by_adadelta",
    "scale_by_rms",
    "scale_by_rowwise_rss",
    "scale_by_rss",
    "scale_by_sm3",
    "scale_by_stddev",
]


class ScaleByRssState(NamedTuple):
    """The state of ``scale_by_rss``.

    Attributes:
        sum_of_squares: the sum of the squares of the updates.
    """

    sum_of_squares: Any


class ScaleByRmsState(NamedTuple):
    """The state of ``scale_by_rms``.

    Attributes:
        nu: the running mean of the squares of the updates.
    """

    nu: Any


class ScaleByRmsWithCountState(NamedTuple):
    """The state of ``scale_by_rms`` with ``bias_correction``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        nu: the running mean of the squares of the updates.
    """

    count: Any
    nu: Any


class ScaleByRStdDevState(NamedTuple):
    """The state of ``scale_by_stddev``.

    Attributes:
        mu: the running mean of the updates.
        nu: the running mean of their squares.
    """

    mu: Any
    nu: Any


class ScaleByRStdDevWithCountState(NamedTuple):
    """The state of ``scale_by_stddev`` with ``bias_correction``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
        nu: the running mean of their squares.
    """

    count: Any
    mu: Any
    nu: Any


class ScaleByAdaDeltaState(NamedTuple):
    """The state of ``scale_by_adadelta``.

    Attributes:
        e_g: the running mean of the squared gradients.
        e_x: the running mean of the squared updates.
    """

    e_g: Updates
    e_x: Updates


class ScaleBySM3State(NamedTuple):
    """The state of ``scale_by_sm3``.

    Attributes:
        mu: for each update a list of accumulators, one for each axis.
        nu: the running mean of the scaled updates.
    """

    mu: Any
    nu: Any


def scale_by_rss(initial_accumulator_value: Any = 0.1, eps: Any = 1e-7) -> GradientTransformation:
    """Divides by the root of the sum of squares: ``s' = s + u**2`` and ``u' = u / sqrt(s' + eps)``.

    Where the sum is zero the result is, too.

    Args:
        initial_accumulator_value: what the sum starts from.
        eps: keeps the denominator away from zero.

    Returns:
        A transformation whose state is a ``ScaleByRssState``.

    Reference: Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization" (2011).

    >>> transform = scale_by_rss()
    >>> updates, state = transform.update(tnp.asarray(3.0), transform.init(tnp.asarray(2.0)))
    >>> round(float(updates), 6)
    0.99449
    """

    def init(params: Params) -> ScaleByRssState:
        return ScaleByRssState(full_like(params, initial_accumulator_value))

    def update(updates: Updates, state: ScaleByRssState, params: Params | None = None) -> tuple:
        total = map_updates(lambda u, s: tnp.square(u) + s, updates, state.sum_of_squares)
        return map_updates(lambda u, s: _over_root(u, s, eps), updates, total), ScaleByRssState(total)

    return GradientTransformation(init, update)


def scale_by_rowwise_rss(initial_accumulator_value: Any = 0.1, eps: Any = 1e-7) -> GradientTransformation:
    """Divides each row by the root of one sum: ``s' = s + mean(u**2)`` over the row, and ``u' = u / sqrt(s' + eps)``.

    Rows are along the first axis; of an array with one axis each element is a row, and a single number is one. The
    state of a table of embeddings has one number per row.

    Args:
        initial_accumulator_value: what the sums start from.
        eps: keeps the denominator away from zero.

    Returns:
        A transformation whose state is a ``ScaleByRssState``.

    Reference: Gupta et al., "Training Highly Multiclass Classifiers" (2014); Naumov et al., "Deep Learning
    Recommendation Model for Personalization and Recommendation Systems" (2019).

    >>> transform = scale_by_rowwise_rss()
    >>> state = transform.init(tnp.zeros((2, 3)))
    >>> updates, state = transform.update(tnp.asarray([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), state)
    >>> tnp.round(updates[0], 4), state.sum_of_squares
    (Array([1.7039, 0.    , 0.    ], dtype=float32), Array([3.1, 0.1], dtype=float32))
    """

    def init(params: Params) -> ScaleByRssState:
        start = lambda p: tnp.full(tnp.shape(p)[:1], initial_accumulator_value, abstract(p).dtype)
        return ScaleByRssState(tree.map(start, params))

    def update(updates: Updates, state: ScaleByRssState, params: Params | None = None) -> tuple:
        total = map_updates(lambda u, s: _row_means(tnp.square(u)) + s, updates, state.sum_of_squares)
        spread = lambda u, s: _over_root(u, s.reshape(s.shape + (1,) * (tnp.ndim(u) - s.ndim)), eps)
        return map_updates(spread, updates, total), ScaleByRssState(total)

    return GradientTransformation(init, update)


def _row_means(x: Any) -> Any:
    return tnp.mean(tnp.asarray(x), axis=tuple(range(1, tnp.ndim(x))))


def scale_by_rms(
    decay: Any = 0.9,
    eps: Any = 1e-8,
    initial_scale: Any = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divides by the root of the running mean of squares: ``v' = decay * v + (1 - decay) * u**2``.

    ``u' = u / sqrt(v' + eps)``, or ``u / (sqrt(v') + eps)`` without ``eps_in_sqrt``.

    Args:
        decay: the decay rate of the running mean.
        eps: keeps the denominator away from zero.
        initial_scale: what the mean of the squares starts from.
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
    decay: Any = 0.9,
    eps: Any = 1e-8,
    initial_scale: Any = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divides by the running standard deviation: ``u' = u / sqrt(v' - m'**2 + eps)``.

    ``m`` is the running mean of the updates, and ``v`` that of their squares; without ``eps_in_sqrt``,
    ``u' = u / (sqrt(v' - m'**2) + eps)``.

    Args:
        decay: the decay rate of both running means.
        eps: keeps the denominator away from zero.
        initial_scale: what the mean of the squares starts from.
        eps_in_sqrt: whether ``eps`` is added inside the square root.
        bias_correction: whether to remove the bias of the means; it makes the state count the updates.

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
        return ScaleByAdaDeltaState(zeros_like(params), zeros_like(params))

    def update(updates: Updates, state: ScaleByAdaDeltaState, params: Params | None = None) -> tuple:
        e_g = map_updates(mean_square, updates, state.e_g)
        new_updates = map_updates(lambda u, g, x: tnp.sqrt(x + eps) / tnp.sqrt(g + eps) * u, updates, e_g, state.e_x)
        e_x = map_updates(mean_square, new_updates, state.e_x)
        return new_updates, ScaleByAdaDeltaState(e_g, e_x)

    return GradientTransformation(init, update)


def scale_by_sm3(b1: Any = 0.9, b2: Any = 1.0, eps: Any = 1e-8) -> GradientTransformation:
    """Divides as :func:`scale_by_rss` does, but keeps one accumulator for each row, column and so on.

    The sum of squares of an element is estimated from above by the least of the accumulators it belongs to:
    ``s = min_i(mu_i) + u**2``, ``u' = b1 * nu + (1 - b1) * u / sqrt(s + eps)`` and ``mu_i' = max(s)`` over the other
    axes. With ``b2 < 1``, ``s = b2 * min_i(mu_i) + (1 - b2) * u**2``.

    Args:
        b1: the decay rate of the mean of the scaled updates.
        b2: the decay rate of the squares; with 1 they add up.
        eps: keeps the denominator away from zero.

    Returns:
        A transformation whose state is a ``ScaleBySM3State``.

    Reference: Anil et al., "Memory-Efficient Adaptive Optimization" (2019).

    >>> transform = scale_by_sm3()
    >>> updates, state = transform.update(tnp.asarray([3.0]), transform.init(tnp.asarray([2.0])))
    >>> round(float(updates[0]), 6)
    0.1
    """

    def init(params: Params) -> ScaleBySM3State:
        def accumulators(p: Any) -> list:
            shape, dtype = abstract(p).shape, abstract(p).dtype
            # A 0-d array is a row of one element.
            return [tnp.zeros((n,), dtype=dtype) for n in shape] or [tnp.zeros((), dtype=dtype)]

        return ScaleBySM3State(tree.map(accumulators, params), zeros_like(params))

    def update(updates: Updates, state: ScaleBySM3State, params: Params | None = None) -> tuple:
        new_weight = 1.0 if isinstance(b2, int | float) and b2 == 1 else 1.0 - b2

        def estimate(u: Any, mu: list) -> Any:
            least = mu[0]
            for axis, row in enumerate(mu[: u.ndim]):
                row = row.reshape([n if i == axis else 1 for i, n in enumerate(u.shape)])
                least = row if axis == 0 else tnp.minimum(least, row)
            return new_weight * tnp.square(u) + b2 * least

        def rows(s: Any) -> list:
            if s.ndim < 2:
                return [s]
            # Squares are not negative, so 0 is the maximum of nothing.
            others = [tuple(i for i in range(s.ndim) if i != axis) for axis in range(s.ndim)]
            return [tnp.max(s, axis=axes, initial=0) for axes in others]

        total = map_updates(estimate, updates, state.mu)
        scaled = map_updates(lambda u, s: _over_root(u, s, eps), updates, total)
        nu = update_moment(scaled, state.nu, b1)
        return nu, ScaleBySM3State(map_updates(rows, total), nu)

    return GradientTransformation(init, update)


def _over_root(u: Any, total: Any, eps: Any) -> Any:
    # Where nothing was added up there is nothing to scale, and perhaps no eps to divide by.
    some = total > 0
    return tnp.where(some, u / tnp.sqrt(tnp.where(some, total + eps, tnp.ones_like(total))), tnp.zeros_like(u))


def _root(square: Any, eps: Any, eps_in_sqrt: bool) -> Any:
    return tnp.sqrt(square + eps) if eps_in_sqrt else tnp.sqrt(square) + eps
