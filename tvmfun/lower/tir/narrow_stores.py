"""Protection of loops with truncating stores from LLVM's vectorizer.

LLVM vectorizes loops of a constant trip count below 16 with masks. If one lane remains for the last step, the X86
backend of LLVM 22 stores the value without its truncation to bfloat16, int8 and the like: four bytes instead of two,
which overwrites memory after the array. Loops also become that short when LLVM unrolls the loops around them.
Vectors that our schedules make are not affected.
"""

from __future__ import annotations

from functools import cache

from tvm import DataType, tirx

from tvmfun.lower.tir.walk import find, rewrite

#: Below this trip count LLVM vectorizes with masks instead of a remainder loop.
_STEPS = 16

_parsed = cache(DataType)


def protect_narrow_stores(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with a marker, which costs no instruction, in each loop that LLVM must not vectorize."""
    if not any(map(_truncates, find(body, tirx.BufferStore))):
        return body
    serial = {loop.loop_var for loop in find(body, tirx.For) if loop.kind == tirx.ForKind.SERIAL}
    affected = lambda loop: loop.loop_var in serial and _may_be_short(loop, serial) and _has_truncation(loop)
    return rewrite(body, (tirx.For, lambda loop: _marked(loop) if affected(loop) else loop))


def _may_be_short(loop: tirx.For, serial: set[tirx.Var]) -> bool:
    """Whether a loop has a constant trip count below 16, at the latest after LLVM unrolls the loops around it."""
    if isinstance(loop.extent, tirx.IntImm):
        return 1 < loop.extent.value < _STEPS
    return any(var in serial for var in find(loop.extent, tirx.Var))


def _has_truncation(loop: tirx.For) -> bool:
    return any(map(_truncates, find(loop.body, tirx.BufferStore)))


def _truncates(store: tirx.BufferStore) -> bool:
    """Whether a store may truncate a value computed in a wider type."""
    dtype = _parsed(str(store.value.ty))
    if dtype.lanes > 1 or dtype.bits > 32:
        return False
    return dtype.bits < 32 or any(_parsed(str(cast.value.ty)).bits > 32 for cast in find(store.value, tirx.Cast))


def _marked(loop: tirx.For) -> tirx.For:
    # The vectorizer skips loops with a call that has no vector form.
    marker = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.fake.use", loop.loop_var))
    body = tirx.SeqStmt([marker, loop.body])
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)
