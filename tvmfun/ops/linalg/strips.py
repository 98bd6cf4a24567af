"""Loop programs on matrices in strips of columns: parts of the programs of all decompositions.

A strip is some columns of a matrix, contiguous in memory: its rows are vectors, its tiles stay in the cache, and for no
size of a matrix rows compete for the same cache lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun.core import dims
from tvmfun.ops.parameters import Ints
from tvmfun.ops.tir import PRODUCT

#: The columns of a strip.
WIDTH = 32
#: The rows of a tile of a product.
ROWS = 8
#: The fewest remaining rows of a matrix for which a pass over them is worth several threads.
MANY = 384
# The terms of a partial sum: rounding errors of long sums grow with the root of the number of terms.
_SUMMED = 32
# The fewest elements of a matrix that is worth several threads.
_SHARED = 128 * 128


def local(shape: Ints, dtype: str) -> tirx.Buffer:
    """Memory of one point of a block."""
    sizes = (max(1, size) if isinstance(size, int) else size for size in shape)
    return T.sblock_alloc_buffer(tuple(sizes), dtype, scope="local")


def registers(width: int, dtype: str) -> tirx.Buffer:
    """A vector of one iteration of a loop, which stays in registers."""
    return T.alloc_buffer((width,), dtype, scope="local")


def number(value: float, dtype: str) -> Any:
    """A constant."""
    return tirx.const(value, dtype)


def put(buffer: tirx.Buffer, value: Any, *at: Any) -> None:
    """Stores a value, rounded to the dtype of the buffer."""
    T.buffer_store(buffer, value.astype(str(buffer.dtype)), list(at))


@contextmanager
def branch(condition: Any) -> Iterator[None]:
    """Statements that run if the condition holds."""
    with T.If(condition), T.Then():
        yield


def padded(size: int) -> int:
    """``size`` rounded up to whole strips."""
    return -(-size // WIDTH) * WIDTH


def lanes(width: int) -> Any:
    """A loop over the columns of a row, as a vector."""
    return T.vectorized(0, width)


def clear(buffer: tirx.Buffer, *at: Any) -> None:
    """Sets the elements of a buffer at some leading indices to 0."""
    *sizes, width = buffer.shape[len(at) :]
    is_row = isinstance(width, tirx.IntImm) and int(width) <= WIDTH
    with ExitStack() as loops:
        indices = [loops.enter_context(T.serial(0, size)) for size in sizes]
        with lanes(width) if is_row else T.serial(0, width) as k:
            T.buffer_store(buffer, number(0, str(buffer.dtype)), [*at, *indices, k])


def fold(total: tirx.Buffer, combine: Callable[[Any, Any], Any]) -> None:
    """Combines the ``WIDTH`` elements of a vector, in its first one."""
    half = WIDTH // 2
    while half:
        with lanes(half) as k:
            T.buffer_store(total, combine(total[k], total[half + k]), [k])
        half //= 2


def add_up(total: tirx.Buffer) -> None:
    """Adds up the ``WIDTH`` elements of a vector, in its first one."""
    fold(total, lambda x, y: x + y)


class Loops:
    """The loops of one matrix; those over its strips run in parallel if it is large and there is no other matrix."""

    def __init__(self, lead: Ints, size: int) -> None:
        self.is_parallel = dims.typical(size) >= _SHARED and all(
            isinstance(count, int) and count == 1 for count in lead
        )

    def each(self, count: Any) -> Any:
        """A loop whose iterations are independent."""
        return (T.parallel if self.is_parallel else T.serial)(0, count)

    def run(self, count: Any, body: Callable[[Any], None], *, if_many: Any) -> None:
        """Runs ``body`` for each of some independent iterations, by several threads if a condition holds."""
        if not self.is_parallel:
            with T.serial(0, count) as i:
                body(i)
            return
        with T.If(if_many):
            with T.Then(), T.parallel(0, count) as i:
                body(i)
            with T.Else(), T.serial(0, count) as i:
                body(i)


class Strips:
    """A matrix in memory of one point of a block, in strips; rows are added until there are whole tiles.

    Args:
        rows, columns: the shape of the matrix.
        dtype: the dtype of its elements.
        whole_blocks: whether rows are added until there are whole square blocks.
    """

    def __init__(self, rows: int, columns: int, dtype: str, *, whole_blocks: bool = False) -> None:
        self.rows, self.columns, self.dtype = rows, columns, dtype
        #: The columns of a strip, fewer if there is only one, and the number of strips.
        self.width = columns if isinstance(columns, int) and 0 < columns < WIDTH else WIDTH
        self.count = -(-columns // self.width)
        self.is_single = isinstance(self.count, int) and self.count <= 1
        #: The rows in memory.
        block = self.width if whole_blocks else ROWS
        self.height = -(-rows // block) * block
        self.buffer = local((self.count, self.height, self.width), dtype)

    def __getitem__(self, at: tuple[Any, Any, Any]) -> Any:
        """The element at a strip, a row, and a column of the strip."""
        return self.buffer[at]

    def store(self, at: tuple[Any, Any, Any], value: Any) -> None:
        """Stores an element at a strip, a row, and a column of the strip."""
        T.buffer_store(self.buffer, value, list(at))

    def load(self, loops: Loops, element: Callable[[Any, Any], Any]) -> None:
        """Stores ``element(row, column)`` everywhere, and zeros in padding rows and columns."""
        zero, full = number(0, self.dtype), self.columns // self.width
        with loops.each(self.count) as strip:
            with T.If(strip < full):
                with T.Then(), T.serial(0, self.rows) as i, T.serial(0, self.width) as k:
                    self.store((strip, i, k), element(i, strip * self.width + k))
                with T.Else(), T.serial(0, self.rows) as i, T.serial(0, self.width) as k:
                    column, last = strip * self.width + k, self.columns - 1
                    value = tirx.if_then_else(column <= last, element(i, tirx.min(column, last)), zero)
                    self.store((strip, i, k), value)
            with T.serial(self.rows, self.height) as i, lanes(self.width) as k:
                self.store((strip, i, k), zero)

    def save(self, loops: Loops, store: Callable[[Any, Any, Any], None]) -> None:
        """Calls ``store(row, column, element)`` for each element of the matrix."""
        with loops.each(self.count) as strip, T.serial(0, self.rows) as i, self.each_column(strip) as k:
            store(i, strip * self.width + k, self[strip, i, k])

    def each_column(self, strip: Any) -> Any:
        """A loop over the columns of a strip, without padding."""
        return T.serial(0, tirx.min(self.width, self.columns - strip * self.width))


def add_product(
    sums: Callable[[Any, Any], tuple[tirx.Buffer, Sequence[Any]]],
    left: Callable[[Any, Any], Any],
    right: Callable[[Any, Any], Any],
    *,
    rows: int,
    columns: int,
    terms: Any,
) -> None:
    """Adds ``left(i, k) * right(k, j)`` to the element ``sums(i, j)`` of a buffer, for at least one term ``k``.

    Schedules for CPUs turn it into a micro-kernel, with sums in registers.
    """
    with T.serial(0, rows, annotations={PRODUCT: 1}) as i, T.serial(0, terms) as k, T.serial(0, columns) as j:
        buffer, at = sums(i, j)
        T.buffer_store(buffer, buffer[tuple(at)] + left(i, k) * right(k, j), list(at))


def add_products(
    target: Strips,
    strip: Any,
    begin: Any,
    left: Callable[[Any, Any], Any],
    right: Callable[[Any, Any], Any],
    *,
    terms: Any,
) -> None:
    """Adds ``left(i, k) * right(k, j)`` to the rows ``i`` of a strip from ``begin`` on, which begins a tile."""
    with T.serial(0, tirx.max(target.height - begin, 0) // ROWS) as tile:
        first = begin + tile * ROWS
        add_product(
            lambda i, j: (target.buffer, (strip, first + i, j)),
            lambda i, k: left(first + i, k),
            right,
            rows=ROWS,
            columns=target.width,
            terms=terms,
        )


def sum_rows(total: tirx.Buffer, begin: Any, end: Any, add: Callable[[Any, tirx.Buffer], None]) -> None:
    """Sums over rows, a block at a time: ``add(row, sum)`` adds the terms of a row to a vector."""
    width, part = int(total.shape[0]), registers(int(total.shape[0]), str(total.dtype))
    clear(total)
    with T.serial(0, -(-(end - begin) // _SUMMED)) as block:
        first = begin + block * _SUMMED
        clear(part)
        with T.serial(first, tirx.min(first + _SUMMED, end)) as i:
            add(i, part)
        with lanes(width) as j:
            T.buffer_store(total, total[j] + part[j], [j])


def change_rows(
    work: Strips,
    strip: Any,
    begin: Any,
    columns: Sequence[tirx.Buffer],
    rows: Sequence[tirx.Buffer],
    vector: tirx.Buffer,
    store: Callable[[Any, Any], None],
) -> None:
    """Subtracts two products of vectors from the rows of a strip from ``begin`` on, and multiplies these by a vector.

    Args:
        work: the matrix.
        strip: the strip.
        begin: its first row that changes.
        columns: the first factors of the products, along the columns of the matrix.
        rows: their second factors, along its rows.
        vector: the numbers by which the changed rows are multiplied, and summed.
        store: ``(column, sum)``, called for each column of the strip.
    """
    total, *parts = (registers(work.width, work.dtype) for _ in range(3))
    column = lambda j: strip * work.width + j
    for part, row in zip(parts, rows, strict=True):
        with lanes(work.width) as j:
            T.buffer_store(part, row[column(j)], [j])

    def change(i: Any, total: tirx.Buffer) -> None:
        with lanes(work.width) as j:
            value = work[strip, i, j] - columns[0][i] * parts[0][j] - columns[1][i] * parts[1][j]
            work.store((strip, i, j), value)
        with lanes(work.width) as j:
            T.buffer_store(total, total[j] + vector[i] * work[strip, i, j], [j])

    sum_rows(total, begin, work.rows, change)
    with lanes(work.width) as j:
        store(column(j), total[j])


def dot(total: tirx.Buffer, x: tirx.Buffer, y: tirx.Buffer, begin: Any, size: Any) -> None:
    """Stores the product of two vectors, from the part with element ``begin`` on, in the first element of ``total``."""
    clear(total)
    with T.serial(begin // WIDTH, -(-size // WIDTH)) as part, lanes(WIDTH) as j:
        i = part * WIDTH + j
        T.buffer_store(total, total[j] + x[i] * y[i], [j])
    add_up(total)
