"""The floating-point operations of Programs, from the op records."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.dims import typical
from tvmfun.core.program import Equation, Program

_OF_MICRO_KERNELS = (np.dtype("float32"), np.dtype("float64"))
_FLOPS_AS_ONE = 64


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


def work(program: Program) -> Any:
    """The element operations of a Program: per equation its flops, or the elements of operands and results if more.

    64 flops of a product of floats count as one: most innermost loops of products are micro-kernels, which need no
    optimizer, and the others read each operand at most a few times. Equations that run Programs count as infinite,
    because a loop may have any number of steps.
    """
    return sum(map(_equation_work, program.equations))


def _equation_work(equation: Equation) -> Any:
    if equation.op.runs is not None:
        return math.inf
    avals = [value.aval for value in (*equation.inputs, *equation.outputs)]
    is_product = equation.op.kind == "contraction" and all(aval.dtype in _OF_MICRO_KERNELS for aval in avals)
    operations = flops(equation) // (_FLOPS_AS_ONE if is_product else 1)
    return max(sum(aval.size for aval in avals), operations, key=typical)


def running(equation: Equation, cost: Callable[[Program], Any]) -> Any:
    """The cost of the Programs that an equation runs, times how often it runs them; the maximum over alternatives."""
    assert equation.op.runs is not None
    costs = (
        sum(times * cost(program) for program, times in programs) for programs in equation.op.runs(**equation.params)
    )
    return max(costs, key=typical)
