"""Blocks with any body: parallel along the axes that they declare independent, vectorized if they do not branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.core import expressions
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.marked_products import with_products
from tvmfun.lower.schedule.stages import Block, contains
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr
from tvmfun.lower.tir.walk import find

STRIP = 64  # neighbouring points per iteration of the ordered loops


def emit_block(block: Block, machine: Machine, tasks: int) -> Stmt:
    """The loops of a block: strips of its last independent axis, and inside them the ordered axes."""
    body = _with_registers(block.body)
    return with_products(_loops(_with_joined_axes(replace(block, body=body)), machine, tasks), machine)


def _with_joined_axes(block: Block) -> Block:
    """The block with one axis instead of a short last one and those before it that it continues."""
    while len(block.space) > 1 and is_straight(block) and _walks_as_one(block, *block.space[-2:]):
        *outer, first, second = block.space
        joined, env = build.join_axes(first, second, [a for s in _statements(block) for a in _accesses(s)])
        init = None if block.init is None else build.substitute(block.init, env)
        block = replace(block, space=(*outer, joined), body=build.substitute(block.body, env), init=init)
    return block


def _walks_as_one(block: Block, first: Axis, second: Axis) -> bool:
    """Whether a block uses two axes, the second one short, only in accesses that are contiguous over both."""
    if not isinstance(first.extent, int) or not isinstance(second.extent, int) or second.extent >= STRIP:
        return False
    domain = [*block.space, *block.reduce]
    for stmt in _statements(block):
        if not all(build.walks_as_one(access, first, second, domain) for access in _accesses(stmt)):
            return False
        if not build.is_only_in_indices(stmt, (first, second)):
            return False
    return True


def _statements(block: Block) -> list[Stmt]:
    return [block.body] if block.init is None else [block.body, block.init]


def _accesses(body: Stmt) -> list[tuple[Buffer, Sequence[Expr]]]:
    """The buffer and the indices of each load and store."""
    return [*build.accesses(body), *((store.buffer, store.indices) for store in find(body, BufferStore))]


def _with_registers(body: Stmt) -> Stmt:
    """Moves memory that the body allocates in loops to the stack, from where LLVM moves it to registers."""
    own = {}
    for stmt in find(body, AllocBuffer):
        shape = map(expressions.to_size, stmt.buffer.shape)
        own[stmt.buffer] = build.scratch([*shape], str(stmt.buffer.dtype), stmt.buffer.name)
    return build.replace_buffers(body, own)


def _loops(block: Block, machine: Machine, tasks: int) -> Stmt:
    if not block.space:
        return _strip(block, {}, None, 1, lambda make: make(0))
    *outer, last = block.space
    vector = is_straight(block)
    strip = machine.lanes("int32") if vector else 1
    if block.reduce and not (vector and _gathers(block)):
        strip = STRIP
    strip = min(strip, last.extent) if isinstance(last.extent, int) else strip
    full, tail = divmod(last.extent, strip)
    strips = Axis.fresh(last, build.ceil_div(last.extent, strip))

    def piece(env: Env, width: int, start: Expr) -> Stmt:
        def lanes(make: Callable[[Expr], Stmt]) -> Stmt:
            return build.vectorized(last, width, make) if vector else build.loop(last, width, make)

        return _strip(block, {**env, last.var: start}, last, width if vector else 1, lanes)

    def rest(env: Env, start: Expr) -> Stmt:
        if tail == 1 and vector and _may_repeat_points(block):
            return piece(env, 2, build.index(last, last.extent - 2))
        if isinstance(tail, int):
            return piece(env, tail, start)
        return build.loop(last, tail, lambda i: _strip(block, {**env, last.var: start + i}, None, 1, lambda at: at(0)))

    def body(env: Env) -> Stmt:
        start = env[strips.var] * strip
        if tail == 0:
            return piece(env, strip, start)
        return IfThenElse(env[strips.var] < full, piece(env, strip, start), rest(env, start))

    return build.parallel_nest([*outer, strips], {}, body, tasks)


def _gathers(block: Block) -> bool:
    """Whether neighbouring points read elements that are apart, which are single loads: LLVM compiles them slowly."""
    domain = [*block.space, *block.reduce]
    loads = (load for stmt in _statements(block) for load in build.loads(stmt) if load.indices)
    return any(build.stride(x.source, x.indices, block.space[-1], domain) not in (0, 1) for x in loads)


def _may_repeat_points(block: Block) -> bool:
    """Whether neighbouring points read the same elements of arrays, so that a point can be computed twice.

    Random bits do, too; as scalars instead of vectors, LLVM would take half a second to compile them.
    """
    last = block.space[-1]
    loads = [load for stmt in _statements(block) for load in build.loads(stmt)]
    return all(contains(block.private, load.source) or not build.uses(load, last.var) for load in loads)


def _strip(
    block: Block, env: Env, last: Axis | None, width: int, lanes: Callable[[Callable[[Expr], Stmt]], Stmt]
) -> Stmt:
    """The points of one strip; private buffers have a copy per lane of a vector."""
    private = {
        buffer: build.scratch([*map(expressions.to_size, buffer.shape), width], str(buffer.dtype), buffer.name)
        for buffer in block.private
    }

    def point(stmt: Stmt, env: Env, k: Expr) -> Stmt:
        here = env if last is None else {**env, last.var: env[last.var] + k}
        stmt = build.renewed(build.substitute(stmt, here))
        return build.replace_buffers(stmt, private, lambda at: [*at, k if width > 1 else 0])

    conditions, inner = _guarded(block)

    def step(env: Env) -> Stmt:
        stmt = lanes(lambda k: point(inner, env, k))
        for condition in reversed(conditions):
            stmt = IfThenElse(build.substitute(condition, env), stmt, None)
        return stmt

    init = None if block.init is None else lanes(lambda k: point(block.init, env, k))
    return build.seq(*map(AllocBuffer, private.values()), init, build.nest(block.reduce, env, step))


def _guarded(block: Block) -> tuple[list[Expr], Stmt]:
    """The conditions around the body that are the same for neighbouring points, and the statement inside."""
    conditions, body = [], block.body
    changing = [*(axis.var for axis in block.space[-1:]), *block.private]
    while isinstance(body, IfThenElse) and body.else_case is None:
        if any(build.uses(body.condition, var) for var in changing):
            break
        conditions.append(body.condition)
        body = body.then_case
    return conditions, body


def is_straight(block: Block) -> bool:
    """Whether the body inside :func:`_guarded` conditions is a sequence of stores that vectorizes."""
    obstacles = find(_guarded(block)[1], tirx.For, tirx.While, tirx.IfThenElse, tirx.AttrStmt)
    written: list[Buffer] = [*block.outputs, *block.private]
    return not obstacles and all(str(buffer.dtype) != "bool" for buffer in written)
