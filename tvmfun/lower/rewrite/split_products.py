"""Products whose factors may be rounded, as three products of bfloat16 if the processor multiplies these by tiles.

A float32 is the sum of two bfloat16, its *high* and its *low* part, with a relative error of about 2^-18. The product
of two low parts is as small as that error, and is left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm.target import Target

from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.program import Equation, Program
from tvmfun.lower.machine import Machine
from tvmfun.lower.rewrite.equations import composed, with_inner
from tvmfun.ops import pointwise as pw
from tvmfun.ops.dot import TENSORFLOAT32, dot_general

# Three products by tiles take 0.6 of the time of one in float32; the rest has to pay for splitting the operands.
# Products with 512 rows and columns gain little, and with 256 they lose: docs/decisions/0050-amx.md. The fewest
# multiplications per element of the operands.
_LEAST_REUSE = 192
# The fewest terms.
_LEAST_DEPTH = 128

# The largest number of bfloat16.
_LARGEST = 2.0**128 - 2.0**120


def split_products(program: Program, target: Target) -> Program:
    """Splits large products of rounded factors into three products, also in loops and branches.

    Args:
        program: without calls.
        target: a CPU.
    """
    return _split(program) if "amx-bf16" in Machine.of(target).features else program


def _split(program: Program) -> Program:
    equations: list[Equation] = []
    for equation in program.equations:
        equations += _parts(equation) if _is_worthwhile(equation) else [with_inner(equation, _split)]
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations))


def _is_worthwhile(equation: Equation) -> bool:
    """Whether a product may round its factors, and uses each of them often."""
    if equation.op is not dot_general or equation.params.get("precision") != TENSORFLOAT32:
        return False
    x, y = (atom.aval for atom in equation.inputs)
    (contract, _), (batch, _) = equation.params["contract"], equation.params["batch"]
    depth, batches = (max(1, dims.typical(math.prod(x.shape[axis] for axis in axes))) for axes in (contract, batch))
    rows, columns = (dims.typical(aval.size) // (depth * batches) for aval in (x, y))
    return depth >= _LEAST_DEPTH and rows * columns >= _LEAST_REUSE * (rows + columns)


def _parts(equation: Equation) -> list[Equation]:
    """The equations that compute a product by parts."""
    params = {name: value for name, value in equation.params.items() if name != "precision"}
    return composed(equation, lambda x, y: _product(x, y, **params))


def _product(x: Array, y: Array, **params: Any) -> Array:
    """The product by parts; if a factor is infinite or NaN, the product of the high parts alone."""
    (x_high, x_low), (y_high, y_low) = map(_split_factor, (x, y))
    low = pw.add(dot_general(x_high, y_low, **params), dot_general(x_low, y_high, **params))
    low = pw.where(pw.isfinite(low), low, pw.constant(0, low))
    return pw.add(dot_general(x_high, y_high, **params), low)


def _split_factor(x: Array) -> tuple[Array, Array]:
    """The high and the low part, as conversions to float32, which products read as bfloat16."""
    narrow = lambda x: pw.astype(pw.astype(x, dtype="bfloat16"), dtype="float32")
    # The largest floats would round to infinity.
    limit = pw.constant(_LARGEST, x)
    inside = pw.maximum(pw.minimum(x, limit), pw.negative(limit))
    high = narrow(pw.where(pw.isfinite(x), inside, x))
    return high, narrow(pw.subtract(x, high))
