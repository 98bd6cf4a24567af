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
    return rewrite(body, (tirx.SeqStmt, _with_variables)) if find(body, AllocBuffer) else body


def _with_variables(block: tirx.SeqStmt) -> Stmt:
    """The statements of a block with variables instead of the buffers that are allocated there, where that is right."""
    statements = list(block.seq)
    for allocation in [stmt for stmt in statements if isinstance(stmt, AllocBuffer)]:
        statements = _without(allocation, statements) or statements
    if len(statements) == len(block.seq):
        return block
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _without(allocation: AllocBuffer, statements: Sequence[Stmt]) -> list[Stmt] | None:
    """The statements of a block without a buffer, or None if it has to be in memory."""
    buffer = allocation.buffer
    if not str(buffer.dtype).startswith("float"):
        return None
    known: dict[_Part, ir.Var] = {}
    result: list[Stmt] = []
    for stmt in statements:
        if stmt.same_as(allocation):
            continue
        loads = [load for load in find(stmt, ir.TensorLoad) if load.source.same_as(buffer)]
        values = [_value(load, known) for load in loads]
        if any(value is None for value in values):
            return None
        stores = [store for store in find(stmt, BufferStore) if store.buffer.same_as(buffer)]
        if stores and (part := _new_part(stmt, buffer, known)) is None:
            return None
        if loads:
            of_load = lambda load: _value(load, known) if load.source.same_as(buffer) else load
            stmt = rewrite(stmt, (ir.TensorLoad, of_load))
        if stores:
            known[part] = ir.Var(buffer.name, stmt.value.ty)
            stmt = tirx.Bind(known[part], stmt.value)
        result.append(stmt)
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
    """What is loaded, in terms of the variables; None if not all of it has been stored."""
    part = _part(load.indices)
    if part is None:
        return None
    if part in known:
        return known[part]
    end = part.begin + part.size
    inside = sorted(old for old in known if part.begin < old.begin + old.size and old.begin < end)
    lanes = {old.begin + k: place for place, (old, k) in enumerate((old, k) for old in inside for k in range(old.size))}
    wanted = [lanes.get(k) for k in range(part.begin, end)]
    if any(place is None for place in wanted):
        return None
    return tirx.Shuffle([known[old] for old in inside], [tirx.const(place, "int32") for place in wanted])
