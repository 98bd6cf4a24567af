"""Liveness of values in control flow: their last uses, and the values that share memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from tvmfun.core.program import Program, Variable
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.ops.control import loop


def states(program: Program, kernels: Sequence[Kernel]) -> dict[Variable, Variable]:
    """Maps the initial carries of loops to the final ones, if only the loop reads them: both can share memory."""
    readers = Counter(atom for kernel in kernels for atom in kernel.inputs)
    readers.update(program.outputs)
    states = {}
    for kernel in kernels:
        equation = kernel.equations[0]
        if equation.op is loop:
            first = equation.params["counted"] + equation.params["consts"]
            starts = kernel.inputs[first : first + equation.params["carry"]]
            pairs = zip(starts, kernel.outputs, strict=False)
            states.update((start, out) for start, out in pairs if readers[start] == 1)
    return states


def last_use(
    program: Program,
    kernels: Sequence[Kernel],
    states: Mapping[Variable, Variable],
    views: Mapping[Variable, Variable],
) -> dict[Variable, int | float]:
    """The position of the last kernel that writes or reads each value, or a value that shares its memory."""
    last: dict[Variable, int | float] = {}
    for i, kernel in enumerate(kernels):
        last.update((atom, i) for atom in (*kernel.inputs, *kernel.outputs) if isinstance(atom, Variable))
    last.update((atom, math.inf) for atom in program.outputs if isinstance(atom, Variable))
    for view, shown in views.items():
        last[shown] = max(last.get(shown, 0), last[view])
    for start, out in reversed(states.items()):
        if isinstance(start, Variable):
            last[start] = max(last[start], last[out])
    return last
