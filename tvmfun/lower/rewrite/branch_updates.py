"""Updates that move into the branches before them: what is done with a branch's result only to replace an input.

``p + u``, where ``u`` is what one of several branches returns, needs memory for ``u``. Where each branch adds its own
``u`` to ``p``, there is no ``u``: a kernel writes the new ``p`` over the old one. So it is with the updates of
accumulated gradients, which most steps return as zeros.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tvmfun.core.derivative import flat_program
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable


def sink_updates(program: Program) -> Program:
    """Returns the Program with updates of its inputs inside the branches whose results they read.

    A pointwise equation moves if everything else that it reads is there before the branches, nothing else reads what
    they return to it, and it makes a result of the Program of an input of the same type, by itself or together with
    others that move. Each element is computed once, from the same numbers in the same order, as before.

    Args:
        program: without calls.
    """
    for equation in reversed(program.equations):
        if equation.op.name == "switch" and (moved := _moved(program, equation)):
            program = _sunk(program, equation, moved)
    return program


def _moved(program: Program, switch: Equation) -> list[Equation]:
    """The equations that move into the branches, in order."""
    position = next(i for i, equation in enumerate(program.equations) if equation is switch)
    before = {*program.inputs, *(out for equation in program.equations[:position] for out in equation.outputs)}
    uses = Counter([*program.outputs, *(a for equation in program.equations for a in equation.inputs)])
    inside = {out for out in switch.outputs if uses[out] == 1}
    # An operand of the branches that one equation reads besides: then the branches are its last reader.
    inside.update(atom for atom in switch.inputs[1:] if uses[atom] == 2 and switch.inputs.count(atom) == 1)
    inside.difference_update(program.inputs, program.outputs)
    candidates: list[Equation] = []
    for i, equation in enumerate(program.equations):
        (out, *more) = equation.outputs
        read = [atom for atom in equation.inputs if atom in inside]
        is_early = i < position and uses[out] > 1
        if equation.op.kind != "pointwise" or more or not read or is_early:
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
    # Last what writes over what the others read.
    made = {*switch.outputs, *(out for equation in moved for out in equation.outputs)}
    alone = lambda equation: made.isdisjoint(equation.inputs) and wanted.isdisjoint(equation.outputs)
    return sorted(moved, key=alone)


def _sunk(program: Program, switch: Equation, moved: list[Equation]) -> Program:
    """The Program with these equations inside the branches."""
    made = {out for equation in moved for out in equation.outputs}
    read = {atom for equation in moved for atom in equation.inputs}
    left = [i for i, out in enumerate(switch.outputs) if out not in read]
    results = [out for equation in moved for out in equation.outputs if out not in read]
    index, *operands = switch.inputs
    own = {*switch.outputs, *made}
    wanted = dict.fromkeys(a for e in moved for a in e.inputs if isinstance(a, Variable) and a not in own)
    more = [atom for atom in wanted if atom not in operands]

    def extended(branch: Program) -> Program:
        values: dict[Atom, Atom] = dict(zip(operands, branch.inputs, strict=True))
        added = [Variable(atom.aval) for atom in more]
        values.update(zip(more, added, strict=True))
        values.update(zip(switch.outputs, branch.outputs, strict=True))
        equations = list(branch.equations)
        for equation in moved:
            outs = tuple(Variable(out.aval) for out in equation.outputs)
            equations.append(equation._replace(inputs=tuple(values.get(a, a) for a in equation.inputs), outputs=outs))
            values.update(zip(equation.outputs, outs, strict=True))
        outputs = [*(branch.outputs[i] for i in left), *(values[out] for out in results)]
        return flat_program([*branch.inputs, *added], equations, outputs, branch.name)

    branches = tuple(map(extended, switch.params["branches"]))
    outputs = (*(switch.outputs[i] for i in left), *results)
    params = {**switch.params, "branches": branches}
    joined = switch._replace(inputs=(index, *operands, *more), outputs=outputs, params=params)
    gone = set(map(id, moved))
    equations = [joined if e is switch else e for e in program.equations if id(e) not in gone]
    return replace(program, equations=tuple(equations))
