"""Contractions: sums of products, as register tiles over packed or directly read operands.

Tiles of ``rows`` x ``columns`` elements cover the output. One axis of the left operand alone runs along the rows (its
elements are broadcast), one of the right operand alone along the columns (vector lanes). All other axes are loops
around the tile, the reduced ones innermost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmfun.core import dims
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.dot_instructions import TILE_ROWS, TILE_WORDS, WORD, AmxDot, Dot, factors
from tvmfun.lower.schedule.cpu.transpose import is_row_readable, reads_several
from tvmfun.lower.schedule.stages import Stage, accumulator
from tvmfun.lower.settings import LARGE_BYTES, MANY_REGISTERS
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, Size, volume

# The share of a cache level for a packed panel of the right operand; rows of the left operand take the rest. Panels
# for L2 have twice the columns, so fewer blocks of terms store and load their sums.
_SHARES = {1: 5 / 6, 2: 5 / 16}

# Spare registers besides the sums and one row of the right operand, if there are many and tiles may have four vectors.
_SPARE = 4
# Spare registers if there are few and tiles have two vectors: one for an element of the left operand.
_SPARE_OF_FEW = 1

# The most rows of a register tile; a buffer of more vectors is not allocated on the stack.
MAX_ROWS = 14

# With at most this many multiplications, a tenth of a millisecond, short compile times matter more than full speed.
_LITTLE_WORK = 1 << 24

# If few rows multiply a right operand larger than L2, it is read in blocks of this many rows (or packed words) that are
# as long as a task: the prefetcher follows that many rows, but no column. Sums stay in memory between blocks.
_STREAMED_TERMS = 32
# The most rows of the left operand for which the right operand is read in such blocks.
_STREAMED_ROWS = 32
# The most such rows with a small L2 and many registers, where packing panels costs more.
_STREAMED_ROWS_OF_SMALL = 64
# The most such rows for packed words, which are packed either way.
_STREAMED_ROWS_OF_WORDS = 16
# Such blocks need rows that are more than this many bytes apart. The keys are the levels of the cache for a panel.
_STREAMED_BYTES = {1: 1 << 10, 2: 2 << 10}

# Rows of the left operand with strided or converted terms are packed only if there are more terms than this.
_FEW_TERMS = 32
# Rows of the left operand are packed only if there are more multiplications than this.
_PACKED_WORK = 1 << 21
# The fewest columns for which strided rows are transposed. That takes as long as a product with about 50 columns, but
# reading a few elements of each cache line takes longer.
_TRANSPOSED_COLUMNS = 16
# The fewest columns for which rows are converted once instead of for each panel.
_CONVERTED_COLUMNS = 48
# The fewest columns if the left operand lacks an axis of the result, along which its rows are packed anew.
_PACKED_AGAIN = 64
# With at most this many columns, the pixels of images are not transposed by a processor with few registers. Measured:
# not transposing takes 0.4 of the time with 32 columns, 0.65 to 0.75 with 64, and as long with 128.
_FEW_PIXEL_COLUMNS = 96
# The most columns for which a processor with many registers does not transpose pixels.
_FEWEST_PIXEL_COLUMNS = 32
# The most terms of a block of packed rows.
_PACKED_TERMS = 512
# A block of packed rows has at most one term per this many bytes of L2, so that a small L2 holds as many rows.
_BYTES_OF_A_TERM = 2 << 10
# The most terms of a block of strided rows that are not packed: L1 keeps a cache line of each term.
_STRIDED_TERMS = 128
# Strided rows are cut into such blocks only if there are more terms than this.
_NEAR_TERMS = 320
# Rows with at most ``_STRIDED_TERMS`` terms are not packed if the left operand takes at most this share of L2.
_NEAR_SHARE = 1 / 2

# Panels of a group, all of which a tile of rows multiplies before the next tile does. Products are fastest with six
# panels, and slower again with twelve.
PANELS_OF_A_GROUP = 6
# With at most this many rows, blocks have few enough terms that L2 holds all panels of a group.
_ROWS_OF_A_GROUP = 1024
# If L2 held all panels only for fewer terms than this, sums would be stored and loaded too often.
_FEWEST_OF_A_GROUP = 384
# In that case, the most terms of a block; groups then have fewer panels.
_TERMS_OF_SMALL_GROUPS = 768

# Rows of the right operand that are more than this many bytes apart compete for the same sets of a cache. They are
# packed if they are read again.
FAR_BYTES = 1 << 10
# But with fewer rows on the left than this, packing a panel for L2 takes longer than it saves. The keys are the most
# bytes between rows of the right operand.
_ROWS_TO_PACK = {2 << 10: 192, 4 << 10: 96}
# The fewest rows on the left for which rows that are farther apart are packed. Rows apart by a power of two share few
# sets of L2, so a block of unpacked rows has few enough terms that its whole rows would take half of L2.
_ROWS_TO_PACK_FAR = 32
# The fewest rows for tiles of two vectors, on processors with few registers: they multiply more slowly and read only
# one or two cache lines of each row, so packing pays from fewer rows on.
_ROWS_TO_PACK_NARROW = 16
# If unpacked rows are at least this many bytes apart, panels of three vectors are faster than those of four.
_NARROW_BYTES = 3 << 10
# A right operand with near rows is never packed if it takes at most this share of L2.
_SMALL_SHARE = 1 / 4

# The most blocks of tiles in a panel. The numbers for AMX are measured: docs/decisions/0050-amx.md.
_BLOCKS_OF_TILES = 4
# The most packed words in a column of a panel: the rows of the left operand that all its blocks read then have 64 KB.
_DEEPEST_TILES = 512
# With fewer words than that, a panel of a large result has more blocks in proportion, up to this many.
_MOST_BLOCKS = 64
# A result is large if it takes this share of L2. Writing it takes longer than multiplying, and long pieces of its rows
# are written faster.
_FAR_RESULT = 1 / 2

# Up to this many rows, panels of packed words are two cache lines wide, which increases memory bandwidth.
FEW_ROWS_OF_WORDS = 16


@dataclass(frozen=True)
class Contraction:
    """A stage as ``sum(left * right)``, with the axes of the register tile; ``dot`` multiplies packed words."""

    stage: Stage
    left: Expr
    right: Expr
    row: Axis
    column: Axis
    dot: Dot | None


def match(stage: Stage, prefix: int = 0) -> Contraction | None:
    """Matches a stage that is a sum of products with a free axis in both operands; returns its contraction or None.

    Args:
        stage: the stage.
        prefix: the number of leading axes bound by surrounding loops, which are never axes of the tile. If these loops
            also compute an operand, they keep it for one batch at a time. Such an operand does not depend on the batch
            axis, which would be mistaken for an axis of rows.
    """
    if not isinstance(stage, Stage) or stage.combine is not tirx.Add:
        return None
    product = factors(stage.value)
    if product is None or not stage.space or stage.dtype == "bool":
        return None
    if not dims.always_le(1, volume(stage.reduce)):
        return None  # tiles store nothing if there are no terms
    a, b, dot = product
    column = stage.space[-1]
    if build.uses(a, column.var):
        a, b = b, a
    if build.uses(a, column.var) or not build.uses(b, column.var) or not build.loads(a):
        return None
    rows = [axis for axis in stage.space[prefix:-1] if build.uses(a, axis.var) and not build.uses(b, axis.var)]
    if not rows:
        return None
    row = max(reversed(rows), key=lambda axis: min(build.points([axis]), 8))
    return Contraction(stage, a, b, row, column, dot)


@dataclass(frozen=True)
class Tiling:
    """Sizes of the register tile and of the blocks of the reduced axes."""

    rows: int
    columns: int
    lanes: int
    outer: tuple[Axis, ...]  # loops over blocks of the reduced axes
    inner: tuple[Axis, ...]  # loops within a block
    reduce_env: Env  # the reduced axes in terms of the two
    streamed: bool = False  # whether all panels of a task go by within a block
    packs_rows: bool = False  # whether a task copies its rows of the left operand, transposed or converted
    grouped: bool = False  # whether a tile of rows meets several panels before the next one
    unpacked: bool = False  # whether the right operand is read without packing, although its rows are apart


def plan(contraction: Contraction, machine: Machine) -> Tiling:
    """Chooses the sizes of the register tile and of the blocks of reduced axes."""
    dtype = accumulator(contraction.stage.dtype)
    lanes = machine.lanes(dtype)
    if isinstance(contraction.dot, AmxDot):
        return _panels_of_tiles(contraction, machine)
    is_streamed = _is_streamed(contraction, machine)
    # With few rows, a tile needs more columns to keep both FMA units busy. Some registers hold the operands.
    few = 6
    is_deep = machine.settings.panel_level == 2 and not is_streamed
    is_strided = is_deep and _has_strided_terms(contraction, lanes)
    is_converted = not is_streamed and _has_converted_terms(contraction)
    packs_rows = (is_strided or is_converted) and _gains_by_packing_rows(contraction, is_converted, machine)
    is_strided = is_strided and volume(contraction.stage.reduce) > _NEAR_TERMS
    # A right operand that has been packed before has panels of two vectors.
    is_wide = is_deep and not build.divisors(contraction.right, contraction.column.var)
    has_many = machine.registers >= MANY_REGISTERS
    if contraction.dot is not None and not reads_several(contraction.right):
        few = FEW_ROWS_OF_WORDS
    wide = 4 if (is_wide and has_many) or build.points([contraction.row]) <= few else 2
    unpacked = is_wide and not packs_rows and _is_read_in_place(contraction, machine)
    distance = dims.typical(bytes_between_rows(contraction)) if unpacked else 0
    if has_many and distance >= _NARROW_BYTES and build.points([contraction.row]) > few:
        wide = 3
    if unpacked and _is_near_panel(contraction, 2 * lanes, machine) and build.points([contraction.row]) > few:
        wide = 2
    # Panels of nearly equal width, so that tasks take equally long.
    vectors = build.ceil_div(build.points([contraction.column]), lanes)
    vectors = build.ceil_div(vectors, build.ceil_div(vectors, wide))
    free = machine.registers - vectors - (_SPARE if has_many else _SPARE_OF_FEW)
    most = min(max(1, free // vectors), MAX_ROWS)
    # A wide tile of fewer rows multiplies each vector of its panel too rarely. Where that takes little time, tiles
    # without a remainder are better: the code of the epilogues for the remainder is as long as that for the tiles.
    stage = contraction.stage
    is_little = bool(stage.epilogues) and build.points([*stage.space, *stage.reduce]) <= _LITTLE_WORK
    least = most - 1 if is_wide and vectors == wide and not is_little else most // 2 + 1
    rows = _tile_size(contraction.row.extent, most, least)
    terms = _STREAMED_TERMS if is_streamed else most_terms(vectors * lanes, dtype, machine)
    if packs_rows:
        terms = min(terms, _PACKED_TERMS, machine.cache_bytes(2) // _BYTES_OF_A_TERM)
    elif is_strided:
        terms = min(terms, _STRIDED_TERMS)
    if unpacked:
        terms = min(terms, max(_STREAMED_TERMS, machine.cache_bytes(2) // (2 * distance)))
    axes = [contraction.row, contraction.column, *stage.reduce]
    grouped = is_deep and not unpacked and contraction.dot is None
    grouped = grouped and all(isinstance(axis.extent, int) for axis in axes)
    if grouped and is_wide and not packs_rows and _gains_by_long_rows(contraction):
        panels = min(PANELS_OF_A_GROUP, build.ceil_div(build.points([contraction.column]), vectors * lanes))
        together = most_terms(vectors * lanes * panels, dtype, machine)
        terms = min(terms, together if together >= _FEWEST_OF_A_GROUP else _TERMS_OF_SMALL_GROUPS)
    blocks = _block_reduction(stage.reduce, terms)
    return Tiling(rows, vectors * lanes, lanes, *blocks, is_streamed, packs_rows, grouped, unpacked)


def _is_streamed(contraction: Contraction, machine: Machine) -> bool:
    """Whether few rows multiply a right operand that is larger than L2 and has long rows."""
    right, stage, column, dot = contraction.right, contraction.stage, contraction.column, contraction.dot
    axes = [*stage.space, *stage.reduce]
    if dot is not None and reads_several(right):
        return False  # words are contiguous along the terms
    if not all(isinstance(axis.extent, int) and axis.limit is None for axis in axes):
        return False
    load, depth = right_array(contraction), 1 if dot is None else dot.depth
    if load is None or _stride(load, column, stage) != 1 or not stage.reduce:
        return False
    nbytes = build.points([*stage.reduce, column]) * depth * build.bits(str(load.ty)) // 8
    if _rows_of(contraction) > _most_streamed_rows(contraction, machine) or nbytes < machine.cache_bytes(2):
        return False
    step = _stride(load, stage.reduce[-1], stage)
    far = _STREAMED_BYTES[machine.settings.panel_level if dot is None else 1]
    return step is not None and dims.typical(step) * build.bits(str(load.ty)) // 8 > far * depth


def _most_streamed_rows(contraction: Contraction, machine: Machine) -> int:
    """The most rows of the left operand for which the right one is read in blocks of rows."""
    if contraction.dot is not None:
        return _STREAMED_ROWS_OF_WORDS
    is_small = machine.registers >= MANY_REGISTERS and machine.cache_bytes(2) < LARGE_BYTES
    return _STREAMED_ROWS_OF_SMALL if is_small else _STREAMED_ROWS


def _has_strided_terms(contraction: Contraction, lanes: int) -> bool:
    """Whether neighbouring rows of the left operand are vectors, and its terms are not."""
    row = contraction.row
    if not _has_packable_rows(contraction) or row.extent < lanes:
        return False
    return is_row_readable(contraction.left, row, contraction.stage.domain)


def _has_converted_terms(contraction: Contraction) -> bool:
    """Whether the terms of the left operand are neighbours that are converted before they are multiplied."""
    left = contraction.left
    is_other = isinstance(left, tirx.Cast) or str(left.ty) != accumulator(contraction.stage.dtype)
    return is_other and _has_packable_rows(contraction) and has_near_terms(contraction)


def _has_packable_rows(contraction: Contraction) -> bool:
    """Whether the numbers of rows and terms are static, and terms are not packed words."""
    axes = [contraction.row, *contraction.stage.reduce]
    return contraction.dot is None and all(isinstance(axis.extent, int) and axis.limit is None for axis in axes)


def has_near_terms(contraction: Contraction) -> bool:
    """Whether the left operand is an array, converted or not, in which the terms of a row are neighbours."""
    left, stage = contraction.left, contraction.stage
    load = left.value if isinstance(left, tirx.Cast) else left
    return isinstance(load, ir.TensorLoad) and (
        build.stride(load.source, load.indices, stage.reduce[-1], stage.domain) == 1
    )


def _gains_by_packing_rows(contraction: Contraction, is_converted: bool, machine: Machine) -> bool:
    """Whether transposing or converting rows of the left operand once takes less time than for each panel."""
    stage, column = contraction.stage, contraction.column
    work = build.points([*stage.space, *stage.reduce])
    if not all(isinstance(axis.extent, int) for axis in (contraction.row, column, *stage.reduce)):
        return False  # how the loops are divided depends on all sizes
    if work <= _PACKED_WORK or volume(stage.reduce) <= _FEW_TERMS:
        return False
    if not is_converted and _stays_near(contraction, machine):
        return False
    is_once = all(build.uses(contraction.left, axis.var) for axis in stage.space if axis is not column)
    few = _CONVERTED_COLUMNS if is_converted else _TRANSPOSED_COLUMNS
    return build.points([column]) >= (few if is_once else _PACKED_AGAIN)


def _stays_near(contraction: Contraction, machine: Machine) -> bool:
    """Whether a left operand with strided terms is read as fast without packing it.

    That holds if there are few terms and L2 keeps the operand. If the terms are pixels of images, transposing takes
    longer than it saves with few columns, or without a large L2. With few registers panels are narrow, so there are
    many of them, which would read the operand too often.
    """
    nbytes, terms, columns = _left_bytes(contraction), contraction.stage.reduce, build.points([contraction.column])
    has_few = machine.registers < MANY_REGISTERS
    if len(terms) > 1 and columns <= (_FEW_PIXEL_COLUMNS if has_few else _FEWEST_PIXEL_COLUMNS):
        return True
    if has_few:
        return False
    if len(terms) > 1 and machine.cache_bytes(2) < LARGE_BYTES:
        return True
    is_short = dims.always_le(volume(terms), _STRIDED_TERMS)
    return is_short and nbytes is not None and nbytes <= _NEAR_SHARE * machine.cache_bytes(2)


def _left_bytes(contraction: Contraction) -> int | None:
    """The size in bytes of the left operand's array; None if the operand is computed or has a dynamic size."""
    left = contraction.left
    return build.nbytes(left.source) if isinstance(left, ir.TensorLoad) and build.is_static(left.source) else None


