"""Products with few columns: vectors along the reduced axis, whose lanes are added up at the end.

A register tile has its lanes along the columns, so 8 columns use half of a vector of 16. Here a tile has a vector of
partial sums for each row and column:

    sums[row, column, lane] += left[row, k + lane] * right[k + lane, column]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.contraction import Contraction
from tvmfun.lower.schedule.cpu.transpose import is_computed_along
from tvmfun.lower.schedule.reduction_passes import MIN_TASKS
from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume

# The fewest terms per column: adding up the lanes of a column takes as long as about this many terms.
LEAST_TERMS = 64
# The fewest multiplications. Smaller products take about ten microseconds, and compiling the tiles matters more.
LEAST_WORK = 1 << 20
# The most rows of a tile.
MOST_ROWS = 8
# The most rows that are exchanged with columns, in vectors.
_FEW_ROWS = 3 / 4
# The most such rows of a narrow dtype that L2 holds: other instructions multiply it in pairs.
_FEW_OF_PAIRS = 1 / 8
# The most such rows of a narrow dtype that is read from memory.
_FEW_FROM_MEMORY = 1 / 4
# The fewest terms per row for an exchange: fewer than ``LEAST_TERMS``, since transposing the operand takes longer.
_TERMS_OF_ROWS = 16
# The fewest multiplications for an exchange.
_WORK_OF_ROWS = 1 << 17
# The number of tiles whose sums wait in memory between blocks of terms.
TILES = 16


def few_columns(contraction: Contraction, machine: Machine) -> Contraction | None:
    """The contraction if vectors along the reduced axis are faster than vectors along the columns, else None.

    Few rows are few columns once the operands are exchanged: ``x @ w.T`` is ``(w @ x.T).T``.
    """
    stage, columns = contraction.stage, contraction.column.extent
    if contraction.dot is not None or not stage.reduce or stage.dtype not in ("float32", "float64"):
        return None
    if not all(isinstance(axis.extent, int) for axis in stage.domain):
        return None
    lanes = machine.lanes(stage.dtype)
    if len(stage.reduce) > 1 and stage.reduce[-1].extent % lanes:
        return None
    arrays = (contraction.left, contraction.right)
    is_plain = all(isinstance(value, ir.TensorLoad) and str(value.ty) == stage.dtype for value in arrays)
    if is_plain and 2 * columns <= lanes and _gains(contraction, LEAST_TERMS, LEAST_WORK):
        return contraction
    rows = [axis for axis in stage.space if not build.uses(contraction.right, axis.var)]
    exchanged = Contraction(stage, *reversed(arrays), contraction.column, contraction.row, None)
    most = _FEW_ROWS
    if isinstance(contraction.left, tirx.Cast):
        nbytes = volume([*stage.reduce, contraction.column]) * build.bits(str(contraction.left.value.ty)) // 8
        most = _FEW_OF_PAIRS if nbytes <= machine.cache_bytes(2) else _FEW_FROM_MEMORY
    is_few = rows == [contraction.row] and 1 < contraction.row.extent <= most * lanes
    return exchanged if is_few and _gains(exchanged, _TERMS_OF_ROWS, _WORK_OF_ROWS) else None


def _gains(contraction: Contraction, terms: int, work: int) -> bool:
    """Whether there are many rows, work, and terms per column, and terms are neighbours in the left factor."""
    stage, columns = contraction.stage, contraction.column.extent
    # A sum of few rows is cut in parts for the threads.
    if volume(stage.domain) < work or volume(stage.space) < MIN_TASKS * MOST_ROWS * columns:
        return False
    if volume(stage.reduce) < terms * columns:
        return False
    return is_computed_along(contraction.left, stage.reduce[-1], stage.domain)


def is_packed(contraction: Contraction, machine: Machine) -> bool:
    """Whether the right factor is a vector for each column and vector of terms."""
    stage, right = contraction.stage, contraction.right
    if not isinstance(right, ir.TensorLoad):
        return False
    lanes, last = machine.lanes(stage.dtype), stage.reduce[-1]
    vector, lane = Axis.fresh(last, volume(stage.reduce) // lanes), Axis.fresh(last, lanes - 1)
    env = _terms_at(stage, vector.var * lanes, lane.var)
    indices = [build.substitute(index, env) for index in right.indices]
    return build.stride(right.source, indices, lane, [*stage.domain, vector, lane]) == 1


def _terms_at(stage: Stage, first: Expr, lane: Expr) -> Env:
    """The reduced axes at a lane of the vector whose first term is given."""
    *outer, last = stage.reduce
    if not outer:
        return {last.var: first + lane}
    return {**build.unflatten(outer, first // last.extent), last.var: first % last.extent + lane}


def with_packed_columns(stage: Stage, contraction: Contraction, machine: Machine) -> tuple[Stage, Stage]:
    """Returns a stage that packs the right factor in the order in which tiles read it, and the product."""
    terms, last = volume(stage.reduce), stage.reduce[-1]
    column, lanes = contraction.column, machine.lanes(stage.dtype)
    batch = [axis for axis in stage.space if axis is not column and build.uses(contraction.right, axis.var)]
    vectors, lane = Axis.fresh(last, build.ceil_div(terms, lanes)), Axis.fresh(last, lanes)
    others = [Axis.fresh(axis, axis.extent) for axis in (*batch, column)]
    space = (*others[:-1], vectors, others[-1], lane)
    env: Env = {axis.var: new.var for axis, new in zip((*batch, column), others, strict=True)}
    value = build.substitute(contraction.right, {**env, **_terms_at(stage, vectors.var * lanes, lane.var)})
    if terms % lanes:
        value = tirx.if_then_else(vectors.var * lanes + lane.var < terms, value, build.zero(stage.dtype))
    buffer = build.buffer([axis.extent for axis in space], stage.dtype, f"{stage.name}_right")
    pack = Stage(buffer.name, space, (), buffer, tuple(axis.var for axis in space), value)
    term = build.flatten(stage.reduce, {axis.var: axis.var for axis in stage.reduce})
    index = (*(axis.var for axis in batch), term // lanes, column.var, term % lanes)
    return pack, replace(stage, value=contraction.left * buffer[index])


def emit_few_columns(contraction: Contraction, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """The loop nest of a product whose first ``prefix`` axes are bound in ``env``."""
    return _FewColumns(contraction, machine).emit(env, prefix, tasks)


class _FewColumns:
    """Builds the loops: groups of tiles of rows, blocks of terms, tiles, vectors of terms."""

    def __init__(self, contraction: Contraction, machine: Machine) -> None:
        self.contraction, self.stage = contraction, contraction.stage
        self.row, self.column, self.terms = contraction.row, contraction.column, volume(contraction.stage.reduce)
        self.columns, self.lanes = self.column.extent, machine.lanes(self.stage.dtype)
        # Registers hold the sums of each row and column, a vector of each row, and one of the right factor.
        most = min((machine.registers - 1) // (self.columns + 1), MOST_ROWS)
        self.tiles = Axis.fresh(self.row, build.ceil_div(self.row.extent, most))
        self.rows = build.ceil_div(self.row.extent, self.tiles.extent)
        # A block's terms of the right factor stay in L1 while all tiles of rows read them.
        self.vectors = self.terms // self.lanes
        nbytes = self.columns * self.lanes * build.bits(self.stage.dtype) // 8
        blocks = build.ceil_div(self.vectors, max(1, machine.cache_bytes(1) // 2 // nbytes))
        self.length = build.ceil_div(self.vectors, blocks)
        self.blocks = Axis.fresh(self.stage.reduce[-1], build.ceil_div(self.vectors, self.length))
        self.in_group = Axis.fresh(self.row, min(self.tiles.extent, TILES) if self.blocks.extent > 1 else 1)
        self.groups = Axis.fresh(self.row, build.ceil_div(self.tiles.extent, self.in_group.extent))
        shape = [self.in_group.extent, self.rows, self.columns, self.lanes]
        self.partial = build.scratch(shape, self.stage.dtype, "partial")

    def emit(self, env: Env, prefix: int, tasks: int) -> Stmt:
        """The loop nest, whose first ``prefix`` axes are bound in ``env``."""
        others = [axis for axis in self.stage.space[prefix:] if axis is not self.row and axis is not self.column]
        loops = build.parallel_nest([*others, self.groups], env, self._group, tasks)
        return build.once_per_thread([AllocBuffer(self.partial)], loops) if self.blocks.extent > 1 else loops

    def _group(self, env: Env) -> Stmt:
        """The blocks of terms of a group of tiles."""
        first = env[self.groups.var] * self.in_group.extent
        count = self.in_group.extent
        if self.tiles.extent % count:
            count = build.minimum(count, self.tiles.extent - first)
        whole, rest = divmod(self.row.extent, self.rows)

        def tile(block: Expr, i: Expr) -> Stmt:
            at = {**env, self.row.var: (first + i) * self.rows}
            full = self._tile(at, block, i, self.rows)
            return IfThenElse(first + i < whole, full, self._tile(at, block, i, rest)) if rest else full

        each = lambda block: build.loop(self.row, count, lambda i: tile(block, i))
        return build.loop(self.blocks, self.blocks.extent, each)

    def _tile(self, env: Env, block: Expr, tile: Expr, rows: int) -> Stmt:
        """The sums of a tile over a block of terms; after the last block they are added up and stored."""
        sums = [
            [build.scratch([self.lanes], self.stage.dtype, "sums") for _ in range(self.columns)] for _ in range(rows)
        ]
        last = self.blocks.extent - 1

        def each(make: Callable[[Buffer, int, int, Expr], Stmt]) -> Stmt:
            pairs = product(range(self.columns), range(rows))
            return build.seq(*(self._lanes(lambda k, i=i, j=j: make(sums[i][j], i, j, k)) for j, i in pairs))

        def add(start: Expr) -> Stmt:
            def one(own: Buffer, i: int, j: int, k: Expr) -> Stmt:
                at = {self.row.var: env[self.row.var] + i, self.column.var: build.index(self.column, j)}
                term = build.substitute(self.stage.value, {**env, **at, **_terms_at(self.stage, start, k)})
                return BufferStore(own, own[k] + term, [k])

            return build.seq(*(self._prefetch(env, rows + i, start) for i in range(rows)), each(one))

        length = count = self.length
        if self.vectors % length:
            count = build.minimum(length, self.vectors - block * length)
        loop = build.loop(self.blocks, count, lambda n: add((block * length + n) * self.lanes))
        start = each(lambda own, i, j, k: BufferStore(own, build.zero(self.stage.dtype), [k]))
        finish = build.seq(*(self._finish(env, i, own) for i, own in enumerate(sums)))
        if last:
            # Blocks are summed separately, which limits the rounding error.
            join = each(lambda own, i, j, k: BufferStore(own, self.partial[tile, i, j, k] + own[k], [k]))
            keep = each(lambda own, i, j, k: BufferStore(self.partial, own[k], [tile, i, j, k]))
            finish = build.seq(IfThenElse(block > 0, join, None), IfThenElse(block == last, finish, keep))
        return build.seq(*(AllocBuffer(own) for line in sums for own in line), start, loop, finish)

    def _prefetch(self, env: Env, i: int, start: Expr) -> Stmt:
        """Fetches a cache line of a row of the next tile: the hardware prefetcher would restart at each row."""
        first = _terms_at(self.stage, start, tirx.const(0, str(start.ty)))
        at = {**env, self.row.var: env[self.row.var] + i, **first}
        loads = build.loads(build.substitute(self.contraction.left, at))
        return build.prefetch(max(loads, key=lambda load: len(load.indices)), level=2)

    def _finish(self, env: Env, i: int, sums: Sequence[Buffer]) -> Stmt:
        """Adds up the lanes of a row's sums and the terms after the last vector, and stores the results."""
        at = {**env, self.row.var: env[self.row.var] + i}
        totals = build.scratch([self.columns], self.stage.dtype, "totals")
        stmts: list[Stmt] = [AllocBuffer(totals)]
        for j, own in enumerate(sums):
            half = self.lanes // 2
            while half:
                fold = lambda k, own=own, half=half: BufferStore(own, own[k] + own[k + half], [k])
                stmts.append(self._lanes(fold, half))
                half //= 2
            stmts.append(BufferStore(totals, own[0], [j]))
        done = self.vectors * self.lanes

        def rest(n: Expr) -> Stmt:
            def one(j: Expr) -> Stmt:
                own = _terms_at(self.stage, done, n)
                term = build.substitute(self.stage.value, {**at, self.column.var: j, **own})
                return BufferStore(totals, totals[j] + term, [j])

            return self._lanes(one, self.columns)

        if self.terms > done:
            stmts.append(build.loop(self.blocks, self.terms - done, rest))
        store = lambda j: self.stage.store({**at, self.column.var: j}, totals[j])
        return build.seq(*stmts, self._lanes(store, self.columns))

    def _lanes(self, make: Callable[[Expr], Stmt], width: int | None = None) -> Stmt:
        return build.vectorized(self.column, width or self.lanes, make)
