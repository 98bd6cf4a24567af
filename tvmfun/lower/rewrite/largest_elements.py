"""The largest elements of rows by sorts and gathers, on GPUs, where only one thread could keep an ordered list."""

from __future__ import annotations

from dataclasses import replace

from tvmfun.core.program import Equation, Program
from tvmfun.lower.rewrite.equations import composed, with_inner
from tvmfun.ops.top_k import largest_by_sorting, top_k_indices


def top_k_by_sorting(program: Program) -> Program:
    """Replaces ``top_k_indices`` by sorts in a Program, also in its loops and branches.

    Args:
        program: without calls.
    """
    equations: list[Equation] = []
    for equation in program.equations:
        if equation.op is top_k_indices:
            k = equation.params["k"]
            equations += composed(equation, lambda x, k=k: largest_by_sorting(x, k))
        else:
            equations.append(with_inner(equation, top_k_by_sorting))
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=tuple(equations))
