"""Dynamic sizes as expressions of TVM and back: int32 variables in kernels, int64 variables in Relax."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from threading import Lock
from typing import Any

import tvm_ffi
from tvm import ir, te, tirx

from tvmfun.core.dims import Dim, of_polynomial
from tvmfun.core.polynomial import Name, of_atom
from tvmfun.errors import ShapeError

_VARIABLES: dict[tuple[Name, str], ir.Var] = {}
_NAME_OF: dict[ir.Var, Name] = {}
_LOCK = Lock()


def _variable(name: Name, dtype: str) -> ir.Var:
    """The one variable of a named size."""
    with _LOCK:
        if (name, dtype) not in _VARIABLES:
            _VARIABLES[name, dtype] = var = ir.Var(name.name, ir.PrimType(dtype))
            _NAME_OF[var] = name
        return _VARIABLES[name, dtype]


def of_size(size: Any, dtype: str = "int32") -> Any:
    """The expression of a size; anything but a Dim is returned unchanged.

    In float64 it is exact as long as the size is less than 2**53, also where it exceeds int32.
    """
    if not isinstance(size, Dim):
        return size
    is_float = dtype == "float64"
    total = None
    for monomial, factor in sorted(size.polynomial, key=lambda term: term[1] < 0):
        product = None if abs(factor) == 1 and monomial else tirx.const(abs(factor), dtype)
        for atom in monomial:
            if isinstance(atom, Name):
                part = tirx.Cast(dtype, _variable(atom, "int32")) if is_float else _variable(atom, dtype)
            else:
                dividend, divisor = (_constant(of_size(of_polynomial(side), dtype), dtype) for side in atom)
                part = tirx.floor(dividend / divisor) if is_float else tirx.floordiv(dividend, divisor)
            product = part if product is None else product * part
        if total is None:
            total = product if factor > 0 else product * tirx.const(-1, dtype)  # type: ignore[operator]
        else:
            total = total + product if factor > 0 else total - product  # type: ignore[reportOperatorIssue]
    return total


def _constant(value: Any, dtype: str) -> Any:
    return tirx.const(value, dtype) if isinstance(value, int) else value


def scalar(size: Any, dtype: str) -> Any:
    """A size as a scalar of any dtype in a kernel."""
    if not isinstance(size, Dim):
        return tirx.const(size, dtype)
    return of_size(size, dtype) if dtype in ("int32", "float64") else tirx.Cast(dtype, of_size(size))


def to_size(value: Any, foreign: bool = False) -> Any:
    """The size that an expression stands for; the inverse of :func:`of_size`.

    Args:
        value: the expression.
        foreign: whether variables that tvmfun did not create count as sizes.

    Raises:
        ShapeError: if it is not arithmetic on sizes.
    """
    if isinstance(value, tirx.IntImm):
        return int(value)
    if isinstance(value, ir.Var):
        name = _NAME_OF.get(value)
        if name is None and foreign:
            name = Name(value.name, 1, math.inf)
        if name is not None:
            return of_polynomial(of_atom(name))
    if isinstance(value, tirx.Cast):
        return to_size(value.value, foreign)
    operation = _OPERATIONS.get(type(value))
    if operation is None:
        raise ShapeError("Dim", "the expression is not a size", got=str(value))
    return operation(to_size(value.a, foreign), to_size(value.b, foreign))


_OPERATIONS: dict[type, Callable] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
}


def plain(value: Any) -> Any:
    """Converts TVM's value to a Python value: tuples, numbers and Dims."""
    if isinstance(value, tvm_ffi.Array | tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    return to_size(value, foreign=True) if isinstance(value, ir.Expr) else value


def dtype_name(x: ir.Expr | te.Tensor) -> str:
    """The dtype of a scalar expression or a tensor expression."""
    return str(x.dtype if isinstance(x, te.Tensor) else x.ty)


#: Where scalar expressions other than calls have their operands.
_PARTS = ("a", "b", "value", "condition", "true_value", "false_value")


def is_from_memory(x: Any) -> bool:
    """Whether a scalar expression depends on an element of an array, rather than on indices and sizes alone."""
    if isinstance(x, ir.Call):
        if x.op.same_as(ir.Op.get("te.tensor_load")):
            return _is_stored(x.args[0])
        if x.op.same_as(ir.Op.get("tirx.reinterpret")):  # found at once, without going through a chain of them
            return not isinstance(x.args[0], tirx.IntImm)
        return any(map(is_from_memory, x.args))
    if isinstance(x, ir.TensorLoad):
        return True
    return any(is_from_memory(getattr(x, part)) for part in _PARTS if isinstance(getattr(x, part, None), ir.Expr))


def _is_stored(tensor: te.Tensor) -> bool:
    return not isinstance(tensor.op, te.ComputeOp) or any(map(_is_stored, tensor.op.input_tensors))