def _gains_by_long_rows(contraction: Contraction) -> bool:
    """Whether packing a group of panels of few terms, row by row, takes less time than one panel of many terms.

    That holds if few rows multiply the panels, and rows of the right operand are contiguous.
    """
    return _rows_of(contraction) <= _ROWS_OF_A_GROUP and _has_contiguous_rows(contraction)


def _is_read_in_place(contraction: Contraction, machine: Machine) -> bool:
    """Whether the right operand is too small to pack, or too few rows multiply it.

    The result is False if L2 does not hold the left operand, which is then fetched for each panel.
    """
    right = contraction.right
    if contraction.dot is not None or str(right.ty) != accumulator(contraction.stage.dtype):
        return False
    nbytes = _left_bytes(contraction)
    if nbytes is not None and nbytes > machine.cache_bytes(2):
        return False
    distance = bytes_between_rows(contraction)
    if distance is None or not _has_contiguous_rows(contraction):
        return False
    apart = dims.typical(distance)
    if apart <= 0:
        return False
    if apart <= FAR_BYTES and apart * build.points(contraction.stage.reduce) <= _SMALL_SHARE * machine.cache_bytes(2):
        return True
    if machine.registers < MANY_REGISTERS:
        return _rows_of(contraction) < _ROWS_TO_PACK_NARROW
    limits = (rows for nbytes, rows in _ROWS_TO_PACK.items() if apart <= nbytes)
    return _rows_of(contraction) < next(limits, _ROWS_TO_PACK_FAR)


