"""The calling convention of compiled functions: TVM's FFI, with addresses and sizes as arguments on the caller's stack.

A call names a symbol. In a library the linker resolves it. In memory, where LLVM modules are not linked, it is a
function of the same module that reads the callee's address from a table: see :mod:`tvmfun.lower.codegen.main_function`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import ir, tirx

from tvmfun.lower.tir.walk import called, find

#: The FFI's prefix of symbols.
SYMBOL_PREFIX = "__tvm_ffi_"
# Numbers from the FFI's C header. An argument is a structure with a kind and a value, a number or a pointer.
_C_PACKED_FUNC = 1
# The field that is the value.
_VALUE = 15
# The field that is its kind.
_KIND = 13
_CPU = 1

_ARGUMENT_BYTES = 16

#: The attribute of functions whose arguments do not share memory, which lets LLVM reorder loads and stores.
NO_ALIAS = "tirx.noalias"

# An attribute that TVM does not know makes a statement a scope: workspaces are freed at its end.
_SCOPE = "tvmfun.scope", 1

_integer = partial(tirx.IntImm, "int32")


class Stack:
    """Memory of a caller for the arguments of one call at a time, followed by a result."""

    def __init__(self) -> None:
        self._pointer = tirx.Var("stack", "handle")
        self._most = 0

    def call(self, name: str, arguments: Sequence[tirx.Expr]) -> tirx.Stmt:
        """The statement that calls a function with these addresses and integers of 64 bits."""
        count = len(arguments)
        self._most = max(self._most, count)
        slots = [tirx.tvm_struct_set(self._pointer, i, _VALUE, address) for i, address in enumerate(arguments)]
        # Functions return nothing, but the slot must not look like an object.
        slots.append(tirx.tvm_struct_set(self._pointer, count, _KIND, _integer(0)))
        null = tirx.reinterpret("handle", tirx.const(0, "uint64"))
        result = tirx.handle_add_byte_offset(self._pointer, _ARGUMENT_BYTES * count)
        status = tirx.call_extern("int32", SYMBOL_PREFIX + name, null, self._pointer, count, result)
        throw = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_throw_last_error"))
        return tirx.SeqStmt([*map(tirx.Evaluate, slots), tirx.IfThenElse(status != 0, throw, None)])

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """The statements that make the calls, after the allocation of the memory."""
        if not self._most:
            return body
        memory = tirx.call_intrin("handle", "tirx.tvm_stack_alloca", "tvm_ffi_any", self._most + 1)
        return tirx.SeqStmt([tirx.Bind(self._pointer, memory), body])


def called_functions(value: tirx.Stmt | tirx.Expr) -> list[tuple[str, int]]:
    """The names of the functions that a statement calls, with the number of arguments."""
    calls = [call for call in find(value, ir.Call) if called(call) == "tirx.call_extern"]
    symbols = [(str(call.args[0].value), call) for call in calls]
    return [
        (symbol.removeprefix(SYMBOL_PREFIX), int(call.args[3]))
        for symbol, call in symbols
        if symbol.startswith(SYMBOL_PREFIX)
    ]


def packed(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function of buffers and dynamic sizes with this calling convention.

    TVM's ``MakePackedAPI`` passes tensors, and checks the type of each one in every call. That is more code than most
    kernels have, and our callers know the types.
    """
    name = str(function.attrs["global_symbol"])
    parameters = _parameters()
    arguments = parameters[1]
    sizes, buffers = [], []
    for i, parameter in enumerate(function.params):
        if _is_size(parameter):
            number = tirx.tvm_struct_get(arguments, i, _VALUE, ir.PrimType("int64"))
            sizes.append(tirx.Bind(parameter, tirx.Cast(parameter.ty, number)))
            continue
        pointer = ir.PointerType(parameter.ty.dtype, "global")
        value = tirx.tvm_struct_get(arguments, i, _VALUE, arguments.ty)
        buffers.append(tirx.DeclBuffer(parameter, data=tirx.reinterpret(pointer, value)))
    # The body is a scope, at whose end its workspaces are freed: before the return. If its buffers share no memory, it
    # becomes a separate function, because only parameters can be marked noalias.
    scope = ("compute_scope", ir.StringImm(f"{name}_compute_")) if int(function.attrs.get(NO_ALIAS, 0)) else _SCOPE
    body = tirx.AttrStmt(0, *scope, function.body)
    body = tirx.SeqStmt([*sizes, *buffers, body, tirx.Return(_integer(0))])
    # Large buffers of the body are allocated on this device.
    body = tirx.AttrStmt("default", "device_type", _integer(_CPU), body)
    body = tirx.AttrStmt("default", "device_id", _integer(0), body)
    for declared in buffers:
        alignment = _integer(declared.buffer.ty.data_alignment)
        body = tirx.AttrStmt(declared.buffer, "storage_alignment", alignment, body)
    return _function(SYMBOL_PREFIX + name, parameters, body, function.attrs)


def has_sizes(function: tirx.PrimFunc) -> bool:
    """Whether a function of buffers takes dynamic sizes."""
    return not is_packed(function) and any(map(_is_size, function.params))


def _is_size(parameter: tirx.Var) -> bool:
    return isinstance(parameter.ty, ir.PrimType)


def is_packed(function: tirx.PrimFunc) -> bool:
    """Whether a function has this calling convention."""
    return function.attrs is not None and int(function.attrs.get("calling_conv", 0)) == _C_PACKED_FUNC


def _parameters() -> list[tirx.Var]:
    handles = [tirx.Var(name, "handle") for name in ("self_handle", "args", "result")]
    return [*handles[:2], tirx.Var("num_args", "int32"), handles[2]]


def _function(
    symbol: str, parameters: list[tirx.Var], body: tirx.Stmt, attributes: ir.DictAttrs | None
) -> tirx.PrimFunc:
    function = tirx.PrimFunc(parameters, body, ir.PrimType("int32"), attributes)
    return function.with_attrs({"calling_conv": _C_PACKED_FUNC, "global_symbol": symbol})
