"""Variables for vectors that are kept in buffers between a few statements.

LLVM's optimizer makes registers of such buffers. Without it they are on the stack, where a vector that crosses a cache
line, or is read in other parts than it was written in, takes some hundred cycles until it can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.walk import find, rewrite


class _Part(NamedTuple):
    """Neighbouring elements of a buffer: the first one, and how many."""

    begin: int
    size: int


def keep_vectors(body: Stmt) -> Stmt:
    """Returns the statement with variables instead of buffers of floats of which each vector is stored once."""
    private = [stmt.buffer for stmt in find(body, AllocBuffer) if str(stmt.buffer.dtype).startswith("float")]
    accesses = [*find(body, ir.TensorLoad), *find(body, BufferStore)] if private else []
    # Elements at other indices, also those whose addresses are taken, have to be in memory.
    fixed = {_buffer_of(access) for access in accesses if _part(access.indices) is None}
    found = {buffer for buffer in private if buffer not in fixed}
    return rewrite(body, (tirx.SeqStmt, lambda block: _with_variables(block, found))) if found else body


def _buffer_of(access: ir.TensorLoad | BufferStore) -> Buffer:
    return access.buffer if isinstance(access, BufferStore) else access.source


def _with_variables(block: tirx.SeqStmt, found: set[Buffer]) -> Stmt:
    """The statements of a block with variables instead of those buffers that it allocates, where that is right."""
    before = list(block.seq)
    allocations = [stmt for stmt in before if isinstance(stmt, AllocBuffer) and stmt.buffer in found]
    if not allocations:
        return block
    # Each statement with the buffers that it reads or writes.
    uses = [{_buffer_of(access) for kind in (ir.TensorLoad, BufferStore) for access in find(s, kind)} for s in before]
    statements = list(zip(before, uses, strict=True))
    for allocation in allocations:
        statements = _without(allocation, statements) or statements
    if len(statements) == len(before):
        return block
    return statements[0][0] if len(statements) == 1 else tirx.SeqStmt([stmt for stmt, _ in statements])


def _without(
    allocation: AllocBuffer, statements: Sequence[tuple[Stmt, set[Buffer]]]
) -> list[tuple[Stmt, set[Buffer]]] | None:
    """The statements of a block without a buffer, or None if it has to be in memory."""
    buffer = allocation.buffer
    known: dict[_Part, ir.Var] = {}
    result: list[tuple[Stmt, set[Buffer]]] = []
    for stmt, uses in statements:
        if stmt.same_as(allocation):
            continue
        if buffer in uses:
            loads = [load for load in find(stmt, ir.TensorLoad) if load.source.same_as(buffer)]
            if any(_value(load, known) is None for load in loads):
                return None
            stores = any(store.buffer.same_as(buffer) for store in find(stmt, BufferStore))
            if stores and (part := _new_part(stmt, buffer, known)) is None:
                return None
            if loads:
                of_load = lambda load: _value(load, known) if load.source.same_as(buffer) else load
                stmt = rewrite(stmt, (ir.TensorLoad, of_load))
            if stores:
                known[part] = ir.Var(buffer.name, stmt.value.ty)
                stmt = tirx.Bind(known[part], stmt.value)
        result.append((stmt, uses))
    return result


def _new_part(stmt: Stmt, buffer: Buffer, known: dict[_Part, ir.Var]) -> _Part | None:
    """The part of a buffer that a statement of its block stores, if none of it has been stored before."""
    if not isinstance(stmt, BufferStore) or not stmt.buffer.same_as(buffer):
        return None
    part = _part(stmt.indices)
    if part is None or any(part.begin < old.begin + old.size and old.begin < part.begin + part.size for old in known):
        return None
    return part


def _part(indices: Sequence[Expr]) -> _Part | None:
    """The part of a buffer at a vector of indices, if that is known."""
    if len(indices) != 1 or not isinstance(indices[0], tirx.Ramp):
        return None
    base, stride, lanes = indices[0].base, indices[0].stride, indices[0].lanes
    is_known = all(isinstance(value, (int, tirx.IntImm)) for value in (base, stride, lanes)) and int(stride) == 1
    return _Part(int(base), int(lanes)) if is_known else None


def _value(load: ir.TensorLoad, known: dict[_Part, ir.Var]) -> Expr | None:
    """The loaded vector in terms of the variables; None if not all of it has been stored."""
    part = _part(load.indices)
    if part is None:
        return None
    if part in known:
        return known[part]
    end = part.begin + part.size
    inside = sorted(old for old in known if part.begin < old.begin + old.size and old.begin < end)
    # The lanes of all these variables, by the index of the element.
    lanes = {index: lane for lane, index in enumerate(old.begin + k for old in inside for k in range(old.size))}
    wanted = [lanes.get(index) for index in range(part.begin, end)]
    if any(lane is None for lane in wanted):
        return None
    return tirx.Shuffle([known[old] for old in inside], [tirx.const(lane, "int32") for lane in wanted])