def _is_near_panel(contraction: Contraction, columns: int, machine: Machine) -> bool:
    """Whether L1 holds a panel of ``columns`` columns, so that narrow tiles of more rows are as fast as wide ones.

    With a large L2 cache, wide tiles are faster at any depth of the panel.
    """
    if machine.cache_bytes(2) >= LARGE_BYTES:
        return False
    nbytes = columns * volume(contraction.stage.reduce) * build.bits(str(contraction.right.ty)) // 8
    return dims.always_le(nbytes, int(_SHARES[1] * machine.cache_bytes(1)))


def _rows_of(contraction: Contraction) -> int:
    """The number of rows that multiply one right operand."""
    return build.points([axis for axis in contraction.stage.space if not build.uses(contraction.right, axis.var)])


def right_array(contraction: Contraction) -> ir.TensorLoad | None:
    """The load of the largest array of the right operand, or of a packed word's first term; None if there is none.

    The operand may be computed from that array unless the left operand is converted, once again for each panel.
    """
    left, right = contraction.left, contraction.right
    if contraction.dot is None:
        is_plain = isinstance(left, ir.TensorLoad) and str(left.ty) == accumulator(contraction.stage.dtype)
        loads = build.loads(right) if is_plain or isinstance(right, ir.TensorLoad) else []
        axes = lambda load: [axis for axis in contraction.stage.domain if build.uses(load, axis.var)]
        return max(loads, key=lambda load: build.points(axes(load)), default=None)
    loads = build.loads(right)
    is_one = bool(loads) and all(load.source.same_as(loads[0].source) for load in loads)
    return loads[0] if is_one else None


