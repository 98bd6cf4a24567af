"""Attention of numbers that were converted from half precision, as attention in half precision.

Queries, keys and values in float32 that are conversions of half precision arrays, or were rounded to half precision by
``amp``, are read as such, and tensor cores multiply them. Sums and exponentials stay in float32. Softmax weights and
the cotangents of scores, which are factors, too, are rounded, and so are results that ``amp`` rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from tvmfun import dtypes
from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.lower.rewrite.equations import producers_of, with_inner
from tvmfun.ops import pointwise as pw
from tvmfun.ops.attention import attention, attention_gradients

_HALF = (dtypes.float16, dtypes.bfloat16)


def attention_in_half_precision(program: Program) -> Program:
    """Narrows the factors of attention to half precision in a Program, also in its loops and branches.

    Results that are only converted to half precision are stored in it.

    Args:
        program: without calls.
    """
    producers = producers_of(program)
    readers = defaultdict(list)
    for equation in program.equations:
        for atom in equation.inputs:
            readers[atom].append(equation)
    for atom in program.outputs:
        readers[atom].append(None)
    rounded: dict[Atom, Atom] = {}  # results in half precision by further conversions of them
    stored: set[Atom] = set()  # the results of attention
    now = lambda atom: rounded.get(atom, atom)
    equations: list[Equation] = []
    for old in program.equations:
        if old.op is pw.astype and old.outputs[0] in stored:
            continue
        equation = old._replace(inputs=tuple(map(now, old.inputs))) if rounded else old
        if equation.op in (attention, attention_gradients):
            *before, narrowed = _narrowed(equation, producers)
            narrowed, conversions = _with_rounded_results(narrowed, readers, program.outputs)
            rounded |= conversions
            stored.update(narrowed.outputs)
            equations += [*before, narrowed]
        else:
            equations.append(with_inner(equation, attention_in_half_precision))
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations)).without_dead_code()


def _with_rounded_results(
    equation: Equation, readers: Mapping[Atom, list[Equation | None]], returned: Sequence[Atom]
) -> tuple[Equation, dict[Atom, Atom]]:
    """The attention with results in the dtype of its factors, by the conversions of results that they replace.

    Nothing changes if a result has another reader than such conversions.
    """
    dtype = equation.inputs[0].aval.dtype
    sums = equation.outputs[: equation.op.sums]
    conversions = [[each.outputs[0] for each in readers[out] if _narrows(each, dtype)] for out in sums]
    is_read_wide = any(len(found) < len(readers[out]) for found, out in zip(conversions, sums, strict=True))
    others = [atom for found in conversions for atom in found[1:]]
    if dtype not in _HALF or is_read_wide or set(others) & set(returned):
        return equation, {}
    unread = (Variable(replace(out.aval, dtype=dtype)) for out in sums)
    narrow = [found[0] if found else new for found, new in zip(conversions, unread, strict=True)]
    replaced = {other: first for first, found in zip(narrow, conversions, strict=True) for other in found[1:]}
    outputs = (*narrow, *equation.outputs[len(narrow) :])
    return equation._replace(outputs=outputs, params={**equation.params, "narrow": True}), replaced


def _narrows(equation: Equation | None, dtype: np.dtype) -> TypeGuard[Equation]:
    """Whether a reader is a conversion to this dtype."""
    return equation is not None and equation.op is pw.astype and equation.outputs[0].aval.dtype == dtype


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
    """The array in half precision that a value in float32 is converted from."""
    equation = producers.get(atom)
    if equation is None or equation.op is not pw.astype or atom.aval.dtype != dtypes.float32:
        return None
    return equation.inputs[0] if equation.inputs[0].aval.dtype in _HALF else None
