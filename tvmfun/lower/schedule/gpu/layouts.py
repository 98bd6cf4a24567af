"""Layouts of tiles in shared memory: the address of the element of a row and a term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx

from tvmfun.lower.tir.build import Expr

#: The bytes of a row of a swizzled tile, and of the chunks in it that change places.
SWIZZLED = 128
_CHUNK = 16


@dataclass(frozen=True)
class Layout:
    """A tile of ``rows`` x ``depth`` elements of ``size`` bytes.

    Args:
        rows: the rows of the left operand, or the columns of the right one.
        depth: the terms.
        size: the bytes of an element.
        by_term: whether the terms of a row are neighbours, rather than the rows of a term.
    """

    rows: int
    depth: int
    size: int
    by_term: bool
    #: A tile begins at a multiple of this many bytes.
    alignment: ClassVar[int] = 16

    @property
    def nbytes(self) -> int:
        """The bytes of the tile."""
        raise NotImplementedError

    def offset(self, row: Expr, term: Expr) -> Expr:
        """The address of an element in the tile, in bytes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Padded(Layout):
    """Lines of neighbours with a few unused elements after each, so that the lanes of a warp read different banks.

    Args:
        padding: the unused elements.
    """

    padding: int

    @property
    def length(self) -> int:
        """The distance of lines, in elements."""
        return (self.depth if self.by_term else self.rows) + self.padding

    @property
    def nbytes(self) -> int:
        """The bytes of the tile."""
        return self.length * (self.rows if self.by_term else self.depth) * self.size

    def offset(self, row: Expr, term: Expr) -> Expr:
        """The address of an element in the tile, in bytes."""
        line, position = (row, term) if self.by_term else (term, row)
        return (line * self.length + position) * self.size


@dataclass(frozen=True)
class Swizzled(Layout):
    """Lines of 128 bytes, with the 16-byte chunks of line ``i`` exchanged by xor with ``i % 8``, as wgmma reads them.

    Neighbours that do not fit one line continue in another group of lines.
    """

    alignment: ClassVar[int] = 8 * SWIZZLED

    @property
    def nbytes(self) -> int:
        """The bytes of the tile."""
        return self.rows * self.depth * self.size

    @property
    def group(self) -> int:
        """The bytes from one group of neighbours to the next: of terms, or of rows."""
        return (self.rows if self.by_term else self.depth) * SWIZZLED

    def start(self, row: int, term: int) -> int:
        """The address in the tile, in bytes, of a matrix that begins at a row and a term of an unexchanged chunk."""
        line, position = (row, term) if self.by_term else (term, row)
        position *= self.size
        return position // SWIZZLED * self.group + line * SWIZZLED + position % SWIZZLED

    def offset(self, row: Expr, term: Expr) -> Expr:
        """The address of an element in the tile, in bytes."""
        line, position = (row, term) if self.by_term else (term, row)
        neighbours, in_chunk = SWIZZLED // self.size, _CHUNK // self.size
        group, within = tirx.floordiv(position, neighbours), tirx.floormod(position, neighbours)
        chunk = tirx.floordiv(within, in_chunk) ^ tirx.floormod(line, 8)
        address = group * self.group + line * SWIZZLED + chunk * _CHUNK
        return address + tirx.floormod(within, in_chunk) * self.size
