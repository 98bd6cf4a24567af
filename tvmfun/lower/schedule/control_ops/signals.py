"""Loops that look for signals, so that Ctrl-C ends a call that takes long.

Every parallel loop looks before it begins, at most ten times a second (``pool.ll``). Loops of control flow that take
long and may have no parallel loop inside get an empty one.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmfun.core import dims

# Elements that a core computes in some 10 microseconds, and in some 10 milliseconds at least.
_PERIOD_WORK, _LONG_WORK = 1 << 16, 1 << 26


def period(length: Any, work: int) -> int | None:
    """Returns after how many steps a loop should look for signals; None if it ends soon by itself.

    Args:
        length: the number of steps; None if nobody knows it.
        work: about how many elements a step computes.

    >>> period(None, 1 << 20), period(1 << 30, 100), period(1000, 100)
    (1, 512, None)
    """
    if length is not None and dims.typical(length) * work < _LONG_WORK:
        return None
    return 1 << max(0, (_PERIOD_WORK // max(1, work)).bit_length() - 1)


def look() -> tirx.Stmt:
    """Returns a statement that looks for signals: a parallel loop that has no data."""
    nothing = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.donothing"))
    return tirx.For(ir.Var("nothing", ir.PrimType("int32")), 0, 2, tirx.ForKind.PARALLEL, nothing)
