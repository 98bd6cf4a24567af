"""Vectors of neighbouring elements: which accesses are contiguous, and how wide they may be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.sym import Analyzer
from tvm.tirx import Buffer, Stmt

from tvmfun.lower.schedule.gpu.primitives import definition
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr

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


def is_constant_along(access: Access, axis: Axis) -> bool:
    """Whether an access is to one element wherever it is on the axis."""
    return not any(build.uses(index, axis.var) for index in access[1])


def call(name: str, *args: Expr, source: str = "") -> Stmt:
    """The statement that calls a device function of this name, which ``source`` or else `primitives` defines."""
    source = source or definition(name.split("<")[0])
    return tirx.Evaluate(cuda_func_call(name, *args, source_code=source))


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
    """Mentions the last element of a buffer: TVM would shrink it to the elements that it sees in use.

    Of a vector that it moves by its address, it sees the first one.
    """
    return tirx.Evaluate(address(buffer, *last))
