"""Sparse updates: an array plus the scattered gradient of an embedding becomes a scatter into that array.

The gradient of a table is as large as the table, and zero except in the rows that were looked up. If a Program only
scales it and adds it to the table, or to a gradient that comes from another use of the table, this pass lets it
compute, read and write these rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tvmfun.core.derivative import is_float
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower.rewrite.equations import producers_of, readers_of
from tvmfun.ops.index import scatter
from tvmfun.ops.pointwise import add, divide, multiply, negative, subtract


def fuse_scatter_updates(program: Program) -> Program:
    """Returns the Program with ``x + c * scatter(0, i, u)`` replaced by ``scatter(x, i, c * u)``.

    ``x`` must be an input, or an intermediate that nothing else reads, which the scatter may write over. ``c`` is a
    scalar, which may also divide; the product may be subtracted. Two roundings change: updates of one row are summed in
    another order, and rows without an update keep their values even if ``c`` is infinite or NaN, where ``c * 0`` is
    NaN. Arrays in half precision stay: many small updates of a row would each round to nothing beside its large sum.

    Args:
        program: without calls.
    """
    matcher = _Matcher(program)
    updates = {equation.outputs[0]: update for equation in program.equations if (update := matcher.update(equation))}
    if not updates:
        return program
    equations: list[Equation] = []
    for equation in program.equations:
        update = updates.get(equation.outputs[0])
        equations += update.equations() if update else [equation]
    return replace(program, equations=tuple(equations)).without_dead_code()


@dataclass
class _Update:
    """The update ``result = array + scale(scatter(0, indices, updates))``.

    Args:
        array: the array that is updated.
        result: the variable of the result.
        scatter: the equation of the scatter.
        scaling: the equations that scale it, each with the position of the argument that they scale.
    """

    array: Variable
    result: Variable
    scatter: Equation
    scaling: list[tuple[Equation, int]]

    def equations(self) -> list[Equation]:
        """Equations that scale the updates alone, and one scatter into the array."""
        _, indices, value = self.scatter.inputs
        equations = []
        for equation, position in self.scaling:
            scaled = Variable(replace(equation.outputs[0].aval, shape=value.aval.shape))
            inputs = tuple(value if i == position else atom for i, atom in enumerate(equation.inputs))
            equations.append(equation._replace(inputs=inputs, outputs=(scaled,)))
            value = scaled
        params = {name: value for name, value in self.scatter.params.items() if name != "size"}
        whole = self.scatter._replace(inputs=(self.array, indices, value), params=params, outputs=(self.result,))
        return [*equations, whole]


class _Matcher:
    """Finds the equations that are sparse updates."""

    def __init__(self, program: Program) -> None:
        self.producer, self.uses = producers_of(program), readers_of(program)
        self.inputs = set(program.inputs)

    def update(self, equation: Equation) -> _Update | None:
        """The update that an equation computes, or None."""
        if equation.op not in (add, subtract):
            return None
        for position in (1, 0) if equation.op is add else (1,):
            array, change = equation.inputs[1 - position], equation.inputs[position]
            result = equation.outputs[0]
            if not self.is_updated_in_place(array) or array.aval != result.aval or _is_half(array):
                continue
            if change.aval.shape != result.aval.shape:
                continue
            scattered = self.scattered(change)
            if scattered is not None:
                source, scaling = scattered
                if equation.op is subtract:
                    minus = Equation(negative, (change,), {}, (Variable(change.aval),), equation.source)
                    scaling.append((minus, 0))
                return _Update(array, result, source, scaling)  # type: ignore[arg-type]  # inputs are Variables
        return None

    def is_updated_in_place(self, array: Atom) -> bool:
        """Whether an array is an input, or an intermediate that nothing else reads."""
        return array in self.inputs or (array in self.producer and self.uses[array] == 1)

    def scattered(self, atom: Atom) -> tuple[Equation, list[tuple[Equation, int]]] | None:
        """The scatter into zeros that a value equals up to a factor, and the equations that apply the factor."""
        scaling: list[tuple[Equation, int]] = []
        while self.uses[atom] == 1 and (equation := self.producer.get(atom)) is not None:
            if equation.op is scatter:
                adds = equation.params["mode"] == "add" and _is_zero(equation.inputs[0])
                return (equation, scaling[::-1]) if adds else None
            position = _scaled(equation)
            if position is None or equation.inputs[position].aval.shape != atom.aval.shape:
                return None
            scaling.append((equation, position))
            atom = equation.inputs[position]
        return None


def _scaled(equation: Equation) -> int | None:
    """The position of the argument that an equation multiplies by a scalar, or None."""
    if equation.op is negative:
        return 0
    scalars = [atom.aval.shape == () for atom in equation.inputs]
    if equation.op is multiply and True in scalars:
        return 1 - scalars.index(True)
    return 0 if equation.op is divide and scalars[1] else None


def _is_half(atom: Atom) -> bool:
    return is_float(atom) and atom.aval.dtype.itemsize <= 2


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not np.any(atom.value)
