"""Positions of extrema of rows, on CPUs: the first element that equals the extremum, which vectors find.

As one reduction, argmax compares an element with the largest one so far, and each comparison waits for the one before.
The extremum, and the smallest index of an element that equals it, are two reductions without branches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.program import Equation, Program
from tvmfun.lower.rewrite.equations import composed, with_inner
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce as reductions
from tvmfun.ops import shape as shapes

#: Rows shorter than this have too few vectors.
_SHORTEST_ROW = 32


def rewrite_arg_extrema(program: Program) -> Program:
    """Replaces argmax and argmin of rows by two reductions, also in loops and branches.

    Args:
        program: without calls.
    """
    equations: list[Equation] = []
    for equation in program.equations:
        is_rows = equation.op in _EXTREMA and _is_long(equation)
        equations += _two_reductions(equation) if is_rows else [with_inner(equation, rewrite_arg_extrema)]
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations))


def _is_long(equation: Equation) -> bool:
    aval = equation.inputs[0].aval
    if dims.is_dynamic(aval.shape) or equation.params["axis"] != aval.ndim - 1 or aval.dtype == dtypes.bool_:
        return False
    return aval.shape[-1] >= _SHORTEST_ROW and aval.size > 0


def _two_reductions(equation: Equation) -> list[Equation]:
    extremum = _EXTREMA[equation.op]

    def position(x: Array) -> Array:
        axes, size = (x.ndim - 1,), x.shape[-1]
        best = shapes.reshape(extremum(x, axis=axes), shape=(*x.shape[:-1], 1))
        is_best = x == shapes.broadcast_to(best, shape=x.shape)
        if dtypes.is_float(x.dtype):
            is_best = is_best | pw.isnan(x)  # the extremum is NaN if an element is
        index = shapes.iota(shape=x.shape, axis=x.ndim - 1, dtype="int32")
        return reductions.min(pw.where(is_best, index, np.int32(size)), axis=axes)

    return composed(equation, position)


_EXTREMA = {reductions.argmax: reductions.max, reductions.argmin: reductions.min}
