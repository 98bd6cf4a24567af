"""Signal checks in loops, so that Ctrl-C ends a long call.

Every parallel loop checks before it starts, at most ten times a second (``pool.ll``). Long loops of control flow, which
may have no parallel loop inside, get an empty one.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmfun.core import dims

# Elements that a core computes in about 10 microseconds.
_PERIOD_WORK = 1 << 16
# Elements that take a core at least 10 milliseconds.
_LONG_WORK = 1 << 26


def period(length: Any, work: int) -> int | None:
    """Returns the number of steps between two checks for signals; None if the loop is short.

    Args:
        length: the number of steps; None if it is unknown.
        work: the approximate number of elements that a step computes.

    >>> period(None, 1 << 20), period(1 << 30, 100), period(1000, 100)
    (1, 512, None)
    """
    if length is not None and dims.typical(length) * work < _LONG_WORK:
        return None
    return 1 << max(0, (_PERIOD_WORK // max(1, work)).bit_length() - 1)


def check() -> tirx.Stmt:
    """Returns a statement that checks for signals: a parallel loop without data."""
    nothing = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.donothing"))
    return tirx.For(ir.Var("nothing", ir.PrimType("int32")), 0, 2, tirx.ForKind.PARALLEL, nothing)
