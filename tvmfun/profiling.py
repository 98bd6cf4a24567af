"""Profiles: the time of each kernel of a compiled function, beside the least time it could take."""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
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
    """One call of a kernel.

    Args:
        name: the kernel: its first ops, and a number.
        rule: the name of the rule that scheduled it.
        start: the seconds from the beginning of the function, as if all calls took their median time.
        seconds: the median time of the call.
        flops: its floating-point operations.
        bytes: the bytes that it reads and writes.
        lines: the ``file:line`` of the code that it computes, in order.
    """

    name: str
    rule: str
    start: float
    seconds: float
    flops: int
    bytes: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """The times of the kernels of a compiled function, in the order of the calls; printed, a table by time.

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
                },
            }
            for call in self.calls
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the events as a JSON file for ``chrome://tracing`` or Perfetto."""
        Path(path).write_text(json.dumps({"traceEvents": self.chrome_trace()}) + "\n")

    def __str__(self) -> str:
        groups: dict[str, list[KernelCall]] = {}
        for call in self.calls:
            groups.setdefault(call.name, []).append(call)
        seconds = {name: sum(call.seconds for call in calls) for name, calls in groups.items()}
        rows = [("us", "share", "calls", "of floor", "rule", "kernel", "at")]
        for name in sorted(groups, key=seconds.__getitem__, reverse=True):
            calls = groups[name]
            floor = sum(map(self.floor, calls))
            lines = list(dict.fromkeys(_short(line) for call in calls for line in call.lines))
            more = f" +{len(lines) - _LINES}" if len(lines) > _LINES else ""
            numbers = (f"{seconds[name] * 1e6:.1f}", f"{_share(seconds[name], self.seconds):.0%}", f"{len(calls)}")
            at = ", ".join(lines[:_LINES]) + more
            rows.append((*numbers, f"{_share(floor, seconds[name]):.0%}", calls[0].rule, name, at))
        total = f"{self.name}: {self.seconds * 1e6:.1f} us in {len(self.calls)} kernels, median of {self.runs} runs"
        speeds = f"{self.flops_per_second / 1e9:.0f} Gflop/s, {self.bytes_per_second / 1e9:.1f} GB/s"
        return "\n".join([f"{total}; floors by {speeds}", *_table(rows)])


def profile(program: Program, target: Target, donated: Collection[int], inputs: Sequence[DeviceArray]) -> Profile:
    """Runs a Program with a clock between its kernels.

    Args:
        program: of static sizes.
        target: this machine's CPU.
        donated: the positions of inputs that may be overwritten with results.
        inputs: the arrays of all inputs, captured ones included; they are copied.
    """
    program = inlined(program)
    steps, runs = _timed(program, target, donated, [_content(array) for array in inputs])
    durations = np.median(runs, axis=0)
    starts = np.cumsum([0.0, *durations[:-1]])
    calls = [
        _call(step, target, float(start), float(seconds))
        for step, start, seconds in zip(steps, starts, durations, strict=False)
    ]
    return Profile(program.name, tuple(calls), *_speeds(str(target)), len(runs))


def _timed(
    program: Program, target: Target, donated: Collection[int], contents: Sequence[np.ndarray]
) -> tuple[list[Step], np.ndarray]:
    """The kernels of a Program in the order of their calls, and the seconds of each, (runs, kernels).

    The bytes of the inputs are copied before each run, because donated ones are overwritten.
    """
    built, plan, steps = pipeline.build_with_steps(program, target, donated, is_timed=True)
    assert isinstance(plan, Plan)  # as sizes are static
    module = built.load()
    called = [step for step in steps if step.name is not None]
    memory = [_memory(size) for size in (*map(len, contents), *plan.fresh, plan.analysis.temporaries)]
    times = _memory(TIMESPEC_BYTES * (len(called) + 1)).view(np.int64).reshape(-1, 2)
    table = array("Q", [piece.ctypes.data for piece in (*memory, times)])
    main, runs, began = module["main"], [], time.perf_counter()
    while len(runs) <= _FEWEST_RUNS or (len(runs) < _MOST_RUNS and time.perf_counter() - began < _SECONDS):
        for piece, content in zip(memory, contents, strict=False):
            piece[...] = content
        main(table.buffer_info()[0])
        runs.append(np.diff(times @ np.asarray([10**9, 1])))
    return called, np.asarray(runs[1:]) * 1e-9


def _call(step: Step, target: Target, start: float, seconds: float) -> KernelCall:
    kernel = step.kernel
    lines = tuple(dict.fromkeys(equation.source for equation in kernel.equations if equation.source))
    moved = int(moved_by(kernel, step.in_place, target))
    return KernelCall(str(step.name), step.rule, start, seconds, int(sum(map(flops, kernel.equations))), moved, lines)


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
