"""Reductions: vectorized along the contiguous axis, which may be a remaining or a reduced one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tvm import tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, For, ForKind, IfThenElse, Stmt

from tvmfun.core import dims
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.reduction_passes import along_reduced_axis
from tvmfun.lower.schedule.stages import Stage, accumulator
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume

_Into = TypeVar("_Into")

WIDE = 4  # vectors accumulated side by side, to hide the latency of one addition
PANEL = 8  # vectors of columns that are added up at a time
WIDEST = 16  # the most vectors of a tile of columns
LIGHT_LOADS = 2  # the most arrays that a value reads if its columns are added up in strips
TASKS_PER_CORE = 4  # the fewest tiles per core, if tiles are wide
LEAST_LANES = 4  # the fewest lanes of a vector that is shortened to stay within a group of channels
STRIP = 2 << 10, 16 << 10  # the bytes of a strip of columns, see ``_strips``
MOST_CHUNKS = 16  # the most pieces of a long sum over columns
LEAST_CHUNKS = 4  # the fewest pieces
LONG = 1 << 18  # the fewest elements of a sum that is cut into pieces
BLOCK = 32  # terms added up before they are added to the total, which limits the rounding error of long sums


def emit_reduction(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """The loop nest of a reduction whose first ``prefix`` axes are bound in ``env``."""
    if along_reduced_axis(stage, prefix):
        return _rows(stage, env, prefix, machine, tasks)
    return _columns(stage, env, prefix, machine, tasks)


def _columns(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """Neighbouring outputs in the lanes of vector registers, reduced axes in serial loops."""
    *outer, last = stage.space[prefix:]
    lanes = _lanes_of_one_group(stage, machine.lanes(accumulator(stage.dtype)))
    if not prefix and _adds_rows(stage, lanes) and volume(outer) >= LEAST_CHUNKS:
        rows = lambda env: _column_strip(stage, {**env, last.var: 0}, last, last.extent, lanes, is_uniform=True)
        return build.parallel_nest(outer, env, rows, tasks)
    strips = None if prefix or tasks == 1 else _strips(stage, lanes, machine)
    if strips:
        strip = Axis.fresh(last, strips)
        width = last.extent // strips
        whole = lambda env: _column_strip(stage, {**env, last.var: env[strip.var] * width}, last, width, lanes)
        return build.parallel_nest([*outer, strip], env, whole, tasks)
    static = isinstance(last.extent, int)
    tile = lanes * _vectors_of_tile(stage, prefix, lanes, machine) if static else lanes
    full, tail = divmod(last.extent, tile)
    tiles = Axis.fresh(last, build.ceil_div(last.extent, tile))

    def piece(env: Env, width: int) -> Stmt:
        env = {**env, last.var: env[tiles.var] * tile}
        if width % lanes == 0 and _panel(width // lanes):
            # Loops of few statements, which compile in less time than parts.
            return _column_strip(stage, env, last, width, lanes)
        parts = [(begin, min(lanes, width - begin)) for begin in range(0, width, lanes)]
        return _column_tile(stage, env, last, parts)

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


def _vectors_of_tile(stage: Stage, prefix: int, lanes: int, machine: Machine) -> int:
    """The vectors of a tile of columns.

    A wide tile reads longer pieces of each row: at 2 KB between rows the prefetcher follows no column.
    """
    vectors = stage.space[-1].extent // lanes
    usual = min(WIDE, max(1, vectors))
    if vectors <= WIDE or build.points(stage.reduce) <= BLOCK:
        return usual
    columns = build.points(stage.space[prefix:]) // lanes
    fits = lambda size: vectors % size == 0 and (prefix or columns // size >= TASKS_PER_CORE * machine.cores)
    return next(filter(fits, range(WIDEST, WIDE, -1)), usual)


def row_chunks(stage: Stage, machine: Machine) -> int | None:
    """The number of pieces of a long sum over columns whose rows fit L1; None if the stage is not such a sum.

    Each task adds up whole rows, which prefetchers follow. The loops are the same for all numbers of rows and columns,
    so that sums of several sizes share machine code: see :mod:`tvmfun.lower.codegen.similar_functions`.
    """
    if len(stage.space) != 1 or along_reduced_axis(stage):
        return None
    lanes = _lanes_of_one_group(stage, machine.lanes(accumulator(stage.dtype)))
    if not _adds_rows(stage, lanes) or build.points(stage.domain) < LONG:
        return None
    chunks = min(MOST_CHUNKS, build.points(stage.reduce) // (2 * BLOCK))
    return 1 << (chunks.bit_length() - 1) if chunks >= LEAST_CHUNKS else None


def _adds_rows(stage: Stage, lanes: int) -> bool:
    """Whether many whole rows are added up, in panels, with totals that stay in L1."""
    width = stage.space[-1].extent
    is_static = all(isinstance(axis.extent, int) for axis in stage.domain)
    if not is_static or width % (PANEL * lanes) or build.points(stage.reduce) < 2 * BLOCK:
        return False
    return width * build.bits(accumulator(stage.dtype)) // 8 <= STRIP[1]


def _strips(stage: Stage, lanes: int, machine: Machine) -> int | None:
    """The number of strips of columns, if strips are read sooner than tiles: long rows that are not in L2.

    The prefetcher follows a row for a whole strip. The totals of a strip stay in L1.
    """
    last, value = stage.space[-1], stage.value
    is_fixed = all(isinstance(axis.extent, int) and axis.limit is None for axis in stage.domain)
    if not is_fixed or build.count_calls(value) or len(build.loads(value)) > LIGHT_LOADS:
        return None
    read = lambda load: build.points([axis for axis in stage.domain if build.uses(load, axis.var)])
    far = [x for x in build.loads(value) if read(x) * build.bits(str(x.ty)) // 8 >= machine.cache_bytes(2)]
    if len(far) != 1 or build.points(stage.reduce) <= 2 * BLOCK:
        return None
    stride = lambda axis: build.stride(far[0].source, far[0].indices, axis, stage.domain)
    pitch, item = stride(stage.reduce[-1]), build.bits(str(far[0].ty)) // 8
    is_row = stride(last) == 1 and pitch is not None and pitch >= last.extent
    if not is_row or build.bits(accumulator(stage.dtype)) // 8 != item:
        return None
    fits = lambda n: last.extent % (n * lanes * WIDE) == 0 and STRIP[0] <= last.extent // n * item <= STRIP[1]
    return next(filter(fits, range(machine.cores, last.extent // (lanes * WIDE) + 1, machine.cores)), None)


def _lanes_of_one_group(stage: Stage, lanes: int) -> int:
    """The lanes of a vector within one group of channels; across groups its loads would be scattered."""
    groups = build.divisors(stage.value, stage.space[-1].var)
    return min([lanes, *(size for size in groups if size >= LEAST_LANES and lanes % size == 0)])


def _is_slow(stage: Stage) -> bool:
    """Whether combining two terms takes longer than an addition, as in a maximum that keeps NaN."""
    return stage.combine not in (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


def _panel(vectors: int) -> int | None:
    """The number of a strip's vectors that are added up at a time; None if no such number divides them."""
    return next((n for n in range(PANEL, 0, -1) if vectors % n == 0 and (n >= WIDE or n == vectors)), None)


