"""One-dimensional buffers of dynamic sizes, whose indices TVM's passes understand.

With dynamic sizes, the number of an element is its last index, which leaves its dimension (see ``stages.indices_at``).
``CompactBufferAllocation`` would make such a buffer as small as its last dimension.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.tirx import AllocBuffer, Buffer, Stmt

from tvmfun.lower.tir import build
from tvmfun.lower.tir.walk import find, rewrite, with_bodies


@tvm.transform.module_pass(opt_level=0, name="tvmfun.FlatBuffers")
def with_flat_buffers(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """The pass that makes buffers of dynamic sizes in a device's memory one-dimensional."""
    return with_bodies(module, _flat)


def _flat(body: Stmt) -> Stmt:
    allocated = [stmt.buffer for stmt in find(body, AllocBuffer)]
    allocated += [buffer for block in find(body, SBlock) for buffer in block.alloc_buffers]
    # Kernels of TVM's schedules say which parts of buffers their blocks access.
    described = [region.source for block in find(body, SBlock) for region in [*block.reads, *block.writes]]
    flat: dict[Buffer, Buffer] = {}
    for buffer in allocated:
        is_plain = buffer.scope() == "global" and not any(map(buffer.same_as, described))
        if is_plain and len(buffer.shape) > 1 and not build.is_static(buffer):
            flat[buffer] = tirx.decl_buffer([prod(buffer.shape)], str(buffer.dtype), name=buffer.name)
    if not flat:
        return body
    for buffer, other in flat.items():
        number = lambda indices, buffer=buffer: [build.offset(buffer, indices)]
        body = build.replace_buffers(body, {buffer: other}, number)
    return rewrite(body, (SBlock, lambda block: _with_allocations(block, flat)))


def _with_allocations(block: SBlock, new: dict[Buffer, Buffer]) -> SBlock:
    if not any(buffer in new for buffer in block.alloc_buffers):
        return block
    allocated = [new.get(buffer, buffer) for buffer in block.alloc_buffers]
    return SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init, allocated,
        block.match_buffers, block.annotations,
    )  # fmt: skip
