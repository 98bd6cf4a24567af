"""The loops of contractions by AMX: blocks of up to four tiles, whose sums are stored to memory and read from there.

The tiles are configured at the start of each task and released at its end, so that they hold nothing when other code
runs on the thread. If fewer rows remain for a block, the configuration changes for that block only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.core import expressions
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.contraction import Contraction, plan, tiles_across
from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops, Panel
from tvmfun.lower.schedule.cpu.dot_instructions import TILE_ROWS, WORD_BITS, AmxDot
from tvmfun.lower.schedule.cpu.packed_dots import first_load, row_stride
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Env, Expr, Size, volume

_WORD_BYTES = WORD_BITS // 8

# With fewer rows per task, panels are packed once: packing takes as long as the product with about 80 rows.
_FEW_ROWS = 768


def emit_amx(contraction: Contraction, env: Env, prefix: int, machine: Machine, tasks: int) -> Stmt:
    """The loop nest of a contraction by AMX whose first ``prefix`` axes are bound in ``env``."""
    loops = AmxLoops(contraction, contraction.dot, prefix, tasks, machine)
    nest = loops.emit(env)
    return loops.instruction.with_definitions(nest, sorted(loops.shapes))


class AmxLoops(ContractionLoops):
    """Builds one contraction's loops, from the tasks inwards to the blocks of tiles."""

    def __init__(self, contraction: Contraction, dot: AmxDot, prefix: int, tasks: int, machine: Machine) -> None:
        super().__init__(contraction, plan(contraction, machine), prefix, tasks, machine)
        self.instruction = dot
        self.span = self.stage.reduce[-1].extent
        #: The numbers of tiles along rows and columns of the blocks.
        self.shapes: set[tuple[int, int]] = set()
        #: The columns of a block.
        self.width = self.tiling.lanes * tiles_across(self.row.extent, self.tiling.columns)
        self.sums = build.scratch([self.tiling.rows, self.width], self.dtype, "sums")
        stride = row_stride(contraction.left, self.row, self.stage.domain)
        self.left_stride = expressions.scalar(stride, "int32")

    def task(self, body: Stmt) -> Stmt:
        """Configures the tiles of the thread, and releases them."""
        begin, end = self._configure(self.tiling.rows), self.instruction.call("release", None)
        return build.seq(AllocBuffer(self.sums), begin, body, end)

    def _configure(self, rows: Size) -> Stmt:
        """Configures the tiles for blocks of ``rows`` rows."""
        count = build.ceil_div(rows, _tiles_of(rows)) if isinstance(rows, int) else rows
        return self.instruction.call("configure", None, _int32(count), _int32(self.span))

    def fewer_rows(self, env: Env, count: Size, panel: Panel, packed: Buffer | None) -> Stmt:
        """The remaining rows: one block; or, if their number is dynamic, a tile of 16 rows and one of the others."""
        block = lambda count, rows: self.tile(env, build.index(self.row, self.row.extent - count), rows, panel, packed)
        again = self._configure(self.tiling.rows)
        if isinstance(count, int):
            return build.seq(self._configure(count), block(count, count), again)
        rest = count % TILE_ROWS
        whole = IfThenElse(build.index(self.row, count) >= TILE_ROWS, block(count, TILE_ROWS), None)
        part = build.seq(self._configure(rest), block(rest, rest), again)
        return build.seq(whole, IfThenElse(build.index(self.row, rest) > 0, part, None))

    def few_rows(self) -> int:
        """The number of rows of a task below which panels are packed once rather than by each task."""
        return _FEW_ROWS

    def panel_buffer(self, columns: int) -> Buffer:
        """The buffer of a packed panel: for each block, its columns by depth."""
        width = min(self.width, columns)
        shape = [build.ceil_div(columns, width), volume(self.tiling.inner), width]
        return build.scratch(shape, self.term, "panel")

    def packed_at(self, depth: Expr | Size, column: Expr) -> list:
        """The indices of an element, or of a vector of neighbouring columns, in the packed panel."""
        if isinstance(column, tirx.Ramp):
            return [column.base // self.width, depth, tirx.Ramp(column.base % self.width, column.stride, column.lanes)]
        return [column // self.width, depth, column % self.width]

    def tile(self, env: Env, top: Expr, rows: Size, panel: Panel, packed: Buffer | None) -> Stmt:
        """The blocks of tiles of some rows of a panel."""
        assert packed is not None  # packed words always are
        whole, rest = divmod(panel.width, self.width)
        if panel.valid is not None:
            whole = expressions.scalar(build.ceil_div(panel.valid, self.width), "int32")

        def block(i: Expr) -> Stmt:
            valid = None
            if panel.valid is not None:
                valid = expressions.scalar(panel.valid, "int32") - i * self.width
            return self._tiles(env, top, rows, Panel(panel.start + i * self.width, self.width, valid), packed, i)

        blocks = build.loop(self.column, whole, block) if panel.valid is not None or whole else None
        if not rest:
            return blocks
        last = Panel(panel.start + whole * self.width, rest)
        return build.seq(blocks, self._tiles(env, top, rows, last, packed, build.index(self.column, whole)))

    def _tiles(self, env: Env, top: Expr, rows: Size, panel: Panel, packed: Buffer, number: Expr) -> Stmt:
        """One block of tiles: clear, multiply and add over the reduced axes, store to memory, write back."""
        down, across = _tiles_of(rows), build.ceil_div(panel.width, self.tiling.lanes)
        width = int(packed.shape[-1])
        shape = (down, across)
        self.shapes.add(shape)
        second = _int32(rows - build.ceil_div(rows, 2) if down == 2 else 0)
        sums = self.sums
        memory = (_address(sums, 0, 0), _int32(self.width * _WORD_BYTES), second)
        begins = range(0, panel.width, self.tiling.lanes)

        def call(function: str, *arguments: Expr) -> Stmt:
            return self.instruction.call(function, shape, *arguments)

        def each(make: Callable[[Env, Expr, int, Expr | int], Stmt]) -> Stmt:
            """Statements for each vector of sums of a row."""

            def of_row(i: Expr) -> Stmt:
                at = {**env, self.row.var: top + i}
                return build.seq(*(make(at, i, begin, panel.size(begin, self.tiling.lanes)) for begin in begins))

            return build.loop(self.row, rows if isinstance(rows, int) else build.index(self.row, rows), of_row)

        def load(at: Env, i: Expr, begin: int, size: Expr | int) -> Stmt:
            def partial_sum(k: Expr) -> Stmt:
                total = self.partial_sum({**at, self.column.var: panel.start + begin + k})
                return BufferStore(sums, total, [i, begin + k])

            return self.columns_of(size, partial_sum)

        def write(adds: bool, is_final: bool) -> Stmt:
            def vector(at: Env, i: Expr, begin: int, size: Expr | int) -> Stmt:
                def total(k: Expr) -> Expr:
                    own = sums[i, begin + k]
                    whole = {**at, self.column.var: panel.start + begin + k}
                    return self.partial_sum(whole) + own if adds else own

                return self.write_back(at, panel.start + begin, size, total, is_final)

            return each(vector)

        start = call("clear")
        if self.carries:
            later = self.block_number(env) != 0
            start = IfThenElse(later, build.seq(each(load), call("load", *memory)), start)

        def add(env: Env) -> Stmt:
            *_, steps, within = (None, *self.tiling.inner)
            first = {**env, within.var: build.index(within, 0)}
            count: Size = 1
            if steps is not None:
                first[steps.var] = build.index(steps, 0)
                count = steps.bound(env)
            left = first_load(self.operand(self.contraction.left, {**first, self.row.var: top}))
            depth = build.flatten(self.tiling.inner, first)
            return call(
                "add",
                tirx.address_of(left),
                self.left_stride,
                second,
                _address(packed, number, depth, 0),
                _int32(width * _WORD_BYTES),
                _int32(self.span),
                _int32(count),
            )

        multiply = build.nest(self.tiling.inner[:-2], env, add)
        adds = self.blocked and not self.carries
        written = self.by_end(env, partial(write, adds))
        if adds:  # and there are at least two blocks, so that the first is not the last
            first = write(adds=False, is_final=False)
            written = IfThenElse(self.block_number(env) == 0, first, written)
        return build.seq(start, multiply, call("store", *memory), written)


def _tiles_of(rows: Size) -> int:
    """The number of tiles along the rows of a block."""
    return 2 if isinstance(rows, int) and rows > TILE_ROWS else 1


def _int32(value: Size | Expr) -> Expr:
    return build.cast(value, "int32") if hasattr(value, "ty") else expressions.scalar(value, "int32")


def _address(buffer: Buffer, *indices: Expr | int) -> Expr:
    return tirx.address_of(buffer[indices])