class _Part(NamedTuple):
    """Totals of neighbouring columns, at most a vector, from ``begin`` on in a tile."""

    begin: int
    width: int
    totals: Buffer


def _column_tile(stage: Stage, env: Env, last: Axis, parts: Sequence[tuple[int, int]]) -> Stmt:
    """The reductions of a tile of columns, which has parts of some begin and width.

    Within a block of terms, four vectors of columns are added up at a time: the prefetcher follows the rows of a block
    along the whole tile.
    """
    dtype = accumulator(stage.dtype)
    start = env[last.var]

    def lanes(into: Sequence[_Part], make: Callable[[_Part, Expr, Env], Stmt], env: Env) -> Stmt:
        at = lambda part, k: {**env, last.var: start + part.begin + k}
        each = lambda part: build.vectorized(last, part.width, lambda k: make(part, k, at(part, k)))
        return build.seq(*map(each, into))

    def registers(name: str, parts: Sequence[tuple[int, int]]) -> list[_Part]:
        return [_Part(begin, width, build.scratch([width], dtype, name)) for begin, width in parts]

    def clear(into: Sequence[_Part]) -> Stmt:
        init = build.cast(stage.init, dtype)
        allocated = [AllocBuffer(part.totals) for part in into]
        return build.seq(*allocated, lanes(into, lambda part, k, env: BufferStore(part.totals, init, [k]), env))

    def add(env: Env, into: Sequence[_Part]) -> Stmt:
        def term(part: _Part, k: Expr, env: Env) -> Stmt:
            value = build.cast(build.substitute(stage.value, env), dtype)
            return BufferStore(part.totals, stage.combine(part.totals[k], value), [k])

        return lanes(into, term, env)

    def joined(make: Callable[[Sequence[_Part]], Stmt], into: Sequence[_Part], terms: int) -> Stmt:
        size = WIDE if terms <= 2 * BLOCK else len(into)
        blocks = []
        for begin in range(0, len(into), size):
            group = into[begin : begin + size]
            own = registers("part", [part[:2] for part in group])
            of = {part.begin: part.totals for part in own}
            combine = lambda part, k, _, of=of: BufferStore(
                part.totals, stage.combine(part.totals[k], of[part.begin][k]), [k]
            )
            blocks.append(build.seq(clear(own), make(own), lanes(group, combine, env)))
        return build.seq(*blocks)

    total = registers("total", parts)
    store = lambda part, k, env: stage.store(env, build.cast(part.totals[k], stage.dtype))
    return build.seq(clear(total), _added_up(stage.reduce, env, 1, total, add, joined), lanes(total, store, env))