def _stride(load: ir.TensorLoad, axis: Axis, stage: Stage) -> Size | None:
    """The elements of an array from one step of an axis to the next; None if they vary."""
    return build.stride(load.source, load.indices, axis, [*stage.space, *stage.reduce])


def _has_contiguous_rows(contraction: Contraction) -> bool:
    """Whether a row of the right operand is contiguous."""
    right = contraction.right
    return isinstance(right, ir.TensorLoad) and _stride(right, contraction.column, contraction.stage) == 1


def bytes_between_rows(contraction: Contraction) -> Size | None:
    """The bytes from one row of the right operand to the next; None if they vary, or it is not an array."""
    right, stage = contraction.right, contraction.stage
    if not isinstance(right, ir.TensorLoad) or not stage.reduce:
        return None
    step = _stride(right, stage.reduce[-1], stage)
    return None if step is None else step * build.bits(str(right.ty)) // 8


def _panels_of_tiles(contraction: Contraction, machine: Machine) -> Tiling:
    """Panels of several blocks of two by two tiles of AMX, or of a block of one by four.

    All blocks of a panel read the same rows of the left operand in turn, so the rows stay in cache. The words of an
    instruction are the last reduced axis.
    """
    lanes = TILE_WORDS
    columns = lanes * tiles_across(contraction.row.extent, build.points([contraction.column]))
    blocks = build.ceil_div(build.points([contraction.column]), columns)
    most = 1 if _is_low(contraction.row.extent) else min(_most_blocks(contraction, blocks, machine), blocks)
    # As many panels as cores, or a multiple, of nearly equal width.
    equal = (size for size in range(most, 0, -1) if blocks % size == 0 or blocks >= 4 * size)
    even = (size for size in equal if build.ceil_div(blocks, size) % machine.cores == 0)
    columns *= next(even, build.ceil_div(blocks, build.ceil_div(blocks, most)))
    rows = _tile_size(contraction.row.extent, 2 * TILE_ROWS, 2 * TILE_ROWS - 4)
    words = max(TILE_WORDS, min(_DEEPEST_TILES, most_terms(columns, WORD, machine)))
    return Tiling(rows, columns, lanes, *_block_reduction(contraction.stage.reduce, words))


