"""Host functions as records: launches of kernels, loops and branches around them, and numbers that they write."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, tirx
from tvm.sym import Analyzer, detect_linear_equation

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.dims import Dim
from tvmfun.core.expressions import of_size, to_size
from tvmfun.errors import ShapeError, TargetError
from tvmfun.lower.codegen.cuda.cubins import KernelSource
from tvmfun.lower.tir.build import substitute
from tvmfun.lower.tir.walk import called, find, rewrite
from tvmfun.runtime.cuda_module import Branch, Copy, Launch, Repeat, Scalar, Step, While, bytes_of
from tvmfun.runtime.formulas import Formula
from tvmfun.runtime.plan import Address

#: The slot of the constants until the memory plan decides how many slots come before.
CONSTANTS = -1

# The launch parameter that is not a number of threads: the bytes of dynamic shared memory.
_SHARED_BYTES = "tirx.use_dyn_shared_memory"
_KINDS = ("blockIdx", "threadIdx", "clusterCtaIdx")

# Numbers that host functions write are read from a table of constants, aligned for any dtype.
_CONSTANT_BYTES = 16


def workspace_bytes(function: tirx.PrimFunc, arguments: Sequence[Any]) -> list[Formula]:
    """The bytes of each buffer that a host function allocates, for a call with these arguments.

    Args:
        function: the function.
        arguments: slots, or addresses, and dynamic sizes.
    """
    sizes = _sizes(function, arguments)
    return [_bytes_of(buffer, sizes) for buffer in _workspaces(function)]


def _workspaces(function: tirx.PrimFunc) -> list[ir.Var]:
    """The buffers that a host function allocates."""
    return [allocation.buffer for allocation in find(function.body, tirx.AllocBuffer)]


def _sizes(function: tirx.PrimFunc, arguments: Sequence[Any]) -> dict[ir.Var, ir.Expr]:
    """The expressions of parameters that are dynamic sizes."""
    given = zip(function.params, arguments, strict=False)
    return {parameter: of_size(value) for parameter, value in given if isinstance(value, Dim)}


def _bytes_of(buffer: ir.Var, sizes: Mapping[ir.Var, ir.Expr]) -> Formula:
    item = tirx.const(bytes_of(str(buffer.dtype)), "int64")
    number = formula(Analyzer().simplify(math.prod((substitute(size, sizes) for size in buffer.shape), start=item)))
    if number is None:
        raise _unknown(buffer)
    return number


class Constants:
    """A table of constants in the device's memory, which has the slot :data:`CONSTANTS`."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, int] = {}
        self.content = bytearray()

    def address(self, value: bytes) -> Address:
        """The address of a constant."""
        if value not in self._offsets:
            self._offsets[value] = len(self.content)
            self.content += value.ljust(_CONSTANT_BYTES, b"\0")
        return Address(CONSTANTS, self._offsets[value])

    def copy(self, target: Address, value: bytes) -> Copy:
        """The step that writes a constant to an address."""
        return Copy(target, self.address(value), len(value))


class _NotAffineError(Exception):
    """An expression that is not affine in the indices of loops, so the loops have to be unrolled."""


