"""Programs as Relax functions: the spellings of ops, types, constants and parameters.

The inverse is in ``interop/relax/reader.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import _ffi_api as _ir_ffi

from tvmfun import dtypes
from tvmfun.core import expressions
from tvmfun.core.array import ShapeDtype
from tvmfun.core.expressions import plain
from tvmfun.core.op import REGISTRY, Op
from tvmfun.core.program import Atom, Literal, Program, Variable, variable_names
from tvmfun.errors import ProgramError

# -- spellings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spelling:
    """The spelling of an op in Relax: the operator's name and the layout of its arguments.

    Args:
        name: the Relax operator, e.g. ``"relax.sum"``.
        write: ``(exprs, params) -> call``.
        read: ``call -> (exprs, params)``, its inverse; None for a call of the operator that the op does not describe.
    """

    name: str
    write: Callable[[Sequence[relax.Expr], dict], relax.Call]
    read: Callable[[relax.Call], tuple[list[relax.Expr], dict] | None]


def relax_spelling(name: str, function: Callable[..., relax.Expr], *attrs: str) -> Spelling:
    """The spelling of a Relax operator whose parameters are exactly its attributes ``attrs``."""

    def write(exprs: Sequence[relax.Expr], params: dict) -> relax.Call:
        return function(*exprs, **params)

    def read(call: relax.Call) -> tuple[list[relax.Expr], dict]:
        return list(call.args), {key: plain(getattr(call.attrs, key)) for key in attrs}

    return Spelling(name, write, read)


def spelling_of(op: Op) -> Spelling:
    """The spelling of an op; by default an operator ``tvmfun.<name>`` with the parameters as attributes."""
    if op.spelling is not None:
        return op.spelling

    def write(exprs: Sequence[relax.Expr], params: dict) -> relax.Call:
        attrs = {key: _attribute(value) for key, value in params.items()}
        attrs = tvm.ir.make_node("ir.DictAttrs", **attrs) if attrs else None
        return relax.Call(_operator(op), list(exprs), attrs)

    return Spelling(_PREFIX + op.name, write, _read_attributes)


def op_of(call: relax.Call) -> Op | None:
    """The record of the operator that a Relax call applies, or None."""
    name = getattr(call.op, "name", "")
    if name.startswith(_PREFIX):
        return REGISTRY.get(name.removeprefix(_PREFIX))
    return next((op for op in REGISTRY.values() if op.spelling is not None and op.spelling.name == name), None)


def _read_attributes(call: relax.Call) -> tuple[list[relax.Expr], dict]:
    attrs = call.attrs
    return list(call.args), {key: _parameter(attrs[key]) for key in attrs.keys()} if attrs else {}  # noqa: SIM118


def _attribute(value: Any) -> Any:
    """A parameter as a TVM attribute: Programs as Relax functions."""
    if isinstance(value, tuple):
        return tuple(map(_attribute, value))
    return value.function if isinstance(value, Program) else value


def _parameter(value: Any) -> Any:
    """The inverse of :func:`_attribute`."""
    if isinstance(value, relax.Function):
        return Program.from_relax(value)
    if isinstance(value, tvm_ffi.Array | tuple | list):
        return tuple(map(_parameter, value))
    return plain(value)


_PREFIX = "tvmfun."
_LOCK = Lock()
# The record of each operator that has been registered.
_REGISTERED: dict[str, Op] = {}


def _operator(op: Op) -> tvm.ir.Op:
    """TVM's operator for an op that Relax does not have, registered when it is first written."""
    name = _PREFIX + op.name
    with _LOCK:
        if name not in _REGISTERED:
            _register(name)
        _REGISTERED[name] = op
    return tvm.ir.Op.get(name)


def _register(name: str) -> None:
    # TVM's private registration call, because `tvm.ir.register_op_attr` cannot create an operator.
    _ir_ffi.RegisterOp(name, f"tvmfun op {name.removeprefix(_PREFIX)}")
    operator = tvm.ir.Op.get(name)
    operator.set_num_inputs(-1)
    operator.set_attr("FPurity", True)

    def infer(call: relax.Call, builder: relax.BlockBuilder) -> relax.Type:
        exprs, params = _read_attributes(call)
        return result_type(_REGISTERED[name].shape(*(aval_of_type(e.ty) for e in exprs), **params))

    operator.set_attr("FInferType", infer)


