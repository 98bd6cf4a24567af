"""Measurements of the updates, kept in the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tvmfun.optim import tree as optim_tree
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    stateless,
    with_extra_args_support,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.momentum import ema
from tvmfun.typing import DTypeLike, PyTree, Scalar

__all__ = [
    "MonitorState",
    "SnapshotState",
    "measure_with_ema",
    "monitor",
    "snapshot",
]


class SnapshotState(NamedTuple):
    """The state of ``snapshot``.

    Attributes:
        measurement: the last measurement, by its name.
    """

    measurement: dict[str, PyTree]


class MonitorState(NamedTuple):
    """The state of ``monitor``.

    Attributes:
        measurements: the last measurements, by their names.
        measure_states: the states of the transformations that measure.
    """

    measurements: dict[str, PyTree]
    measure_states: tuple[OptState, ...]


def snapshot(measure_name: str, measure: Callable[[Updates], Any]) -> GradientTransformation:
    """Returns the updates unchanged, and keeps a measurement of them in the state.

    Args:
        measure_name: its name, for :func:`tvmfun.optim.tree.get`.
        measure: a function of the updates that returns a tree of arrays.

    Returns:
        A transformation whose state is a ``SnapshotState``, at first with a measurement of the parameters.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import chain, global_norm, scale
    >>> optimizer = chain(scale(2.0), snapshot("norm", global_norm), scale(-0.5))
    >>> updates, state = optimizer.update(tnp.asarray([3.0, 4.0]), optimizer.init(tnp.zeros(2)))
    >>> float(optim_tree.get(state, "norm"))
    10.0
    """

    def init(params: Params) -> SnapshotState:
        return SnapshotState({measure_name: measure(params)})

    def update(updates: Updates, state: SnapshotState, params: Params | None = None) -> tuple[Updates, SnapshotState]:
        return updates, SnapshotState({measure_name: measure(updates)})

    return GradientTransformation(init, update)


def monitor(
    measures: Mapping[str, GradientTransformation | Callable[[Updates], Any]],
) -> GradientTransformationExtraArgs:
    """Returns the updates unchanged, and keeps several measurements of them in the state.

    Args:
        measures: for each name a function of the updates that returns a tree of arrays, or a transformation whose
            updates are such a tree, such as :func:`measure_with_ema`.

    Returns:
        A transformation whose state is a ``MonitorState``, at first with zeros in place of measurements.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import global_norm
    >>> transform = monitor({"norm": global_norm, "mean": measure_with_ema(tnp.mean, 0.9)})
    >>> updates, state = transform.update(tnp.asarray([3.0, 4.0]), transform.init(tnp.zeros(2)))
    >>> {name: round(float(value), 4) for name, value in sorted(state.measurements.items())}
    {'mean': 3.5, 'norm': 5.0}
    """

    def as_transform(measure: Any) -> GradientTransformationExtraArgs:
        # A transformation is a tuple; a function is not.
        is_pair = isinstance(measure, GradientTransformation)
        return with_extra_args_support(measure if is_pair else stateless(lambda updates, params: measure(updates)))

    parts = {name: as_transform(measure) for name, measure in measures.items()}

    def run(updates: Updates, states: tuple, params: Params | None, extra_args: dict) -> MonitorState:
        results = {
            name: part.update(updates, state, params, **extra_args)
            for (name, part), state in zip(parts.items(), states, strict=True)
        }
        values = {name: value for name, (value, _) in results.items()}
        return MonitorState(values, tuple([state for _, state in results.values()]))

    def init(params: Params) -> MonitorState:
        states = tuple([part.init(params) for part in parts.values()])
        # A state has the same structure from the beginning, so that a loop can carry it.
        values = run(params, states, params, {}).measurements
        return MonitorState(optim_tree.zeros_like(values), states)

    def update(updates: Updates, state: MonitorState, params: Params | None = None, **extra_args: Any) -> tuple:
        return updates, run(updates, state.measure_states, params, extra_args)

    return GradientTransformationExtraArgs(init, update)


def measure_with_ema(
    measure: Callable[[Updates], Any], decay: Scalar, debias: bool = True, accumulator_dtype: DTypeLike | None = None
) -> GradientTransformationExtraArgs:
    """The running mean of a measurement of the updates, for :func:`monitor`.

    Args:
        measure: a function of the updates that returns a tree of arrays.
        accumulator_dtype: the dtype of the mean; ``None`` for the dtype of the measurement.

    Other arguments: as :func:`ema`.

    Returns:
        A transformation that replaces updates by the mean.

    Raises:
        DtypeError: if ``accumulator_dtype`` is unknown.

    >>> import tvmfun.numpy as tnp
    >>> mean = measure_with_ema(tnp.max, 0.5)
    >>> state = mean.init(tnp.zeros(2))
    >>> for updates in ([3.0, 1.0], [0.0, 6.0]):
    ...     value, state = mean.update(tnp.asarray(updates), state)
    ...     print(float(value))
    3.0
    5.0
    """
    average = ema(decay, debias, accumulator_dtype)
    of_measurement = GradientTransformation(lambda params: average.init(measure(params)), average.update)
    return chain(stateless(lambda updates, params: measure(updates)), of_measurement)
