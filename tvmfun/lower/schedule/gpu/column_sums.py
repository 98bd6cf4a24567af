"""Column sums: the results of a launch for each row and column are also added up over the rows.

The terms of the sums are in registers, or in shared memory, of the threads that compute them. A launch leaves one sum
per column and tile of rows; another one adds these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.core.expressions import to_size
from tvmfun.lower.schedule.gpu.columns import emit_columns
from tvmfun.lower.schedule.gpu.elementwise import VectorOfMaps, vector_loads
from tvmfun.lower.schedule.gpu.launch import THREADS, WARP, barrier, launch, registers, shared
from tvmfun.lower.schedule.stage_passes import inline_into, inline_maps
from tvmfun.lower.schedule.stages import AnyStage, Stage, contains, indices_at, is_aligned, is_map, same_extents
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr, volume

#: The blocks that rows are spread over, the fewest rows of a thread, and the most columns.
_BLOCKS = 528
_FEWEST_ROWS = 4
_MOST_LANES = 4


@dataclass(frozen=True, eq=False)
class ColumnSum:
    """A sum over the rows of results of a product, or of maps.

    Args:
        stage: the reduction.
        terms: the map of its terms, over rows and columns.
    """

    stage: Stage
    terms: Stage

    @property
    def over_terms(self) -> Stage:
        """The sum of stored terms."""
        return replace(self.stage, value=self.terms.output[self.terms.index])

    def over_tiles(self, parts: Buffer) -> Stage:
        """The sum of ``parts``, the sums of tiles of rows by tile and column."""
        tile = Axis.fresh(self.stage.reduce[0], to_size(parts.shape[0]))
        column = build.flatten(self.stage.space, {axis.var: axis.var for axis in self.stage.space})
        return replace(self.stage, reduce=(tile,), value=parts[tile.var, column])


def without_column_sums(stages: Sequence[AnyStage]) -> tuple[list[AnyStage], list[ColumnSum]]:
    """The stages with maps of their terms instead of sums over axes that are not the last ones, and these sums."""
    result: list[AnyStage] = []
    sums: list[ColumnSum] = []
    for stage in stages:
        is_sum = isinstance(stage, Stage) and stage.combine is tirx.Add and stage.dtype == "float32"
        if not is_sum or isinstance(stage.value, tirx.Mul) or not stage.space or stage.epilogues:
            result.append(stage)
            continue
        axes = (*stage.reduce, *stage.space)
        output = build.buffer([axis.extent for axis in axes], "float32", "terms")
        terms = Stage("terms", axes, (), output, tuple(axis.var for axis in axes), stage.value)
        result.append(terms)
        sums.append(ColumnSum(stage, terms))
    return result, sums


@dataclass(frozen=True)
class Spread:
    """The distribution of rows and columns over blocks of threads.

    Args:
        lanes: the neighbouring columns of a thread.
        across, beneath: the threads of a block along columns, and along rows.
        blocks_across, blocks_beneath: the blocks along columns, and along rows.
        steps: the rows of a thread.
    """

    lanes: int
    across: int
    beneath: int
    blocks_across: int
    blocks_beneath: int
    steps: int

    @classmethod
    def of(cls, rows: int, columns: int) -> Spread:
        """A row of a block is a warp, or all columns if there are fewer; a thread has several rows."""
        lanes, across = _MOST_LANES, 1
        while lanes > 1 and (columns % lanes or columns < lanes * WARP):
            lanes //= 2
        while across < WARP and across * lanes < columns:
            across *= 2
        beneath, blocks_across = THREADS // across, build.ceil_div(columns, across * lanes)
        blocks = max(1, min(_BLOCKS // blocks_across, rows // (beneath * _FEWEST_ROWS)))
        steps = build.ceil_div(rows, blocks * beneath)
        return cls(lanes, across, beneath, blocks_across, build.ceil_div(rows, steps * beneath), steps)


@dataclass(frozen=True, eq=False)
class SummedMaps:
    """Maps over rows and columns, and the sum over the rows of one of them.

    Args:
        maps: the maps, the last of which computes the terms of the sum.
        private: outputs of maps that nothing else reads.
        sum: the sum.
    """

    maps: tuple[Stage, ...]
    private: tuple[Buffer, ...]
    sum: ColumnSum

    @classmethod
    def match(cls, stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> SummedMaps | None:
        """The stages as maps and a sum of their columns; None if they are not, or store nothing but the sum.

        All axes but the last are reduced: the maps are in step with terms whose reduced axes come first.
        """
        maps, sums = without_column_sums(stages)
        if len(sums) != 1 or len(stages) < 2 or not all(map(is_map, maps)):
            return None
        (total,) = sums
        columns = total.stage.space
        if len(columns) != 1 or any(not isinstance(axis.extent, int) for axis in total.terms.space):
            return None
        inlined = _inlined([stage for stage in maps if isinstance(stage, Stage)], total.terms.space, temps)
        temps = [*temps, total.terms.output]
        terms = inlined[-1]
        others = [stage for stage in inlined if stage is not terms]
        if terms.output is not total.terms.output or all(contains(temps, stage.output) for stage in others):
            return None
        for i, stage in enumerate(inlined):
            known = inlined[:i]
            if not same_extents(stage.space, terms.space) or not _is_in_step(stage, known):
                return None
        return cls(tuple(inlined), tuple(stage.output for stage in inlined if contains(temps, stage.output)), total)

    def emit(self) -> list[Stmt]:
        """The launches, and the allocation of the intermediates between them."""
        columns, rows = volume(self.sum.stage.space), volume(self.sum.stage.reduce)
        spread = Spread.of(rows, columns)
        parts = build.buffer((spread.blocks_beneath, columns), "float32", "column_sums")
        blocks = spread.blocks_across * spread.blocks_beneath
        tiles = launch(blocks, THREADS, lambda block, thread: self._tile(parts, spread, block, thread))
        return [AllocBuffer(parts), tiles, emit_columns(self.sum.over_tiles(parts))]

    def _tile(self, parts: Buffer, spread: Spread, block: Expr, thread: Expr) -> Stmt:
        """The statements of a thread, which leave the sums of a block's columns in a row of ``parts``."""
        lanes, inner = spread.lanes, self.maps[0].space[-1]
        tile = tirx.indexdiv(block, spread.blocks_across)
        column, row = tirx.indexmod(thread, spread.across), tirx.indexdiv(thread, spread.across)
        first = (tirx.indexmod(block, spread.blocks_across) * spread.across + column) * lanes
        is_column = None if inner.extent % (spread.across * lanes) == 0 else first < inner.extent
        total, each = registers(lanes, "float32", "total"), lambda body: build.unrolled(inner, lanes, body)
        store = each(lambda k: BufferStore(parts, total[k], [tile, first + k]))
        return build.seq(
            AllocBuffer(total),
            each(lambda k: BufferStore(total, tirx.const(0.0, "float32"), [k])),
            self._rows(total, spread, (tile * spread.steps, row, first), is_column),
            _exchanged(total, spread, row, column, each),
            _guarded(store, tirx.EQ(row, 0), is_column),
        )

    def _rows(self, total: Buffer, spread: Spread, at: tuple[Expr, Expr, Expr], is_column: Expr | None) -> Stmt:
        """The maps of a thread's rows, whose terms are added to the totals.

        Args:
            total: the totals of a thread.
            spread: how rows are spread.
            at: the first step of the block, the thread's row in the block, and its first column.
            is_column: the condition that the column exists; None if it always does.
        """
        *outer, inner = self.maps[0].space
        first_step, row, first = at
        terms, loads = self.maps[-1].output, vector_loads(self.maps, outer, [inner], spread.lanes)
        add = lambda results: build.unrolled(
            inner, spread.lanes, lambda k: BufferStore(total, total[k] + results[terms][k], [k])
        )

        def step(i: Expr) -> Stmt:
            position = (first_step + i) * spread.beneath + row
            env = build.unflatten(outer, position)
            at = lambda k: {**env, **indices_at(self.maps, [inner], first + k)}
            vector = VectorOfMaps(self.maps, self.private, loads, inner, spread.lanes).emit(at, add)
            is_whole = volume(outer) % (spread.steps * spread.beneath) == 0
            return _guarded(vector, None if is_whole else position < volume(outer), is_column)

        return build.loop(inner, spread.steps, step)


