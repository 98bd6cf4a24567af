"""The loops of contractions of which an operand has its rows or terms far apart in memory.

The prefetcher follows a few rows, but neither columns nor terms that are more than a page apart; and what is apart by a
power of two competes for the same sets of a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx import AllocBuffer, BufferStore, Stmt

from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops
from tvmfun.lower.schedule.cpu.transpose import ramp, read_row, transpose_tile
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume


class _Strips(ContractionLoops):
    """Loops whose tasks may have strips of ``size`` panels each."""

    strips: Axis
    size: int

    def strip(self, env: Env, beside: Sequence[Axis]) -> Stmt:
        """The panels of the strip at ``env``; the last one may have fewer."""
        panels, size = self.panels.extent, self.size
        first = env[self.strips.var] * size
        count = size if panels % size == 0 else build.minimum(size, panels - first)
        panel = lambda i: self.each_panel({**env, self.panels.var: first + i}, beside)
        return build.loop(self.column, count, panel)


class StreamedLoops(_Strips):
    """Loops in which a task has a strip of panels: for each block of terms, all rows of all panels.

    So each row of the right operand is read along the strip. The sums of the strip stay in L2 between blocks.
    """

    # The fewest bytes of a row in a strip: two pages, at whose ends the prefetcher begins anew.
    _LENGTH = 8 << 10

    def divide(self) -> None:
        """Divides the panels into strips."""
        panels, cores, batch = self.panels.extent, self.machine.cores, build.points(self.around)
        most = self.column.extent * build.bits(self.dtype) // 8 // self._LENGTH // cores * cores
        wanted = min(build.ceil_div(self.tasks, batch), max(most, build.ceil_div(cores, batch)))
        self.size = build.ceil_div(panels, wanted)
        self.strips = Axis.fresh(self.column, build.ceil_div(panels, self.size))
        self.blocks = Axis.fresh(self.row, 1)

    def emit(self, env: Env) -> Stmt:
        """All loops, the outer ones parallel."""

        def task(env: Env) -> Stmt:
            return build.nest(self.tiling.outer, env, lambda env: self.strip(env, self.beside))

        axes = [*self.around, self.strips]
        return self.with_partial(build.parallel_nest(axes, env, task, build.points(axes) if self.tasks > 1 else 1))

    def wants_packing(self, reuse: int) -> bool:
        """Whether the right operand cannot be read in vectors; the rows of a block stay in L1."""
        return super().wants_packing(1)


class TransposedRowsLoops(_Strips):
    """Loops in which a task has a block of rows of the left operand, or all: it is transposed for each block of terms.

    All panels of columns, or a strip of them, read the transposed rows, which L2 holds.
    """

    # The share of L2 for the rows of a block, and the fewest rows of a task if there are two per core.
    _SHARE, _ROWS_OF_A_TASK = 1 / 2, 128
    # Strips of panels: the fewest rows, and how much more than the average the last thread to finish may have to do.
    _ROWS_OF_A_STRIP, _UNEVEN = 64, 17 / 16
    # The rows and terms of a block begin after so many: the last tiles may begin before the block.
    _BEFORE = 16

    def divide(self) -> None:
        """Divides the panels into strips if there are more columns than rows, and L2 holds all rows; else the rows.

        For each block of rows all panels are packed, and for each strip all rows are transposed. A row takes about as
        long as a column.
        """
        rows, terms, panels = self.tiling.rows, volume(self.tiling.inner), self.panels.extent
        full, tail = divmod(self.row.extent, rows)
        batch = build.points([*self.around, *self.beside])
        most = int(self._SHARE * self.machine.cache_bytes(2)) // (terms * build.bits(self.term) // 8) // rows
        cores = self.machine.cores
        is_wide = self.column.extent > self.row.extent
        # More tasks end more evenly, but each packs all panels again.
        tasks = cores if is_wide or self.row.extent < 2 * cores * self._ROWS_OF_A_TASK else 2 * cores
        wanted = 1 if self.tasks == 1 else build.ceil_div(tasks, batch)
        self.size = build.ceil_div(panels, min(wanted, panels))
        is_even = self.size * wanted <= self._UNEVEN * panels
        if not (is_wide and is_even and self.row.extent >= self._ROWS_OF_A_STRIP and full <= most):
            self.size = panels
        self.strips = Axis.fresh(self.column, build.ceil_div(panels, self.size))
        blocks = 1 if self.strips.extent > 1 else min(wanted, max(1, full))
        self.per_block = build.ceil_div(full, max(blocks, build.ceil_div(full, max(1, most))))
        self.blocks = Axis.fresh(self.row, build.ceil_div(full, self.per_block))
        whole = build.ceil_div(self.per_block * rows + tail, self._BEFORE) * self._BEFORE
        shape = [self._BEFORE + whole, self._BEFORE + terms]
        self.transposed = build.scratch(shape, self.term, "rows")

    def emit(self, env: Env) -> Stmt:
        """All loops, the outer ones parallel."""

        def task(env: Env) -> Stmt:
            block = lambda env: build.seq(self._transpose(env), self.strip(env, []))
            return build.seq(AllocBuffer(self.transposed), build.nest(self.tiling.outer, env, block))

        axes = [*self.around, *self.beside, self.blocks, self.strips]
        return self.with_partial(build.parallel_nest(axes, env, task, build.points(axes) if self.tasks > 1 else 1))

    def left(self, env: Env) -> Expr:
        """The left operand at the point of the loops, from the transposed rows."""
        row = env[self.row.var] - self._top(env) + self._BEFORE
        return self.transposed[row, build.flatten(self.tiling.inner, env) + self._BEFORE]

    def _top(self, env: Env) -> Expr:
        """The first row of a block."""
        return env[self.blocks.var] * (self.per_block * self.tiling.rows)

    def _transpose(self, env: Env) -> Stmt:
        """Transposes the rows of a block, in square tiles."""
        first, *others = inner = self.tiling.inner
        lanes, extent = self.tiling.lanes, self.row.extent
        top, per_block = self._top(env), self.per_block * self.tiling.rows
        count = extent if self.blocks.extent == 1 else build.minimum(per_block, extent - top)
        if extent % self.tiling.rows and self.blocks.extent > 1:  # the last block has the remainder, too
            count = tirx.if_then_else(env[self.blocks.var] == self.blocks.extent - 1, extent - top, count)
        terms = first.bound(env) * volume(others)

        def tile(row: Expr, term: Expr) -> Stmt:
            def read(line: int) -> Expr:
                at = {**env, self.row.var: row, **build.unflatten(inner, term + line)}
                at |= {var: build.substitute(to, at) for var, to in self.tiling.reduce_env.items()}
                return build.cast(read_row(self.contraction.left, at, lanes), f"{self.term}x{lanes}")

            def write(line: int, vector: Expr) -> Stmt:
                at = [row - top + (self._BEFORE + line), ramp(term + self._BEFORE, lanes)]
                return BufferStore(self.transposed, vector, at)

            return transpose_tile(read, write, lanes, self.term)

        # The last tiles begin early instead of having fewer rows or terms.
        row = lambda i: build.minimum(top + i * lanes, extent - lanes)
        term = lambda j: build.minimum(j * lanes, terms - lanes)
        down = lambda j: build.loop(self.row, build.ceil_div(count, lanes), lambda i: tile(row(i), term(j)))
        return build.loop(first, build.ceil_div(terms, lanes), down)
