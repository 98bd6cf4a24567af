"""The loops of contractions of which a tile of rows meets several panels in L2 before the next tile does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.tirx import AllocBuffer, Buffer, IfThenElse, Stmt

from tvmfun.lower.schedule.cpu.contraction import most_terms
from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops, Panel
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume


# How much more than without groups the last thread to finish may have to do: groups gain at least as much.
_UNEVEN = 17 / 16


class GroupedLoops(ContractionLoops):
    """Loops in which a task packs a group of panels, which together take the share of L2 that one may take.

    A single panel is a narrow strip of the output: each row of a tile is on another page, and the prefetcher follows
    none of them. A group has longer pieces of each row, of the output and of what the epilogues read, and the rows of
    the left operand stay in L1 meanwhile.
    """

    # Products are fastest with so many, and with twice as many slower again: docs/decisions/0035-machine.md.
    _MOST = 6

    def divide(self) -> None:
        """Divides rows and groups of panels into tasks."""
        super().divide()
        self.member = Axis.fresh(self.column, self._size())
        groups = Axis.fresh(self.column, build.ceil_div(self.panels.extent, self.member.extent))
        self.taken = [groups if axis is self.panels else axis for axis in self.taken]
        self.panels = groups

    def _size(self) -> int:
        """The most panels of a group with which the last thread to finish has about as many as without groups."""
        terms, panels, cores = volume(self.tiling.inner), self.panels.extent, self.machine.cores
        if not self.wants_packing(self.row.extent // self.tiling.rows):
            return 1
        most = min(self._MOST, panels, most_terms(self.tiling.columns, self.term, self.machine) // terms)
        if self.panels not in self.taken:
            return max(1, most)
        others = build.points(self.taken) // panels

        def longest(size: int) -> int:
            return build.ceil_div(build.ceil_div(panels, size) * others, cores) * size

        return max(size for size in range(1, max(1, most) + 1) if longest(size) <= _UNEVEN * longest(1))

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
        pack = self._each_member(env, lambda env, panel: self.pack(env, panel, packed))
        rows = build.nest(beside, env, lambda env: self.each_tile(env, panel, packed))
        return build.seq(AllocBuffer(packed), pack, rows)

    def depth(self, env: Env) -> Expr:
        """The row of the packed panels at the point of the loops: each follows the one before."""
        depth = super().depth(env)
        return depth if self.member.extent == 1 else env[self.member.var] * volume(self.tiling.inner) + depth

    def tile(self, env: Env, top: Expr, rows: int, panel: Panel, packed: Buffer | None) -> Stmt:
        """The tiles of some rows in all panels of the group."""
        tile = super().tile
        if self.member.extent == 1:
            return tile(env, top, rows, panel, packed)
        return self._each_member(env, lambda env, panel: tile(env, top, rows, panel, packed))

    def _each_member(self, env: Env, make: Callable[[Env, Panel], Stmt]) -> Stmt:
        """A loop over the panels of a group; the last panel of all may be narrower."""
        columns, size, group = self.tiling.columns, self.member.extent, env[self.panels.var]
        full, tail = divmod(self.column.extent, columns)
        count = size if full == size * self.panels.extent else build.minimum(size, full - group * size)

        def member(i: Expr) -> Stmt:
            return make({**env, self.member.var: i}, Panel((group * size + i) * columns, columns))

        loop = build.loop(self.column, count, member) if full else None
        if not tail:
            return build.seq(loop)
        start = build.index(self.column, full * columns)
        last = make({**env, self.member.var: full - group * size}, Panel(start, tail))
        return build.seq(loop, IfThenElse(group == self.panels.extent - 1, last, None))
