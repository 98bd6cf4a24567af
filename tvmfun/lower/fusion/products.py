"""Products of matrices: those that GPUs compute by tiles with what is fused to them, and those of few rows."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.dims import typical
from tvmfun.core.program import Atom, Equation
from tvmfun.ops.conv import conv
from tvmfun.ops.dot import dot_general
from tvmfun.ops.pointwise import astype
from tvmfun.ops.shape import broadcast_to, permute_dims, slice

# Products of at most so many rows compute a factor while they pack it, if it is computed from numbers that take at most
# this share of its memory. With more rows they take so long that storing it does not matter. Transposed factors are
# faster to transpose once they are stored, unless they need not be: docs/decisions/0018-narrow-dot-products.md.
_FEW_ROWS, _FEW_ROWS_OF_TRANSPOSED, _NARROW = 256, 12, 5 / 8


def is_product(equation: Equation) -> bool:
    """Whether the equation is a product of matrices of floats, of static sizes, with rows and columns.

    Convolutions without groups are such products.
    """
    if equation.op not in (dot_general, conv) or dims.is_dynamic(tuple(a.aval.shape for a in equation.inputs)):
        return False
    aval = equation.outputs[0].aval
    if equation.op is conv:
        has_free = equation.params["groups"] == 1
    else:
        shared, contracted = (len(equation.params[name][0]) for name in ("batch", "contract"))
        has_free = all(atom.aval.ndim > shared + contracted for atom in equation.inputs)
    return has_free and dtypes.is_float(aval.dtype) and aval.dtype.itemsize <= 4 and typical(aval.size) > 0


def has_one_row(equation: Equation, factor: Atom) -> bool:
    """Whether an equation multiplies a factor by a single row, so that it reads each element once."""
    if equation.op is not dot_general or equation.inputs.count(factor) != 1:
        return False
    side = 1 - equation.inputs.index(factor)
    contract, batch = equation.params["contract"][side], equation.params["batch"][side]
    shape = equation.inputs[side].aval.shape
    return all(size == 1 for axis, size in enumerate(shape) if axis not in (*contract, *batch))


def may_pack(equation: Equation, factor: Atom) -> bool:
    """Whether an equation multiplies few rows by a matrix, which thus takes about as long to pack as to multiply."""
    if equation.op is not dot_general or equation.inputs.count(factor) != 1 or equation.inputs[1] is not factor:
        return False
    (left, right), (contract, batch) = equation.inputs, (equation.params[name] for name in ("contract", "batch"))
    if dims.is_dynamic((left.aval.shape, right.aval.shape)) or len(contract[1]) + len(batch[1]) == right.aval.ndim:
        return False
    free = (size for axis, size in enumerate(left.aval.shape) if axis not in (*contract[0], *batch[0]))
    is_transposed = right.aval.ndim - 1 in contract[1]
    return math.prod(free) <= (_FEW_ROWS_OF_TRANSPOSED if is_transposed else _FEW_ROWS)


def narrow_results(equations: Iterable[Equation]) -> set[Atom]:
    """The results of cheap operations on numbers that take much less memory, such as dequantized weights."""
    bytes_of: dict[Atom, float] = {}  # what is read for an element
    narrow = set()
    for equation in equations:
        op, inputs, out = equation.op, equation.inputs, equation.outputs[0]
        is_map = op.kind == "pointwise" and op.is_inexpensive(out.aval.dtype)
        if not (is_map or op in (broadcast_to, permute_dims, slice)) or typical(out.aval.size) == 0:
            continue
        share = lambda atom: min(1, typical(atom.aval.size) / typical(out.aval.size))  # noqa: B023
        bytes_of[out] = sum(share(atom) * bytes_of.get(atom, atom.aval.dtype.itemsize) for atom in inputs)
        # Instructions for pairs of bfloat16 read what is stored as bfloat16, and integers.
        is_word = out.aval.dtype.itemsize >= 4 or (op is astype and not dtypes.is_float(inputs[0].aval.dtype))
        if is_word and bytes_of[out] <= _NARROW * out.aval.dtype.itemsize:
            narrow.add(out)
    return narrow
