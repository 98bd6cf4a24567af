"""Large memory of the points of blocks: arrays of the kernel, a part of which belongs to each point."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import Buffer

from tvmfun.core import expressions
from tvmfun.lower.tir import build
from tvmfun.lower.tir.walk import rewrite


def with_points_in_memory(function: tirx.PrimFunc, most: int) -> tirx.PrimFunc:
    """Moves private buffers of a block's points to arrays of the kernel if they are large or of a dynamic size.

    Args:
        function: a kernel that is not scheduled.
        most: the bytes of an array that a thread may keep for itself.
    """
    moved: list[Buffer] = []

    def with_parts(realize: SBlockRealize) -> SBlockRealize:
        block = realize.block
        large = [buffer for buffer in block.alloc_buffers if not build.is_static(buffer) or build.nbytes(buffer) > most]
        if not large or block.name_hint == "root":
            return realize
        position = [axis.var for axis in block.iter_vars]
        sizes = [expressions.to_size(axis.dom.extent) for axis in block.iter_vars]
        own = {}
        for buffer in large:
            shape = [*sizes, *map(expressions.to_size, buffer.shape)]
            own[buffer] = build.buffer(shape, str(buffer.dtype), f"{buffer.name}_of_points")
        body = build.replace_buffers(block.body, own, lambda at: [*position, *at])
        moved.extend(own.values())
        kept = [buffer for buffer in block.alloc_buffers if buffer not in own]
        part = lambda buffer: buffer[tuple(slice(0, size) for size in buffer.shape)]
        regions = [part(buffer) for buffer in own.values()]
        block = SBlock(
            block.iter_vars,
            [*block.reads, *regions],
            [*block.writes, *regions],
            block.name_hint,
            body,
            block.init,
            kept,
        )
        return SBlockRealize(realize.iter_values, realize.predicate, block)

    body = rewrite(function.body, (SBlockRealize, with_parts))
    if not moved:
        return function
    if isinstance(body, SBlockRealize) and body.block.name_hint == "root":
        root = body.block
        buffers, inner = [*root.alloc_buffers, *moved], root.body
    else:
        buffers, inner = moved, body
    root = SBlock([], [], [], "root", inner, None, buffers)
    return function.with_body(SBlockRealize([], tirx.const(True), root))
