"""Tensor maps: operands of products that the copy engine of sm_90 (TMA) moves to shared memory in whole tiles.

A map describes an array as a tensor of up to five axes, the first of which is contiguous, and a box of it. One thread
asks for a box by its coordinates; the engine writes it in the layout that wgmma reads, with zeros outside of the
tensor, and counts its bytes at a barrier in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.sym import Analyzer
from tvm.tirx import Buffer, Stmt

from tvmfun.lower.schedule.gpu.layouts import SWIZZLED, Layout, Swizzled
from tvmfun.lower.schedule.gpu.operands import Reading
from tvmfun.lower.schedule.gpu.products import HALF, Operand, Product
from tvmfun.lower.schedule.gpu.vectors import address, call, size_of
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr
from tvmfun.runtime.cuda_module import MAP_DTYPES

#: The function that copies a box; its template arguments describe the map.
LOAD = "tvmfun_load_tile"
# The hardware's limits: the most axes of a map.
_MOST_AXES = 5
# The most elements of a box along an axis.
_MOST_BOX = 256
# Addresses and strides are multiples of this many bytes.
_ALIGNMENT = 16
# Axes have fewer elements than this.
_MOST_SIZE = 1 << 31
# Strides are less than this, in bytes.
_MOST_STRIDE = 1 << 40


@dataclass(frozen=True, eq=False)
class TiledOperand:
    """An operand that is copied in boxes.

    Args:
        buffer: the array.
        offset: the bytes before the tensor.
        sizes: the sizes of its axes; the first axis is contiguous.
        strides: the distances along the other axes, in bytes; each is a multiple of the one before.
        box: the sizes of a box.
        axes: the coordinate along each other axis: an axis of the batch, or None for the lines of the tile.
        layout: that of a tile.
    """

    buffer: Buffer
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    axes: tuple[Axis | None, ...]
    layout: Layout

    @classmethod
    def match(
        cls,
        operand: Operand,
        product: Product,
        reading: Reading,
        layout: Layout,
        others: Sequence[Expr],
        whole: Sequence[Buffer],
    ) -> TiledOperand | None:
        """The operand in boxes; None if it is not a plain array with affine indices.

        Args:
            operand: the operand.
            product: the product.
            reading: the fallback if it is not copied in boxes.
            layout: that of a tile.
            others: the other values that the kernel computes, which must not read the array in another way.
            whole: the parameters that are whole arrays; the operand must be one of them.
        """
        load = reading.array
        if load is None or reading.by_term != layout.by_term:
            return None
        if not isinstance(layout, Swizzled) or operand.dtype not in HALF:
            return None
        buffer = load.source
        is_read_again = any(other.source.same_as(buffer) for value in others for other in build.loads(value))
        if is_read_again or not any(buffer.same_as(param) for param in whole):
            return None
        size, domain = size_of(operand.dtype), product.domain
        if any(not isinstance(axis.extent, int) or axis.limit is not None for axis in domain):
            return None
        first = build.offset(buffer, load.indices)
        start = Analyzer().simplify(build.substitute(first, {axis.var: build.index(axis, 0) for axis in domain}))
        stride_of = {axis: build.stride(buffer, load.indices, axis, domain) for axis in domain}
        known = isinstance(start, tirx.IntImm) and all(isinstance(stride, int) for stride in stride_of.values())
        if not known or not build.is_linear(first, domain):
            return None
        rows, terms = (_merged(axes, stride_of) for axes in (operand.rows, product.reduce))
        if rows is None or terms is None:
            return None
        inner, lines = (terms, rows) if layout.by_term else (rows, terms)
        outer: list[tuple[int, int, Axis | None]] = [(*lines, None)]
        outer += [(axis.extent, stride_of[axis], axis) for axis in product.batch if stride_of[axis]]
        outer.sort(key=lambda one: one[1])
        across = layout.rows if layout.by_term else layout.depth
        sizes = (inner[0], *(extent for extent, _, _ in outer))
        strides = tuple(stride * size for _, stride, _ in outer)
        box = (SWIZZLED // size, *(across if axis is None else 1 for _, _, axis in outer))
        fits = inner[1] == 1 and len(sizes) <= _MOST_AXES and across <= _MOST_BOX and max(sizes) < _MOST_SIZE
        if not fits or int(start) * size % _ALIGNMENT or not _is_dense(sizes, strides, size):
            return None
        return cls(buffer, int(start) * size, sizes, strides, box, tuple(axis for _, _, axis in outer), layout)

    @property
    def nbytes(self) -> int:
        """The bytes of a tile, also where it is partly outside of the tensor."""
        return self.layout.nbytes

    def copy(self, env: Env, first_row: Expr, first_term: Expr, shared: Buffer, start: Expr, barrier: Expr) -> Stmt:
        """The copies of a tile, which one thread begins.

        Args:
            env: the position on the batch axes.
            first_row: the first row of the tile.
            first_term: its first term.
            shared: shared memory, in bytes.
            start: the address of the tile in it.
            barrier: the address of the barrier that counts the bytes.
        """
        description = (MAP_DTYPES[str(self.buffer.dtype)], self.offset, *self.sizes, *self.strides, *self.box)
        name = f"{LOAD}<{', '.join(map(str, (len(self.sizes), *description)))}>"
        base = address(self.buffer, *(0 for _ in self.buffer.shape))
        inner, line = (first_term, first_row) if self.layout.by_term else (first_row, first_term)
        by_term = self.layout.by_term
        along, lines = (self.layout.depth, self.layout.rows) if by_term else (self.layout.rows, self.layout.depth)
        stmts = []
        for i in range(along // self.box[0]):
            to = address(shared, start + i * lines * SWIZZLED)
            coordinates = [inner + i * self.box[0], *(line if axis is None else env[axis.var] for axis in self.axes)]
            coordinates += [tirx.const(0, "int32")] * (_MOST_AXES - len(coordinates))
            stmts.append(call(name, to, base, barrier, *coordinates))
        return build.seq(*stmts)


def _is_dense(sizes: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """Whether the axes of a tensor do not overlap, and each stride is a multiple of the one before, as maps demand."""
    before = size
    for extent, stride in zip(sizes, strides, strict=False):
        if stride % before or stride % _ALIGNMENT or not extent * before <= stride < _MOST_STRIDE:
            return False
        before = stride
    return True


def _merged(axes: Sequence[Axis], stride_of: dict[Axis, int]) -> tuple[int, int] | None:
    """Merges axes into one, given by its size and stride; None if that is impossible, or there are none."""
    size, stride = 1, 0
    for axis in reversed(axes):
        if size > 1 and stride_of[axis] != size * stride:
            return None
        stride = stride_of[axis] if size == 1 else stride
        size *= axis.extent
    return (size, stride) if axes else None
