"""Register tiles of contractions whose sums a micro-kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from tvm import ir
from tvm.tirx import AllocBuffer, Buffer, IfThenElse, Stmt

from tvmfun.lower.schedule.cpu.tile import Tile
from tvmfun.lower.schedule.stages import contains
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, Size, volume
from tvmfun.lower.tir.micro_kernels.products import LINE_BYTES, Next, Terms, TileProduct

if TYPE_CHECKING:
    from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops, Panel

#: The size of a cache line in bits.
LINE_BITS = LINE_BYTES * 8
# L1's prefetcher does not keep up with a panel in L2, so the rows of the panel are fetched this many steps ahead.
_STEPS_AHEAD = 8
# Steps ahead in panels that were packed in advance and that L2 does not hold.
_FAR_STEPS_AHEAD = 64
# Only panels that take more than this share of L1 are fetched.
_SHARE_OF_PANEL = 3 / 4
# With at most 96 terms an epilogue is up to 10 % faster on sums in registers.
_FEW_TERMS = 96
# With at most this many multiplications, a tenth of a millisecond, the shorter compile time matters more.
_SHORT_PRODUCT = 1 << 22


@dataclass(frozen=True)
class Steps:
    """The elements from one row or term to the next, constants of the loops of a contraction.

    Args:
        left_row: from one row of the left factor to the next.
        sums_row: from one row of the sums to the next.
        terms: the loops over the terms.
        scale: the steps of the outermost loop per step of the outermost axis, as a fraction.
    """

    left_row: int
    sums_row: int
    terms: tuple[Terms, ...]
    scale: Fraction


class RowsAhead(NamedTuple):
    """Rows of the left factor that are fetched before they are read, a cache line at a time.

    Args:
        count: their number.
        first: the first of these rows, relative to the first row of the tile.
        line: the terms in a cache line.
    """

    count: int
    first: Expr | int
    line: int


def steps_of(loops: ContractionLoops, env: Env, packed: Buffer | None, ahead: RowsAhead | None) -> Steps | None:
    """The steps of a contraction of floats in arrays, if a micro-kernel computes its tiles.

    None if steps, including those between sums, vary or depend on dynamic sizes, if a factor is computed or converted
    when it is read, or if epilogues gain by sums in registers.
    """
    inner, row, column = loops.tiling.inner, loops.row, loops.column
    if loops.dot is not None or loops.carries or loops.dtype not in ("float32", "float64"):
        return None
    if any(axis.limit is not None for axis in (*inner[1:], row, column)) or _gains_by_registers(loops):
        return None
    domain = [*inner, row, column]
    here = {**env, **{axis.var: axis.var for axis in domain}}
    left, right, sums = loops.left(here), _right(loops, here, packed), loops.partial_sum(here)
    if any(not isinstance(load, ir.TensorLoad) or str(load.ty) != loops.dtype for load in (left, right)):
        return None
    terms: list[Terms] = []  # the innermost first
    for axis in reversed(inner):
        near, far = _step(left, axis, domain), _step(right, axis, domain)
        if near is None or far is None or not isinstance(axis.extent, int):
            return None
        one = Terms(axis.extent, near, far)
        if terms and (near, far) == (terms[-1].count * terms[-1].left, terms[-1].count * terms[-1].right):
            within = terms.pop()
            one = Terms(axis.extent * within.count, within.left, within.right)
        terms.append(one)
    left_row, sums_row = _step(left, row, domain), _step(sums, row, domain)
    are_contiguous = _step(right, column, domain) == 1 == _step(sums, column, domain)
    if left_row is None or sums_row is None or not are_contiguous or _step(right, row, domain) != 0:
        return None
    if ahead is not None:
        innermost = terms[0]
        if innermost.left != 1 or innermost.count % ahead.line:
            return None
        line = Terms(ahead.line, 1, innermost.right)
        terms[:1] = [line, Terms(innermost.count // ahead.line, ahead.line, ahead.line * innermost.right)]
    outermost = terms.pop() if terms else Terms(1, 0, 0)
    scale = Fraction(outermost.count, inner[0].extent) if inner else Fraction(1)
    if scale.denominator > 1 and inner[0].limit is not None:
        return None  # the last block may end within a cache line
    loops_over_terms = (Terms(0, outermost.left, outermost.right), *reversed(terms))
    return Steps(left_row, sums_row, loops_over_terms, scale)


def _gains_by_registers(loops: ContractionLoops) -> bool:
    """Whether epilogues take so much of the time that sums should stay in registers for them."""
    stage = loops.stage
    is_little = build.points([*stage.space, *stage.reduce]) <= _SHORT_PRODUCT
    return not loops.stores_sums and volume(loops.tiling.inner) <= _FEW_TERMS and not is_little


def _far_inputs(loops: ContractionLoops) -> list[ir.TensorLoad]:
    """The element that the epilogues read of each array that L2 does not hold, if neighbours are along the columns."""
    stage = loops.stage
    inputs: list[ir.TensorLoad] = []
    near = stage.writes()
    for epilogue in stage.epilogues:
        here = {axis.var: own.var for axis, own in zip(epilogue.space, stage.space, strict=True)}
        for load in build.loads(build.substitute(epilogue.value, here)):
            if not contains(near, load.source) and _is_far(load, loops):
                inputs.append(load)
                near.append(load.source)
    return inputs


def _is_far(load: ir.TensorLoad, loops: ContractionLoops) -> bool:
    is_near = build.is_static(load.source) and build.nbytes(load.source) <= loops.machine.cache_bytes(2)
    return not is_near and build.is_along_row(load, loops.row, loops.column, loops.stage.domain)


def _right(loops: ContractionLoops, env: Env, packed: Buffer | None) -> Expr:
    """The right factor at the point of the loops."""
    if packed is None:
        return loops.right(env)
    return packed[tuple(loops.packed_at(loops.depth(env), env[loops.column.var]))]


def _step(load: ir.TensorLoad, axis: Axis, domain: Sequence[Axis]) -> int | None:
    """The elements from one step of an axis to the next, if they are a constant."""
    size = build.stride(load.source, load.indices, axis, domain)
    return size if isinstance(size, int) else None


def product_tiles(
    loops: ContractionLoops,
    env: Env,
    tile: Callable[[Expr], ProductTile],
    count: Size | Expr = 1,
    following: Next | None = None,
) -> Stmt:
    """One tile, or several.

    Args:
        loops: the loops around them.
        env: the indices of the loops.
        tile: returns a tile from its number.
        count: the number of tiles, at least one.
        following: the distances from one tile to the next, if there are several.
    """
    first = tile(build.index(loops.row, 0))
    many = (count, following) if not isinstance(count, int) or count > 1 else ()
    if loops.stores_sums:
        return first.to_memory(*many)
    # One buffer for all rows would be too large for the stack, but a loop over vectors has less code than each of them.
    sums = build.scratch([first.rows, first.padded], loops.dtype, "sums") if loops.loops_over_rows else None
    each = build.loop(loops.row, count, lambda i: tile(i).with_epilogues(sums))
    stmt = IfThenElse(loops.is_last_block(env), each, first.to_memory(*many)) if loops.blocked else each
    return stmt if sums is None else build.seq(AllocBuffer(sums), stmt)


class ProductTile(Tile):
    """A tile whose sums a micro-kernel stores to the output, or to a buffer that epilogues read."""

    def __init__(
        self, loops: ContractionLoops, steps: Steps, env: Env, top: Expr, rows: int, panel: Panel, packed: Buffer | None
    ) -> None:
        super().__init__(loops, env, top, rows, panel, packed)
        self.steps, self.bits, inner = steps, build.bits(loops.dtype), loops.tiling.inner
        #: The columns, in whole vectors.
        self.padded = build.ceil_div(panel.width, self.lanes) * self.lanes
        start = {**env, **{axis.var: build.index(axis, 0) for axis in inner}, loops.row.var: top}
        #: The indices of the first element.
        self.first = {**start, loops.column.var: panel.start}
        self.left = loops.left(self.first)
        # A packed panel begins at its own column 0.
        own = self.first if packed is None else {**start, loops.column.var: build.index(loops.column, 0)}
        self.right = _right(loops, own, packed)
        self.count = inner[0].bound(env) * steps.scale.numerator // steps.scale.denominator if inner else 1
        self.ahead = self._steps_ahead(packed)
        rows_ahead = loops.rows_ahead(env, rows)
        self.fetched_rows = 0 if rows_ahead is None else rows_ahead.count
        self.fetched = 0 if rows_ahead is None else rows_ahead.first * steps.left_row
        self.beside = loops.panels_ahead * loops.tiling.columns

    def _steps_ahead(self, packed: Buffer | None) -> int:
        """The steps by which rows of the right factor are fetched before they are read."""
        loops, source = self.loops, self.right.source
        nbytes = volume(loops.tiling.inner) * loops.tiling.columns * self.bits // 8
        if nbytes <= _SHARE_OF_PANEL * loops.machine.cache_bytes(1):
            return 0
        # A kernel that was transformed by Winograd's algorithm has such panels.
        is_packed_before = packed is None and self.steps.terms[-1].right == loops.tiling.columns
        is_large = build.is_larger(source, loops.machine.cache_bytes(2))
        return _FAR_STEPS_AHEAD if is_packed_before and is_large else _STEPS_AHEAD

    def to_memory(self, count: Size | Expr = 1, following: Next | None = None) -> Stmt:
        """Stores the sums of ``count`` tiles to the output, or adds them to those of earlier blocks."""
        adds = self.loops.has_earlier_sums(self.env)
        product = self._product(self.panel.width, self.steps.sums_row, adds is not None, following)
        sums = [self.loops.partial_sum(self.first)]
        return product.call(sums, self.left, self.right, self.count, adds, count, self.fetched)

    def with_epilogues(self, sums: Buffer | None) -> Stmt:
        """Stores the sums to a buffer or the stack, and then, row by row, the results of the epilogues."""
        lanes, width = self.lanes, self.panel.width
        if sums is not None:
            product = self._product(self.padded, self.padded)
            call = product.call([sums[0, 0]], self.left, self.right, self.count, fetched=self.fetched)
            whole, rest = divmod(width, lanes)

            def of_vectors(i: Expr) -> Stmt:
                one = lambda j: self._write(i, j * lanes, lanes, lambda k: sums[i, j * lanes + k])
                end = self._write(i, whole * lanes, rest, lambda k: sums[i, whole * lanes + k]) if rest else None
                return build.seq(build.loop(self.loops.column, whole, one) if whole else None, end)

            return build.seq(self._fetch_inputs(), call, build.loop(self.loops.row, self.rows, of_vectors))
        begins = range(0, width, lanes)
        vectors = [build.scratch([self.rows, lanes], self.loops.dtype, "sums") for _ in begins]
        product = self._product(self.padded)
        firsts = [vector[0, 0] for vector in vectors]
        call = product.call(firsts, self.left, self.right, self.count, fetched=self.fetched)
        sizes = [min(lanes, width - begin) for begin in begins]

        def of_row(i: Expr) -> Stmt:
            parts = zip(begins, sizes, vectors, strict=True)
            write = lambda begin, size, vector: self._write(i, begin, size, lambda k: vector[i, k])
            return build.seq(*(write(*part) for part in parts))

        finish = build.loop(self.loops.row, self.rows, of_row)
        return build.seq(*map(AllocBuffer, vectors), self._fetch_inputs(), call, finish)

    def _fetch_inputs(self) -> Stmt | None:
        """Fetches the elements that epilogues read from far arrays; they arrive while the micro-kernel multiplies.

        Each row of a tile is on another page, so the prefetcher follows none of them; and an epilogue of many
        operations is too long for the processor to see the loads of the next vectors.
        """
        row, column = self.loops.row, self.loops.column
        inputs = _far_inputs(self.loops)
        lines = range(0, self.panel.width, LINE_BITS // self.bits)

        def of_row(i: Expr) -> Stmt:
            at = ({**self.env, row.var: self.top + i, column.var: self.panel.start + k} for k in lines)
            return build.seq(*(build.prefetch(build.substitute(load, here)) for here in at for load in inputs))

        return build.loop(row, self.rows, of_row) if inputs else None

    def _write(self, i: Expr, begin: Expr | int, size: int, own: Callable[[Expr], Expr]) -> Stmt:
        """Applies the epilogues to a vector of sums, added to those of earlier blocks, and stores the results."""
        loops, start = self.loops, self.panel.start + begin
        at = {**self.env, loops.row.var: self.top + i}

        def total(k: Expr) -> Expr:
            return loops.partial_sum({**at, loops.column.var: start + k}) + own(k) if loops.blocked else own(k)

        return loops.write_back(at, start, size, total, is_final=True)

    def _product(
        self, columns: int, sums_row: int | None = None, adds: bool = False, following: Next | None = None
    ) -> TileProduct:
        """The micro-kernel."""
        return TileProduct(
            bits=self.bits,
            rows=self.rows,
            columns=columns,
            lanes=self.lanes,
            right_columns=self.panel.width if self.packed is None else self.padded,
            left_row=self.steps.left_row,
            sums_row=sums_row,
            adds=adds,
            terms=self.steps.terms,
            ahead=self.ahead,
            following=following,
            fetched_rows=self.fetched_rows,
            beside=self.beside,
        )
