"""Column sums: what a launch computes for each row and column is also added up over the rows.

The terms of the sums are in registers, or in shared memory, of the threads that compute them. A launch leaves one sum
per column and tile of rows; another one adds these.
"""

from __future__ import annotations

from collections.abc import Sequence
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

#: The blocks that rows are spread over, and the fewest rows of a thread.
_BLOCKS = 528
_FEWEST_ROWS = 4
_MOST_LANES = 4


@dataclass(frozen=True, eq=False)
class ColumnSum:
    """A sum over the rows of what a product computes.

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


@dataclass(frozen=True, eq=False)
class SummedMaps:
    """Maps over rows and columns, and the sum over the rows of one of them.

    Args:
        maps: the maps, the last one of which are the terms of the sum.
        private: outputs of maps that nothing else reads.
        sum: the sum.
    """

    maps: tuple[Stage, ...]
    private: tuple[Buffer, ...]
    sum: ColumnSum

    @classmethod
    def match(cls, stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> SummedMaps | None:
        """The stages as maps and a sum of their columns; None if they are not, or store nothing but the sum."""
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

    @property
    def lanes(self) -> int:
        """The neighbouring columns of a thread: so many that a warp has a row."""
        columns = volume(self.sum.stage.space)
        lanes = _MOST_LANES
        while lanes > 1 and (columns % lanes or columns < lanes * WARP):
            lanes //= 2
        return lanes

    def emit(self) -> list[Stmt]:
        """The launches, and the allocation of what is between them."""
        columns, rows = volume(self.sum.stage.space), volume(self.sum.stage.reduce)
        across = 1
        while across < WARP and across * self.lanes < columns:
            across *= 2
        tiles_across = build.ceil_div(columns, across * self.lanes)
        beneath = THREADS // across
        tiles = max(1, min(_BLOCKS // tiles_across, rows // (beneath * _FEWEST_ROWS)))
        steps = build.ceil_div(rows, tiles * beneath)
        tiles = build.ceil_div(rows, steps * beneath)
        parts = build.buffer((tiles, columns), "float32", "column_sums")

        def body(block: Expr, thread: Expr) -> Stmt:
            tile = tirx.indexdiv(block, tiles_across)
            across_block = tirx.indexmod(block, tiles_across) * across
            column, row = tirx.indexmod(thread, across), tirx.indexdiv(thread, across)
            return self._block(parts, tile, across_block + column, (row, beneath), (column, across), steps)

        return [
            AllocBuffer(parts),
            launch(tiles * tiles_across, THREADS, body),
            emit_columns(self.sum.over_tiles(parts)),
        ]

    def _block(
        self, parts: Buffer, tile: Expr, vector: Expr, row: tuple[Expr, int], column: tuple[Expr, int], steps: int
    ) -> Stmt:
        """The statements of a thread.

        Args:
            parts: the sums, by tile and column.
            tile: the tile of rows.
            vector: the number of the vector of columns.
            row: the row in the block, and the rows of a block.
            column: the vector in the block, and the vectors of a block.
            steps: the rows of a thread.
        """
        lanes, lead = self.lanes, self.maps[0]
        *outer, inner = lead.space
        (own_row, beneath), (own_column, across) = row, column
        columns, rows = inner.extent, volume(outer)
        total = registers(lanes, "float32", "total")
        terms = self.maps[-1].output
        add = lambda results: build.unrolled(
            inner, lanes, lambda k: BufferStore(total, total[k] + results[terms][k], [k])
        )
        loads = vector_loads(self.maps, outer, [inner], lanes)
        first = vector * lanes

        def step(i: Expr) -> Stmt:
            position = (tile * steps + i) * beneath + own_row
            env = build.unflatten(outer, position)
            at = lambda k: {**env, **indices_at(self.maps, [inner], first + k)}
            stmt = VectorOfMaps(self.maps, self.private, loads, inner, lanes).emit(at, add)
            tests = [] if rows % (steps * beneath) == 0 else [position < rows]
            if columns % (across * lanes):
                tests.append(first < columns)
            return IfThenElse(tirx.all(*tests), stmt, None) if tests else stmt

        slots = shared([beneath, across * lanes], "float32", "partial")
        each = lambda body: build.unrolled(inner, lanes, body)
        half, exchanges = beneath // 2, []
        while half:  # the lower half of the rows gives its totals to the upper half
            is_below = tirx.all(own_row >= half, own_row < 2 * half)
            give = lambda k: BufferStore(slots, total[k], [own_row, own_column * lanes + k])
            take = lambda k, half=half: BufferStore(
                total, total[k] + slots[own_row + half, own_column * lanes + k], [k]
            )
            exchanges += [IfThenElse(is_below, each(give), None), barrier()]
            exchanges += [IfThenElse(own_row < half, each(take), None), barrier()]
            half //= 2
        store = each(lambda k: BufferStore(parts, total[k], [tile, first + k]))
        is_first = tirx.EQ(own_row, 0)
        writes = is_first if columns % (across * lanes) == 0 else tirx.all(is_first, first < columns)
        return build.seq(
            AllocBuffer(total),
            each(lambda k: BufferStore(total, tirx.const(0.0, "float32"), [k])),
            build.loop(inner, steps, step),
            AllocBuffer(slots),
            *exchanges,
            IfThenElse(writes, store, None),
        )


def _inlined(maps: list[Stage], axes: Sequence[Axis], temps: Sequence[Buffer]) -> list[Stage]:
    """The maps over the axes, in which others, such as those of each column, are computed again for each element."""
    result: list[Stage] = []
    while maps:
        first, *maps = maps
        if contains(temps, first.output) and not same_extents(first.space, axes):
            maps = [stage for stage in (inline_into(stage, first) for stage in maps) if isinstance(stage, Stage)]
        else:
            result.append(first)
    return [stage for stage in inline_maps(list(result), temps, branches=True) if isinstance(stage, Stage)]


def _is_in_step(stage: Stage, known: Sequence[Stage]) -> bool:
    """Whether a map reads elements of others only where they are computed."""
    for load in build.loads(stage.value):
        producer = next((other for other in known if other.output.same_as(load.source)), None)
        if producer is not None and not is_aligned(producer, stage, load, len(stage.space)):
            return False
    return True
