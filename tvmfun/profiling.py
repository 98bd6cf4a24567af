"""Profiles: the time of each kernel of a compiled function, beside the least time it could take.

Kernels of loops and branches are timed in runs of their own, because a clock after each of them costs time, too, and
because code with a clock calls kernels that it would have inlined. Their times are scaled so that they sum to the time
of the whole loop without a clock.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core.array import DeviceArray, ShapeDtype
from tvmfun.core.cost import flops
from tvmfun.core.inline import inlined
from tvmfun.core.program import Program
from tvmfun.core.trace import trace
from tvmfun.lower import pipeline
from tvmfun.lower.codegen.main_function import TIMESPEC_BYTES
from tvmfun.lower.codegen.relax_module import Step
from tvmfun.lower.cost_analysis import moved_by
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.schedule.control_ops.stopwatch import Lap, Stopwatch
from tvmfun.runtime.plan import Plan

# A profile takes at least 5 runs, then up to 200 within one second.
_FEWEST_RUNS = 5
_MOST_RUNS = 200
_SECONDS = 1.0
_ALIGNMENT = 64
# Up to this many of a kernel's source lines are in the table.
_LINES = 2


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel, or all calls of a kernel in one run of a loop.

    Args:
        name: the kernel: its first ops, and a number.
        rule: the name of the rule that scheduled it.
        start: the seconds from the beginning of the function, as if all calls took their median time.
        seconds: the median time of the call; in a loop, an average of all.
        flops: its floating-point operations.
        bytes: the bytes that it reads and writes.
        lines: the ``file:line`` of the code that it computes, in order.
        calls: how often it is called: once, but in a loop.
        inner: for a loop or a branch the kernels in it, as if each made its calls one after another.
    """

    name: str
    rule: str
    start: float
    seconds: float
    flops: int
    bytes: int
    lines: tuple[str, ...]
    calls: int = 1
    inner: tuple[KernelCall, ...] = ()


