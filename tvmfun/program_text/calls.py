"""Calls with Python functions, such as custom derivatives, replaced by the equations of their Programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.program_text.values import holds_function, is_own_function


def without_functions(program: Program) -> Program:
    """Inlines the calls of a Program that hold Python functions, also within loops and branches.

    The results stay the same; custom derivatives are replaced by those of the inlined equations.
    """
    known: dict[Variable, Atom] = {variable: variable for variable in program.inputs}
    equations = tuple(_expanded(program.equations, known))
    return replace(program, equations=equations, outputs=tuple(_use(atom, known) for atom in program.outputs))


def _use(atom: Atom, known: dict[Variable, Atom]) -> Atom:
    return atom if isinstance(atom, Literal) else known[atom]


def _expanded(equations: tuple[Equation, ...], known: dict[Variable, Atom]) -> Iterator[Equation]:
    """The equations with new variables, which are added to ``known``, and with calls replaced by their equations."""
    for equation in equations:
        inputs = tuple(_use(atom, known) for atom in equation.inputs)
        called = equation.params.get("program")
        if equation.op.kind == "call" and isinstance(called, Program) and _has_function(equation):
            inner: dict[Variable, Atom] = dict(zip(called.inputs, inputs, strict=True))
            yield from _expanded(called.equations, inner)
            known.update(zip(equation.outputs, (_use(atom, inner) for atom in called.outputs), strict=True))
            continue
        outputs = tuple(Variable(variable.aval) for variable in equation.outputs)
        known.update(zip(equation.outputs, outputs, strict=True))
        params = {key: _in_value(value) for key, value in equation.params.items()}
        yield equation._replace(inputs=inputs, params=params, outputs=outputs)


def _has_function(equation: Equation) -> bool:
    return any(holds_function(value) and not is_own_function(value) for value in equation.params.values())


def _in_value(value: Any) -> Any:
    if isinstance(value, Program):
        return without_functions(value)
    return tuple(map(_in_value, value)) if type(value) is tuple else value