class HostFunction:
    """Reads a host function for one call of it.

    Args:
        function: the function.
        arguments: its arguments, which are addresses and dynamic sizes, and the addresses of its workspaces.
        texts: its kernels.
        constants: the table to which constants are added.
    """

    def __init__(
        self,
        function: tirx.PrimFunc,
        arguments: Sequence[Address | Dim],
        texts: Mapping[str, KernelSource],
        constants: Constants,
    ) -> None:
        self._function = function
        given = zip([*function.params, *_workspaces(function)], arguments, strict=True)
        self._addresses: dict[ir.Var, Address] = {var: value for var, value in given if isinstance(value, Address)}
        self._values: dict[ir.Var, ir.Expr] = _sizes(function, arguments)
        self._indices: list[ir.Var] = []  # of the enclosing loops that are not unrolled
        self._texts = texts
        self._constants = constants
        self._analyzer = Analyzer()

    def steps(self) -> list[Step]:
        """The steps of the function."""
        return self._read(self._function.body)

    def _read(self, node: tirx.Stmt) -> list[Step]:
        if isinstance(node, tirx.SeqStmt):
            return [step for part in node.seq for step in self._read(part)]
        if isinstance(node, tirx.DeclBuffer):
            self._addresses[node.buffer] = self._address(node.data)
            return []
        if isinstance(node, tirx.AllocBuffer):
            return []
        if isinstance(node, tirx.Bind):
            self._values[node.var] = self._value(node.value)
            return []
        if isinstance(node, tirx.AttrStmt):
            return self._read(node.body)
        if isinstance(node, tirx.For):
            return self._loop(node)
        if isinstance(node, tirx.While):
            return [While(self._loaded(node.condition), tuple(self._read(node.body)))]
        if isinstance(node, tirx.IfThenElse):
            return self._branch(node)
        if isinstance(node, tirx.BufferStore):
            return [self._store(node)]
        if isinstance(node, tirx.Evaluate):
            return self._launch(node.value)
        raise _unknown(node)

    def _branch(self, node: tirx.IfThenElse) -> list[Step]:
        """One of two statements, or one of several that a number in the device's memory selects."""
        if not find(node.condition, ir.TensorLoad):
            case = node.then_case if self._constant(node.condition) else node.else_case
            return [] if case is None else self._read(case)
        (load, *_) = find(node.condition, ir.TensorLoad)
        index = self._loaded(load)
        bounds = {int(bound) for test in self._tests(node, index) for bound in find(test, tirx.IntImm)}
        if bounds and min(bounds) < 0:
            raise _unknown(node.condition)
        cases = [tuple(self._case(node, index, value)) for value in range(max(bounds, default=0) + 2)]
        while len(cases) > 2 and cases[-1] == cases[-2]:
            cases.pop()
        return [Branch(index, "int32" if str(load.ty) == "int32" else "bool", tuple(cases))]

    def _tests(self, node: tirx.Stmt | None, index: Address) -> Iterator[ir.Expr]:
        """The conditions on a number that follow each other without a step in between."""
        if self._is_test(node, index):
            yield node.condition
            yield from self._tests(node.then_case, index)
            yield from self._tests(node.else_case, index)

    def _is_test(self, node: tirx.Stmt | None, index: Address) -> bool:
        if not isinstance(node, tirx.IfThenElse):
            return False
        loads = find(node.condition, ir.TensorLoad)
        return bool(loads) and all(self._loaded(load) == index for load in loads)

    def _case(self, node: tirx.Stmt | None, index: Address, value: int) -> list[Step]:
        """The steps for one value of a number on which the first conditions depend."""
        while self._is_test(node, index):
            number = lambda load: tirx.const(value, str(load.ty))
            chosen = self._constant(rewrite(node.condition, (ir.TensorLoad, number)))
            node = node.then_case if chosen else node.else_case
        return [] if node is None else self._read(node)

    def _loaded(self, value: ir.Expr) -> Address:
        """The address of a number in the device's memory; a bool is a byte."""
        while isinstance(value, tirx.Cast):
            value = value.value
        if not isinstance(value, ir.TensorLoad):
            raise _unknown(value)
        return self._element(value.source, value.indices)

    def _element(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> Address:
        """The address of an element of a buffer."""
        position = 0
        for index, size in zip(indices, buffer.shape, strict=True):
            position = position * self._constant(size) + self._constant(index)
        address = self._addresses[buffer]
        return Address(address.slot, address.offset + position * bytes_of(str(buffer.dtype)))

    def _loop(self, node: tirx.For) -> list[Step]:
        """A loop as one record; unrolled if something in it is not affine in its index."""
        count, first = self._number(node.extent), self._constant(node.min)
        if isinstance(count, str) or count > 1:
            values = dict(self._values)
            self._indices.append(node.loop_var)
            try:
                self._values[node.loop_var] = node.loop_var + first
                return [Repeat(count, tuple(self._read(node.body)))]
            except _NotAffineError:
                self._values = values
            finally:
                self._indices.pop()
        if isinstance(count, str):  # it cannot be unrolled
            raise _NotAffineError if self._indices else _unknown(node.extent)
        steps = []
        for i in range(first, first + count):
            self._values[node.loop_var] = tirx.const(i, str(node.loop_var.ty))
            steps += self._read(node.body)
        return steps

    def _launch(self, call: ir.Expr) -> list[Step]:
        if isinstance(call, tirx.IntImm):
            return []
        if called(call) != "tirx.call_ffi_kernel":
            raise _unknown(call)
        tags = list(map(str, call.attrs.launch_params))
        end = len(call.args) - len(tags)
        extents = {tag: self._number(value) for tag, value in zip(tags, call.args[end:], strict=True)}
        grid, block, cluster = (tuple(extents.pop(f"{kind}.{axis}", 1) for axis in "xyz") for kind in _KINDS)
        shared = extents.pop(_SHARED_BYTES, 0)
        if extents:
            raise _unknown(call)
        source = self._texts[call.args[0].value]
        arguments = list(map(self._argument, call.args[1:end]))
        for i, tensor in source.maps:
            base = arguments[i]
            assert isinstance(base, Address)
            arguments[i] = tensor._replace(address=base._replace(offset=base.offset + tensor.address.offset))
        return [Launch(source.name, grid, block, shared, tuple(arguments), cluster)]

    def _argument(self, value: ir.Expr) -> Address | Scalar:
        return self._address(value) if called(value) == "tirx.buffer_data" else self._scalar(value)

    def _scalar(self, value: ir.Expr) -> Scalar:
        """A number that is affine in the indices of the enclosing loops."""
        value, dtype = self._value(value), str(value.ty)
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            return Scalar(dtype, int.from_bytes(_packed(value, dtype), "little"))
        if not dtype.startswith(("int", "uint")):
            raise _NotAffineError
        terms = detect_linear_equation(value, self._indices)
        numbers = [formula(self._analyzer.simplify(term)) for term in terms]
        if not numbers or None in numbers:
            raise _NotAffineError
        *strides, first = numbers
        bits = first % (1 << tvm.DataType(dtype).bits) if isinstance(first, int) else first
        return Scalar(dtype, bits, tuple(strides))

    def _store(self, node: tirx.BufferStore) -> Step:
        """A number that the host writes to the device's memory."""
        dtype = str(node.buffer.dtype)
        value = self._value(node.value)
        if not isinstance(value, tirx.IntImm | tirx.FloatImm):
            raise _NotAffineError if self._indices else _unknown(node)
        return self._constants.copy(self._element(node.buffer, node.indices), _packed(value, dtype))

    def _address(self, data: ir.Expr) -> Address:
        """The address that a pointer to a buffer has."""
        if called(data) != "tirx.buffer_data":
            raise _unknown(data)
        return self._addresses[data.args[0]]

    def _value(self, value: ir.Expr) -> ir.Expr:
        """An expression of the indices of the enclosing loops."""
        return self._analyzer.simplify(substitute(value, self._values))

    def _number(self, value: ir.Expr) -> Formula:
        """The integer that an expression is, or its formula of dynamic sizes."""
        number = formula(self._value(value))
        if number is None:
            raise _NotAffineError if self._indices else _unknown(value)
        return number

    def _constant(self, value: ir.Expr) -> int:
        value = self._value(value)
        if isinstance(value, tirx.IntImm):
            return int(value)
        raise _NotAffineError if self._indices else _unknown(value)


def _unknown(node: Any) -> TargetError:
    got = str(node).strip().splitlines()[-1]
    return TargetError("compile", "the host of a GPU can only launch kernels and count steps", got=got)


def formula(value: ir.Expr) -> Formula | None:
    """The formula of an integer expression of dynamic sizes; None if it has none."""
    if isinstance(value, tirx.IntImm):
        return int(value)
    if isinstance(value, ir.Var):
        try:
            return dims.postfix(to_size(value))
        except ShapeError:
            return None
    if isinstance(value, tirx.Cast) and str(value.ty).startswith("int"):
        return formula(value.value)
    if called(value) == "tirx.reinterpret" and called(value.args[0]) == "tirx.reinterpret":
        inner = value.args[0].args[0]
        return formula(inner) if inner.ty == value.ty else None
    if not isinstance(value, tuple(_FORMULAS)):
        return None
    left, right = formula(value.a), formula(value.b)
    return None if left is None or right is None else _FORMULAS[type(value)].format(left, right)


_FORMULAS = {
    tirx.Add: "{0} {1} +",
    tirx.Sub: "{0} {1} -1 * +",
    tirx.Mul: "{0} {1} *",
    tirx.FloorDiv: "{0} {1} //",
    tirx.FloorMod: "{0} {0} {1} // {1} * -1 * +",
    tirx.Min: "{0} {1} <",
    tirx.Max: "{0} {1} >",
}


def _packed(value: ir.Expr, dtype: str) -> bytes:
    """The bytes of a number of a dtype."""
    number = int(value) if isinstance(value, tirx.IntImm) else float(value)
    return np.asarray(number).astype(dtypes.canonical(dtype)).tobytes()
