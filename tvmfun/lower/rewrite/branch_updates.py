"""Sinking of updates into branches: ``p + cond(...)`` becomes ``cond(... p + ...)``.

``p + u``, where ``u`` is the result of a branch, needs memory for ``u``. If each branch adds its ``u`` to ``p`` itself,
``u`` is never stored: a kernel writes the new ``p`` over the old one. Accumulated gradients are the typical case; their
update is zero in most steps.
"""

from __future__ import annotations

from dataclasses import replace

from tvmfun.core.derivative import flat_program
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower.rewrite.equations import readers_of
from tvmfun.ops.control import switch


def sink_updates(program: Program) -> Program:
    """Returns the Program with updates of its inputs inside the branches whose results they read.

    A pointwise equation moves if its other arguments are computed before the branches, if it is the only reader of the
    branches' results, and if it turns, alone or with other equations that move, an input of the Program into a result
    of the same type. Every element is still computed once, from the same numbers in the same order.

    Args:
        program: without calls.
    """
    for equation in reversed(program.equations):
        if equation.op is switch and (moved := _moved(program, equation)):
            program = _sunk(program, equation, moved)
    return program


def _moved(program: Program, conditional: Equation) -> list[Equation]:
    """The equations to move into the branches, in order."""
    position = next(i for i, equation in enumerate(program.equations) if equation is conditional)
    before = {*program.inputs, *(out for equation in program.equations[:position] for out in equation.outputs)}
    uses = readers_of(program)
    inside = {out for out in conditional.outputs if uses[out] == 1}
    # Operands of the branches with one other reader: once the reader moves, the branches read them last.
    inside.update(atom for atom in conditional.inputs[1:] if uses[atom] == 2 and conditional.inputs.count(atom) == 1)
    inside.difference_update(program.inputs, program.outputs)
    candidates: list[Equation] = []
    for i, equation in enumerate(program.equations):
        if equation.op.kind != "pointwise" or len(equation.outputs) != 1:
            continue
        (out,) = equation.outputs
        read = [atom for atom in equation.inputs if atom in inside]
        is_early = i < position and uses[out] > 1
        if not read or is_early:
            continue
        others = all(isinstance(atom, Literal) or atom in before for atom in equation.inputs if atom not in inside)
        if others and all(atom.aval.shape == out.aval.shape for atom in read):
            candidates.append(equation)
            if uses[out] == 1:
                inside.add(out)
    results, replaced = set(program.outputs), {variable.aval for variable in program.inputs}
    moved: list[Equation] = []
    wanted: set[Atom] = set()
    for equation in reversed(candidates):
        (out,) = equation.outputs
        if out in wanted or (out in results and out.aval in replaced):
            moved.insert(0, equation)
            wanted.update(equation.inputs)
    # Equations that overwrite values come after the equations that read them.
    computed = {*conditional.outputs, *(out for equation in moved for out in equation.outputs)}
    alone = lambda equation: computed.isdisjoint(equation.inputs) and wanted.isdisjoint(equation.outputs)
    return sorted(moved, key=alone)


def _sunk(program: Program, conditional: Equation, moved: list[Equation]) -> Program:
    """The Program with the equations ``moved`` into the branches."""
    moved_outputs = {out for equation in moved for out in equation.outputs}
    read = {atom for equation in moved for atom in equation.inputs}
    left = [i for i, out in enumerate(conditional.outputs) if out not in read]
    results = [out for equation in moved for out in equation.outputs if out not in read]
    index, *operands = conditional.inputs
    computed = {*conditional.outputs, *moved_outputs}
    wanted = dict.fromkeys(a for e in moved for a in e.inputs if isinstance(a, Variable) and a not in computed)
    more = [atom for atom in wanted if atom not in operands]

    def extended(branch: Program) -> Program:
        values: dict[Atom, Atom] = dict(zip(operands, branch.inputs, strict=True))
        added = [Variable(atom.aval) for atom in more]
        values.update(zip(more, added, strict=True))
        values.update(zip(conditional.outputs, branch.outputs, strict=True))
        equations = list(branch.equations)
        for equation in moved:
            outs = tuple(Variable(out.aval) for out in equation.outputs)
            equations.append(equation._replace(inputs=tuple(values.get(a, a) for a in equation.inputs), outputs=outs))
            values.update(zip(equation.outputs, outs, strict=True))
        outputs = [*(branch.outputs[i] for i in left), *(values[out] for out in results)]
        return flat_program([*branch.inputs, *added], equations, outputs, branch.name)

    branches = tuple(map(extended, conditional.params["branches"]))
    outputs = (*(conditional.outputs[i] for i in left), *results)
    params = {**conditional.params, "branches": branches}
    joined = conditional._replace(inputs=(index, *operands, *more), outputs=outputs, params=params)
    gone = set(map(id, moved))
    equations = [joined if e is conditional else e for e in program.equations if id(e) not in gone]
    return replace(program, equations=tuple(equations))
