"""Products of matrices, which GPUs compute by tiles with whatever is fused to their results."""

from __future__ import annotations

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.dims import typical
from tvmfun.core.program import Equation
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
