"""Clocks inside control flow: compiled code adds the time of each kernel to a record of its own."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field

from tvm import tirx

from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.tir.calling_convention import Stack

#: The function that adds the time since it last returned to the record at the address that it is given.
LAP = "tvmfun_lap"


@dataclass(frozen=True)
class Lap:
    """The time of kernels inside control flow.

    Args:
        name: its first ops.
        rule: the name of the rule that scheduled it.
        kernels: the kernels that run between two readings of the clock: one, or those of all steps of a parallel loop.
        steps: how often they run in between.
        in_place: the results that a single kernel writes over inputs.
        record: nanoseconds and calls, to which compiled code adds.
    """

    name: str
    rule: str
    kernels: tuple[Kernel, ...]
    steps: int = 1
    in_place: InPlace = ()
    record: array[int] = field(default_factory=lambda: array("q", [0, 0]))

    @property
    def nanoseconds(self) -> int:
        """The time of all calls."""
        return self.record[0]

    @property
    def calls(self) -> int:
        """The number of readings of the clock."""
        return self.record[1]


class Stopwatch:
    """The laps of the functions of control flow; it has to live as long as their code runs."""

    def __init__(self) -> None:
        self._laps: dict[tuple[str, InPlace], list[Lap]] = {}

    def laps(self, kernel: Kernel, in_place: InPlace) -> list[Lap]:
        """The laps of the function of a control op that writes these results over inputs."""
        return self._laps.setdefault((kernel.text, in_place), [])

    def reset(self) -> None:
        """Starts all laps from 0."""
        for lap in itertools.chain.from_iterable(self._laps.values()):
            lap.record[:] = array("q", [0, 0])


# Nobody reads how long ago the last function ended.
_START = Lap("start", "", ())


def started(stack: Stack, body: tirx.Stmt) -> tirx.Stmt:
    """The body of a function after a reading of the clock."""
    return tirx.SeqStmt([_reading(stack, _START), body])


def timed(stack: Stack, body: tirx.Stmt, lap: Lap) -> tirx.Stmt:
    """A statement before the reading of the clock that ends a lap."""
    return tirx.SeqStmt([body, _reading(stack, lap)])


def _reading(stack: Stack, lap: Lap) -> tirx.Stmt:
    address, _ = lap.record.buffer_info()
    return stack.call(LAP, [tirx.const(address, "int64")])
