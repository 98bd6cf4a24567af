"""Flattening of buffers to one dimension, without a simplification of TVM that is wrong.

``FlattenBuffer`` simplifies each index as an iterator map (``IterMapSimplify``). TVM 0.27 does that wrongly if a
quotient or remainder has an offset, a descending variable, or a variable that occurs twice:

=============================  ==============================  =========================
index, ``0 <= i < 64``         becomes                         which differs at
=============================  ==============================  =========================
``(i % 16 + 1) // 2``          ``(i + 1) % 16 // 2``           ``i = 15``: 0 instead of 8
``i // 16 * 8 + that``         ``(i + 1) // 2 - 8``            every ``i``
``(3 - i) // 2``               ``i // -2 + 1``                 ``i = 1``: 0 instead of 1
``i - i % 5``                  an error: a division by 0
=============================  ==============================  =========================

It leaves indices alone if the extent of a loop around them depends on the variable of another loop. Therefore the
statement is put into two such loops of one iteration while buffers are flattened. Afterwards the simplifier proper,
which is correct, joins the quotients and remainders of an index.
"""

from __future__ import annotations

import math

import tvm
from tvm import ir, tirx

from tvmfun.lower.tir.walk import find, rewrite, with_bodies

_OUTER, _INNER = (ir.Var(name, ir.PrimType("int32")) for name in ("outer", "inner"))
_FLATTEN = tirx.transform.FlattenBuffer()
_SIMPLIFY = tirx.transform.StmtSimplify()
# The largest int32.
_MOST = (1 << 31) - 1


@tvm.transform.module_pass(opt_level=0, name="tvmfun.FlattenBuffers")
def flatten_buffers(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """The pass that makes every buffer one-dimensional, and simplifies functions with quotients in indices.

    Raises:
        OverflowError: if the flat index of an element would not fit the type of the old indices.
    """
    for function in module.functions.values():
        _check_indices(function)
    flat = with_bodies(_FLATTEN(with_bodies(module, _in_loops)), _without_loops)
    some = {name: function for name, function in flat.functions.items() if _has_quotients(function.body)}
    simplified = _SIMPLIFY(tvm.IRModule(some, attrs=module.attrs)).functions if some else {}
    return tvm.IRModule({**flat.functions, **simplified}, attrs=module.attrs)


def _check_indices(function: tirx.PrimFunc) -> None:
    buffers = [param for param in function.params if tirx.is_buffer_var(param)]
    large = {buffer for buffer in buffers if _elements(buffer) > _MOST}
    if not large:
        return
    accesses = [(load.source, load.indices) for load in find(function.body, ir.TensorLoad)]
    accesses += [(store.buffer, store.indices) for store in find(function.body, tirx.BufferStore)]
    for buffer, indices in accesses:
        if buffer in large and not any(str(getattr(index, "ty", "")).startswith("int64") for index in indices):
            raise OverflowError(f"32-bit indices of {_elements(buffer):,} elements")


def _elements(buffer: tirx.Buffer) -> int:
    """The number of elements of a buffer, as far as its sizes are static."""
    return math.prod(size if isinstance(size, int) else getattr(size, "value", 1) for size in buffer.shape)


def _has_quotients(body: tirx.Stmt) -> bool:
    """Whether some index has a quotient or a remainder."""
    if not find(body, tirx.FloorDiv, tirx.FloorMod):
        return False
    accesses = find(body, ir.TensorLoad, tirx.BufferStore)
    return any(find(index, tirx.FloorDiv, tirx.FloorMod) for access in accesses for index in access.indices)


def _in_loops(body: tirx.Stmt) -> tirx.Stmt:
    inner = tirx.For(_INNER, 0, _OUTER + 1, tirx.ForKind.SERIAL, body)
    return tirx.For(_OUTER, 0, 1, tirx.ForKind.SERIAL, inner)


def _without_loops(body: tirx.Stmt) -> tirx.Stmt:
    is_ours = lambda loop: any(map(loop.loop_var.same_as, (_OUTER, _INNER)))
    return rewrite(body, (tirx.For, lambda loop: loop.body if is_ours(loop) else loop))
