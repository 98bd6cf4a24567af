"""Sparse updates: an array plus the scattered gradient of an embedding becomes a scatter into that array.

The gradient of a table is as large as the table and zero but for the rows that were looked up. Where all that is done
with it is to scale it and to add it to a table, only these rows are computed, read and written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from tvmfun.core.op import REGISTRY
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable


def sparse_updates(program: Program) -> Program:
    """Returns the Program with ``x + c * scatter(0, i, u)`` replaced by ``scatter(x, i, c * u)``.

    That is for inputs ``x`` and scalars ``c``, also where ``c`` divides, or the product is subtracted. Rows that are
    named twice are summed in another order, and rows that are not named are left alone even if ``c`` is infinite or
    NaN, where ``c * 0`` is NaN.

    Args:
        program: without calls.
    """
    reader = _Reader(program)
    updates = {equation.outputs[0]: update for equation in program.equations if (update := reader.update(equation))}
    if not updates:
        return program
    equations: list[Equation] = []
    for equation in program.equations:
        update = updates.get(equation.outputs[0])
        equations += update.equations() if update else [equation]
    return replace(program, equations=tuple(equations)).without_dead_code()


@dataclass
class _Update:
    """``result = array + scatter(0, indices, updates)``, with ``updates`` first put through ``links``."""

    array: Variable
    result: Variable
    scatter: Equation
    links: list[tuple[Equation, int]]

    def equations(self) -> list[Equation]:
        """The links for the updates, and one scatter."""
        _, indices, value = self.scatter.inputs
        equations = []
        for link, place in self.links:
            scaled = Variable(replace(link.outputs[0].aval, shape=value.aval.shape))
            inputs = tuple(value if i == place else atom for i, atom in enumerate(link.inputs))
            equations.append(link._replace(inputs=inputs, outputs=(scaled,)))
            value = scaled
        params = {name: value for name, value in self.scatter.params.items() if name != "size"}
        whole = self.scatter._replace(inputs=(self.array, indices, value), params=params, outputs=(self.result,))
        return [*equations, whole]


class _Reader:
    def __init__(self, program: Program) -> None:
        self.producer = {out: equation for equation in program.equations for out in equation.outputs}
        uses = [*program.outputs, *(atom for equation in program.equations for atom in equation.inputs)]
        self.uses = Counter(atom for atom in uses if isinstance(atom, Variable))
        self.inputs = set(program.inputs)

    def update(self, equation: Equation) -> _Update | None:
        """What an equation updates, if it does."""
        name = equation.op.name
        if name not in ("add", "subtract"):
            return None
        for place in (1, 0) if name == "add" else (1,):
            array, change = equation.inputs[1 - place], equation.inputs[place]
            result = equation.outputs[0]
            if array not in self.inputs or array.aval != result.aval or change.aval.shape != result.aval.shape:
                continue
            found = self.scattered(change)
            if found is not None:
                scatter, links = found
                if name == "subtract":
                    minus = REGISTRY["negative"]
                    links.append((Equation(minus, (change,), {}, (Variable(change.aval),), equation.source), 0))
                return _Update(array, result, scatter, links)  # type: ignore[arg-type]  # inputs are Variables
        return None

    def scattered(self, atom: Atom) -> tuple[Equation, list[tuple[Equation, int]]] | None:
        """The scatter of zeros that a value is but for a factor, and the equations that apply the factor."""
        links: list[tuple[Equation, int]] = []
        while self.uses[atom] == 1 and (equation := self.producer.get(atom)) is not None:
            if equation.op.name == "scatter":
                adds = equation.params["mode"] == "add" and _is_zero(equation.inputs[0])
                return (equation, links[::-1]) if adds else None
            place = _scaled(equation)
            if place is None or equation.inputs[place].aval.shape != atom.aval.shape:
                return None
            links.append((equation, place))
            atom = equation.inputs[place]
        return None


def _scaled(equation: Equation) -> int | None:
    """The place of the argument that an equation multiplies with a scalar, or None."""
    if equation.op.name == "negative":
        return 0
    scalars = [atom.aval.shape == () for atom in equation.inputs]
    if equation.op.name == "multiply" and True in scalars:
        return 1 - scalars.index(True)
    return 0 if equation.op.name == "divide" and scalars[1] else None


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not np.any(atom.value)
