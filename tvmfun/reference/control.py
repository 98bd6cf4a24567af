"""Reference implementations of loops and branches: Python loops around evaluations of their Programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmfun.core.program import Program

#: ``run(program, values) -> results``.
Run = Callable[[Program, Sequence[Any]], list[np.ndarray]]


def _loop(
    run: Run,
    values: list[np.ndarray],
    *,
    body: Program,
    cond: Program | None,
    length: Any,
    reverse: bool,
    counted: bool,
    consts: int,
    carry: int,
) -> tuple[np.ndarray, ...]:
    """``for i in range(n): carry, ys[i] = body(consts, carry, xs[i])``, while ``cond(consts, carry)`` holds."""
    count, rest = values[:counted], values[counted:]
    fixed, state, xs = rest[:consts], rest[consts : consts + carry], rest[consts + carry :]
    stacked = body.out_avals[carry:]
    ys = [np.zeros((length, *aval.shape), aval.dtype) for aval in stacked]
    most = int(count[0]) if counted else length if length is not None else sys.maxsize
    steps = 0
    while steps < most:
        if cond is not None and not run(cond, [*fixed, *state])[0]:
            break
        row = most - 1 - steps if reverse else steps
        results = run(body, [*fixed, *state, *(x[row] for x in xs)])
        state = results[:carry]
        for y, result in zip(ys, results[carry:], strict=True):
            y[row] = result
        steps += 1
    counter = (np.asarray(steps, np.int32),) if cond is not None and length is not None else ()
    return (*state, *ys, *counter)


def _switch(run: Run, values: list[np.ndarray], *, branches: tuple[Program, ...]) -> tuple[np.ndarray, ...]:
    """The branch at the index, clamped to the range of branches."""
    index, *operands = values
    return tuple(run(branches[min(max(int(index), 0), len(branches) - 1)], operands))


CONTROL: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {"loop": _loop, "switch": _switch}
