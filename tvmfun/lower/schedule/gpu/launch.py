"""Launches: grids of thread blocks, and the memory and barriers that a block's threads share."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx
from tvm.tirx import Buffer, For, ForKind, IfThenElse, Stmt
from tvm.tirx.op import tvm_storage_sync

from tvmfun.core import dims
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr, Size

#: The default number of threads of a block.
THREADS = 256
WARP = 32
#: Sizes from this one on are computed in 64 bits.
_LARGE = 1 << 31


def launch(blocks: Size, threads: int, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """Loops over ``blocks`` blocks of ``threads`` threads that run ``body(block, thread)``."""
    large = not isinstance(blocks, dims.Dim) and blocks * threads >= _LARGE
    dtype = "int64" if large else "int32"
    block, thread = (ir.Var(name, ir.PrimType(dtype)) for name in ("block", "thread"))
    stmt = body(block, thread)
    for var, extent, tag in ((thread, threads, "threadIdx.x"), (block, blocks, "blockIdx.x")):
        axis = tirx.IterVar(ir.Range(0, extent), ir.Var(tag, ir.PrimType("int32")), tirx.IterVar.ThreadIndex, tag)
        stmt = For(var, 0, extent, ForKind.THREAD_BINDING, stmt, axis)
    return stmt


def over_points(count: Size, body: Callable[[Expr], Stmt], threads: int = THREADS) -> Stmt:
    """Launches a thread for each of ``count`` points, which runs ``body(point)``."""
    if isinstance(count, int):
        threads = min(threads, build.ceil_div(count, WARP) * WARP) if count > 1 else 1

    def guarded(block: Expr, thread: Expr) -> Stmt:
        point = block * threads + thread
        whole = isinstance(count, int) and count % threads == 0
        return body(point) if whole else IfThenElse(point < count, body(point), None)

    return launch(block_count(count, threads), threads, guarded)


def block_count(count: Size, per_block: int) -> Size:
    """The blocks that ``count`` points need, at least one: a grid cannot be empty."""
    if isinstance(count, int):
        return max(1, build.ceil_div(count, per_block))
    return count // per_block + 1


def registers(size: int, dtype: str, name: str) -> Buffer:
    """A buffer private to a thread, in registers if all indices are constant after unrolling."""
    return tirx.decl_buffer([size], dtype, name=name, scope="local")


def shared(shape: list[int], dtype: str, name: str) -> Buffer:
    """A buffer that the threads of a block share."""
    return tirx.decl_buffer(shape, dtype, name=name, scope="shared")


def barrier() -> Stmt:
    """A barrier: all threads of a block reach it before any goes on."""
    return tirx.Evaluate(tvm_storage_sync("shared"))
