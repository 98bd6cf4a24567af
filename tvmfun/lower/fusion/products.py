"""Products of matrices: which ones GPUs compute by tiles with fused epilogues, and which have few rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.dims import typical
from tvmfun.core.program import Atom, Equation
from tvmfun.ops.conv import conv
from tvmfun.ops.dot import dot_general
from tvmfun.ops.pointwise import astype
from tvmfun.ops.shape import broadcast_to, permute_dims, slice

# With at most this many rows, a product computes its factor while packing it, if the factor's inputs take at most
# ``_NARROW`` of its bytes. With more rows it takes so long that storing the factor does not matter.
_FEW_ROWS = 256
# The bytes of the factor's inputs, relative to those of the factor.
_NARROW = 5 / 8
# A transposed factor is stored before it is transposed, which is faster, unless vectors along the terms multiply it.
# The limits of such products: the most rows.
_TRANSPOSED_ROWS = 12
# The fewest columns.
_TRANSPOSED_COLUMNS = 128
# The fewest terms for each row.
_TERMS_OF_A_ROW = 16
# The fewest multiplications.
_LEAST_WORK = 1 << 17


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
    rows = _volume(left.aval.shape, but=(*contract[0], *batch[0]))
    if right.aval.ndim - 1 not in contract[1]:
        return rows <= _FEW_ROWS
    columns = _volume(right.aval.shape, but=(*contract[1], *batch[1]))
    terms = math.prod(right.aval.shape[axis] for axis in contract[1])
    is_wide = columns >= _TRANSPOSED_COLUMNS and rows * columns * terms >= _LEAST_WORK
    return rows <= _TRANSPOSED_ROWS and is_wide and terms >= _TERMS_OF_A_ROW * rows


def _volume(shape: Sequence[int], but: Sequence[int]) -> int:
    """The product of the sizes of all axes but some."""
    return math.prod(size for axis, size in enumerate(shape) if axis not in but)


def narrow_results(equations: Iterable[Equation]) -> set[Atom]:
    """The results of cheap operations on numbers that take much less memory, such as dequantized weights."""
    bytes_of: dict[Atom, float] = {}  # the bytes that are read for an element
    narrow, computed = set(), set()
    for equation in equations:
        op, inputs, out = equation.op, equation.inputs, equation.outputs[0]
        is_map = op.kind == "pointwise" and op.is_inexpensive(out.aval.dtype)
        size = typical(out.aval.size)
        if not (is_map or op in (broadcast_to, permute_dims, slice)) or size == 0:
            continue
        bytes_of[out] = sum(
            min(1, typical(atom.aval.size) / size) * bytes_of.get(atom, atom.aval.dtype.itemsize) for atom in inputs
        )
        # Instructions for pairs of bfloat16 read arrays of bfloat16 or of integers.
        is_stored = op is astype and dtypes.is_integer(inputs[0].aval.dtype) and inputs[0] not in computed
        is_word = out.aval.dtype.itemsize >= 4 or is_stored
        if is_map:
            computed.add(out)
        if is_word and bytes_of[out] <= _NARROW * out.aval.dtype.itemsize:
            narrow.add(out)
    return narrow
