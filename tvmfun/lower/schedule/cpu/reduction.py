"""Reductions: vectorized along the contiguous axis, which may be a remaining or a reduced one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.core import dims
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.reduction_passes import along_reduced_axis
from tvmfun.lower.schedule.stages import Stage, accumulator
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr

WIDE = 4  # vectors accumulated side by side, to hide the latency of one addition
LEAST_LANES = 4  # the fewest lanes of a vector that is shortened to stay within a group of channels
BLOCK = 512  # terms added up before they are added to the total, which limits the rounding error of long sums


def emit_reduction(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """The loop nest of a reduction whose first ``prefix`` axes are bound in ``env``."""
    if along_reduced_axis(stage, prefix):
        return _rows(stage, env, prefix, machine, tasks)
    return _columns(stage, env, prefix, machine, tasks)


def _columns(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """Neighbouring outputs in the lanes of vector registers, reduced axes in serial loops."""
    *outer, last = stage.space[prefix:]
    lanes = _lanes_of_one_group(stage, machine.lanes(accumulator(stage.dtype)))
    static = isinstance(last.extent, int)
    tile = lanes * min(WIDE, max(1, last.extent // lanes)) if static else lanes
    full, tail = divmod(last.extent, tile)
    tiles = Axis.fresh(last, build.ceil_div(last.extent, tile))

    def piece(env: Env, width: int) -> Stmt:
        start = env[tiles.var] * tile
        parts = [(begin, min(lanes, width - begin)) for begin in range(0, width, lanes)]
        return _column_tile(stage, {**env, last.var: start}, last, parts)

    def rest(env: Env) -> Stmt:
        if static:
            return piece(env, tail)
        start = env[tiles.var] * tile
        return build.loop(last, tail, lambda i: _column_tile(stage, {**env, last.var: start + i}, last, [(0, 1)]))

    def body(env: Env) -> Stmt:
        if tail == 0:
            return piece(env, tile)
        if full == 0:
            return rest(env)
        return IfThenElse(env[tiles.var] < full, piece(env, tile), rest(env))

    return build.parallel_nest([*outer, tiles], env, body, tasks)


def _lanes_of_one_group(stage: Stage, lanes: int) -> int:
    """The lanes of a vector within one group of channels; across groups its loads would be scattered."""
    groups = build.divisors(stage.value, stage.space[-1].var)
    return min([lanes, *(size for size in groups if size >= LEAST_LANES and lanes % size == 0)])


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
    outer, inner = _split(stage.reduce)
    if not outer:
        return build.seq(*allocate, clear(total), accumulate(total, inner, env), finish(total))
    part = registers("part")

    def block(env: Env) -> Stmt:
        def join(i: int, acc: Buffer, k: Expr, env: Env) -> Stmt:
            return BufferStore(acc, stage.combine(acc[k], part[i][k]), [k])

        fresh = [AllocBuffer(buffer) for buffer in part]
        return build.seq(*fresh, clear(part), accumulate(part, inner, env), lanes(total, join, env))

    return build.seq(*allocate, clear(total), build.nest(outer, env, block), finish(total))


def _split(axes: Sequence[Axis], terms: int = 1) -> tuple[list[Axis], list[Axis]]:
    """Splits reduced axes of ``terms`` terms per point into loops over blocks and loops within about BLOCK terms."""
    if terms * build.points(axes) <= 2 * BLOCK:
        return [], list(axes)
    inner: list[Axis] = []
    for axis in reversed(axes):
        if terms * build.points([*inner, axis]) > BLOCK and (inner or terms > 1):
            break
        inner.insert(0, axis)
    return list(axes[: len(axes) - len(inner)]), inner


def _rows(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """The last reduced axis in the lanes of vector registers, combined across lanes at the end."""
    row = _Row(stage, machine)
    return build.parallel_nest(list(stage.space[prefix:]), env, row.emit, tasks)


class _Row:
    """Builds the reduction to one output element."""

    def __init__(self, stage: Stage, machine: Machine):
        self.stage = stage
        self.dtype = accumulator(stage.dtype)
        self.lanes = machine.lanes(self.dtype)
        *self.outer, self.last = stage.reduce
        self.init = build.cast(stage.init, self.dtype)
        self.total = build.scratch([1], self.dtype, "total")
        self.wide = max(1, min(WIDE, build.points([self.last]) // self.lanes))
        self.acc = build.scratch([self.wide, self.lanes], self.dtype, "acc")

    def emit(self, env: Env) -> Stmt:
        """The statements for one element: initialize, accumulate, combine lanes, store."""
        static = self.last.limit is None and isinstance(self.last.extent, int)
        is_short = static and self.last.extent < self.lanes
        return build.seq(
            AllocBuffer(self.total),
            BufferStore(self.total, self.init, [0]),
            self._add_short(env) if is_short else self._add_long(env),
            self.stage.store(env, build.cast(self.total[0], self.stage.dtype)),
        )

    def _add_short(self, env: Env) -> Stmt:
        """Fewer terms than lanes: computed as one vector, added one by one."""
        terms = build.scratch([self.last.extent], self.dtype, "terms")

        def add(env: Env) -> Stmt:
            fill = self._lanes(self.last.extent, lambda k: BufferStore(terms, self._term(env, k), [k]))
            fold = build.unrolled(self.last, self.last.extent, lambda k: self._add(self.total, [0], terms[k]))
            return build.seq(AllocBuffer(terms), fill, fold)

        return build.nest(self.outer, env, add)

    def _add_long(self, env: Env) -> Stmt:
        """Several vectors of partial totals, combined at the end."""
        acc, lanes = self.acc, self.lanes
        clear = self._each(lambda j, k: BufferStore(acc, self.init, [j, k]))
        steps = [self._lanes(lanes, lambda k, j=j: self._add(acc, [0, k], acc[j, k])) for j in range(1, self.wide)]
        while lanes > 1:
            lanes //= 2
            steps.append(self._lanes(lanes, lambda k, half=lanes: self._add(acc, [0, k], acc[0, k + half])))
        blocks, inner = _split(self.outer, max(1, build.points([self.last]) // (self.wide * self.lanes)))
        sweeps = lambda env, into: build.nest(inner, env, lambda env: self._sweep(env, into))
        in_blocks = lambda env: self._joined(lambda part: sweeps(env, part))
        sweep = build.nest(blocks, env, in_blocks) if blocks else sweeps(env, acc)
        return build.seq(AllocBuffer(acc), clear, sweep, *steps, self._add(self.total, [0], acc[0, 0]))

    def _joined(self, add: Callable[[Buffer], Stmt]) -> Stmt:
        """A block of terms: added up separately, and then added to the partial totals."""
        part = build.scratch([self.wide, self.lanes], self.dtype, "part")
        clear = self._each(lambda j, k: BufferStore(part, self.init, [j, k]))
        join = self._each(lambda j, k: self._add(self.acc, [j, k], part[j, k]))
        return build.seq(AllocBuffer(part), clear, add(part), join)

    def _each(self, make: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """A statement for each of the partial totals."""
        return build.unrolled(self.last, self.wide, lambda j: self._lanes(self.lanes, lambda k: make(j, k)))

    def _sweep(self, env: Env, into: Buffer) -> Stmt:
        """One pass along the last axis: rounds of several vectors, then single vectors, then elements."""
        bound = self.last.bound(env)
        step = self.wide * self.lanes
        rounds = bound // step
        body = self._rounds(env, rounds, into)
        done = rounds * step
        if isinstance(bound, dims.Dim):
            vectors = (bound - done) // self.lanes
            single = build.loop(self.last, vectors, lambda i: self._vectors(env, done + i * self.lanes, 1, into))
            done = bound // self.lanes * self.lanes
            return build.seq(body, single, self._elements(env, build.index(self.last, done), bound - done))
        if not isinstance(bound, int):
            return build.seq(body, self._elements(env, done, bound - done))
        whole, tail = divmod(bound - done, self.lanes)
        single = self._vectors(env, build.index(self.last, done), whole, into) if whole else None
        rest = self._elements(env, build.index(self.last, bound - tail), tail) if tail else None
        return build.seq(body, single, rest)

    def _rounds(self, env: Env, rounds: Expr | int, into: Buffer) -> Stmt:
        """Rounds of several vectors, in blocks if there are many."""
        step = self.wide * self.lanes
        some = lambda first, count, into: build.loop(
            self.last, count, lambda i: self._vectors(env, (i + first) * step, self.wide, into)
        )
        if not isinstance(rounds, int) or rounds <= 2 * BLOCK:
            return some(0, rounds, into)
        blocks, rest = divmod(rounds, BLOCK)
        block = lambda b: self._joined(lambda part: some(b * BLOCK, BLOCK, part))
        return build.seq(build.loop(self.last, blocks, block), some(blocks * BLOCK, rest, into))

    def _vectors(self, env: Env, start: Expr, count: int, into: Buffer) -> Stmt:
        def one(j: Expr) -> Stmt:
            def lane(k: Expr) -> Stmt:
                return self._add(into, [j, k], self._term(env, start + j * self.lanes + k))

            return self._lanes(self.lanes, lane)

        return build.unrolled(self.last, count, one)

    def _elements(self, env: Env, start: Expr, count: Expr | int) -> Stmt:
        return build.loop(self.last, count, lambda i: self._add(self.total, [0], self._term(env, start + i)))

    def _term(self, env: Env, position: Expr) -> Expr:
        value = build.substitute(self.stage.value, {**env, self.last.var: position})
        return build.cast(value, self.dtype)

    def _add(self, buffer: Buffer, at: Sequence[Expr | int], value: Expr) -> Stmt:
        return BufferStore(buffer, self.stage.combine(buffer[tuple(at)], value), list(at))

    def _lanes(self, width: int, make: Callable[[Expr], Stmt]) -> Stmt:
        return build.vectorized(self.last, width, make)
