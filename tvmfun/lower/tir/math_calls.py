"""Calls of mathematical functions in TIR: of TVM's operators, and of C's math library."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir

from tvmfun.lower.tir.build import Expr, is_choice
from tvmfun.lower.tir.walk import called, find

_EXTERN = "tirx.call_pure_extern"


def function_of(call: ir.Call) -> str | None:
    """The name of the function that a call calls, in C's math library in double precision."""
    name = called(call)
    if name == _EXTERN:
        function = str(call.args[0].value)
        return function.removesuffix("f") if str(call.ty) == "float32" else function
    return name and name.rpartition(".")[2]


def arguments_of(call: ir.Call) -> list[Expr]:
    """The arguments of the function."""
    return list(call.args)[called(call) == _EXTERN :]


def guarded_calls(calls: Sequence[ir.Call]) -> set[ir.Call]:
    """The calls inside the branches of ``if_then_else``."""
    return {inner for call in filter(is_choice, calls) for branch in call.args[1:] for inner in find(branch, ir.Call)}
