"""Vectors of neighbouring elements: which accesses are contiguous, and how wide they may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.sym import Analyzer
from tvm.tirx import Buffer, Stmt

from tvmfun.lower.schedule.gpu.primitives import definition
from tvmfun.lower.schedule.stage_passes import unconditional_loads
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr
from tvmfun.lower.tir.walk import called, find

#: The most bytes of one access.
VECTOR_BYTES = 16

Access = tuple[Buffer, Sequence[Expr]]


def size_of(dtype: str) -> int:
    """The bytes of an element in memory."""
    return max(1, build.bits(dtype) // 8)


def contiguous_width(access: Access, axis: Axis, domain: Sequence[Axis]) -> int:
    """The most neighbours along an axis, a power of two, that are one aligned vector wherever it starts; 0 if none are.

    Vectors start at multiples of their width along the axis.
    """
    buffer, indices = access
    if build.stride(buffer, indices, axis, domain) != 1:
        return 0
    others = [build.stride(buffer, indices, other, domain) for other in domain if other is not axis]
    start = Analyzer().simplify(
        build.substitute(build.offset(buffer, indices), {other.var: build.index(other, 0) for other in domain})
    )
    if any(not isinstance(size, int) for size in (axis.extent, *others)) or not isinstance(start, tirx.IntImm):
        return 1
    most = VECTOR_BYTES // size_of(str(buffer.dtype))
    return math.gcd(most, axis.extent, int(start), *others)


def certain_loads(value: Expr, domain: Sequence[Axis]) -> list[ir.TensorLoad]:
    """The loads in a value that are valid at all points of its axes, because no condition guards them."""
    unconditional = unconditional_loads(value)
    # On CPUs, where tests run kernels, registers of bfloat16 become float32, which has other bits.
    as_bits = [call.args[0] for call in find(value, ir.Call) if called(call) == "tirx.reinterpret"]
    extents = {axis.var: axis.extent for axis in domain}

    def exists(size: Expr, index: Expr) -> bool:
        if not isinstance(size, tirx.IntImm):
            return False
        if isinstance(index, tirx.IntImm):
            return 0 <= int(index) < int(size)
        extent = extents.get(index) if isinstance(index, ir.Var) else None
        return isinstance(extent, int) and extent <= int(size)

    def is_certain(load: ir.TensorLoad) -> bool:
        if any(load.same_as(other) for other in as_bits):
            return False
        return any(load.same_as(other) for other in unconditional) or all(map(exists, load.source.shape, load.indices))

    return [load for load in build.loads(value) if is_certain(load)]


def row_loads(value: Expr, axis: Axis, domain: Sequence[Axis]) -> list[ir.TensorLoad]:
    """The loads in a value that are of whole rows of arrays along an axis, so that aligned vectors of them exist."""

    def is_row(load: ir.TensorLoad) -> bool:
        *others, index = load.indices or (None,)
        if index is None or not axis.var.same_as(index) or str(load.source.dtype) == "bool":
            return False
        size = load.source.shape[-1]
        is_whole = isinstance(size, tirx.IntImm) and int(size) == axis.extent
        return is_whole and not any(build.uses(other, axis.var) for other in others)

    return list(filter(is_row, certain_loads(value, domain)))


def call(name: str, *args: Expr, source: str = "") -> Stmt:
    """The statement that calls a device function of this name, which ``source`` or else `primitives` defines."""
    source = source or definition(name.split("<")[0])
    return tirx.Evaluate(cuda_func_call(name, *args, source_code=source))


def copied(like: Axis, width: int, dtype: str, make: Callable[[Expr], Stmt]) -> Stmt:
    """The statements that copy a vector of ``width`` elements in parts of at most 16 bytes.

    Args:
        like: an axis of the index type.
        width: the elements, a power of two.
        dtype: their type.
        make: the statement that copies an element, given its number.
    """
    most = min(width, VECTOR_BYTES // size_of(dtype))
    parts = (build.vectorized(like, most, lambda k, first=first: make(first + k)) for first in range(0, width, most))
    return build.seq(*parts)


def move(to: Expr, source: Expr, width: int, dtype: str) -> Stmt:
    """The statement that moves ``width`` elements between memory and registers; both addresses are aligned."""
    return call(f"tvmfun_move<{width * size_of(dtype)}>", to, source)


def address(buffer: Buffer, *indices: Expr) -> Expr:
    """The address of an element."""
    return tirx.address_of(buffer[tuple(indices)])


def private(size: int, dtype: str, name: str) -> tuple[Buffer, Stmt]:
    """An array of a thread, in registers if all indices are constants, and the statements that allocate it."""
    buffer = tirx.decl_buffer((size,), dtype, name=name, scope="local")
    return buffer, allocated(buffer, size)


def allocated(buffer: Buffer, size: int) -> Stmt:
    """The allocation of a whole buffer."""
    return build.seq(tirx.AllocBuffer(buffer), whole(buffer, size - 1))


def whole(buffer: Buffer, *last: Expr | int) -> Stmt:
    """A use of a buffer's last element, without which TVM would shrink the buffer to the elements that it sees in use.

    If a vector moves by its address, TVM sees only the first element.
    """
    return tirx.Evaluate(address(buffer, *last))
