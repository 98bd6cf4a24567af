"""Learning rates reduced when the loss stops improving."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.base import GradientTransformationExtraArgs, Params, Updates, map_updates, select
from tvmfun.optim.numerics import safe_increment, zero_count
from tvmfun.typing import Scalar

__all__ = ["ReduceLROnPlateauState", "reduce_on_plateau"]


class ReduceLROnPlateauState(NamedTuple):
    """The state of ``reduce_on_plateau``.

    Attributes:
        scale: the factor of the updates, a 0-d array.
        best_value: the least mean of the loss so far, a 0-d array.
        plateau_count: the number of means since then, a 0-d int32 array.
        cooldown_count: the number of means still to ignore, a 0-d int32 array.
        count: the number of losses in the mean so far, a 0-d int32 array.
        avg_value: their mean, a 0-d array.
    """

    scale: Array
    best_value: Array
    plateau_count: Array
    cooldown_count: Array
    count: Array
    avg_value: Array


def reduce_on_plateau(
    factor: Scalar = 0.1,
    patience: int = 10,
    rtol: Scalar = 1e-4,
    atol: Scalar = 0.0,
    cooldown: int = 0,
    accumulation_size: int = 1,
    min_scale: Scalar = 0.0,
) -> GradientTransformationExtraArgs:
    """Multiplies the updates by a scale that shrinks when the loss stops improving.

    The loss has improved if the mean of ``accumulation_size`` values is less than ``(1 - rtol) * best - atol``. After
    ``patience`` means that have not, ``scale' = max(scale * factor, min_scale)``.

    Args:
        factor: how much the scale shrinks, between 0 and 1.
        patience: the number of consecutive means without improvement.
        rtol: the least relative improvement.
        atol: the least absolute improvement, beyond that.
        cooldown: the number of means to ignore after the scale has shrunk.
        accumulation_size: the number of losses in a mean.
        min_scale: the least scale.

    Returns:
        A transformation whose state is a ``ReduceLROnPlateauState``; its ``update`` needs ``value=loss``. It belongs
        after the optimizer.

    Raises:
        ArgumentError: if ``factor`` is not between 0 and 1, or a tolerance is negative, both are zero, or ``rtol`` is
            more than 1.

    >>> transform = reduce_on_plateau(0.5, patience=1)
    >>> state = transform.init(tnp.asarray(0.0))
    >>> for loss in (3.0, 4.0):
    ...     updates, state = transform.update(tnp.asarray(1.0), state, value=loss)
    ...     print(float(updates))
    1.0
    0.5
    """
    if not 0 < factor < 1:
        raise ArgumentError("reduce_on_plateau", "factor must be between 0 and 1", got=str(factor))
    if rtol < 0 or atol < 0 or rtol > 1 or rtol == atol == 0:
        raise ArgumentError(
            "reduce_on_plateau", "rtol and atol must not be negative, and one must be positive", got=f"{rtol}, {atol}"
        )

    def init(params: Params) -> ReduceLROnPlateauState:
        lowest, highest = (optim_tree.dtype(params, which) for which in ("lowest", "highest"))
        return ReduceLROnPlateauState(
            scale=tnp.ones((), dtype=lowest),
            best_value=tnp.full((), float("inf"), dtype=highest),
            plateau_count=zero_count(),
            cooldown_count=zero_count(),
            count=zero_count(),
            avg_value=tnp.zeros((), dtype=highest),
        )

    def judge(state: ReduceLROnPlateauState) -> ReduceLROnPlateauState:
        improved = state.avg_value < (1 - rtol) * state.best_value - atol
        waited = tnp.where(improved, 0, safe_increment(state.plateau_count))
        cooling = state.cooldown_count > 0
        enough = (waited == patience) & ~cooling
        # min_scale also applies when the scale does not shrink now.
        scale = tnp.maximum(tnp.where(enough, state.scale * factor, state.scale), min_scale)
        return ReduceLROnPlateauState(
            scale=tnp.where(cooling, state.scale, scale),
            best_value=tnp.where(improved, state.avg_value, state.best_value),
            plateau_count=tnp.where(enough | cooling, 0, waited),
            cooldown_count=tnp.where(cooling, state.cooldown_count - 1, tnp.where(enough, cooldown, 0)),
            count=zero_count(),
            avg_value=tnp.zeros_like(state.avg_value),
        )

    def update(
        updates: Updates,
        state: ReduceLROnPlateauState,
        params: Params | None = None,
        *,
        value: Scalar,
        **extra_args: Any,
    ) -> tuple[Updates, ReduceLROnPlateauState]:
        count, dtype = safe_increment(state.count), state.avg_value.dtype
        total = state.count.astype(dtype) * state.avg_value + tnp.asarray(value).astype(dtype)
        state = state._replace(count=count, avg_value=total / count.astype(dtype))
        state = select(count == accumulation_size, judge(state), state)
        return map_updates(lambda u: state.scale * u, updates), state

    return GradientTransformationExtraArgs(init, update)
