"""Register tiles of contractions whose statements are loops: of any factors, terms and epilogues."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.lower.schedule.cpu.tile import Tile
from tvmfun.lower.schedule.cpu.transpose import ramp
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Env, Expr

if TYPE_CHECKING:
    from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops, Panel


class RegisterTile(Tile):
    """A tile of any factors, terms and epilogues: initialize, accumulate over the reduced axes, write back."""

    def __init__(
        self, loops: ContractionLoops, env: Env, top: Expr, rows: int, panel: Panel, packed: Buffer | None
    ) -> None:
        super().__init__(loops, env, top, rows, panel, packed)
        self.dtype, self.row, self.column = loops.dtype, loops.row, loops.column
        self.begins = range(0, panel.width, self.lanes)
        self.accumulators = [build.scratch([rows, self.lanes], self.dtype, "acc") for _ in self.begins]
        #: Whether there are sums of earlier blocks, and whether they are added to the sums of this block.
        self.later = loops.has_earlier_sums(env)
        self.adds = None if loops.carries else self.later

    def emit(self) -> Stmt:
        """The statements of the tile."""
        clear = self._each(lambda i, begin, acc: self._lanes(lambda k: BufferStore(acc, self._start(begin, k), [i, k])))
        if self.loops.carries:
            clear = build.seq(clear, IfThenElse(self.later, self._each(self._load), None))
        loops = self.loops.over_terms(self.env, self.top, self.rows, self._multiply)
        # Whole vectors of sums are added up in registers, with one branch for the tile; partial ones in memory.
        earlier = None
        if self.adds is not None and any(map(self._is_whole, self.begins)):
            one = lambda i, begin, acc: self._add(i, begin, lambda k: acc[i, k]) if self._is_whole(begin) else None
            earlier = IfThenElse(self.adds, self._each(one), None)
        return build.seq(*map(AllocBuffer, self.accumulators), clear, loops, earlier, self._finish())

    def _each(self, make: Callable[[Expr, int, Buffer], Stmt | None]) -> Stmt:
        """The statements for each row and vector."""
        pairs = list(zip(self.begins, self.accumulators, strict=True))
        return build.unrolled(self.row, self.rows, lambda i: build.seq(*(make(i, *pair) for pair in pairs)))

    def _lanes(self, make: Callable[[Expr], Stmt]) -> Stmt:
        return build.vectorized(self.column, self.lanes, make)

    def _at(self, i: Expr, column: Expr | None = None) -> Env:
        """The indices of a row of the tile, or of one of its elements."""
        at = {**self.env, self.row.var: self.top + i}
        return at if column is None else {**at, self.column.var: self.panel.start + column}

    def _start(self, begin: int, k: Expr) -> Expr:
        """The first value of a sum."""
        return build.zero(self.dtype) if self.loops.start is None else self.loops.start[begin + k]

    def _load(self, i: Expr, begin: int, acc: Buffer) -> Stmt:
        """Starts from the sums of earlier blocks."""
        element = lambda k: BufferStore(acc, self.loops.partial_sum(self._at(i, begin + k)), [i, k])
        return self.loops.columns_of(self.panel.size(begin, self.lanes), element)

    def _multiply(self, env: Env) -> Stmt:
        """Adds the products of one term."""
        loops, packed, lanes = self.loops, self.packed, self.lanes

        def of_vector(i: Expr, begin: int, acc: Buffer) -> Stmt:
            left = loops.left({**env, self.row.var: self.top + i})
            if loops.dot is not None and packed is not None:
                right = packed[loops.depth(env), ramp(build.index(self.column, begin), lanes)]
                whole = [i, ramp(build.index(self.row, 0), lanes)]
                total = loops.dot.add(acc[whole[0], whole[1]], tirx.Broadcast(left, lanes), right, lanes)
                return BufferStore(acc, total, whole)

            def one(k: Expr) -> Stmt:
                if packed is None:
                    right = loops.right({**env, self.column.var: self.panel.start + begin + k})
                else:
                    right = packed[loops.depth(env), begin + k]
                return BufferStore(acc, acc[i, k] + left * right, [i, k])

            return self._lanes(one)

        return self._each(of_vector)

    def _is_whole(self, begin: int) -> bool:
        """Whether all columns of a vector exist."""
        size = self.panel.size(begin, self.lanes)
        return isinstance(size, int) and size == self.lanes

    def _add(self, i: Expr, begin: int, sums: Callable[[Expr], Expr]) -> Stmt:
        """Adds the sums of earlier blocks to those of a vector, which ``sums`` loads."""

        def element(k: Expr) -> Stmt:
            own = sums(k)
            return BufferStore(own.source, self.loops.partial_sum(self._at(i, begin + k)) + own, own.indices)

        return self.loops.columns_of(self.panel.size(begin, self.lanes), element)

    def _write(self, is_final: bool, i: Expr, begin: int, acc: Buffer) -> Stmt:
        """Writes a vector back."""
        size = self.panel.size(begin, self.lanes)
        write = lambda sums: self.loops.write_back(self._at(i), self.panel.start + begin, size, sums, is_final)
        if self._is_whole(begin):
            return write(lambda k: acc[i, k])
        sums, copies = lambda k: acc[i, k], []
        if any(acc is own for own in self.accumulators):
            # A partial vector is copied to memory first, so that the accumulators stay in registers.
            spill = build.scratch([self.lanes], self.dtype, "spill")
            copies = [AllocBuffer(spill), self._lanes(lambda k: BufferStore(spill, acc[i, k], [k]))]
            sums = lambda k: spill[k]
        earlier = IfThenElse(self.adds, self._add(i, begin, sums), None) if self.adds is not None else None
        return build.seq(*copies, earlier, write(sums))

    def _finish(self) -> Stmt:
        """Writes all sums back."""
        if not self.loops.loops_over_rows:
            return self.loops.by_end(self.env, lambda is_final: self._each(partial(self._write, is_final)))
        # The epilogue runs in a loop on spilled rows.
        spilled = [build.scratch([self.rows, self.lanes], self.dtype, "spilled") for _ in self.begins]
        to = dict(zip(self.begins, spilled, strict=True))
        copy = self._each(lambda i, begin, acc: self._lanes(lambda k: BufferStore(to[begin], acc[i, k], [i, k])))
        pairs = list(zip(self.begins, spilled, strict=True))

        def of_rows(is_final: bool) -> Stmt:
            of_row = lambda i: build.seq(*(self._write(is_final, i, *pair) for pair in pairs))
            return build.loop(self.row, self.rows, of_row)

        return build.seq(*map(AllocBuffer, spilled), copy, self.loops.by_end(self.env, of_rows))
