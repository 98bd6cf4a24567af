"""A kernel's meaning as a TIR function: the records' computations, put together and not yet scheduled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.core.array import ShapeDtype
from tvmfun.core.program import Equation, Literal, Program, Variable
from tvmfun.errors import DimensionError
from tvmfun.lower.fusion.fuse import Kernel
from tvmfun.ops.pointwise import opaque, rounded_to_bfloat16
from tvmfun.ops.shape import repeated


def text(kernel: Kernel) -> str:
    """The kernel as text, the same for kernels that compute the same."""
    outputs = kernel.outputs
    body = Program(
        tuple(a if isinstance(a, Variable) else Variable(a.aval) for a in kernel.inputs),
        kernel.equations,
        outputs,
        None,  # type: ignore[arg-type]  # a kernel has no trees
        None,  # type: ignore[arg-type]
    )
    return body.text


def constant(value: np.generic) -> tirx.Expr:
    """A scalar expression with the value of a NumPy scalar."""
    name = dtypes.NAMES[value.dtype]
    if name == "bool":
        return tirx.const(bool(value), "bool")
    if name in ("int64", "uint64") and value != 0:
        return opaque(int(value), name)
    if dtypes.is_integer(value.dtype):
        return tirx.const(int(value), name)
    if name == "bfloat16":  # a constant of its own cannot be repeated along a vector
        return tirx.Cast(name, constant(np.float32(value)))
    if value == 0:
        return opaque(float(value), name)
    return tirx.const(float(value), name)


def prim_func(kernel: Kernel) -> tirx.PrimFunc:
    """The kernel as a function that takes the inputs and the dynamic sizes, and writes the outputs."""
    function = _function(kernel)
    if not kernel.sizes:
        return function
    inputs, outputs = function.params[: len(kernel.inputs)], function.params[len(kernel.inputs) :]
    params = [*inputs, *map(expressions.of_size, kernel.sizes), *outputs]
    return tirx.PrimFunc(params, function.body, function.ret_type, function.attrs)


def _function(kernel: Kernel) -> tirx.PrimFunc:
    first = kernel.equations[0]
    if first.op.kind == "opaque":
        return _applied(first, [atom.aval for atom in first.inputs])
    tensors: dict[Variable, te.Tensor] = {
        a: te.placeholder(a.aval.shape, dtypes.NAMES[a.aval.dtype], name=f"x{i}") for i, a in enumerate(kernel.inputs)
    }
    for equation in kernel.equations:
        formula = rounded_to_bfloat16 if _is_rounded_here(equation, kernel) else None
        tensors[equation.outputs[0]] = _compute(equation, tensors, formula)
    return te.create_prim_func([tensors[v] for v in (*kernel.inputs, *kernel.outputs)])


def _is_rounded_here(equation: Equation, kernel: Kernel) -> bool:
    """Whether the user asked for bfloat16, and not only products read it: these round what they pack."""
    if equation.op.name != "astype" or equation.params["dtype"] != "bfloat16":
        return False
    if equation.inputs[0].aval.dtype.itemsize == 1:  # bfloat16 has bools and integers of 8 bits
        return False
    readers = [other for other in kernel.equations if equation.outputs[0] in other.inputs]
    return not readers or any(other.op.kind != "contraction" for other in readers)


def _compute(equation: Equation, tensors: dict[Variable, te.Tensor], formula: Callable[[Any], Any] | None) -> te.Tensor:
    """The result of an equation; ``formula`` takes the place of the op's own."""
    op, params, out = equation.op, equation.params, equation.outputs[0].aval
    arguments = [constant(a.value) if isinstance(a, Literal) else tensors[a] for a in equation.inputs]
    if op.kind == "pointwise":
        return _pointwise(formula or op.compute, arguments, {} if formula else params, out, op.name)
    return _applied(equation, [a if isinstance(a, te.Tensor) else _filled(a) for a in arguments])


def _applied(equation: Equation, arguments: list) -> Any:
    """The computation of an equation."""
    try:
        return equation.op.compute(*arguments, **equation.params)
    except DimensionError as error:
        raise dims.blame_op(error, equation.op.name, equation.source) from None


def _filled(scalar: tirx.Expr) -> te.Tensor:
    return te.compute((), lambda: scalar)


def _pointwise(formula: Callable, arguments: list, params: dict[str, Any], out: ShapeDtype, name: str) -> te.Tensor:
    def element(*indices: tirx.Var) -> tirx.Expr:
        values = (repeated(a, out.shape, indices) if isinstance(a, te.Tensor) else a for a in arguments)
        return formula(*values, **params)

    return te.compute(out.shape, element, name=name)
