"""The loops of contractions, from the tasks inwards to the register tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.core import dims, expressions
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.contraction import FAR_BYTES, Contraction, Tiling, bytes_between_rows
from tvmfun.lower.schedule.cpu.dot_instructions import WORD, Dot
from tvmfun.lower.schedule.cpu.product_tiles import ProductTile, RowsAhead, Steps, product_tiles, steps_of
from tvmfun.lower.schedule.cpu.register_tiles import RegisterTile
from tvmfun.lower.schedule.cpu.transpose import (
    is_computed_along,
    is_row_readable,
    ramp,
    read_row,
    reads_several,
    transpose_tile,
)
from tvmfun.lower.schedule.stages import accumulator
from tvmfun.lower.tir import build, intrinsics
from tvmfun.lower.tir.build import Axis, Env, Expr, Size, volume
from tvmfun.lower.tir.micro_kernels.moves import RowsCopy
from tvmfun.lower.tir.micro_kernels.products import Next

# The share of L2 for rows of a strided left operand, while all panels read them.
_SHARE_OF_ROWS = 3 / 4
# Packing panels again for each block of rows pays only if a block has at least this many.
_FEWEST_ROWS = 128
# If tasks had fewer than this many rows, each task is a panel with all rows: packing a panel costs as much as
# multiplying it by 8 rows (14 for int8). With more, its sums would leave L2 between blocks of terms. The keys are the
# levels of the cache for a panel.
_FEW_ROWS = {1: 96, 2: 192}
# If panels alone are too few or too uneven for tasks, each is packed for blocks of at least this many rows.
_ROWS_OF_A_BLOCK = 96
# A last panel with at least this share of the usual width takes about as long as the others.
_EVEN = 7 / 8
# An epilogue with at least this many operations per element runs in a loop over the rows of a tile. That is as fast as
# unrolled code and takes up to a quarter less time to compile.
_MANY_OPERATIONS = 16
# With fewer panels than this, the left operand is read too rarely.
_FEW_PANELS = 4


@dataclass(frozen=True)
class Panel:
    """Columns that are computed together: ``width`` columns from ``start`` on; ``valid`` of them exist (None: all)."""

    start: Expr
    width: int
    valid: Size | Expr | None = None

    def size(self, begin: int, lanes: int) -> Expr | int:
        """The number of columns in the vector at ``begin``."""
        if self.valid is None:
            return min(lanes, self.width - begin)
        rest = self.valid - begin
        rest = rest if isinstance(rest, ir.Expr) else expressions.scalar(rest, "int32")
        return tirx.max(tirx.min(rest, lanes), 0)


class ContractionLoops:
    """Builds one contraction's loops, from the tasks inwards to the register tile.

    Args:
        contraction, tiling: the contraction, and the sizes of its tiles.
        prefix: the number of leading axes that loops around it have bound.
        tasks: the least number of tasks, if possible.
        machine: the processor.
        later: whether sums are added to those in the output; not with epilogues.
    """

    #: The distance in panels to the one whose rows are fetched; 0 if none are.
    panels_ahead = 0

    def __init__(
        self,
        contraction: Contraction,
        tiling: Tiling,
        prefix: int,
        tasks: int,
        machine: Machine,
        later: Expr | None = None,
    ) -> None:
        self.contraction, self.tiling, self.later = contraction, tiling, later
        self.tasks, self.machine = tasks, machine
        self.stage, self.row, self.column = contraction.stage, contraction.row, contraction.column
        self.dtype = accumulator(self.stage.dtype)
        self.dot = contraction.dot
        self.term = self.dtype if self.dot is None else WORD
        # The initial sums of a panel, if they are not 0.
        self.start: Buffer | None = None
        free = [a for a in self.stage.space[prefix:] if a is not self.row and a is not self.column]
        # Batch axes and further axes of the right operand, then further axes of the left operand.
        self.around = [axis for axis in free if build.uses(contraction.right, axis.var)]
        self.beside = [axis for axis in free if axis not in self.around]
        self.panels = Axis.fresh(self.column, build.ceil_div(self.column.extent, tiling.columns))
        self.divide()
        self.blocked = bool(tiling.outer)
        # Unrolled, heavy epilogues could overflow the instruction cache, and long ones take long to compile.
        self.loops_over_rows = any(
            intrinsics.is_heavy(epilogue.value) or build.operation_count(epilogue.value) >= _MANY_OPERATIONS
            for epilogue in self.stage.epilogues
        )
        # If the number of blocks is dynamic, tiles start from the sums of earlier blocks instead of adding them later.
        self.carries = self.blocked and not isinstance(volume(tiling.outer), int)
        # Between blocks of the reduced axes the sums are stored in the output, or in a wider buffer if it is narrow.
        self.partial = self.stage.output
        if self.blocked and self.dtype != self.stage.dtype:
            self.partial = build.scratch(self.stage.output.shape, self.dtype, "partial")
        # Whether final sums are stored without epilogues or conversion, like the sums of earlier blocks.
        self.stores_sums = not self.stage.epilogues and self.dtype == self.stage.dtype

    def divide(self) -> None:
        """Divides rows and panels into tasks, and the rows of a task into tiles."""
        full = self.row.extent // self.tiling.rows
        usual = max(1, dims.typical(full))
        # Blocks of rows that share a panel pack it again each.
        self.columns_first = self._splits_columns_first()
        before = [*self.around, *self.beside, *([self.panels] if self.columns_first else [])]
        wanted = build.ceil_div(self.tasks, build.points(before))
        if self.columns_first and self.wants_packing(usual):
            least = build.ceil_div(self.machine.cores, build.points(before))
            wanted = min(wanted, max(least, usual * self.tiling.rows // _ROWS_OF_A_BLOCK))
        self.per_block = build.ceil_div(usual, min(usual, wanted))
        most = self._tiles_in_cache()
        if most is not None:
            self.per_block = min(self.per_block, most)
        if isinstance(full, int):
            self.blocks = Axis.fresh(self.row, build.ceil_div(full, self.per_block))
        else:  # one more, for the remainder
            self.blocks = Axis.fresh(self.row, full // self.per_block + 1)
        self.taken = self._choose_tasks()
        if most is not None:
            self.taken = [*(axis for axis in self.taken if axis not in (self.blocks, self.panels)), self.blocks]
        if self.blocks not in self.taken:
            self.blocks = Axis.fresh(self.row, 1)

    def emit(self, env: Env) -> Stmt:
        """All loops, the outer ones parallel."""
        taken = self.taken
        around = [axis for axis in self.around if axis not in taken]
        beside = [axis for axis in self.beside if axis not in taken]
        panels = [] if self.panels in taken else [self.panels]

        def task(env: Env) -> Stmt:
            return self.task(build.nest([*around, *panels], env, lambda env: self.each_panel(env, beside)))

        return self.with_partial(build.parallel_nest(taken, env, task, build.points(taken) if self.tasks > 1 else 1))

    def with_partial(self, body: Stmt) -> Stmt:
        """The loops, with the buffer of sums of earlier blocks if that is not the output."""
        return body if self.partial.same_as(self.stage.output) else build.seq(AllocBuffer(self.partial), body)

    def task(self, body: Stmt) -> Stmt:
        """The function that a thread runs for one task."""
        return body

    def _tiles_in_cache(self) -> int | None:
        """The most tiles of rows whose left elements stay in L2 for all panels; None if that does not matter.

        Strided elements of a row are not prefetched, so reading them from memory for each panel is slow.
        """
        left, tiling = self.contraction.left, self.tiling
        if not isinstance(left, ir.TensorLoad) or not build.is_static(left.source):
            return None
        panels = build.ceil_div(build.points([self.column]), tiling.columns)
        item = build.bits(str(left.source.dtype)) // 8
        of_row = build.points(self.stage.reduce) * item
        # The bytes that the panels of one batch read; the windows of a convolution overlap.
        left_bytes = min(build.points([*self.beside, self.row]) * of_row, build.nbytes(left.source))
        if panels < _FEW_PANELS or left_bytes <= self.machine.cache_bytes(3):
            return None
        step = build.stride(left.source, left.indices, self.stage.reduce[-1], self.stage.domain)
        if step is not None and dims.typical(step) * item <= FAR_BYTES:
            return None
        rows = int(_SHARE_OF_ROWS * self.machine.cache_bytes(2)) // of_row
        return rows // tiling.rows if rows >= _FEWEST_ROWS else None

    def _splits_columns_first(self) -> bool:
        """Whether the right operand is the larger one, or blocks of rows would pack its panels too often."""
        rows = build.points([*self.beside, self.row])
        if build.points([self.column]) >= rows:
            return True
        blocks = self.tasks // build.points(self.around)
        return rows < self.few_rows() * blocks and self.wants_packing(rows // self.tiling.rows)

    def few_rows(self) -> int:
        """The number of rows of a task below which panels are packed once rather than by each task."""
        return _FEW_ROWS[self.machine.settings.panel_level]

    def _choose_tasks(self) -> list[Axis]:
        """The axes to run in parallel: enough of them for the tasks, first those that split the larger operand."""
        along = [*self.beside, self.blocks]
        axes = [*self.around, self.panels, *along] if self.columns_first else [*self.around, *along, self.panels]
        taken: list[Axis] = []
        for axis in axes:
            size = build.points(taken)
            is_even = self.panels not in taken or self._has_even_panels()
            if size >= self.tasks or (size > 1 and size % self.machine.cores == 0 and is_even):
                break
            taken.append(axis)
        return taken

    def _has_even_panels(self) -> bool:
        """Whether the last panel is about as wide as the others."""
        tail = self.column.extent % self.tiling.columns
        return isinstance(tail, int) and (tail == 0 or tail >= _EVEN * self.tiling.columns)

    def each_panel(self, env: Env, beside: Sequence[Axis]) -> Stmt:
        """The panel of columns at ``env``; the last one may be narrower."""
        size = self.tiling.columns
        full, tail = divmod(self.column.extent, size)
        start = env[self.panels.var] * size
        if tail == 0:
            return self.panel(env, Panel(start, size), beside)
        if full == 0:
            return self.panel(env, Panel(start, tail), beside)
        last = Panel(start, tail) if isinstance(tail, int) else Panel(start, size, tail)
        whole, part = (self.panel(env, panel, beside) for panel in (Panel(start, size), last))
        return IfThenElse(env[self.panels.var] < full, whole, part)

    def panel(self, env: Env, panel: Panel, beside: Sequence[Axis]) -> Stmt:
        """All rows of one panel, block by block of the reduced axes, or for the block at ``env``."""
        outer = [axis for axis in self.tiling.outer if axis.var not in env]
        return build.nest(outer, env, lambda env: self.block_of_terms(env, panel, beside))

    def block_of_terms(self, env: Env, panel: Panel, beside: Sequence[Axis]) -> Stmt:
        """All rows of one panel, for one block of the reduced axes."""
        tiling, width = self.tiling, panel.width
        pads = width % tiling.lanes != 0 or panel.valid is not None
        if pads and tiling.unpacked:  # micro-kernels can read part of a vector
            pads = self.steps(env, tiling.rows, panel, None) is None
        rows = tiling.rows * dims.typical(self.blocks.extent)
        reuse = build.points(beside) * build.ceil_div(build.points([self.row]), rows)
        packed = None
        if pads or self.wants_packing(reuse):
            padded = -(-width // tiling.lanes) * tiling.lanes
            packed = self.panel_buffer(padded)
            if self.dot is not None and self.dot.shifted:
                self.start = build.scratch([padded], self.dtype, "start")

        all_rows = build.nest(beside, env, lambda env: self.each_tile(env, panel, packed))
        if packed is None:
            return all_rows
        pack = self.pack(env, panel, packed)
        if self.start is not None:
            pack = build.seq(pack, AllocBuffer(self.start), self._correct(env, self.dot, packed, self.start))
        return build.seq(AllocBuffer(packed), pack, all_rows)

    def panel_buffer(self, columns: int) -> Buffer:
        """The buffer of a packed panel."""
        return build.scratch([volume(self.tiling.inner), columns], self.term, "panel")

    def packed_at(self, depth: Expr | Size, column: Expr) -> list:
        """The indices of an element, or of a vector of neighbouring columns, in the packed panel."""
        return [depth, column]

    def depth(self, env: Env) -> Expr | Size:
        """The row of the packed panel at the point of the loops."""
        return build.flatten(self.tiling.inner, env)

    def wants_packing(self, reuse: int) -> bool:
        """Whether the right operand is slow to read unpacked: strided, converted, or with rows far apart."""
        right = self.contraction.right
        if not isinstance(right, ir.TensorLoad) or str(right.ty) != self.term or self.dot is not None:
            return True
        domain = self.stage.domain
        # Only within a panel: panels themselves may be apart.
        size = self.tiling.columns
        inner = Axis.fresh(self.column, max(1, size - 1))
        split = {self.column.var: self.panels.var * size + inner.var}
        indices = [build.substitute(index, split) for index in right.indices]
        if build.stride(right.source, indices, inner, [*domain, self.panels, inner]) != 1:
            return True
        if not self.tiling.inner or self.tiling.unpacked or reuse < 4:
            return False
        distance = bytes_between_rows(self.contraction)
        # In a deep panel even near rows compete for the same sets of L1 and L2, unless the panel has whole rows.
        is_deep = self.machine.settings.panel_level == 2
        near = size * build.bits(self.dtype) // 8 if is_deep else FAR_BYTES
        return distance is None or dims.typical(distance) > near

    def right(self, env: Env) -> Expr:
        """The right operand at the point of the loops, as a term."""
        return build.cast(self.operand(self.contraction.right, env), self.term)

    def left(self, env: Env) -> Expr:
        """The left operand at the point of the loops, as a term."""
        return build.cast(self.operand(self.contraction.left, env), self.term)

    def operand(self, value: Expr, env: Env) -> Expr:
        """An operand at the point of the loops, which split the reduced axes into blocks."""
        reduce = {var: build.substitute(at, env) for var, at in self.tiling.reduce_env.items()}
        return build.substitute(value, {**env, **reduce})

    def pack(self, env: Env, panel: Panel, packed: Buffer) -> Stmt:
        """Copies the panel to contiguous memory, padded with zeros to whole vectors."""
        if self.packs_transposed(panel):
            return self._pack_transposed(env, panel, packed)
        return self._copy_rows(env, panel, packed) or build.nest(
            self.tiling.inner, env, lambda env: self.pack_term(env, panel, packed)
        )

    def _copy_rows(self, env: Env, panel: Panel, packed: Buffer) -> Stmt | None:
        """Copies rows of the right operand by a micro-kernel; None if they are converted, or not contiguous."""
        if panel.valid is not None or not self.tiling.inner:
            return None
        *outer, last = self.tiling.inner
        column = Axis.fresh(self.column, panel.width)
        domain = [*self.tiling.inner, column]
        here = {**env, **{axis.var: axis.var for axis in self.tiling.inner}, self.column.var: panel.start + column.var}
        right, result = self.right(here), packed[tuple(self.packed_at(self.depth(here), column.var))]
        if not isinstance(right, ir.TensorLoad) or build.stride(right.source, right.indices, column, domain) != 1:
            return None
        steps = [build.stride(load.source, load.indices, last, domain) for load in (result, right)]
        if not all(isinstance(step, int) for step in steps):
            return None

        def copy(env: Env) -> Stmt:
            first = {**env, last.var: build.index(last, 0), column.var: build.index(column, 0)}
            to, source = (build.substitute(load, first) for load in (result, right))
            function = RowsCopy(build.bits(self.term), panel.width, self.tiling.lanes)
            return function.call(to, steps[0], source, steps[1], last.bound(env))

        return build.nest(outer, env, copy)

    def pack_term(self, env: Env, panel: Panel, packed: Buffer) -> Stmt:
        """Copies the elements of one term."""
        lanes, start, width = self.tiling.lanes, panel.start, panel.width
        depth = self.depth(env)

        def store(begin: int, k: Expr, value: Expr) -> Stmt:
            return BufferStore(packed, value, self.packed_at(depth, begin + k))

        def element(k: Expr) -> Stmt:
            right = self.right({**env, self.column.var: start + k})
            return store(0, k, tirx.if_then_else(k < panel.valid, right, build.zero(self.term)))

        def vector(begin: int, size: int) -> Stmt:
            right = lambda k: self.right({**env, self.column.var: start + begin + k})
            copy = self._along_columns()(self.column, size, lambda k: store(begin, k, right(k)))
            if size == lanes:
                return copy
            zero = lambda k: store(begin + size, k, build.zero(self.term))
            return build.seq(copy, build.vectorized(self.column, lanes - size, zero))

        if panel.valid is not None:
            return build.loop(self.column, width, element)
        return build.seq(*(vector(begin, min(lanes, width - begin)) for begin in range(0, width, lanes)))

    def _correct(self, env: Env, dot: Dot, packed: Buffer, start: Buffer) -> Stmt:
        """Computes the initial sums of a panel: minus the products with the shift of the left terms."""
        lanes = self.tiling.lanes
        vectors = [ramp(build.index(self.column, begin), lanes) for begin in range(0, int(start.shape[0]), lanes)]
        zeros, offset = (tirx.Broadcast(value, lanes) for value in (build.zero(self.dtype), dot.offset))

        def line(env: Env) -> Stmt:
            depth = build.flatten(self.tiling.inner, env)
            add = lambda at: dot.add(start[at], offset, packed[depth, at], lanes)
            return build.seq(*(BufferStore(start, add(at), [at]) for at in vectors))

        clear = (BufferStore(start, zeros, [at]) for at in vectors)
        # In int64, because signed overflow is undefined in LLVM.
        wide = tirx.Broadcast(build.zero("int64"), lanes)
        negated = lambda at: tirx.Cast(str(zeros.ty), wide - tirx.Cast(str(wide.ty), start[at]))
        negate = (BufferStore(start, negated(at), [at]) for at in vectors)
        return build.seq(*clear, build.nest(self.tiling.inner, env, line), *negate)

    def _along_columns(self):
        """The builder of loops over columns; vectors that are read as one word cannot be lanes of another vector."""
        return build.loop if reads_several(self.contraction.right) else build.vectorized

    def packs_transposed(self, panel: Panel) -> bool:
        """Whether the right operand is contiguous along the innermost reduced axis, and a tile fits the panel."""
        right, stage, lanes = self.contraction.right, self.stage, self.tiling.lanes
        has_tiles = panel.width >= lanes if self.dot is None else panel.width % lanes == 0
        if not self.tiling.inner or not has_tiles or self.tiling.inner[-1].extent < lanes:
            return False
        # A square tile of narrower elements does not fit the registers.
        if panel.valid is not None or build.bits(self.term) < 32:
            return False
        if self.dot is not None and str(right.ty) != self.term:
            return False
        last, domain = stage.reduce[-1], stage.domain
        return is_row_readable(right, last, domain) or (self.dot is None and is_computed_along(right, last, domain))

    def _pack_transposed(self, env: Env, panel: Panel, packed: Buffer) -> Stmt:
        """Packs square tiles, transposed in registers, and the remaining rows one element at a time.

        The last tile begins early instead of having fewer columns.
        """
        *outer, last = self.tiling.inner
        lanes, start, width = self.tiling.lanes, panel.start, panel.width
        padding = -width % lanes
        right = self.contraction.right
        is_array = is_row_readable(right, self.stage.reduce[-1], self.stage.domain)

        def at(env: Env, begin, position: Expr) -> Env:
            env = {**env, self.column.var: start + begin, last.var: position}
            return {**env, **{var: build.substitute(to, env) for var, to in self.tiling.reduce_env.items()}}

        def tile(env: Env, begin: Expr, position: Expr) -> Stmt:
            def write(line: int, vector: Expr) -> Stmt:
                depth = self.depth({**env, last.var: position + line})
                return BufferStore(packed, vector, self.packed_at(depth, ramp(begin, lanes)))

            def read(line: int) -> Expr:
                return build.cast(read_row(right, at(env, begin + line, position), lanes), f"{self.term}x{lanes}")

            if is_array:
                return transpose_tile(read, write, lanes, self.term)
            computed = build.scratch([lanes, lanes], self.term, "tile")

            def compute(line: Expr) -> Stmt:
                element = lambda k: build.substitute(right, at(env, begin + line, position + k))
                store = lambda k: BufferStore(computed, build.cast(element(k), self.term), [line, k])
                return build.vectorized(last, lanes, store)

            rows = build.loop(self.column, lanes, compute)
            row = lambda line: computed[line, ramp(build.index(last, 0), lanes)]
            return build.seq(AllocBuffer(computed), rows, transpose_tile(row, write, lanes, self.term))

        def line(env: Env, position: Expr) -> Stmt:
            depth = self.depth({**env, last.var: position})

            def element(k: Expr) -> Stmt:
                value = build.cast(build.substitute(right, at(env, k, position)), self.term)
                return BufferStore(packed, value, self.packed_at(depth, k))

            return build.loop(last, width, element)

        def clear(env: Env, position: Expr) -> Stmt:
            """Stores zeros in the last vector, whose padding stays zero."""
            depth = self.depth({**env, last.var: position})
            zeros = tirx.Broadcast(build.zero(self.term), lanes)
            return BufferStore(
                packed, zeros, self.packed_at(depth, ramp(build.index(self.column, width + padding - lanes), lanes))
            )

        def lines(env: Env) -> Stmt:
            bound = last.bound(env)
            whole = bound // lanes

            # The prefetcher follows the rows of a tile along the terms.
            def tiles(j: Expr) -> Stmt:
                begin = build.minimum(j * lanes, width - lanes) if padding else j * lanes
                return build.loop(last, whole, lambda i: tile(env, begin, i * lanes))

            rest = bound - whole * lanes
            tail = None
            if not isinstance(rest, int) or rest:
                tail = build.loop(last, rest, lambda i: line(env, whole * lanes + i))
            cleared = build.loop(last, bound, lambda i: clear(env, i)) if padding else None
            return build.seq(cleared, build.loop(self.column, build.ceil_div(width, lanes), tiles), tail)

        return build.nest(outer, env, lines)

    def each_tile(self, env: Env, panel: Panel, packed: Buffer | None) -> Stmt:
        """The register tiles of one block of rows in one panel."""
        rows = self.tiling.rows
        full, tail = divmod(self.row.extent, rows)
        per_block = build.ceil_div(full, self.blocks.extent) if isinstance(full, int) else self.per_block
        block = env.get(self.blocks.var, build.index(self.row, 0))
        count = full if self.blocks.extent == 1 else build.minimum(per_block, full - block * per_block)

        body = self.tiles(env, block * (per_block * rows), count, panel, packed)
        if tail == 0:
            return body
        rest = self.fewer_rows(env, tail, panel, packed)
        if self.blocks.extent != 1:
            rest = IfThenElse(block == self.blocks.extent - 1, rest, None)
        return build.seq(body, rest)

    def tiles(self, env: Env, top: Expr, count: Size | Expr, panel: Panel, packed: Buffer | None) -> Stmt:
        """The tiles of a panel below one another, from the row ``top`` on."""
        rows = self.tiling.rows
        steps = self.steps(env, rows, panel, packed)
        if steps is None or not isinstance(self.row.extent, int):
            return build.loop(self.row, count, lambda i: self.tile(env, top + i * rows, rows, panel, packed))
        tile = lambda i: ProductTile(self, steps, env, top + i * rows, rows, panel, packed)
        following = Next(rows * steps.left_row, 0, rows * steps.sums_row)
        return product_tiles(self, env, tile, count, following)

    def steps(self, env: Env, rows: int, panel: Panel, packed: Buffer | None) -> Steps | None:
        """The steps of tiles that a micro-kernel computes; None if it does not."""
        return None if panel.valid is not None else steps_of(self, env, packed, self.rows_ahead(env, rows))

    def fewer_rows(self, env: Env, count: Size, panel: Panel, packed: Buffer | None) -> Stmt:
        """The remaining rows; a dynamic number of them in tiles of a half, a quarter, ... of the rows."""
        extent, rows = self.row.extent, self.tiling.rows
        if isinstance(count, int):
            return self.tile(env, build.index(self.row, extent - count), count, panel, packed)
        tiles = []
        while rows > 1:
            left, rows = extent % rows, rows // 2
            tile = self.tile(env, build.index(self.row, extent - left), rows, panel, packed)
            tiles.append(IfThenElse(build.index(self.row, left) >= rows, tile, None))
        return build.seq(*tiles)

    def tile(self, env: Env, top: Expr, rows: int, panel: Panel, packed: Buffer | None) -> Stmt:
        """One register tile."""
        steps = self.steps(env, rows, panel, packed)
        if steps is None:
            return RegisterTile(self, env, top, rows, panel, packed).emit()
        tile = ProductTile(self, steps, env, top, rows, panel, packed)
        return product_tiles(self, env, lambda i: tile)

    def rows_ahead(self, env: Env, rows: int) -> RowsAhead | None:
        """The rows of the next tile that the loops of a tile with ``rows`` rows fetch, or None."""
        return None

    def over_terms(self, env: Env, top: Expr, rows: int, update: Callable[[Env], Stmt]) -> Stmt:
        """The loops of a tile over a block of terms."""
        return build.nest(self.tiling.inner, env, update)

    def columns_of(self, size: Expr | int, make) -> Stmt:
        """A loop over the columns of one vector of the tile."""
        return (build.vectorized if isinstance(size, int) else build.loop)(self.column, size, make)

    def block_number(self, env: Env) -> Expr | Size:
        """The number of the block of the reduced axes at ``env``."""
        return build.flatten(self.tiling.outer, env)

    def has_earlier_sums(self, env: Env) -> Expr | None:
        """Whether there are sums of earlier blocks; None if there never are."""
        later = build.is_later(self.block_number(env)) if self.blocked else None
        if later is None or self.later is None:
            return self.later if later is None else later
        return tirx.any(self.later, later)

    def is_last_block(self, env: Env) -> Expr:
        """Whether the block of the reduced axes at ``env`` is the last one."""
        return self.block_number(env) == volume(self.tiling.outer) - 1

    def by_end(self, env: Env, write: Callable[[bool], Stmt]) -> Stmt:
        """Statements by ``write(is_final)``: for final sums in the last block of terms, and for partial sums before."""
        if not self.blocked or self.stores_sums:
            return write(True)
        return IfThenElse(self.is_last_block(env), write(True), write(False))

    def write_back(self, env: Env, begin: Expr, size: Expr | int, total, is_final: bool) -> Stmt:
        """Stores a vector of sums: final ones with their epilogues, others as partial sums."""

        def element(k: Expr) -> Stmt:
            at = {**env, self.column.var: begin + k}
            if is_final:
                return self.stage.store(at, build.cast(total(k), self.stage.dtype))
            return BufferStore(self.partial, total(k), self.stage.at(at))

        return self.columns_of(size, element)

    def partial_sum(self, env: Env) -> Expr:
        """The sum of earlier blocks of the reduced axes."""
        return self.partial[tuple(self.stage.at(env))]
