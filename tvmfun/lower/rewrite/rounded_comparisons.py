"""Rounding of bfloat16 before comparisons, which must not depend on the kernel that computes a value.

A kernel computes bfloat16 in float32 and rounds what it stores. An array that another kernel computes again, instead of
loading it, would have no element that equals the stored maximum of its elements, and so the gradient would be 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvmfun import dtypes
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower.rewrite.equations import producers_of, with_inner
from tvmfun.ops import conv
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce as reductions
from tvmfun.ops import shape as shapes

_COMPARISONS = (pw.equal, pw.not_equal, pw.less, pw.less_equal, pw.greater, pw.greater_equal)
_EXTREMA = (reductions.max, reductions.min, reductions.argmax, reductions.argmin, conv.window_max, conv.window_argmax)
#: Results of these ops are arguments, or differ from them in the sign.
_MOVES = (pw.maximum, pw.minimum, pw.where, pw.negative, pw.abs, pw.stop_gradient, reductions.max, reductions.min)
_VIEWS = (shapes.reshape, shapes.permute_dims, shapes.broadcast_to, shapes.slice, shapes.flip)


def round_compared(program: Program) -> Program:
    """Rounds values of bfloat16 that are compared or have their extremum taken, also in loops and branches.

    Args:
        program: without calls.
    """
    producers = producers_of(program)
    inexact: set[Variable] = set()
    for equation in program.equations:
        if equation.op in _EXTREMA or (equation.op in _COMPARISONS and not _has_literal(equation)):
            for atom in equation.inputs:
                inexact |= _inexact_sources(atom, producers)
    rounded = {variable: Variable(variable.aval) for variable in inexact}
    equations: list[Equation] = []
    for equation in program.equations:
        new = with_inner(equation, round_compared)
        equations.append(new._replace(outputs=tuple(rounded.get(out, out) for out in new.outputs)) if rounded else new)
        for out in equation.outputs:
            if out in rounded:
                equations += _rounding(rounded[out], out)
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations))


def _has_literal(equation: Equation) -> bool:
    return any(isinstance(atom, Literal) for atom in equation.inputs)


def _inexact_sources(atom: Atom, producers: Mapping[Atom, Equation]) -> set[Variable]:
    """The values of bfloat16 that ``atom`` is moved or chosen from, and that kernels compute in float32."""
    found: set[Variable] = set()
    waiting, seen = [atom], set()
    while waiting:
        atom = waiting.pop()
        producer = producers.get(atom)
        if producer is None or atom in seen or atom.aval.dtype != dtypes.bfloat16:
            continue
        seen.add(atom)
        if producer.op in _MOVES or producer.op in _VIEWS:
            waiting += producer.inputs
        elif producer.op.kind in ("pointwise", "reduction") and producer.op is not pw.astype:
            found.update(out for out in producer.outputs if out is atom)
    return found


def _rounding(exact: Variable, result: Variable) -> list[Equation]:
    """A conversion to float32 and back, which rounds what a kernel has computed in float32."""
    wide = Variable(replace(exact.aval, dtype=dtypes.float32))
    back = Equation(pw.astype, (wide,), {"dtype": "bfloat16"}, (result,))
    return [Equation(pw.astype, (exact,), {"dtype": "float32"}, (wide,)), back]
