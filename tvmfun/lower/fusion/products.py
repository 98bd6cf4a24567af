"""Products of matrices: those that GPUs compute by tiles with what is fused to them, and those of a single row."""

from __future__ import annotations

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.dims import typical
from tvmfun.core.program import Atom, Equation
from tvmfun.ops.conv import conv
from tvmfun.ops.dot import dot_general


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
