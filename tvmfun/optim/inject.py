"""Hyperparameters in the state of an optimizer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    apply_part,
    passing_rows,
    with_extra_args_support,
)
from tvmfun.optim.numerics import safe_increment, zero_count
from tvmfun.typing import DTypeLike, PyTree

__all__ = ["InjectStatefulHyperparamsState", "WrappedScheduleState", "inject_hyperparams"]


class WrappedScheduleState(NamedTuple):
    """The state of a schedule in ``inject_hyperparams``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
    """

    count: Array


class InjectStatefulHyperparamsState(NamedTuple):
    """The state of a transformation from ``inject_hyperparams``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        hyperparams: the hyperparameters by name, 0-d arrays; those that are not scheduled may be replaced.
        hyperparams_states: the counts of the schedules by name.
        inner_state: the state of the transformation.
    """

    count: Array
    hyperparams: dict[str, PyTree]
    hyperparams_states: dict[str, PyTree]
    inner_state: OptState


def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
) -> Callable[..., GradientTransformationExtraArgs]:
    """Keeps the hyperparameters of an optimizer in its state, where they can be read and changed.

    They are inputs of a compiled step, so that another learning rate does not recompile.

    Args:
        inner_factory: a function from hyperparameters to a transformation, such as :func:`adam`.
        static_args: the names of numbers to leave out; bools, and values that are neither numbers, arrays nor
            functions, always are.
        hyperparam_dtype: the dtype of floats; ``None`` for the widest among the parameters.

    Returns:
        A function with the arguments of ``inner_factory``, which makes a transformation whose state is an
        ``InjectStatefulHyperparamsState``. A callable argument is a schedule.

    Raises:
        ArgumentError: if a name in ``static_args`` is not an argument of ``inner_factory``.
        DtypeError: if ``hyperparam_dtype`` is unknown.

    >>> from tvmfun.optim import sgd
    >>> optimizer = inject_hyperparams(sgd)(learning_rate=0.5)
    >>> state = optimizer.init({"w": tnp.asarray(0.0)})
    >>> state.hyperparams["learning_rate"] = tnp.asarray(0.25)
    >>> float(optimizer.update({"w": tnp.asarray(4.0)}, state)[0]["w"])
    -1.0
    """
    static = {static_args} if isinstance(static_args, str) else set(static_args)
    signature = inspect.signature(inner_factory)
    if not static <= set(signature.parameters):
        raise ArgumentError(
            "inject_hyperparams",
            f"static_args must be among {sorted(signature.parameters)}",
            got=str(sorted(static)),
        )
    fixed_dtype = None if hyperparam_dtype is None else dtypes.canonical(hyperparam_dtype)

    @functools.wraps(inner_factory)
    def make(*args: Any, **kwargs: Any) -> GradientTransformationExtraArgs:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        schedules, numbers, others = {}, {}, {}
        for name, value in bound.arguments.items():
            if name in static or isinstance(value, bool):
                others[name] = value
            elif callable(value):
                schedules[name] = value
            elif isinstance(value, int | float | Array | np.ndarray | np.generic):
                numbers[name] = value
            else:
                others[name] = value

        def convert(value: Any, like: Any) -> Array:
            if isinstance(value, Array):
                return value
            value = np.asarray(value)
            if not dtypes.is_float(value.dtype):
                return tnp.asarray(value.astype("int32") if value.dtype == "int64" else value)
            return tnp.asarray(value.astype(fixed_dtype or _widest(like)))

        def scheduled(states: dict[str, PyTree], like: Any) -> dict[str, Any]:
            values = {name: tnp.asarray(schedule(states[name].count)) for name, schedule in schedules.items()}
            dtype = fixed_dtype or _widest(like)
            return {k: v.astype(dtype) if dtypes.is_float(v.dtype) else v for k, v in values.items()}

        def init(params: Params) -> InjectStatefulHyperparamsState:
            states = {name: WrappedScheduleState(zero_count()) for name in schedules}
            values = {name: convert(value, params) for name, value in numbers.items()} | scheduled(states, params)
            inner = inner_factory(**others, **values).init(params)
            return InjectStatefulHyperparamsState(zero_count(), values, states, inner)

        @passing_rows
        def update(
            updates: Updates, state: InjectStatefulHyperparamsState, params: Params | None = None, **extra_args: Any
        ) -> tuple:
            like = updates if params is None else params
            values = {**state.hyperparams, **scheduled(state.hyperparams_states, like)}
            states = {k: WrappedScheduleState(safe_increment(s.count)) for k, s in state.hyperparams_states.items()}
            transform = with_extra_args_support(inner_factory(**others, **values))
            updates, inner = apply_part(
                "inject_hyperparams", transform, updates, state.inner_state, params, **extra_args
            )
            return updates, InjectStatefulHyperparamsState(safe_increment(state.count), values, states, inner)

        return GradientTransformationExtraArgs(init, update)

    return make


def _widest(params: Params) -> np.dtype:
    floats = [abstract(leaf).dtype for leaf in tree.leaves(params) if dtypes.is_float(abstract(leaf).dtype)]
    return max(floats, key=lambda dtype: dtype.itemsize, default=np.dtype("float32"))
