"""Updates of slices in place: where a state is replaced by itself with a slice of it updated, only that is written.

As a map, ``dynamic_update_slice`` computes every element of its result, so a loop that writes one row of a table per
step would write the whole table. As loops over the update it can be written over the state.
"""

from __future__ import annotations

from dataclasses import replace

from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Program
from tvmfun.lower.rewrite.equations import with_inner
from tvmfun.ops.dynamic_slice import dynamic_update_slice, slice_update


def update_slices(program: Program) -> Program:
    """Returns the Program, and those in its loops and branches, with updates of its inputs that can be in place.

    An update changes if it turns, alone or with other updates, an input of the Program into a result of it.

    Args:
        program: without calls.
    """
    known: set[Atom] = set(program.inputs)
    candidates: list[Equation] = []
    for equation in program.equations:
        if equation.op is dynamic_update_slice and equation.inputs[0] in known and _has_elements(equation):
            candidates.append(equation)
            known.update(equation.outputs)
    wanted: set[Atom] = set(program.outputs).difference(program.inputs)
    chosen: dict[int, Equation] = {}
    for equation in reversed(candidates):
        if not wanted.isdisjoint(equation.outputs):
            chosen[id(equation)] = equation._replace(op=slice_update)
            wanted.add(equation.inputs[0])
    equations = [chosen.get(id(one)) or with_inner(one, update_slices) for one in program.equations]
    if all(new is old for new, old in zip(equations, program.equations, strict=True)):
        return program
    return replace(program, equations=tuple(equations))


def _has_elements(equation: Equation) -> bool:
    """Whether an update is of static size, and of something."""
    shapes = tuple(atom.aval.shape for atom in equation.inputs)
    return not dims.is_dynamic(shapes) and all(atom.aval.size for atom in equation.inputs)