# -- types and values ------------------------------------------------------------------------------------------------


def in_relax(params: Any) -> Any:
    """Replaces dynamic sizes in parameters by Relax's expressions."""
    if isinstance(params, dict):
        return {name: in_relax(value) for name, value in params.items()}
    return tuple(map(in_relax, params)) if isinstance(params, tuple) else expressions.of_size(params, "int64")


def tensor_type(aval: ShapeDtype) -> relax.TensorType:
    """The Relax type of an array."""
    return relax.TensorType(in_relax(aval.shape), dtypes.NAMES[aval.dtype])


def result_type(avals: ShapeDtype | tuple[ShapeDtype, ...]) -> relax.Type:
    """The Relax type of the result of an op; a single result has no tuple type."""
    if isinstance(avals, tuple) and len(avals) != 1:
        return relax.TupleType([tensor_type(a) for a in avals])
    return tensor_type(avals[0] if isinstance(avals, tuple) else avals)


def aval_of_type(ty: relax.Type) -> ShapeDtype:
    """The shape and dtype of a Relax type."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        raise ProgramError("Program", "only tensors of known shape can be traced", got=str(ty))
    return ShapeDtype(tuple(plain(size) for size in ty.shape.values), str(ty.dtype.dtype))


def relax_constant(value: np.generic | np.ndarray) -> relax.Expr:
    """A Relax constant with the bits of ``value``."""
    return relax.const(tvm.runtime.tensor(np.asarray(value)), dtypes.NAMES[value.dtype])


def set_type(expr: relax.Expr, ty: relax.Type) -> None:
    """Gives an expression a type if it has none."""
    if expr.ty.is_missing():
        relax.expr._update_type(expr, ty)


# -- Programs --------------------------------------------------------------------------------------------------------


def to_relax(program: Program) -> relax.Function:
    """A Program as a Relax function that takes the inputs and returns the tuple of outputs."""
    env: dict[Variable, relax.Expr] = {}
    names = variable_names(program.sizes)
    for variable in program.inputs:
        env[variable] = relax.Var(next(names), tensor_type(variable.aval))
    parameters = list(env.values())
    results = set(program.outputs)

    def expr(atom: Atom) -> relax.Expr:
        return relax_constant(atom.value) if isinstance(atom, Literal) else env[atom]

    bindings = []

    def bind(value: relax.Expr, ty: relax.Type, kind: type = relax.DataflowVar) -> relax.Var:
        set_type(value, ty)
        var = kind(next(names), ty)
        bindings.append(relax.VarBinding(var, value))
        return var

    for equation in program.equations:
        call = spelling_of(equation.op).write([expr(atom) for atom in equation.inputs], in_relax(equation.params))
        kinds = [relax.Var if out in results else relax.DataflowVar for out in equation.outputs]
        types = [tensor_type(out.aval) for out in equation.outputs]
        if len(types) == 1:
            env[equation.outputs[0]] = bind(call, types[0], kinds[0])
            continue
        packed = bind(call, relax.TupleType(types))
        for i, (out, ty, kind) in enumerate(zip(equation.outputs, types, kinds, strict=True)):
            env[out] = bind(relax.TupleGetItem(packed, i), ty, kind)
    body = relax.Tuple([expr(atom) for atom in program.outputs])
    sequence = relax.SeqExpr([relax.DataflowBlock(bindings)] if bindings else [], body)
    set_type(sequence, body.ty)
    return relax.Function(parameters, sequence, body.ty).with_attr("global_symbol", "main")


def to_module(program: Program) -> tvm.IRModule:
    """An IRModule whose ``main`` is a Program."""
    return tvm.IRModule({"main": program.function})


def check_well_formed(program: Program) -> None:
    """Raises a ``ProgramError`` that quotes TVM's complaint unless the Relax view of a Program is well formed."""
    complaint = ""
    try:
        if relax.analysis.well_formed(program.module) is not False:
            return
    except tvm.error.InternalError as error:
        complaint = str(error)
    raise ProgramError("Program.verify", "the Relax function is not well formed", got=complaint)
