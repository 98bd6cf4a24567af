"""Attention of numbers that were converted from half precision, as attention in half precision.

Queries, keys and values in float32 that are conversions of half precision arrays, or were rounded to half precision by
``amp``, are read as such, and tensor cores multiply them. Sums and exponentials stay in float32. Softmax weights and
the cotangents of scores, which are factors, too, are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvmfun import dtypes
from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.lower.rewrite.equations import with_inner
from tvmfun.ops import pointwise as pw
from tvmfun.ops.attention import attention, attention_gradients

_HALF = (dtypes.float16, dtypes.bfloat16)


def narrow_attention(program: Program) -> Program:
    """Returns the Program, and those in its loops and branches, with the factors of attention in half precision.

    Args:
        program: without calls.
    """
    producers = {out: equation for equation in program.equations for out in equation.outputs}
    equations: list[Equation] = []
    for equation in program.equations:
        if equation.op in (attention, attention_gradients):
            equations += _narrowed(equation, producers)
        else:
            equations.append(with_inner(equation, narrow_attention))
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations)).without_dead_code()


def _narrowed(equation: Equation, producers: Mapping[Atom, Equation]) -> list[Equation]:
    """The attention with factors in half precision, after a conversion of its cotangent if that has another type."""
    factors = equation.inputs[: equation.op.factors]
    narrow = [_unconverted(atom, producers) for atom in factors]
    if None in narrow[:3] or len({atom.aval.dtype for atom in narrow[:3]}) != 1:
        return [equation]
    before: list[Equation] = []
    if len(narrow) > 3 and (narrow[3] is None or narrow[3].aval.dtype != narrow[0].aval.dtype):
        dtype = narrow[0].aval.dtype
        narrow[3] = Variable(replace(factors[3].aval, dtype=dtype))
        convert = {"dtype": dtypes.NAMES[dtype]}
        before = [Equation(pw.astype, (factors[3],), convert, (narrow[3],), equation.source)]
    return [*before, equation._replace(inputs=(*narrow, *equation.inputs[len(narrow) :]))]


def _unconverted(atom: Atom, producers: Mapping[Atom, Equation]) -> Atom | None:
    """The array in half precision of which a value is the conversion to float32."""
    equation = producers.get(atom)
    if equation is None or equation.op is not pw.astype or atom.aval.dtype != dtypes.float32:
        return None
    return equation.inputs[0] if equation.inputs[0].aval.dtype in _HALF else None
