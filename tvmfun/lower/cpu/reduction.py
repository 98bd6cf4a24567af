"""Reductions: vectorized along the contiguous axis, be it one that stays or one that is reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from . import build
from .build import Axis, Env, Expr, volume
from .fuse import accumulator
from .machine import Machine
from .stages import Stage

WIDE = 4  # vectors accumulated side by side, to hide the latency of one addition
BLOCK = 512  # terms added up before they join the total: keeps the error of long sums small


def emit_reduction(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """The loop nest of a reduction whose first `prefix` axes are bound in `env`."""
    if along_reduced_axis(stage, prefix):
        return _rows(stage, env, prefix, machine, tasks)
    return _columns(stage, env, prefix, machine, tasks)


def along_reduced_axis(stage: Stage, prefix: int = 0) -> bool:
    """Whether more loads are contiguous in the last reduced axis than in the last remaining one."""
    if len(stage.space) == prefix:
        return True

    def score(axis: Axis) -> int:
        strides = [
            build.stride(load.source, load.indices, axis, stage.domain) for load in build.loads(stage.value)
        ]
        return sum(1 for step in strides if step == 1) * 2 - sum(1 for step in strides if step not in (0, 1))

    return score(stage.reduce[-1]) > score(stage.space[-1])


def _columns(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """Neighbouring outputs in the lanes of vector registers, reduced axes in serial loops."""
    *outer, last = stage.space[prefix:]
    lanes = machine.lanes(accumulator(stage.dtype))
    tile = lanes * min(WIDE, max(1, last.extent // lanes))
    full, tail = divmod(last.extent, tile)
    tiles = Axis.fresh(last, full + (tail > 0))

    def piece(env: Env, width: int) -> Stmt:
        start = env[tiles.var] * tile
        parts = [(begin, min(lanes, width - begin)) for begin in range(0, width, lanes)]
        return _column_tile(stage, {**env, last.var: start}, last, parts)

    def body(env: Env) -> Stmt:
        if not tail:
            return piece(env, tile)
        if not full:
            return piece(env, tail)
        return IfThenElse(env[tiles.var] < full, piece(env, tile), piece(env, tail))

    return build.parallel_nest([*outer, tiles], env, body, tasks)


def _column_tile(stage: Stage, env: Env, last: Axis, parts: Sequence[tuple[int, int]]) -> Stmt:
    dtype = accumulator(stage.dtype)
    start = env[last.var]

    def lanes(buffers: Sequence[Buffer], make: Callable[[int, Buffer, Expr, Env], Stmt], env: Env) -> Stmt:
        return build.seq(
            *(
                build.vectorized(
                    last,
                    width,
                    lambda k, i=i, begin=begin: make(i, buffers[i], k, {**env, last.var: start + begin + k}),
                )
                for i, (begin, width) in enumerate(parts)
            )
        )

    def registers(name: str) -> list[Buffer]:
        return [build.scratch([width], dtype, name) for _, width in parts]

    def clear(buffers: Sequence[Buffer]) -> Stmt:
        init = build.cast(stage.init, dtype)
        return lanes(buffers, lambda i, acc, k, env: BufferStore(acc, init, [k]), env)

    def accumulate(buffers: Sequence[Buffer], axes: Sequence[Axis], env: Env) -> Stmt:
        def term(i: int, acc: Buffer, k: Expr, env: Env) -> Stmt:
            value = build.cast(build.substitute(stage.value, env), dtype)
            return BufferStore(acc, stage.combine(acc[k], value), [k])

        return build.nest(axes, env, lambda env: lanes(buffers, term, env))

    def finish(buffers: Sequence[Buffer]) -> Stmt:
        return lanes(buffers, lambda i, acc, k, env: stage.store(env, build.cast(acc[k], stage.dtype)), env)

    total = registers("total")
    allocate = [AllocBuffer(buffer) for buffer in total]
    outer, inner = _blocks(stage)
    if not outer:
        return build.seq(*allocate, clear(total), accumulate(total, inner, env), finish(total))
    part = registers("part")

    def block(env: Env) -> Stmt:
        def join(i: int, acc: Buffer, k: Expr, env: Env) -> Stmt:
            return BufferStore(acc, stage.combine(acc[k], part[i][k]), [k])

        fresh = [AllocBuffer(buffer) for buffer in part]
        return build.seq(*fresh, clear(part), accumulate(part, inner, env), lanes(total, join, env))

    return build.seq(*allocate, clear(total), build.nest(outer, env, block), finish(total))


def _blocks(stage: Stage) -> tuple[list[Axis], list[Axis]]:
    """The reduced axes as outer loops over blocks of about BLOCK terms, when there are more than that."""
    if volume(stage.reduce) <= 2 * BLOCK:
        return [], list(stage.reduce)
    inner: list[Axis] = []
    for axis in reversed(stage.reduce):
        if inner and volume(inner) * axis.extent > BLOCK:
            break
        inner.insert(0, axis)
    return list(stage.reduce[: len(stage.reduce) - len(inner)]), inner


def _rows(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """The last reduced axis in the lanes of vector registers, combined across lanes at the end."""
    outer = list(stage.space[prefix:])
    return build.parallel_nest(outer, env, lambda env: _row(stage, env, machine), tasks)


def _row(stage: Stage, env: Env, machine: Machine) -> Stmt:
    dtype = accumulator(stage.dtype)
    lanes = machine.lanes(dtype)
    *outer, last = stage.reduce
    total = build.scratch([1], dtype, "total")
    init = build.cast(stage.init, dtype)

    def term(env: Env, position: Expr) -> Expr:
        return build.cast(build.substitute(stage.value, {**env, last.var: position}), dtype)

    def add(buffer: Buffer, at: Sequence[Expr | int], value: Expr) -> Stmt:
        return BufferStore(buffer, stage.combine(buffer[tuple(at)], value), list(at))

    def finish() -> Stmt:
        return stage.store(env, build.cast(total[0], stage.dtype))

    def scalars(env: Env, start: Expr, count) -> Stmt:
        return build.loop(last, count, lambda i: add(total, [0], term(env, start + i)))

    def short(env: Env) -> Stmt:
        """Fewer terms than lanes: computed as one vector, added up one by one."""
        terms = build.scratch([last.extent], dtype, "terms")
        fill = build.vectorized(last, last.extent, lambda k: BufferStore(terms, term(env, k), [k]))
        fold = build.unrolled(last, last.extent, lambda k: add(total, [0], terms[k]))
        return build.seq(AllocBuffer(terms), fill, fold)

    if last.limit is None and last.extent < lanes:
        serial = build.nest(outer, env, short)
        return build.seq(AllocBuffer(total), BufferStore(total, init, [0]), serial, finish())

    wide = min(WIDE, last.extent // lanes) if last.extent >= lanes else 1
    acc = build.scratch([wide, lanes], dtype, "acc")
    clear = build.unrolled(
        last, wide, lambda j: build.vectorized(last, lanes, lambda k: BufferStore(acc, init, [j, k]))
    )

    def vectors(env: Env, start: Expr, count: int) -> Stmt:
        def one(j: Expr) -> Stmt:
            return build.vectorized(last, lanes, lambda k: add(acc, [j, k], term(env, start + j * lanes + k)))

        return build.unrolled(last, count, one)

    def sweep(env: Env) -> Stmt:
        bound = last.bound(env)
        step = wide * lanes
        blocks = bound // step
        body = build.loop(last, blocks, lambda i: vectors(env, i * step, wide))
        done = blocks * step
        rest = bound - done
        if isinstance(bound, int):
            whole = rest // lanes
            single = vectors(env, build.index(last, done), whole) if whole else None
            tail = (
                scalars(env, build.index(last, done + whole * lanes), rest % lanes) if rest % lanes else None
            )
            return build.seq(body, single, tail)
        return build.seq(body, scalars(env, done, rest))

    combine = [
        build.vectorized(last, lanes, lambda k, j=j: add(acc, [0, k], acc[j, k])) for j in range(1, wide)
    ]
    return build.seq(
        AllocBuffer(total),
        AllocBuffer(acc),
        BufferStore(total, init, [0]),
        clear,
        build.nest(outer, env, sweep),
        *combine,
        *_across(acc, lanes, last, add),
        add(total, [0], acc[0, 0]),
        finish(),
    )


def _across(acc: Buffer, lanes: int, like: Axis, add: Callable) -> list[Stmt]:
    """Fold the lanes of the first accumulator in halves."""
    steps = []
    while lanes > 1:
        lanes //= 2
        steps.append(build.vectorized(like, lanes, lambda k, half=lanes: add(acc, [0, k], acc[0, k + half])))
    return steps
