"""Inlining: replaces calls of Programs by the equations of these Programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvmfun import tree
from tvmfun.core.op import Platform
from tvmfun.core.program import Equation, Program
from tvmfun.core.trace import trace_flat


def inlined(program: Program, platform: Platform = "cpu") -> Program:
    """Returns the Program with all calls inlined, also in the Programs of loops and branches.

    Args:
        program: the Program.
        platform: the platform that it is for.
    """
    if not _has_calls(program):
        return program
    avals = [variable.aval for variable in program.inputs]
    flat = trace_flat(
        lambda *values: _run(program, values, platform), avals, tree.structure((tuple(avals), {})), program.name
    )
    return replace(flat, in_tree=program.in_tree, out_tree=program.out_tree, captured=program.captured)


def _run(program: Program, values: Any, platform: Platform) -> list:
    def apply(equation: Equation, arguments: list) -> Any:
        if equation.op.kind == "call":
            return tuple(_run(equation.op.compute(platform, **equation.params), arguments, platform))
        return equation.op(*arguments, **{key: _inlined_in(value, platform) for key, value in equation.params.items()})

    return program.evaluate(values, apply)


def _inlined_in(value: Any, platform: Platform) -> Any:
    if isinstance(value, Program):
        return inlined(value, platform)
    return tuple([_inlined_in(item, platform) for item in value]) if isinstance(value, tuple) else value


def _has_calls(program: Program) -> bool:
    return any(
        equation.op.kind == "call" or any(map(_has_calls, subprograms(tuple(equation.params.values()))))
        for equation in program.equations
    )


def subprograms(value: Any) -> Iterator[Program]:
    """The Programs among an equation's parameters, or in a tuple of them."""
    if isinstance(value, Program):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from subprograms(item)
