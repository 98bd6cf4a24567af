"""The floating-point operations of Programs, from the op records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfun import dtypes
from tvmfun.core.dims import typical
from tvmfun.core.program import Equation, Program


def flops(equation: Equation) -> Any:
    """The floating-point operations of an equation: a number, or a formula of its dynamic sizes."""
    if equation.op.runs is not None:
        return running(equation, program_flops)
    out = equation.outputs[0].aval
    if not dtypes.is_float(out.dtype):
        return 0
    return equation.op.flops(out, *(atom.aval for atom in equation.inputs), **equation.params)


def program_flops(program: Program) -> Any:
    """The floating-point operations of all equations of a Program."""
    return sum(map(flops, program.equations))


def running(equation: Equation, cost: Callable[[Program], Any]) -> Any:
    """The cost of the Programs that an equation runs, times how often it runs them; the maximum over alternatives."""
    assert equation.op.runs is not None
    costs = (
        sum(times * cost(program) for program, times in programs) for programs in equation.op.runs(**equation.params)
    )
    return max(costs, key=typical)