def _most_blocks(contraction: Contraction, blocks: int, machine: Machine) -> int:
    """The most blocks of tiles in a panel, if a row of the result has ``blocks`` of them."""
    stage = contraction.stage
    written = [*([stage.output] if stage.keep else []), *(epilogue.output for epilogue in stage.epilogues)]
    nbytes = build.points(stage.space) * sum(build.bits(str(output.dtype)) for output in written) // 8
    if nbytes < _FAR_RESULT * machine.cache_bytes(2):
        return _BLOCKS_OF_TILES
    wide = min(_BLOCKS_OF_TILES * max(1, _DEEPEST_TILES // build.points(stage.reduce)), _MOST_BLOCKS)
    return min(wide, max(_BLOCKS_OF_TILES, blocks // machine.cores))


def _is_low(rows: Size) -> bool:
    """Whether one tile of AMX holds this number of rows."""
    return isinstance(rows, int) and rows <= TILE_ROWS


def tiles_across(rows: Size, columns: int) -> int:
    """The number of tiles along the columns of a block: two, or up to four if there is one along the rows."""
    tiles = build.ceil_div(columns, TILE_WORDS)
    return build.ceil_div(tiles, build.ceil_div(tiles, 4 if _is_low(rows) else 2))


def most_terms(columns: int, dtype: str, machine: Machine) -> int:
    """The most terms of a block whose panel of ``columns`` columns fits its share of a cache."""
    level = machine.settings.panel_level
    panel = _SHARES[level] * machine.cache_bytes(level)
    return max(1, int(panel) * 8 // (columns * build.bits(dtype)))


def _tile_size(extent: Size, most: int, least: int) -> int:
    """A tile size from ``least`` to ``most`` that divides ``extent``, or one that covers it in nearly equal parts.

    For a dynamic extent it is a power of two, so that smaller powers cover the remainder.
    """
    if not isinstance(extent, int):
        return 1 << (most.bit_length() - 1)
    if extent <= most:
        return extent
    exact = [size for size in range(most, least - 1, -1) if extent % size == 0]
    return exact[0] if exact else math.ceil(extent / math.ceil(extent / most))


def _block_reduction(axes: Sequence[Axis], depth: int) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Env]:
    """Splits the reduced axes into loops over blocks, and loops within a block of at most ``depth`` terms."""
    inner: list[Axis] = []
    rest = list(axes)
    while rest and isinstance(rest[-1].extent, int) and volume(inner) * rest[-1].extent <= depth:
        inner.insert(0, rest.pop())
    env: Env = {axis.var: axis.var for axis in axes}
    room = depth // volume(inner)
    if rest and room > 1 and rest[-1].limit is None:
        axis = rest.pop()
        parts = build.ceil_div(axis.extent, room)
        length = build.ceil_div(axis.extent, parts) if isinstance(parts, int) else room
        block = Axis.fresh(axis, build.ceil_div(axis.extent, length))
        start = block.var * length
        even = axis.extent % length == 0
        within = Axis.fresh(axis, length, None if even else tirx.min(length, axis.extent - start))
        env[axis.var] = start + within.var
        rest.append(block)
        inner.insert(0, within)
    return tuple(rest), tuple(inner), env


def tile_count(contraction: Contraction, machine: Machine) -> Size:
    """The number of register tiles of the output."""
    tiling = plan(contraction, machine)
    row, column = contraction.row, contraction.column
    others = [axis for axis in contraction.stage.space if axis not in (row, column)]
    return volume(others) * build.ceil_div(row.extent, tiling.rows) * build.ceil_div(column.extent, tiling.columns)
