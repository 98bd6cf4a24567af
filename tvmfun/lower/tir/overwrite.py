"""The condition under which a result can be written over an input: loops that store each element once."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import Buffer, BufferStore, For, IfThenElse, SeqStmt, Stmt

from tvmfun.lower.tir import build
from tvmfun.lower.tir.walk import find


def writes_once(stmt: Stmt, output: Buffer, repeats: frozenset[ir.Var] = frozenset()) -> bool:
    """Whether scheduled loops store each element of an output at most once, judged by their indices.

    Overlapping tiles store some elements twice. If the output is written over an input, they would compute the second
    value from the first.

    Args:
        stmt: the scheduled loops.
        output: the buffer of the output.
        repeats: variables of enclosing loops that run more than one step.
    """
    if isinstance(stmt, SeqStmt):
        return all(writes_once(part, output, repeats) for part in stmt.seq)
    if isinstance(stmt, SBlockRealize | SBlock):
        return writes_once(stmt.block if isinstance(stmt, SBlockRealize) else stmt.body, output, repeats)
    if isinstance(stmt, For):
        is_single = isinstance(stmt.extent, tirx.IntImm) and stmt.extent.value <= 1
        return writes_once(stmt.body, output, repeats if is_single else repeats | {stmt.loop_var})
    if isinstance(stmt, IfThenElse):
        fixed = {var for var in repeats if _fixes(stmt.condition, var)}
        cases = ((stmt.then_case, repeats - fixed), (stmt.else_case, repeats))
        return all(case is None or writes_once(case, output, free) for case, free in cases)
    if isinstance(stmt, BufferStore) and stmt.buffer.same_as(output):
        # A clamped index can repeat across iterations.
        is_clamped = any(find(index, tirx.Min, tirx.Max) for index in stmt.indices if isinstance(index, ir.Expr))
        return not is_clamped and all(any(build.uses(index, var) for index in stmt.indices) for var in repeats)
    # A function that gets the address may store elements several times.
    loads = find(stmt, ir.TensorLoad) if isinstance(stmt, tirx.Evaluate) else []
    written = [*(store.buffer for store in find(stmt, BufferStore)), *(load.source for load in loads)]
    return not any(buffer.same_as(output) for buffer in written)


def _fixes(condition: ir.Expr, var: ir.Var) -> bool:
    """Whether a condition holds in a single step of a loop."""
    return isinstance(condition, tirx.EQ) and any(side.same_as(var) for side in (condition.a, condition.b))