def _column_strip(stage: Stage, env: Env, last: Axis, width: int, lanes: int, is_uniform: bool = False) -> Stmt:
    """The reductions of a strip of columns: for each block of terms, some vectors at a time along the whole strip.

    The loops are the same for all widths and all numbers of rows if ``is_uniform``.
    """
    dtype = accumulator(stage.dtype)
    wide = _panel(width // lanes) or 1
    panel = wide * lanes
    init = build.cast(stage.init, dtype)

    def vectors(make: Callable[[Expr], Stmt]) -> Stmt:
        """A statement for each vector of a panel, made from its lanes."""
        vector = lambda v: build.vectorized(last, lanes, lambda k: make(v * lanes + k))
        return build.unrolled(last, wide, vector)

    def along(make: Callable[[Expr], Stmt]) -> Stmt:
        """A statement for each vector of the strip, a panel at a time."""
        return build.loop(last, width // panel, lambda i: vectors(lambda k: make(i * panel + k)))

    def once(make: Callable[[Expr], Stmt]) -> Stmt:
        """A statement for each vector of the strip, one at a time: statements that run once are not worth more code.

        The totals of one panel are registers.
        """
        if width == panel and not is_uniform:
            return vectors(make)
        return build.loop(last, width // lanes, lambda i: build.vectorized(last, lanes, lambda k: make(i * lanes + k)))

    def term(into: Buffer, at: Expr, begin: Expr | int, env: Env) -> Stmt:
        value = build.substitute(stage.value, {**env, last.var: env[last.var] + begin + at})
        return BufferStore(into, stage.combine(into[at], build.cast(value, dtype)), [at])

    def add(env: Env, into: tuple[Buffer, Expr | None]) -> Stmt:
        totals, begin = into
        if begin is None:
            return along(lambda k: term(totals, k, 0, env))
        return vectors(lambda k: term(totals, k, begin, env))

    def joined(make: Callable[[tuple], Stmt], into: tuple[Buffer, Expr | None], terms: int) -> Stmt:
        totals, _ = into  # of the strip: a block is not divided again
        join = lambda part, at, k: BufferStore(totals, stage.combine(totals[at], part[k]), [at])
        clear = lambda part: lambda k: BufferStore(part, init, [k])
        if terms > 2 * BLOCK:
            part = build.scratch([width], dtype, "part")
            return build.seq(
                AllocBuffer(part), along(clear(part)), make((part, None)), along(lambda k: join(part, k, k))
            )

        def one(i: Expr) -> Stmt:
            part, begin = build.scratch([panel], dtype, "part"), i * panel
            add_to_strip = vectors(lambda k: join(part, begin + k, k))
            return build.seq(AllocBuffer(part), vectors(clear(part)), make((part, begin)), add_to_strip)

        if is_uniform and width == panel:
            var = Axis.fresh(last, 1).var
            return For(var, 0, 1, ForKind.SERIAL, one(var))
        return build.loop(last, width // panel, one)

    totals = build.scratch([width], dtype, "totals")
    store = lambda k: stage.store({**env, last.var: env[last.var] + k}, build.cast(totals[k], stage.dtype))
    return build.seq(
        AllocBuffer(totals),
        once(lambda k: BufferStore(totals, init, [k])),
        _added_up(stage.reduce, env, 1, (totals, None), add, joined, 2 * BLOCK - is_uniform),
        once(store),
    )


def _added_up(
    axes: Sequence[Axis],
    env: Env,
    terms: int,
    into: _Into,
    add: Callable[[Env, _Into], Stmt],
    joined: Callable[[Callable[[_Into], Stmt], _Into, int], Stmt],
    undivided: int = 2 * BLOCK,
) -> Stmt:
    """Loops over reduced axes, in blocks of about BLOCK terms, in blocks of about BLOCK blocks, and so on.

    A sum of ``n`` terms, one after the other, has a rounding error of up to ``n / 2`` units in the last digit.

    Args:
        axes: the axes.
        env: the variables of enclosing loops.
        terms: the number of terms of each point.
        into: the totals to add to.
        add: adds the terms of a point to totals.
        joined: computes separate totals of the given number of terms, and adds them to others.
        undivided: the most terms that are added up one after the other.
    """
    if not axes:
        return add(env, into)
    head, *rest = axes
    inner = terms * build.points(rest)
    is_block = inner > BLOCK

    def one(i: Expr, into: _Into) -> Stmt:
        sums = lambda part: _added_up(rest, {**env, head.var: i}, terms, part, add, joined, undivided)
        return joined(sums, into, inner) if is_block else sums(into)

    def run(first: Expr | int, count: int, into: _Into) -> Stmt:
        weight = 1 if is_block else inner
        if count * weight <= undivided:
            return build.loop(head, count, lambda i: one(i + first, into))
        size = max(1, BLOCK // weight)
        while count // size > 2 * BLOCK:
            size *= BLOCK
        blocks, left = divmod(count, size)
        block = lambda b: joined(lambda part: run(b * size + first, size, part), into, size * inner)
        return build.seq(build.loop(head, blocks, block), run(blocks * size + first, left, into) if left else None)

    bound = head.bound(env)
    if isinstance(bound, int):
        return run(0, bound, into)
    if isinstance(bound, dims.Dim) or inner * dims.typical(head.extent) <= 2 * BLOCK:
        return build.loop(head, bound, lambda i: one(i, into))
    size = max(1, BLOCK // inner)
    within = lambda b: (
        lambda part: build.loop(head, tirx.min(size, bound - b * size), lambda i: one(b * size + i, part))
    )
    return build.loop(head, build.ceil_div(bound, size), lambda b: joined(within(b), into, size * inner))


def _rows(stage: Stage, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """The last reduced axis in the lanes of vector registers, combined across lanes at the end."""
    row = _Row(stage, machine)
    return build.parallel_nest(list(stage.space[prefix:]), env, row.emit, tasks)


class _Totals(NamedTuple):
    """Running totals: vectors, and a scalar for the elements that do not fill a vector."""

    vectors: Buffer
    scalar: Buffer


class _Row:
    """Builds the reduction to one output element."""

    def __init__(self, stage: Stage, machine: Machine):
        self.stage = stage
        self.dtype = accumulator(stage.dtype)
        self.lanes = machine.lanes(self.dtype)
        *self.outer, self.last = stage.reduce
        self.init = build.cast(stage.init, self.dtype)
        vectors = build.points([self.last]) // self.lanes
        self.wide = 2 * WIDE if _is_slow(stage) and vectors >= 8 * WIDE else max(1, min(WIDE, vectors))
        self.totals = self._new_totals("acc", "total")
        self.total = self.totals.scalar

    def _new_totals(self, vectors: str, scalar: str) -> _Totals:
        shape = [self.wide, self.lanes]
        return _Totals(build.scratch(shape, self.dtype, vectors), build.scratch([1], self.dtype, scalar))

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

        def add(env: Env, into: Buffer) -> Stmt:
            fill = self._lanes(self.last.extent, lambda k: BufferStore(terms, self._term(env, k), [k]))
            fold = build.unrolled(self.last, self.last.extent, lambda k: self._add(into, [0], terms[k]))
            return build.seq(AllocBuffer(terms), fill, fold)

        def joined(make: Callable[[Buffer], Stmt], into: Buffer, _terms: int) -> Stmt:
            part = build.scratch([1], self.dtype, "part")
            clear, join = BufferStore(part, self.init, [0]), self._add(into, [0], part[0])
            return build.seq(AllocBuffer(part), clear, make(part), join)

        return _added_up(self.outer, env, self.last.extent, self.total, add, joined)

    def _add_long(self, env: Env) -> Stmt:
        """Several vectors of partial totals, combined at the end."""
        acc, lanes = self.totals.vectors, self.lanes
        clear = self._each(lambda j, k: BufferStore(acc, self.init, [j, k]))
        steps = [self._lanes(lanes, lambda k, j=j: self._add(acc, [0, k], acc[j, k])) for j in range(1, self.wide)]
        while lanes > 1:
            lanes //= 2
            steps.append(self._lanes(lanes, lambda k, half=lanes: self._add(acc, [0, k], acc[0, k + half])))
        rounds, rest = divmod(build.points([self.last]), self.wide * self.lanes)
        terms = max(1, rounds + rest % self.lanes)
        sweep = _added_up(self.outer, env, terms, self.totals, self._sweep, self._joined)
        return build.seq(AllocBuffer(acc), clear, sweep, *steps, self._add(self.total, [0], acc[0, 0]))

    def _joined(self, make: Callable[[_Totals], Stmt], into: _Totals, _terms: int) -> Stmt:
        """A block of terms: added up separately, and then added to other totals."""
        part = self._new_totals("part", "rest")
        clear = self._each(lambda j, k: BufferStore(part.vectors, self.init, [j, k]))
        join = self._each(lambda j, k: self._add(into.vectors, [j, k], part.vectors[j, k]))
        return build.seq(
            *map(AllocBuffer, part),
            clear,
            BufferStore(part.scalar, self.init, [0]),
            make(part),
            join,
            self._add(into.scalar, [0], part.scalar[0]),
        )

    def _each(self, make: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """A statement for each of the partial totals."""
        return build.unrolled(self.last, self.wide, lambda j: self._lanes(self.lanes, lambda k: make(j, k)))

    def _sweep(self, env: Env, into: _Totals) -> Stmt:
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
            return build.seq(body, single, self._elements(env, build.index(self.last, done), bound - done, into))
        if not isinstance(bound, int):
            return build.seq(body, self._elements(env, done, bound - done, into))
        whole, tail = divmod(bound - done, self.lanes)
        single = self._vectors(env, build.index(self.last, done), whole, into) if whole else None
        return build.seq(body, single, self._rest(env, bound, tail, into) if tail else None)

    def _rest(self, env: Env, bound: int, tail: int, into: _Totals) -> Stmt:
        """The elements after the last vector: floats are read in the last lanes of a vector that ends there.

        Loading a vector of which parts were just stored would stall the processor. Integers are added one by one:
        LLVM 22 does not terminate on some counts of true elements if it knows that lanes are 0.
        """
        before = self.lanes - tail
        begin = build.index(self.last, bound - tail)
        if bound < self.lanes or not self.dtype.startswith("float"):
            return self._elements(env, begin, tail, into)
        if any(build.is_on_stack(load.source) for load in build.loads(self.stage.value)):
            return self._lanes(tail, lambda k: self._add(into.vectors, [0, k], self._term(env, begin + k)))

        def lane(k: Expr) -> Stmt:
            term = self._term(env, build.index(self.last, bound - self.lanes) + k)
            return self._add(into.vectors, [0, k], tirx.Select(k >= before, term, self.init))

        return self._lanes(self.lanes, lane)

    def _rounds(self, env: Env, rounds: Expr | int, into: _Totals) -> Stmt:
        """Rounds of several vectors."""
        step = self.wide * self.lanes
        axis = Axis.fresh(self.last, self.last.extent // step, None if isinstance(rounds, int | dims.Dim) else rounds)
        add = lambda env, into: self._vectors(env, env[axis.var] * step, self.wide, into)
        return _added_up([axis], env, 1, into, add, self._joined)

    def _vectors(self, env: Env, start: Expr, count: int, into: _Totals) -> Stmt:
        def one(j: Expr) -> Stmt:
            def lane(k: Expr) -> Stmt:
                return self._add(into.vectors, [j, k], self._term(env, start + j * self.lanes + k))

            return self._lanes(self.lanes, lane)

        return build.unrolled(self.last, count, one)

    def _elements(self, env: Env, start: Expr, count: Expr | int, into: _Totals) -> Stmt:
        return build.loop(self.last, count, lambda i: self._add(into.scalar, [0], self._term(env, start + i)))

    def _term(self, env: Env, position: Expr) -> Expr:
        value = build.substitute(self.stage.value, {**env, self.last.var: position})
        return build.cast(value, self.dtype)

    def _add(self, buffer: Buffer, at: Sequence[Expr | int], value: Expr) -> Stmt:
        return BufferStore(buffer, self.stage.combine(buffer[tuple(at)], value), list(at))

    def _lanes(self, width: int, make: Callable[[Expr], Stmt]) -> Stmt:
        return build.vectorized(self.last, width, make)
