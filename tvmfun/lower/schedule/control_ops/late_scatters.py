"""Scatters after what reads their arrays, so that they can write over them."""

from __future__ import annotations

from collections.abc import Sequence

from tvmfun.core.program import Atom, Variable
from tvmfun.lower.fusion.kernel import Kernel


def scattered(kernel: Kernel) -> Variable | None:
    """The array of a kernel that consists of a scatter into one of its inputs; otherwise None."""
    equation = kernel.equations[0]
    if len(kernel.equations) != 1 or equation.op.overwrites != 0 or not equation.inputs:
        return None
    array = equation.inputs[0]
    return array if isinstance(array, Variable) and array in kernel.inputs else None


def scatter_late(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Orders kernels so that a scatter comes after all others that read its array, where they do not need its result.

    In ``x.at[i].set(x[j]).at[j].set(x[i])`` the second element is read before the first update, and no update copies.
    """
    ordered = list(kernels)
    for scatter in kernels:
        array = scattered(scatter)
        if array is None:
            continue
        start = next(i for i, kernel in enumerate(ordered) if kernel is scatter)
        end = max(i for i, kernel in enumerate(ordered) if array in kernel.inputs)
        reached: set[Atom] = set(scatter.outputs)
        before, after = [], []
        for kernel in ordered[start + 1 : end + 1]:
            needs = not reached.isdisjoint(kernel.inputs)
            (after if needs else before).append(kernel)
            if needs:
                reached.update(kernel.outputs)
        if before and not any(array in kernel.inputs for kernel in after):
            ordered[start : end + 1] = [*before, scatter, *after]
    return ordered
