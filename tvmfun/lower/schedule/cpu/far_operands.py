"""The loops of contractions with an operand whose rows or terms are far apart in memory.

The prefetcher follows a few rows, but neither columns nor terms that are more than a page apart. Elements whose
distance is a power of two compete for the same sets of a cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from tvmfun.lower.schedule.cpu.contraction import has_near_terms, right_array
from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops, Panel
from tvmfun.lower.schedule.cpu.grouped_panels import GroupedLoops
from tvmfun.lower.schedule.cpu.product_tiles import LINE_BITS
from tvmfun.lower.schedule.cpu.transpose import ramp, read_row, transpose_tile
from tvmfun.lower.settings import MANY_REGISTERS
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, Size, volume


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

    Each row of the right operand is read along the strip, and fetched into L2 two panels ahead, because there may be
    more rows than the prefetcher follows. The sums of the strip stay in L2 between blocks.
    """

    # The fewest bytes of a row in a strip: two pages, since the prefetcher restarts at each page.
    _LENGTH = 8 << 10
    panels_ahead = 2

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

    def pack_term(self, env: Env, panel: Panel, packed: Buffer) -> Stmt:
        """Copies the elements of one term, and fetches those of a later panel."""
        ahead = panel.start + self.panels_ahead * self.tiling.columns
        source = right_array(self.contraction).source
        of_source = lambda value: [load for load in build.loads(value) if load.source.same_as(source)]
        size = max(build.bits(str(load.ty)) for load in of_source(self.contraction.right))
        begins = range(0, panel.width, LINE_BITS // size)
        rights = (self.right({**env, self.column.var: ahead + begin}) for begin in begins)
        fetches = (build.prefetch(load, level=2) for right in rights for load in of_source(right))
        return build.seq(*fetches, super().pack_term(env, panel, packed))


class PackedRowsLoops(_Strips, GroupedLoops):
    """Loops in which a task has a block of rows of the left operand, or all, and packs them for each block of terms.

    They are transposed if their terms are apart, and converted. All panels of columns, or a strip of them, read the
    packed rows, which L2 holds. Narrow panels are packed in groups, so that rows of the right operand are read along
    several.
    """

    # The share of L2 for the rows of a block; wide panels take the rest.
    _SHARE = 1 / 2
    # The share of L2 for the rows of a block with narrow panels.
    _SHARE_OF_NARROW = 3 / 4
    # The fewest rows of a task if there are two tasks per core.
    _ROWS_OF_A_TASK = 256
    # The fewest rows of a strip of panels.
    _ROWS_OF_A_STRIP = 64
    # The most work of the last thread to finish, relative to the average.
    _UNEVEN = 17 / 16
    # Panels are narrow if a row has at most this many bytes.
    _NARROW = 128
    # The bytes of a row of a group of narrow panels.
    _BYTES_OF_A_GROUP = 512
    # Rows and terms before a block in its buffer, since the last tiles may begin before the block.
    _BEFORE = 16

    def divide(self) -> None:
        """Divides the panels into strips if there are more columns than rows, and L2 holds all rows; else the rows.

        For each block of rows all panels are packed, and for each strip all rows. A row takes about as long as a
        column.
        """
        rows, terms, panels = self.tiling.rows, volume(self.tiling.inner), self.panels.extent
        self.member = Axis.fresh(self.column, 1)
        self.line = None
        full, tail = divmod(self.row.extent, rows)
        batch = build.points([*self.around, *self.beside])
        share = self._SHARE_OF_NARROW if self.machine.registers < MANY_REGISTERS else self._SHARE
        most = int(share * self.machine.cache_bytes(2)) // (terms * build.bits(self.term) // 8) // rows
        cores = self.machine.cores
        is_wide = self.column.extent > self.row.extent
        # More tasks end more evenly, but each task packs all panels again.
        tasks = cores if is_wide or self.row.extent < 2 * cores * self._ROWS_OF_A_TASK else 2 * cores
        wanted = 1 if self.tasks == 1 else build.ceil_div(tasks, batch)
        size = build.ceil_div(panels, min(wanted, panels))
        is_even = size * wanted <= self._UNEVEN * panels
        if not (is_wide and is_even and self.row.extent >= self._ROWS_OF_A_STRIP and full <= most):
            size = panels
        if self.wants_packing(full):
            self.member = Axis.fresh(self.column, self._members(panels, size))
        self.panels = Axis.fresh(self.column, build.ceil_div(panels, self.member.extent))
        self.size = build.ceil_div(size, self.member.extent)
        self.strips = Axis.fresh(self.column, build.ceil_div(self.panels.extent, self.size))
        blocks = max(build.ceil_div(full, max(1, most)), 1 if self.strips.extent > 1 else min(wanted, full))
        if self.tasks > 1 and blocks > 1:  # as many tasks as threads, or a multiple
            even = cores // math.gcd(cores, batch)
            blocks = build.ceil_div(blocks, even) * even
        self.per_block = build.ceil_div(full, blocks)
        self.blocks = Axis.fresh(self.row, build.ceil_div(full, self.per_block))
        whole = build.ceil_div(self.per_block * rows + tail, self._BEFORE) * self._BEFORE
        shape = [self._BEFORE + whole, self._BEFORE + terms]
        self.packed_rows = build.scratch(shape, self.term, "rows")

    def _members(self, panels: int, size: int) -> int:
        """The panels of a group, of ``panels`` in all and ``size`` in a strip; several strips have whole groups."""
        of_panel = self.tiling.columns * build.bits(self.term) // 8
        most = 1 if of_panel > self._NARROW else min(size, self._BYTES_OF_A_GROUP // of_panel)
        return next(count for count in range(most, 0, -1) if size == panels or size % count == 0)

    def emit(self, env: Env) -> Stmt:
        """All loops, the outer ones parallel."""

        def task(env: Env) -> Stmt:
            pack = self._convert if has_near_terms(self.contraction) else self._transpose
            block = lambda env: build.seq(pack(env), self.strip(env, []))
            return build.seq(AllocBuffer(self.packed_rows), build.nest(self.tiling.outer, env, block))

        axes = [*self.around, *self.beside, self.blocks, self.strips]
        return self.with_partial(build.parallel_nest(axes, env, task, build.points(axes) if self.tasks > 1 else 1))

    def left(self, env: Env) -> Expr:
        """The left operand at the point of the loops, from the packed rows."""
        return self.packed_rows[tuple(self._packed_at(env))]

    def _packed_at(self, env: Env) -> list[Expr]:
        """The indices of a packed element."""
        row = env[self.row.var] - self._top(env) + self._BEFORE
        return [row, build.flatten(self.tiling.inner, env) + self._BEFORE]

    def _top(self, env: Env) -> Expr:
        """The first row of a block."""
        return env[self.blocks.var] * (self.per_block * self.tiling.rows)

    def _count(self, env: Env) -> Size | Expr:
        """The number of rows of a block."""
        extent, top, per_block = self.row.extent, self._top(env), self.per_block * self.tiling.rows
        count = extent if self.blocks.extent == 1 else build.minimum(per_block, extent - top)
        if extent % self.tiling.rows and self.blocks.extent > 1:  # the last block has the remainder, too
            count = tirx.if_then_else(env[self.blocks.var] == self.blocks.extent - 1, extent - top, count)
        return count

    def _convert(self, env: Env) -> Stmt:
        """Converts the rows of a block, along their terms."""
        *outer, last = self.tiling.inner
        lanes, top = self.tiling.lanes, self._top(env)

        def vector(env: Env, begin: Expr | int, size: int) -> Stmt:
            def element(k: Expr) -> Stmt:
                at = {**env, last.var: begin + k}
                return BufferStore(self.packed_rows, super(PackedRowsLoops, self).left(at), self._packed_at(at))

            return build.vectorized(last, size, element)

        def terms(env: Env) -> Stmt:
            bound = last.bound(env)
            whole, rest = bound // lanes, bound % lanes
            vectors = build.loop(last, whole, lambda i: vector(env, i * lanes, lanes))
            one = lambda i: vector(env, whole * lanes + i, 1)
            return build.seq(vectors, None if rest == 0 else build.loop(last, rest, one))

        def row(i: Expr) -> Stmt:
            return build.nest(outer, {**env, self.row.var: top + i}, terms)

        return build.loop(self.row, self._count(env), row)

    def _transpose(self, env: Env) -> Stmt:
        """Transposes the rows of a block, in square tiles."""
        first, *others = inner = self.tiling.inner
        lanes, extent = self.tiling.lanes, self.row.extent
        top, count = self._top(env), self._count(env)
        terms = first.bound(env) * volume(others)

        def tile(row: Expr, term: Expr) -> Stmt:
            def read(line: int) -> Expr:
                at = {**env, self.row.var: row, **build.unflatten(inner, term + line)}
                at |= {var: build.substitute(to, at) for var, to in self.tiling.reduce_env.items()}
                return build.cast(read_row(self.contraction.left, at, lanes), f"{self.term}x{lanes}")

            def write(line: int, vector: Expr) -> Stmt:
                at = [row - top + (self._BEFORE + line), ramp(term + self._BEFORE, lanes)]
                return BufferStore(self.packed_rows, vector, at)

            return transpose_tile(read, write, lanes, self.term)

        # The last tiles begin early instead of having fewer rows or terms.
        row = lambda i: build.minimum(top + i * lanes, extent - lanes)
        term = lambda j: build.minimum(j * lanes, terms - lanes)
        down = lambda j: build.loop(self.row, build.ceil_div(count, lanes), lambda i: tile(row(i), term(j)))
        return build.loop(first, build.ceil_div(terms, lanes), down)
