"""AdaGrad, per element and per row, and SM3: division by the root of sums of squares."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Updates,
    map_updates,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.scaling import scale, scale_by_learning_rate
from tvmfun.optim.tree import full_like, update_moment, zeros_like
from tvmfun.typing import Scalar

__all__ = [
    "ScaleByRssState",
    "ScaleBySM3State",
    "adagrad",
    "rowwise_adagrad",
    "scale_by_rowwise_rss",
    "scale_by_rss",
    "scale_by_sm3",
    "sm3",
]


class ScaleByRssState(NamedTuple):
    """The state of ``scale_by_rss``.

    Attributes:
        sum_of_squares: the sum of the squares of the updates.
    """

    sum_of_squares: Updates


class ScaleBySM3State(NamedTuple):
    """The state of ``scale_by_sm3``.

    Attributes:
        mu: for each update a list of accumulators, one for each axis.
        nu: the running mean of the scaled updates.
    """

    mu: Updates
    nu: Updates


def scale_by_rss(initial_accumulator_value: Scalar = 0.1, eps: Scalar = 1e-7) -> GradientTransformation:
    """Divides by the root of the sum of squares: ``s' = s + u**2`` and ``u' = u / sqrt(s' + eps)``.

    The result is zero where the sum is zero.

    Args:
        initial_accumulator_value: the initial value of the sum.
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


def scale_by_rowwise_rss(initial_accumulator_value: Scalar = 0.1, eps: Scalar = 1e-7) -> GradientTransformation:
    """Divides each row by the root of one sum: ``s' = s + mean(u**2)`` over the row, and ``u' = u / sqrt(s' + eps)``.

    Rows are along the first axis; of an array with one axis each element is a row, and a single number is one. The
    state of a table of embeddings has one number per row.

    Args: as :func:`scale_by_rss`.

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


def _row_means(x: Array) -> Array:
    return tnp.mean(tnp.asarray(x), axis=tuple(range(1, tnp.ndim(x))))


def scale_by_sm3(b1: Scalar = 0.9, b2: Scalar = 1.0, eps: Scalar = 1e-8) -> GradientTransformation:
    """Divides as :func:`scale_by_rss` does, but keeps one accumulator per index of each axis.

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
        def accumulators(p: Array) -> list:
            shape, dtype = abstract(p).shape, abstract(p).dtype
            # A 0-d array is a row of one element.
            return [tnp.zeros((n,), dtype=dtype) for n in shape] or [tnp.zeros((), dtype=dtype)]

        return ScaleBySM3State(tree.map(accumulators, params), zeros_like(params))

    def update(updates: Updates, state: ScaleBySM3State, params: Params | None = None) -> tuple:
        new_weight = 1.0 if isinstance(b2, int | float) and b2 == 1 else 1.0 - b2

        def estimate(u: Array, mu: list) -> Array:
            least = mu[0]
            for axis, row in enumerate(mu[: u.ndim]):
                row = row.reshape([n if i == axis else 1 for i, n in enumerate(u.shape)])
                least = row if axis == 0 else tnp.minimum(least, row)
            return new_weight * tnp.square(u) + b2 * least

        def rows(s: Array) -> list:
            if s.ndim < 2:
                return [s]
            # 0 is the maximum of an empty axis, since squares are not negative.
            others = [tuple(i for i in range(s.ndim) if i != axis) for axis in range(s.ndim)]
            return [tnp.max(s, axis=axes, initial=0) for axes in others]

        total = map_updates(estimate, updates, state.mu)
        scaled = map_updates(lambda u, s: _over_root(u, s, eps), updates, total)
        nu = update_moment(scaled, state.nu, b1)
        return nu, ScaleBySM3State(map_updates(rows, total), nu)

    return GradientTransformation(init, update)


def _over_root(u: Array, total: Array, eps: Scalar) -> Array:
    # A sum of zero means zero updates; with eps = 0 the quotient would be NaN.
    some = total > 0
    return tnp.where(some, u / tnp.sqrt(tnp.where(some, total + eps, tnp.ones_like(total))), tnp.zeros_like(u))


def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: Scalar = 0.1, eps: Scalar = 1e-7
) -> GradientTransformationExtraArgs:
    """AdaGrad: division by the root of the sum of all squared gradients; :func:`scale_by_rss` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.

    Other arguments: as :func:`scale_by_rss`.

    Returns:
        The optimizer.

    Reference: Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization" (2011).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = adagrad(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.099689
    """
    return chain(scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))


def rowwise_adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: Scalar = 0.1, eps: Scalar = 1e-7
) -> GradientTransformationExtraArgs:
    """AdaGrad with one sum per row, for tables of embeddings; :func:`scale_by_rowwise_rss` has the formulas.

    Args:
        learning_rate: a number, a 0-d array or a schedule.

    Other arguments: as :func:`scale_by_rowwise_rss`.

    Returns:
        The optimizer.

    Reference: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems"
    (2019).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = rowwise_adagrad(0.1)
    >>> table = tnp.zeros((3, 2))
    >>> updates, state = optimizer.update(tnp.ones((3, 2)), optimizer.init(table), table)
    >>> tnp.round(updates[0], 4), state[0].sum_of_squares.shape
    (Array([-0.0953, -0.0953], dtype=float32), (3,))
    """
    return chain(scale_by_rowwise_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))


def sm3(learning_rate: Scalar, momentum: Scalar = 0.9) -> GradientTransformationExtraArgs:
    """SM3: AdaGrad with one accumulator for each row and column; :func:`scale_by_sm3` has the formulas.

    Args:
        learning_rate: a number or a 0-d array.
        momentum: the decay rate of the mean of the updates.

    Returns:
        The optimizer.

    Reference: Anil et al., "Memory-Efficient Adaptive Optimization" (2019).

    >>> import tvmfun.numpy as tnp
    >>> optimizer = sm3(0.1)
    >>> params = {"w": tnp.asarray(2.0)}
    >>> updates, state = optimizer.update({"w": tnp.asarray(4.0)}, optimizer.init(params), params)
    >>> round(float(updates["w"]), 6)
    -0.01
    """
    return chain(scale_by_sm3(momentum), scale(-learning_rate))
