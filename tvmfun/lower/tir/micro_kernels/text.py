"""Calls of micro-kernels in TIR, and lines of their definitions in LLVM's language."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx import Stmt

from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr, Size

#: The intrinsic that fetches a cache line.
FETCH = "llvm.prefetch.p0"


def call(name: str, *arguments: Expr) -> Stmt:
    """The call of a function, as a statement."""
    return tirx.Evaluate(tirx.call_extern("int32", name, *arguments))


def number(value: Size | Expr, dtype: str) -> Expr:
    """A size or an expression as an argument of this type."""
    return tirx.const(value, dtype) if isinstance(value, int) else build.cast(value, dtype)


def function(name: str, parameters: str, body: str) -> str:
    """The definition of a function."""
    return f"define internal i32 @{name}({parameters}) noinline nounwind {{\n{body}\n}}\n"


def offset_by(name: str, pointer: str, offset: int | str) -> str:
    """The line that adds bytes to a pointer."""
    return f"  %{name} = getelementptr i8, ptr %{pointer}, i64 {offset}"


def fetch(name: str, pointer: str, offset: int, level: int = 1) -> list[str]:
    """The lines that fetch the cache line at a pointer and an offset in bytes, which need not exist, into L1 or L2."""
    return [offset_by(name, pointer, offset), f"  call void @{FETCH}(ptr %{name}, i32 0, i32 {4 - level}, i32 1)"]


def order_of(lanes: Sequence[int | None]) -> str:
    """The lanes of a shuffle; None is a lane of any value."""
    numbers = ("poison" if lane is None else lane for lane in lanes)
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {number}' for number in numbers)}>"
