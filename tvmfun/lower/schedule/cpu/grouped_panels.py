"""The loops of contractions in which a tile of rows multiplies several panels in L2 before the next tile does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir
from tvm.tirx import AllocBuffer, Buffer, IfThenElse, Stmt

from tvmfun.lower.schedule.cpu.contraction import PANELS_OF_A_GROUP, most_terms
from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops, Panel
from tvmfun.lower.schedule.cpu.product_tiles import LINE_BITS, ProductTile, RowsAhead, product_tiles
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, Size, volume
from tvmfun.lower.tir.micro_kernels.products import Next

_LINES_OF_A_PAGE = 64
# With at most this many multiplications, a fraction of a millisecond, short compile times matter more than full speed.
_LITTLE_WORK = 1 << 26
# With more panels than this, the rows of a tile are read for so long that fetching them earlier gains nothing.
_FEW_PANELS = 4
# The most work of the last thread to finish, relative to its work without groups: groups gain at least as much.
_UNEVEN = 17 / 16


class GroupedLoops(ContractionLoops):
    """Loops in which a task packs a group of panels that together take a single panel's share of L2.

    A single panel is a narrow strip of the output: each row of a tile is on another page, and the prefetcher follows
    none of them. A group has longer pieces of each row, of the output and of the epilogues' inputs, and the rows of
    the left operand stay in L1 meanwhile.
    """

    def divide(self) -> None:
        """Divides rows and groups of panels into tasks."""
        super().divide()
        self.member = Axis.fresh(self.column, self._size())
        groups = Axis.fresh(self.column, build.ceil_div(self.panels.extent, self.member.extent))
        self.taken = [groups if axis is self.panels else axis for axis in self.taken]
        self.panels = groups
        self.line = self._line()

    def _size(self) -> int:
        """The most panels of a group for which the last thread to finish has about as many panels as without groups."""
        terms, panels, cores = volume(self.tiling.inner), self.panels.extent, self.machine.cores
        if not self.wants_packing(self.row.extent // self.tiling.rows):
            return 1
        most = min(PANELS_OF_A_GROUP, panels, most_terms(self.tiling.columns, self.term, self.machine) // terms)
        if self.panels not in self.taken:
            return max(1, most)
        others = build.points(self.taken) // panels

        def longest(size: int) -> int:
            return build.ceil_div(build.ceil_div(panels, size) * others, cores) * size

        return max(size for size in range(1, max(1, most) + 1) if longest(size) <= _UNEVEN * longest(1))

    def _line(self) -> int | None:
        """The number of terms in a cache line of the left operand, if its rows are fetched before they are read.

        Fetching pays if L2 does not hold all rows, none is longer than a page, and few panels read them.
        """
        left, inner = self.contraction.left, self.tiling.inner
        if not isinstance(left, ir.TensorLoad) or not inner or not build.is_static(left.source):
            return None
        if self.member.extent > _FEW_PANELS or build.nbytes(left.source) <= self.machine.cache_bytes(2):
            return None
        line = LINE_BITS // build.bits(str(left.source.dtype))
        step = build.stride(left.source, left.indices, self.stage.reduce[-1], self.stage.domain)
        if step != 1 or inner[-1].limit is not None or not 2 <= inner[-1].extent / line <= _LINES_OF_A_PAGE:
            return None
        is_long = build.points([*self.stage.space, *self.stage.reduce]) > _LITTLE_WORK
        return line if is_long or inner[-1].extent % line == 0 else None

    def each_panel(self, env: Env, beside: Sequence[Axis]) -> Stmt:
        """The group of panels at ``env``."""
        if self.member.extent == 1:
            return super().each_panel(env, beside)
        first = env[self.panels.var] * (self.member.extent * self.tiling.columns)
        return self.panel(env, Panel(first, self.tiling.columns), beside)

    def block_of_terms(self, env: Env, panel: Panel, beside: Sequence[Axis]) -> Stmt:
        """All rows of a group of panels, for one block of the reduced axes."""
        if self.member.extent == 1:
            return super().block_of_terms(env, panel, beside)
        shape = [self.member.extent * volume(self.tiling.inner), self.tiling.columns]
        packed = build.scratch(shape, self.term, "panels")
        if self.packs_transposed(panel):
            pack = self._each_member(env, lambda env, panel: self.pack(env, panel, packed))
        else:  # term by term, so that rows of the right operand are read along all panels
            members = lambda env: self._each_member(env, lambda env, panel: self.pack_term(env, panel, packed))
            pack = build.nest(self.tiling.inner, env, members)
        rows = build.nest(beside, env, lambda env: self.each_tile(env, panel, packed))
        return build.seq(AllocBuffer(packed), pack, rows)

    def depth(self, env: Env) -> Expr:
        """The row of the packed panels at the point of the loops: each follows the one before."""
        depth = super().depth(env)
        return depth if self.member.extent == 1 else env[self.member.var] * volume(self.tiling.inner) + depth

    def tiles(self, env: Env, top: Expr, count: Size | Expr, panel: Panel, packed: Buffer | None) -> Stmt:
        """The tiles below one another, in all panels of the group."""
        if self.member.extent == 1:
            return super().tiles(env, top, count, panel, packed)
        rows = self.tiling.rows
        return build.loop(self.row, count, lambda i: self.tile(env, top + i * rows, rows, panel, packed))

    def tile(self, env: Env, top: Expr, rows: int, panel: Panel, packed: Buffer | None) -> Stmt:
        """The tiles of some rows in all panels of the group."""
        tile = super().tile
        if self.member.extent == 1:
            return tile(env, top, rows, panel, packed)

        def tiles(env: Env, count: Size | Expr, panel: Callable[[Expr], Panel]) -> Stmt:
            first = build.index(self.column, 0)
            steps = self.steps({**env, self.member.var: first}, rows, panel(first), packed)
            if steps is None:
                one = lambda i: tile({**env, self.member.var: i}, top, rows, panel(i), packed)
                return build.loop(self.column, count, one)
            one = lambda i: ProductTile(self, steps, {**env, self.member.var: i}, top, rows, panel(i), packed)
            columns, ahead = self.tiling.columns, self.rows_ahead(env, rows)
            fetched = 0 if ahead is None else ahead.count * steps.left_row
            following = Next(0, volume(self.tiling.inner) * columns, columns, fetched)
            return product_tiles(self, env, one, count, following)

        return self._each_member(env, lambda env, panel: tile(env, top, rows, panel, packed), tiles)

    def rows_ahead(self, env: Env, rows: int) -> RowsAhead | None:
        """The rows of the next tile that a tile of ``rows`` rows fetches, a part of them per panel of the group."""
        if self.line is None or rows != self.tiling.rows:
            return None
        count = build.ceil_div(rows, self.member.extent)
        first = rows + env.get(self.member.var, 0) * count
        return RowsAhead(count, first, self.line)

    def over_terms(self, env: Env, top: Expr, rows: int, update: Callable[[Env], Stmt]) -> Stmt:
        """The loops of a tile over a block of terms, which fetch the rows of the next tile.

        The hardware prefetcher would restart at each row.
        """
        ahead = self.rows_ahead(env, rows)
        if ahead is None:
            return super().over_terms(env, top, rows, update)
        *outer, last = self.tiling.inner
        whole, rest = divmod(last.extent, ahead.line)
        first = top + ahead.first

        def terms(env: Env, begin: Expr, length: int) -> Stmt:
            return build.loop(last, length, lambda i: update({**env, last.var: begin + i}))

        def of_line(env: Env, i: Expr) -> Stmt:
            begin = i * ahead.line
            at = ({**env, self.row.var: first + k, last.var: begin} for k in range(ahead.count))
            return build.seq(*(build.prefetch(self.left(here)) for here in at), terms(env, begin, ahead.line))

        def lines(env: Env) -> Stmt:
            tail = terms(env, build.index(last, whole * ahead.line), rest) if rest else None
            return build.seq(build.loop(last, whole, lambda i: of_line(env, i)), tail)

        return build.nest(outer, env, lines)

    def _each_member(
        self,
        env: Env,
        make: Callable[[Env, Panel], Stmt],
        several: Callable[[Env, Size | Expr, Callable[[Expr], Panel]], Stmt] | None = None,
    ) -> Stmt:
        """A loop over the panels of a group; the last panel of all may be narrower.

        Args:
            env: the indices of the loops.
            make: returns the statement for a panel.
            several: returns the statement for a count of whole panels, given a function from a number to its panel; by
                default it is a loop.
        """
        columns, size, group = self.tiling.columns, self.member.extent, env[self.panels.var]
        full, tail = divmod(self.column.extent, columns)
        is_full = full == size * self.panels.extent
        count = size if is_full else build.minimum(size, full - group * size)
        panel = lambda i: Panel((group * size + i) * columns, columns)
        loop = None
        if full and several is None:
            loop = build.loop(self.column, count, lambda i: make({**env, self.member.var: i}, panel(i)))
        elif full:
            loop = several(env, count, panel)
            # The last group may have the narrower panel only.
            loop = loop if full > size * (self.panels.extent - 1) else IfThenElse(count > 0, loop, None)
        if not tail:
            return build.seq(loop)
        start = build.index(self.column, full * columns)
        last = make({**env, self.member.var: full - group * size}, Panel(start, tail))
        return build.seq(loop, IfThenElse(group == self.panels.extent - 1, last, None))