def _guarded(stmt: Stmt, *conditions: Expr | None) -> Stmt:
    """The statement under the conditions that are not None."""
    tests = [condition for condition in conditions if condition is not None]
    return IfThenElse(tirx.all(*tests), stmt, None) if tests else stmt


def _exchanged(total: Buffer, spread: Spread, row: Expr, column: Expr, each: Callable) -> Stmt:
    """Adds up the totals of a block's rows in the first row: each row of the lower half to one of the upper half."""
    slots = shared([spread.beneath, spread.across * spread.lanes], "float32", "partial")
    slot = lambda row, k: (row, column * spread.lanes + k)
    half, stmts = spread.beneath // 2, [AllocBuffer(slots)]
    while half:
        give = each(lambda k: BufferStore(slots, total[k], slot(row, k)))
        take = each(lambda k, half=half: BufferStore(total, total[k] + slots[slot(row + half, k)], [k]))
        stmts += [_guarded(give, row >= half, row < 2 * half), barrier()]
        stmts += [_guarded(take, row < half), barrier()]
        half //= 2
    return build.seq(*stmts)


def _inlined(maps: list[Stage], axes: Sequence[Axis], temps: Sequence[Buffer]) -> list[Stage]:
    """The maps over the axes, in which others, such as those of each column, are computed again for each element."""
    result: list[Stage] = []
    while maps:
        first, *maps = maps
        if contains(temps, first.output) and not same_extents(first.space, axes):
            maps = [stage for stage in (inline_into(stage, first) for stage in maps) if isinstance(stage, Stage)]
        else:
            result.append(first)
    maps = inline_maps(list(result), temps, has_branches=lambda stage: True)
    return [stage for stage in maps if isinstance(stage, Stage)]


def _is_in_step(stage: Stage, known: Sequence[Stage]) -> bool:
    """Whether a map reads elements of others only where they are computed."""
    for load in build.loads(stage.value):
        producer = next((other for other in known if other.output.same_as(load.source)), None)
        if producer is not None and not is_aligned(producer, stage, load, len(stage.space)):
            return False
    return True