@dataclass(frozen=True)
class Profile:
    """The times of the kernels of a compiled function, in the order of the calls; printed, a table by time.

    The kernels of a loop or a branch follow it in the table, indented; the calls of several are together.

    The floor of a kernel is the larger of its operations over the speed of a large float32 product and its bytes over
    the speed of a large copy, both measured on this machine. A kernel whose data are in the cache, or that multiplies
    narrower numbers, may be faster than that.

    Args:
        name: the function.
        calls: the calls of kernels.
        flops_per_second: the speed of a large product.
        bytes_per_second: the speed of a large copy.
        runs: how often the function ran.
    """

    name: str
    calls: tuple[KernelCall, ...]
    flops_per_second: float
    bytes_per_second: float
    runs: int

    @property
    def seconds(self) -> float:
        """The time of all kernels."""
        return sum(call.seconds for call in self.calls)

    def floor(self, call: KernelCall) -> float:
        """Returns the least seconds that a call could take."""
        return max(call.flops / self.flops_per_second, call.bytes / self.bytes_per_second)

    def chrome_trace(self) -> list[dict[str, Any]]:
        """Returns the calls as events that ``chrome://tracing`` and Perfetto show, in microseconds.

        Source: the "Trace Event Format" of Chromium.
        """
        return [
            {
                "name": call.name,
                "cat": call.rule,
                "ph": "X",
                "ts": call.start * 1e6,
                "dur": call.seconds * 1e6,
                "pid": 0,
                "tid": 0,
                "args": {
                    "flops": call.flops,
                    "bytes": call.bytes,
                    "floor_us": self.floor(call) * 1e6,
                    "at": call.lines,
                    "calls": call.calls,
                },
            }
            for outer in self.calls
            for call in (outer, *outer.inner)
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the events as a JSON file for ``chrome://tracing`` or Perfetto."""
        Path(path).write_text(json.dumps({"traceEvents": self.chrome_trace()}) + "\n")

    def __str__(self) -> str:
        head = ("us", "share", "calls", "of floor", "rule", "kernel", "at")
        total = f"{self.name}: {self.seconds * 1e6:.1f} us in {len(self.calls)} kernels, median of {self.runs} runs"
        speeds = f"{self.flops_per_second / 1e9:.0f} Gflop/s, {self.bytes_per_second / 1e9:.1f} GB/s"
        return "\n".join([f"{total}; floors by {speeds}", *_table([head, *self._rows(self.calls)])])

    def _rows(self, calls: Sequence[KernelCall], indent: str = "") -> Iterator[tuple[str, ...]]:
        """The rows of calls by time, each followed by those of the kernels in it."""
        groups: dict[str, list[KernelCall]] = {}
        for call in calls:
            groups.setdefault(call.name, []).append(call)
        seconds = {name: sum(call.seconds for call in group) for name, group in groups.items()}
        for name in sorted(groups, key=seconds.__getitem__, reverse=True):
            group = groups[name]
            floor = sum(map(self.floor, group))
            lines = list(dict.fromkeys(_short(line) for call in group for line in call.lines))
            more = f" +{len(lines) - _LINES}" if len(lines) > _LINES else ""
            share, of_floor = _share(seconds[name], self.seconds), _share(floor, seconds[name])
            numbers = (f"{seconds[name] * 1e6:.1f}", f"{share:.0%}", f"{sum(call.calls for call in group)}")
            at = ", ".join(lines[:_LINES]) + more
            yield *numbers, f"{of_floor:.0%}", group[0].rule, indent + name, at
            yield from self._rows([inner for call in group for inner in call.inner], indent + "  ")


def profile(program: Program, target: Target, donated: Collection[int], inputs: Sequence[DeviceArray]) -> Profile:
    """Runs a Program with a clock between its kernels.

    Args:
        program: of static sizes.
        target: this machine's CPU.
        donated: the positions of inputs that may be overwritten with results.
        inputs: the arrays of all inputs, captured ones included; they are copied.
    """
    program = inlined(program)
    contents = [_content(array) for array in inputs]
    steps, runs = _timed(program, target, donated, contents)
    durations = np.median(runs, axis=0)
    starts = np.cumsum([0.0, *durations[:-1]])
    stopwatch, laps_runs = Stopwatch(), 0
    if any(step.kernel.is_control for step in steps):
        laps_runs = len(_timed(program, target, donated, contents, stopwatch)[1])
    counts = Counter((step.kernel.text, step.in_place) for step in steps)
    calls = []
    for step, start, seconds in zip(steps, map(float, starts), map(float, durations), strict=False):
        call = _call(step, target, start, seconds)
        times = laps_runs * counts[step.kernel.text, step.in_place]
        inner = _inner(stopwatch.laps(step.kernel, step.in_place), times, call, target) if times else ()
        calls.append(replace(call, inner=inner))
    return Profile(program.name, tuple(calls), *_speeds(str(target)), len(runs))


def _timed(
    program: Program,
    target: Target,
    donated: Collection[int],
    contents: Sequence[np.ndarray],
    stopwatch: Stopwatch | None = None,
) -> tuple[list[Step], np.ndarray]:
    """The kernels of a Program in the order of their calls, and the seconds of each, (runs, kernels).

    The bytes of the inputs are copied before each run, because donated ones are overwritten. A ``stopwatch`` takes the
    times of kernels inside of control flow.
    """
    built, plan, steps = pipeline.build_with_steps(program, target, donated, is_timed=True, stopwatch=stopwatch)
    assert isinstance(plan, Plan)  # as sizes are static
    module = built.load()
    called = [step for step in steps if step.name is not None]
    memory = [_memory(size) for size in (*map(len, contents), *plan.fresh, plan.analysis.temporaries)]
    times = _memory(TIMESPEC_BYTES * (len(called) + 1)).view(np.int64).reshape(-1, 2)
    table = array("Q", [piece.ctypes.data for piece in (*memory, times)])
    main, runs, began = module["main"], [], time.perf_counter()
    while len(runs) <= _FEWEST_RUNS or (len(runs) < _MOST_RUNS and time.perf_counter() - began < _SECONDS):
        if stopwatch and len(runs) == 1:
            stopwatch.reset()  # the first run is not counted
        for piece, content in zip(memory, contents, strict=False):
            piece[...] = content
        main(table.buffer_info()[0])
        runs.append(np.diff(times @ np.asarray([10**9, 1])))
    return called, np.asarray(runs[1:]) * 1e-9


def _call(step: Step, target: Target, start: float, seconds: float) -> KernelCall:
    cost = _cost([step.kernel], step.in_place, target)
    return KernelCall(str(step.name), step.rule, start, seconds, *cost, _lines([step.kernel]))


def _inner(laps: Sequence[Lap], times: int, call: KernelCall, target: Target) -> tuple[KernelCall, ...]:
    """The kernels of a call of control flow, from the laps of ``times`` such calls."""
    ran = [(i, lap) for i, lap in enumerate(laps) if lap.calls]
    scale = call.seconds / max(1, sum(lap.nanoseconds for _, lap in ran))
    found, start = [], call.start
    for i, lap in ran:
        seconds, calls = lap.nanoseconds * scale, max(1, round(lap.calls / times))
        count = calls * lap.steps
        operations, moved = _cost(lap.kernels, lap.in_place, target)
        name, lines = f"{lap.name}_{i}", _lines(lap.kernels)
        found.append(KernelCall(name, lap.rule, start, seconds, operations * count, moved * count, lines, count))
        start += seconds
    return tuple(found)


def _cost(kernels: Sequence[Kernel], in_place: InPlace, target: Target) -> tuple[int, int]:
    """The floating-point operations of kernels, and the bytes that they read and write."""
    operations = sum(sum(map(flops, kernel.equations)) for kernel in kernels)
    return int(operations), int(sum(moved_by(kernel, in_place, target) for kernel in kernels))


def _lines(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    sources = [equation.source for kernel in kernels for equation in kernel.equations]
    return tuple(dict.fromkeys(source for source in sources if source))


@cache
def _speeds(target: str) -> tuple[float, float]:
    """The operations per second of a large float32 product, and the bytes per second of a large copy."""
    matrix, vector = (ShapeDtype(shape, dtypes.float32) for shape in ((1024, 1024), (1 << 24,)))
    product, copy = trace(lambda x: x @ x)(matrix), trace(lambda x: x + 1)(vector)
    shortest = [
        _timed(program, Target(target), (), [np.zeros(4 * program.in_avals[0].size, np.uint8)])[1].min()
        for program in (product, copy)
    ]
    return 2 * 1024**3 / shortest[0], 8 * vector.size / shortest[1]


def _content(array: DeviceArray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _memory(nbytes: int) -> np.ndarray:
    """Aligned memory, already mapped."""
    raw = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]


def _short(line: str) -> str:
    """``file:line`` without the folders, and the scopes."""
    path, found, scopes = line.partition(" (")
    return Path(path).name + found + scopes


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines, with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = 4
    justify = lambda i, cell: cell.rjust(widths[i]) if i < numbers else cell.ljust(widths[i])
    return ["  ".join(justify(i, cell) for i, cell in enumerate(row)).rstrip() for row in rows]
