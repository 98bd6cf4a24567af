"""MADGRAD: dual averaging with momentum."""

from __future__ import annotations

from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import GradientTransformation, GradientTransformationExtraArgs, Params, ScalarOrSchedule, Updates
from tvmfun.optim.combine import chain
from tvmfun.optim.numerics import need_params, safe_increment, value_at, zero_count
from tvmfun.typing import Scalar

__all__ = [
    "MadgradState",
    "madgrad",
    "scale_by_madgrad",
]


class MadgradState(NamedTuple):
    """The state of ``scale_by_madgrad``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        grad_sum_sq: the weighted sum of the squares of the updates.
        s: the weighted sum of the updates.
        x0: the first parameters.
    """

    count: Array
    grad_sum_sq: Updates
    s: Updates
    x0: Params


def scale_by_madgrad(
    learning_rate: ScalarOrSchedule, momentum: Scalar = 0.9, eps: Scalar = 1e-6
) -> GradientTransformation:
    """Dual averaging with momentum: steps from the initial parameters.

    With ``k = (learning_rate + eps) * sqrt(t)``, ``q' = q + k * u**2``, ``s' = s + k * u``, and
    ``u' = (1 - momentum) * (p_0 - s' / (cbrt(q') + eps) - p)``.

    Args:
        learning_rate: a number, a 0-d array or a schedule.
        momentum: the weight of the current parameters.
        eps: keeps the denominator away from zero.

    Returns:
        A transformation whose state is a ``MadgradState``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Defazio and Jelassi, "Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient
    Method for Stochastic Optimization" (2021).

    >>> transform = scale_by_madgrad(1.0, 0.0)
    >>> params = tnp.asarray(1.0)
    >>> round(float(transform.update(tnp.asarray(8.0), transform.init(params), params)[0]), 4)
    -2.0
    """

    def init(params: Params) -> MadgradState:
        zeros = optim_tree.zeros_like(params)
        return MadgradState(zero_count(), zeros, zeros, params)

    def update(updates: Updates, state: MadgradState, params: Params | None = None) -> tuple:
        need_params("scale_by_madgrad", params)
        count = safe_increment(state.count)

        def weighted(total: Array, u: Array) -> Array:
            dtype = abstract(total).dtype
            weight = (value_at(learning_rate, state.count, dtype) + eps) * tnp.sqrt(count.astype(dtype))
            return total + (weight * u).astype(dtype)

        squares = tree.map(weighted, state.grad_sum_sq, tree.map(tnp.square, updates))
        total = tree.map(weighted, state.s, updates)

        def step(p: Array, p0: Array, s: Array, q: Array) -> Array:
            return (1 - momentum) * (p0 - s / (tnp.cbrt(q) + eps)) + momentum * p - p

        new_updates = tree.map(step, params, state.x0, total, squares)
        return new_updates, MadgradState(count, squares, total, state.x0)

    return GradientTransformation(init, update)


def madgrad(
    learning_rate: ScalarOrSchedule,
    momentum: Scalar = 0.9,
    weight_decay: ScalarOrSchedule = 0.0,
    eps: Scalar = 1e-6,
) -> GradientTransformationExtraArgs:
    """MADGRAD: dual averaging with momentum; :func:`scale_by_madgrad` has the formulas.

    Args: as :func:`scale_by_madgrad` and :func:`tvmfun.optim.adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: on ``update``, if it gets no ``params``.

    Reference: Defazio and Jelassi, "Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient
    Method for Stochastic Optimization" (2021).

    >>> optimizer = madgrad(1.0, 0.0)
    >>> params = tnp.asarray(1.0)
    >>> round(float(optimizer.update(tnp.asarray(8.0), optimizer.init(params), params)[0]), 4)
    -2.0
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))
