"""Parts of passes over equations: producers and readers of values, compositions, and Programs in parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.core.trace import trace_flat


def producers_of(program: Program) -> dict[Atom, Equation]:
    """Returns the equation that computes each value."""
    return {out: equation for equation in program.equations for out in equation.outputs}


def readers_of(program: Program) -> Counter[Atom]:
    """Returns how often each value is read by equations, or returned."""
    return Counter([*(atom for equation in program.equations for atom in equation.inputs), *program.outputs])


def composed(equation: Equation, compute: Callable[..., Array]) -> list[Equation]:
    """Returns the equations of a function of the arguments that computes the result of an equation."""
    avals = [atom.aval for atom in equation.inputs]
    traced = trace_flat(compute, avals, tree.structure((tuple(avals), {})), equation.op.name)
    known: dict[Variable, Any] = dict(zip(traced.inputs, equation.inputs, strict=True))
    known[traced.outputs[0]] = equation.outputs[0]  # type: ignore[index]  # not a constant
    use = lambda atom: atom if isinstance(atom, Literal) else known.get(atom, atom)
    return [
        each._replace(
            inputs=tuple(map(use, each.inputs)), outputs=tuple(map(use, each.outputs)), source=equation.source
        )
        for each in traced.equations
    ]


def with_inner(equation: Equation, change: Callable[[Program], Program]) -> Equation:
    """Changes the Programs of an equation, such as the body of a loop; returns the equation itself if none changes."""

    def inside(value: Any) -> Any:
        if isinstance(value, Program):
            return change(value)
        if isinstance(value, tuple) and any(isinstance(item, Program) for item in value):
            return tuple([inside(item) for item in value])
        return value

    params = {name: inside(value) for name, value in equation.params.items()}

    def is_same(new: Any, old: Any) -> bool:
        pairs = zip(new, old, strict=True) if isinstance(new, tuple) and isinstance(old, tuple) else ((new, old),)
        return all(one is other for one, other in pairs)

    changed = not all(is_same(params[name], value) for name, value in equation.params.items())
    return equation._replace(params=params) if changed else equation
