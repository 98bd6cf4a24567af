"""Conversions to the dtype that an array has, removed: weak dtypes matter to promotion only, which is done by now.

An update in place, such as that of a carry made by ``full``, would copy the array otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.lower.rewrite.equations import with_inner
from tvmfun.ops import pointwise as pw


def drop_weak_conversions(program: Program) -> Program:
    """Removes conversions of arrays to their own dtype, also in loops and branches.

    Args:
        program: without calls.
    """
    same: dict[Atom, Atom] = {}  # the variable for each other one that has the same value
    now = lambda atom: same.get(atom, atom)
    made: set[Atom] = set()
    returned = set(program.outputs)
    equations: list[Equation] = []
    for equation in program.equations:
        if equation.op is pw.astype and _keeps_dtype(equation):
            source, out = now(equation.inputs[0]), equation.outputs[0]
            if out not in returned:
                same[out] = source
                continue
            if source in made and source not in returned:  # results keep their variables
                same.update({atom: out for atom, other in same.items() if other is source})
                same[source] = out
                continue
        made.update(equation.outputs)
        equations.append(with_inner(equation, drop_weak_conversions))
    if same:
        equations = [
            each._replace(inputs=tuple(map(now, each.inputs)), outputs=tuple(map(now, each.outputs)))  # type: ignore[misc]
            for each in equations
        ]
    elif all(new is old for new, old in zip(equations, program.equations, strict=True)):
        return program
    return replace(program, equations=tuple(equations))


def _keeps_dtype(equation: Equation) -> bool:
    (source,) = equation.inputs
    return isinstance(source, Variable) and source.aval.dtype == equation.outputs[0].aval.dtype
