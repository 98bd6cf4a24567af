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
_MOST_AXES, _MOST_BOX = 5, 256
# Addresses and distances are multiples of 16 bytes.
_ALIGNMENT = 16
_MOST_SIZE, _MOST_STRIDE = 1 << 31, 1 << 40


@dataclass(frozen=True, eq=False)
class TiledOperand:
    """An operand that is copied in boxes.

    Args:
        buffer: the array.
        offset: the bytes in front of the tensor.
        sizes: those of its axes; the first one is contiguous.
        strides: the distances along the other axes, in bytes.
        box: the sizes of a box.
        batch: the axes of the batch, which are the tensor's last ones.
        layout: that of a tile.
    """

    buffer: Buffer
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    batch: tuple[Axis, ...]
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
            reading: the way in which it would be read otherwise.
            layout: that of a tile.
            others: what else the kernel computes: it must not read the array in another way.
            whole: the parameters that are whole arrays, one of which the array has to be.
        """
        load = reading.source
        plain = load is not None and reading.condition is None and reading.by_term == layout.by_term
        if not plain or not isinstance(layout, Swizzled) or operand.dtype not in HALF:
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
        inner, outer = (terms, rows) if layout.by_term else (rows, terms)
        batch = tuple(axis for axis in product.batch if stride_of[axis])
        axes = [inner, outer, *((axis.extent, stride_of[axis]) for axis in batch)]
        strides = tuple(stride * size for _, stride in axes[1:])
        across = layout.rows if layout.by_term else layout.depth
        box = (SWIZZLED // size, across, *(1 for _ in batch))
        fits = all(0 < stride < _MOST_STRIDE and stride % _ALIGNMENT == 0 for stride in strides)
        fits = fits and all(extent < _MOST_SIZE for extent, _ in axes) and int(start) * size % _ALIGNMENT == 0
        if inner[1] != 1 or not fits or len(axes) > _MOST_AXES or across > _MOST_BOX:
            return None
        sizes = tuple(extent for extent, _ in axes)
        return cls(buffer, int(start) * size, sizes, strides, box, batch, layout)

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
            start: where the tile begins in it.
            barrier: the address of the barrier that counts the bytes.
        """
        description = (MAP_DTYPES[str(self.buffer.dtype)], self.offset, *self.sizes, *self.strides, *self.box)
        name = f"{LOAD}<{', '.join(map(str, (len(self.sizes), *description)))}>"
        base = address(self.buffer, *(0 for _ in self.buffer.shape))
        inner, outer = (first_term, first_row) if self.layout.by_term else (first_row, first_term)
        along = self.layout.depth if self.layout.by_term else self.layout.rows
        stmts = []
        for i in range(along // self.box[0]):
            to = address(shared, start + i * self.box[1] * SWIZZLED)
            coordinates = [inner + i * self.box[0], outer, *(env[axis.var] for axis in self.batch)]
            coordinates += [tirx.const(0, "int32")] * (_MOST_AXES - len(coordinates))
            stmts.append(call(name, to, base, barrier, *coordinates))
        return build.seq(*stmts)


def _merged(axes: Sequence[Axis], stride_of: dict[Axis, int]) -> tuple[int, int] | None:
    """The size and the stride of axes that are walked as one; None if they are not."""
    size, stride = 1, 0
    for axis in reversed(axes):
        if size > 1 and stride_of[axis] != size * stride:
            return None
        stride = stride_of[axis] if size == 1 else stride
        size *= axis.extent
    return (size, stride) if axes else None
