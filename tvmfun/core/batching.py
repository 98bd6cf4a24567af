"""Batching of Programs: every value gets a leading axis, or none if it is the same for all examples."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from tvmfun.core.inline import subprograms
from tvmfun.core.op import REGISTRY
from tvmfun.core.program import Equation, Program
from tvmfun.errors import BatchingError


class Batched(NamedTuple):
    """The results of a batching rule, and flags for those that have the batch axis."""

    results: tuple
    flags: tuple[bool, ...]


class Axis(NamedTuple):
    """The batch axis: its size, and the name by which collectives know it."""

    size: Any
    name: str | None = None


_AXIS: ContextVar[Axis] = ContextVar("batch axis")


def current_axis() -> Axis:
    """The batch axis of the running batching rule, for rules that batch later."""
    return _AXIS.get()


def batch(
    program: Program, values: Sequence[Any], flags: Sequence[bool], axis: Axis | None = None
) -> tuple[list[Any], list[bool]]:
    """Runs a Program on values; the flagged ones have a leading batch axis.

    Args:
        program: the Program.
        values: one per input, captured arrays first.
        flags: which values are batched.
        axis: the batch axis; inside a batching rule, by default the current one.

    Returns:
        The outputs, and which of them are batched.
    """
    axis = axis or current_axis()
    batched = {v for v, flag in zip(program.inputs, flags, strict=True) if flag}

    def apply(equation: Equation, arguments: list) -> Any:
        in_flags = tuple(atom in batched for atom in equation.inputs)
        if axis.name is not None and axis.name in equation.params.get("axis_names", ()):
            result = equation.op.over_axis(axis.name, axis.size, in_flags, *arguments, **equation.params)  # type: ignore[misc]
        elif not any(in_flags) and not _mentions(equation, axis.name):
            return equation.op(*arguments, **equation.params)
        elif equation.op.batch is None:
            raise BatchingError(
                "vmap",
                f"{equation.op} has no batching rule",
                got=f"a batched argument at {equation.source or 'an unknown line'}",
            )
        else:
            result = equation.op.batch(in_flags, *arguments, **equation.params)
        if isinstance(result, Batched):
            result, out_flags = result
        else:
            out_flags = (True,) * len(equation.outputs)
        batched.update(out for out, flag in zip(equation.outputs, out_flags, strict=True) if flag)
        return result

    token = _AXIS.set(axis)
    try:
        outputs = program.evaluate(values, apply)
    finally:
        _AXIS.reset(token)
    return outputs, [atom in batched for atom in program.outputs]


def _mentions(equation: Equation, name: str | None) -> bool:
    """Whether a Program inside an equation has a collective over the named axis."""
    return name is not None and any(
        name in inner.params.get("axis_names", ()) or _mentions(inner, name)
        for program in subprograms(tuple(equation.params.values()))
        for inner in program.equations
    )


def repeat(value: Any, size: Any) -> Any:
    """``value`` repeated along a new leading axis."""
    shape = getattr(value, "shape", ())
    return REGISTRY["broadcast_to"](value, shape=(size, *shape))


def move_front(value: Any, axis: int) -> Any:
    """``value`` with ``axis`` moved to the front."""
    if axis == 0:
        return value
    order = (axis, *(i for i in range(value.ndim) if i != axis))
    return REGISTRY["permute_dims"](value, axes=order)


def move_from_front(value: Any, axis: int) -> Any:
    """``value`` with its first axis at ``axis``."""
    if axis == 0:
        return value
    order = (*range(1, axis + 1), 0, *range(axis + 1, value.ndim))
    return REGISTRY["permute_dims"](value, axes=order)
