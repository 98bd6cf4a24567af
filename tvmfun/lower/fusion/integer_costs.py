"""Costs of formulas of integers inside one another, for TVM's simplifier."""

from __future__ import annotations

from tvmfun import dtypes
from tvmfun.core.program import Atom, Equation, Program
from tvmfun.ops.pointwise import abs, astype, floor_divide, fmod, negative, remainder, sign

#: The largest sum of costs along a path of equations in one kernel.
MOST = 18


def integer_costs(program: Program) -> list[int]:
    """Returns for each equation about the logarithm of the time that simplifying its formula multiplies.

    TVM's simplifier visits the operands of a quotient, of a condition and of a cast to a signed integer several times,
    so that formulas inside one another take a time that doubles to quadruples with each. It knows nothing of integers
    from memory, of which only quotients and conversions of conditions have a cost.

    Args:
        program: without calls.
    """
    stored: set[Atom] = set(program.inputs)
    costs = []
    for equation in program.equations:
        from_memory = equation.op.kind not in ("pointwise", "injective") or not stored.isdisjoint(equation.inputs)
        if from_memory:
            stored.update(equation.outputs)
        costs.append(_cost(equation, from_memory))
    return costs


def _cost(equation: Equation, from_memory: bool) -> int:
    op = equation.op
    if op.kind != "pointwise" or dtypes.is_float(equation.outputs[0].aval.dtype):
        return 0
    source = equation.inputs[0].aval.dtype
    has_conditions = op in (floor_divide, remainder, fmod, sign) or (op is astype and source == dtypes.bool_)
    if from_memory:
        return 6 if has_conditions else 1 if op is astype else 0
    return 8 if has_conditions or op in (abs, negative) or (op is astype and dtypes.is_float(source)) else 4
