"""Workspaces: memory that kernels allocate while they run, for packed panels, padded images and partial sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core.expressions import to_size
from tvmfun.errors import ShapeError
from tvmfun.lower.tir.build import LAUNCH_POINT, is_on_stack
from tvmfun.lower.tir.calling_convention import called_functions
from tvmfun.lower.tir.walk import find
from tvmfun.runtime.workspaces import Allocation

_ALLOCATE = "tirx.TVMBackendAllocWorkspace"


# An allocation, whose bytes are a Dim where sizes are dynamic, a free, or ``(name, threads)`` for the call of a kernel.
Event = tuple[Any, int] | None


def expanded(events: Mapping[str, Sequence[Event]], name: str, at_work: int = 1) -> Iterator[Allocation]:
    """Lists the allocations and frees of a kernel and its callees, in order.

    Args:
        events: the events of each kernel, by name.
        name: the name of the kernel.
        at_work: the number of threads that run it at the same time.
    """
    for event in events.get(name, ()):
        if event is None:
            yield None
            continue
        what, threads = event[0], max(event[1], at_work)
        if isinstance(what, str):
            yield from expanded(events, what, threads)
        else:
            yield what, threads


def events(module: tvm.IRModule, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], target: Target) -> dict:
    """Lists the allocations and calls of each kernel, by name.

    Args:
        module: the lowered kernels; kernels of dynamic sizes before allocations become calls.
        functions: the kernels before lowering.
        target: a CPU.
    """
    names = {name.name_hint for name, function in functions.items() if _may_allocate(function)}
    bodies = {name.name_hint: function.body for name, function in module.functions.items() if name.name_hint in names}
    return {name: list(_events(body, thread_count(target))) for name, body in bodies.items()}


def thread_count(target: Target) -> int:
    """The number of threads that kernels use."""
    return int(target.attrs.get("num-cores", 1))


def _may_allocate(function: tirx.PrimFunc) -> bool:
    if called_functions(function.body):
        return True
    buffers = [buffer for block in find(function.body, SBlock) for buffer in block.alloc_buffers]
    buffers += [stmt.buffer for stmt in find(function.body, tirx.AllocBuffer)]
    return not all(map(is_on_stack, buffers))


def _bytes_of(buffer: tirx.Buffer) -> Any:
    """The bytes of a buffer: an integer or a Dim."""
    return math.prod(map(_at_most, buffer.shape)) * dtypes.canonical(str(buffer.dtype)).itemsize


def _at_most(size: tirx.Expr) -> Any:
    """An upper bound of a size that may depend on a loop, such as the size of the last block of rows."""
    try:
        return to_size(size)
    except ShapeError:
        bound = int(Analyzer().const_int_bound(size).max_value)
        return bound if bound < 2**31 else 0  # all sizes of kernels are bounded; this is only for a report


def _events(stmt: tirx.Stmt, threads: int, at_work: int = 1) -> Iterator[Event]:
    """The events of a lowered statement, in order; every loop iteration frees its allocations."""
    if isinstance(stmt, tirx.SeqStmt):
        allocated = 0
        for part in stmt.seq:
            call = part.data if isinstance(part, tirx.DeclBuffer) else None
            if isinstance(call, ir.Call) and call.op.name == _ALLOCATE:
                allocated += 1
                yield int(call.args[2]), at_work
            elif isinstance(part, tirx.AllocBuffer) and not is_on_stack(part.buffer):
                allocated += 1
                yield _bytes_of(part.buffer), at_work
            yield from _events(part, threads, at_work)
        yield from [None] * allocated
    elif isinstance(stmt, tirx.For):
        if stmt.kind == tirx.ForKind.PARALLEL:
            at_work = _at_work(stmt.extent, threads)
        yield from _events(stmt.body, threads, at_work)
    elif isinstance(stmt, tirx.AttrStmt):
        yield from _events(stmt.body, threads, threads if stmt.attr_key == LAUNCH_POINT else at_work)
    elif isinstance(stmt, tirx.While):
        yield from _events(stmt.body, threads, at_work)
    elif isinstance(stmt, tirx.IfThenElse):
        yield from ((name, at_work) for name, _ in called_functions(stmt.condition))
        for case in (stmt.then_case, stmt.else_case):
            if case is not None:
                yield from _events(case, threads, at_work)


def _at_work(extent: tirx.Expr, threads: int) -> int:
    """The number of threads among which the runtime divides a parallel loop."""
    if not isinstance(extent, tirx.IntImm):
        return threads
    share = -(-int(extent) // threads)
    return -(-int(extent) // share) if share else 0
