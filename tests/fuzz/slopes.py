"""Derivatives of a program against finite differences in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import tvmfun
import tvmfun.numpy as tnp
from fuzz.asked import asked, float_arguments, given
from fuzz.case import Case
from fuzz.namespaces import own_names

#: The terms of the number that each check differentiates, and at which result its derivatives begin.
_DIFFERENTIATED = {
    "gradient": ("loss terms", 1),
    "checkpointed": ("loss terms", 0),
    "second": ("slope terms", 0),
    "forward": ("loss terms", 1),
    "batched gradient": ("batched loss terms", 1),
}
_STEPS = (1e-3, 1e-5)
#: Steps from a larger number pass over the periods of functions.
_LARGE = 1e3
#: The error that a slope may have, in roundings of its terms; most errors are smaller.
_ROUNDINGS = 256


def can_differentiate(case: Case) -> bool:
    """Whether the derivatives that a case asks for can be had from differences.

    Not those that a program makes up (``cvjp``, ``cjvp``, ``stop_gradient``).
    """
    made_up = any(name in case.text() for name in ("cvjp", "cjvp", "stop_gradient"))
    return case.check in _DIFFERENTIATED and bool(float_arguments(case)) and not made_up


@dataclass(frozen=True)
class Range:
    """All slopes between neighbours on a line through the arguments: at a kink those of either side."""

    low: float
    high: float
    error: float

    def has(self, slope: float, error: float = 0.0) -> bool:
        """Whether a derivative is one of these slopes, or as near as they are to each other."""
        room = (self.high - self.low) + self.error + error * max(abs(self.low), abs(self.high))
        return bool(self.low - room <= slope <= self.high + room)


class Slopes:
    """Slopes of the number that the check of a case differentiates, all of whose floats are float64."""

    def __init__(self, case: Case) -> None:
        name, self.first = _DIFFERENTIATED[case.check]
        self._case = case
        self._terms = tvmfun.jit(asked(replace(case, check=name), own_names(), tvmfun))

    def along(self, directions: Sequence[np.ndarray]) -> list[Range]:
        """The slopes in a direction, which has an array for each float argument; one for each width of steps."""
        return [slope for step in _STEPS if (slope := self._around(directions, step)) is not None]

    def _around(self, directions: Sequence[np.ndarray], step: float) -> Range | None:
        values = []
        for count in (-2, -1, 0, 1, 2):
            moved = list(given(self._case))
            for i, direction in zip(float_arguments(self._case), directions, strict=True):
                apart = np.where(direction == 0, moved[i], moved[i] + count * step * direction)
                if count and ((apart == moved[i]) & (direction != 0)).any():  # lost in the rounding of a huge number
                    return None
                moved[i] = apart
            terms = [np.ravel(np.asarray(x)) for x in self._terms(*map(tnp.array, moved))]
            values.append(np.concatenate([np.zeros(0), *terms]))
        changed = np.abs(values) * (np.ptp(values, axis=0) > 0)  # a large term that stays takes part in no slope
        slopes = np.diff(values, axis=0).sum(axis=1) / step
        if not np.isfinite(slopes).all():
            return None
        error = _ROUNDINGS * np.finfo(np.float64).eps * float(changed.max(axis=0).sum()) / step
        return Range(float(slopes.min()), float(slopes.max()), error + 1e-12)


def contradicted(case: Case, got: Sequence[np.ndarray], error: float) -> str | None:
    """In words how the derivatives of a float64 program differ from finite differences, or None.

    Only where the slopes of both widths of steps say so: next to a kink one of them may step over it.
    """
    slopes = Slopes(case)
    inputs = [given(case)[i] for i in float_arguments(case)]
    if case.check == "forward":
        if not (np.abs(inputs[0]) < _LARGE).all():
            return None
        directions = [np.ones_like(x) if i == 0 else np.zeros_like(x) for i, x in enumerate(inputs)]
        derivative = float(got[slopes.first])
    else:
        directions = [
            np.where(np.abs(x) < _LARGE, np.cos(1.7 * np.arange(x.size) + i).reshape(x.shape) * _size(x), 0)
            for i, x in enumerate(inputs)
        ]
        parts = zip(got[slopes.first :], directions, strict=True)
        derivative = float(sum(np.sum(np.where(d == 0, 0, g * d)) for g, d in parts))
    ranges = slopes.along(directions)
    if not np.isfinite(derivative) or len(ranges) < len(_STEPS):
        return None
    if any(one.has(derivative, error) for one in ranges):
        return None
    shown = ", ".join(f"{one.low:.9g} to {one.high:.9g}" for one in ranges)
    return f"the derivative is {derivative:.9g}, and finite differences are {shown}"


def _size(x: np.ndarray) -> np.ndarray:
    return np.maximum(1, np.where(np.abs(x) < _LARGE, np.abs(x), 0))


def confirmed(case: Case, elements: Sequence[tuple[int, tuple[int, ...]]], pairs: Sequence, error: float) -> bool:
    """Whether finite differences of a float64 program have one library's derivatives and not the other's.

    Args:
        case: the program.
        elements: the result and the index of each derivative to look at.
        pairs: of each the derivative that is to be among the slopes, and the one that is not to be.
        error: by how much derivatives may be off in relation to their size.
    """
    slopes = Slopes(case)
    inputs = [given(case)[i] for i in float_arguments(case)]
    for (result, index), (ours, theirs) in zip(elements, pairs, strict=True):
        if result < slopes.first:
            return False
        directions = [np.zeros_like(x) for x in inputs]
        if case.check == "forward":
            directions[0] = np.ones_like(inputs[0])
        else:
            directions[result - slopes.first][index] = 1
        ranges = slopes.along(directions)
        if not any(one.has(ours, error) and not one.has(theirs, error) for one in ranges):
            return False
    return True
