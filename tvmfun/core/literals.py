"""Literals of Programs as inputs, so that Programs that differ in numbers only are compiled once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from tvmfun import tree
from tvmfun.core.program import Atom, Literal, Program, Variable


def literals_of(program: Program) -> list[np.generic]:
    """The numbers that a Program's equations and outputs use, in order, without those inside of loops and branches."""
    return [atom.value for atom in _atoms(program) if isinstance(atom, Literal)]


def literals_as_inputs(program: Program, positions: Collection[int]) -> Program:
    """Replaces literals by inputs, which become the first argument of the Program, a list.

    Args:
        program: the Program.
        positions: indices into :func:`literals_of`.
    """
    numbers: list[Variable] = []
    counted = count()

    def use(atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        return tuple(map(converted, atoms))

    def converted(atom: Atom) -> Atom:
        if not isinstance(atom, Literal) or next(counted) not in positions:
            return atom
        numbers.append(Variable(atom.aval))
        return numbers[-1]

    equations = tuple(equation._replace(inputs=use(equation.inputs)) for equation in program.equations)
    outputs = use(program.outputs)
    captured = len(program.captured)
    leaves = program.inputs[captured:]
    args, kwargs = tree.unflatten(program.in_tree, leaves)
    return replace(
        program,
        inputs=(*program.inputs[:captured], *numbers, *leaves),
        equations=equations,
        outputs=outputs,
        in_tree=tree.structure(((numbers, *args), kwargs)),
    )


def _atoms(program: Program) -> Iterator[Atom]:
    for equation in program.equations:
        yield from equation.inputs
    yield from program.outputs
