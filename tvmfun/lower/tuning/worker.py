"""The process that tries schedules: it may crash or be killed without harm to the process that started it.

It reads tasks and writes messages, each a line of JSON. The results of a schedule are compared with those of our rule's
schedule on random data before it is timed; both are timed alternately.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import median, quantiles
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import ir, tirx
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tvmfun import dtypes, threads
from tvmfun.lower.codegen import native
from tvmfun.lower.schedule import schedule
from tvmfun.lower.tuning import space

# Sends a message about the progress of a task.
Say = Callable[[dict[str, Any]], None]

# The most seconds that a schedule may take to compile and run; then this process ends.
PATIENCE = 30.0
# Seconds of one measurement.
_MEASUREMENT = 0.001
# The number of measurements in a quick comparison.
_QUICK = 3
# The most measurements in a thorough comparison.
_THOROUGH = 21
# The least speedup over our schedule that is recorded.
_GAIN = 1.05
# The number of the best schedules that are compared thoroughly.
_FINALISTS = 3
# The number of the best schedules that are varied.
_PARENTS = 6
# The search ends after this many draws without a new schedule.
_BARREN = 64
_ALIGNMENT = 64
# The bytes of results before a run, to detect elements that are not written.
_UNWRITTEN = 0xA5


class Tried(NamedTuple):
    """A correct schedule, and its speedup over our rule's."""

    ratio: float
    trace: Trace


class Mismatch(Exception):
    """A schedule with wrong results."""


class Bench:
    """A kernel with data, the results of our rule's schedule, and its times.

    Args:
        function: the unscheduled kernel.
        inputs: the number of parameters that are inputs.
        target: a CPU.
        seed: the seed of the data.
    """

    def __init__(self, function: tirx.PrimFunc, inputs: int, target: Target, seed: int) -> None:
        self.function, self._inputs, self._target = function, inputs, target
        types = [([int(size) for size in p.shape], dtypes.canonical(str(p.dtype))) for p in function.params]
        self._data = [self._random_arrays(types, np.random.default_rng([seed, k]), k) for k in range(2)]
        self._rule = self._compiled(schedule(function, target))
        self._expected = [self._results(self._rule, data) for data in self._data]
        #: The shortest time of our rule's schedule.
        self.before = self._time(self._rule, repeat=2)

    def _random_arrays(self, types: Sequence[tuple], random: np.random.Generator, kind: int) -> list[np.ndarray]:
        smallest = min((size for shape, _ in types for size in shape if size > 1), default=2)
        return [_array(shape, dtype, random, kind, smallest) for shape, dtype in types]

    def _compiled(self, function: tirx.PrimFunc) -> Any:
        name = ir.GlobalVar("main")
        module = native.compiled(self._target, {name: function.with_attr("global_symbol", "main")})
        threads.load(module)
        return module

    def _results(self, module: Any, data: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = data[self._inputs :]
        for output in outputs:
            output.reshape(-1).view(np.uint8)[...] = _UNWRITTEN
        module["main"](*_addresses(data))
        return [output.copy() for output in outputs]

    def _time(self, module: Any, repeat: int = 1, number: int = 1) -> float:
        evaluator = module.time_evaluator("main", tvm.cpu(), number=number, repeat=repeat)
        return min(evaluator(*_addresses(self._data[0])).results)

    def verified(self, schedule: str) -> Any:
        """The module of a schedule.

        Raises:
            Mismatch: if results are wrong, or differ between runs.
            RuntimeError, ValueError, TypeError: if it cannot be compiled; TVM raises various subclasses.
        """
        module = self._compiled(space.applied(self.function, schedule))
        for data, expected in zip(self._data, self._expected, strict=True):
            first = self._results(module, data)
            if not all(map(agree, first, expected)):
                raise Mismatch
            for _ in range(2):  # data races do not show in every run
                if any(a.tobytes() != b.tobytes() for a, b in zip(first, self._results(module, data), strict=True)):
                    raise Mismatch
        return module

    def ratio(self, module: Any) -> float:
        """The approximate speedup over our rule's schedule."""
        once = self._time(module, repeat=2)
        if once > 4 * self.before:
            return self.before / once
        number = max(1, int(_MEASUREMENT / max(once, 1e-9)))
        before = self._time(self._rule, _QUICK, number)
        self.before = min(before, self.before)
        return before / self._time(module, _QUICK, number)

    def times(self, module: Any) -> tuple[float, float, bool]:
        """Alternate measurements: our rule's median seconds, the median speedup, and whether 3 of 4 are gains."""
        number = max(1, int(2 * _MEASUREMENT / max(self.before, 1e-9)))
        count = max(5, min(_THOROUGH, int(4 / self.before)))
        pairs = []
        for i in range(count):
            _watch()
            if i % 2:
                after, before = self._time(module, 1, number), self._time(self._rule, 1, number)
            else:
                before, after = self._time(self._rule, 1, number), self._time(module, 1, number)
            pairs.append((before, after))
        ratios = [before / after for before, after in pairs]
        return median(before for before, _ in pairs), median(ratios), quantiles(ratios, n=4)[0] > 1


def _array(shape: Sequence[int], dtype: np.dtype, random: np.random.Generator, kind: int, smallest: int) -> np.ndarray:
    """Random data: of kind 0 as in networks, of kind 1 with negative integers and positive floats."""
    if dtype == dtypes.bool_:
        values = random.integers(0, 2, shape)
    elif dtypes.is_integer(dtype):
        low = -smallest if kind and dtype in dtypes.SIGNED else 0
        values = random.integers(low, min(smallest, 127), shape)
    else:
        values = random.uniform(0.5, 1.5, shape) if kind else random.standard_normal(shape)
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    array = memory[start : start + size].view(dtype).reshape(shape)
    array[...] = values.astype(dtype)
    return array


def _addresses(arrays: Sequence[np.ndarray]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def agree(result: np.ndarray, expected: np.ndarray) -> bool:
    """Whether results are equal up to the rounding errors of another order of additions."""
    if not dtypes.is_float(expected.dtype):
        return result.tobytes() == expected.tobytes()
    bits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtypes.NAMES[expected.dtype]]
    result, expected = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(result[~finite], expected[~finite], equal_nan=True):
        return False
    result, expected = result[finite], expected[finite]
    if not expected.size:
        return True
    # Rounding errors of sums are relative to their terms, which are about as large as other results.
    scale = np.abs(expected) + np.sqrt(np.mean(np.square(expected)))
    return bool(np.all(np.abs(result - expected) <= 2.0 ** -max(bits - 10, 4) * scale))


def _watch() -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)


def run(task: dict[str, Any], say: Say) -> None:
    """Does a task: reports the schedules that it tries and their speed, and finally the best one.

    Args:
        task: the kernel as TVMScript (``function``), the number of parameters that are ``inputs``, the ``target``, the
            ``seed``, the numbers of ``trials`` and ``seconds``, ``known`` schedules to try first, and schedules that
            ``broke`` this process before, which are skipped.
        say: called with messages, which have a ``kind``.
    """
    try:
        _run(task, say)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _run(task: dict[str, Any], say: Say) -> None:
    _watch()
    function = tvm.script.from_source(task["function"])
    target = Target(task["target"])
    random = Random(task["seed"])
    started = time.monotonic()
    bench = Bench(function, task["inputs"], target, task["seed"])
    try:
        options = space.Space(function, target)
    except (RuntimeError, ValueError, TypeError) as error:
        say({"kind": "failed", "reason": f"TVM's rules cannot handle it ({type(error).__name__})"})
        return
    tried: list[Tried] = []
    seen = set(task["broke"])
    known = list(task["known"])
    trials = barren = 0
    say({"kind": "ready"})
    while known or (trials < task["trials"] and barren < _BARREN and time.monotonic() - started < task["seconds"]):
        _watch()
        schedule, trace = _next(known, tried, options, random)
        if trace is None or schedule in seen:
            barren += 1
            continue
        barren = 0
        seen.add(schedule)
        trials += 1
        say({"kind": "try", "schedule": schedule})
        try:
            tried.append(Tried(bench.ratio(bench.verified(schedule)), trace))
            say({"kind": "tried", "schedule": schedule, "ratio": tried[-1].ratio})
        except (Mismatch, RuntimeError, ValueError, TypeError) as error:
            say({"kind": "rejected", "reason": type(error).__name__})
        tried.sort(key=lambda one: -one.ratio)
    best = None
    for one in tried[:_FINALISTS]:
        schedule = space.as_json(one.trace)
        say({"kind": "try", "schedule": schedule})
        before, ratio, is_gain = bench.times(bench.verified(schedule))
        if is_gain and ratio >= _GAIN and (best is None or ratio > best["ratio"]):
            best = {"schedule": schedule, "before": before, "after": before / ratio, "ratio": ratio}
    say({"kind": "done", "best": best, "before": bench.before})


def _next(known: list[str], tried: Sequence[Tried], options: space.Space, random: Random) -> tuple[str, Trace | None]:
    """A schedule to try: a known one, a random one, or a variation of a fast one."""
    if known:
        schedule = known.pop()
        try:
            return schedule, options.parsed(schedule)
        except (RuntimeError, ValueError, TypeError):
            return schedule, None
    if len(tried) < 2 * _PARENTS or random.random() < 0.3:
        trace = options.draw(random)
    else:
        trace = options.vary(random.choice(tried[:_PARENTS]).trace, random)
    return (space.as_json(trace), trace) if trace is not None else ("", None)


def main() -> None:
    """Does tasks until the input ends. Other output is redirected from standard output to standard error."""
    messages = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        messages.write(json.dumps(message) + "\n")
        messages.flush()

    for line in sys.stdin:
        try:
            run(json.loads(line), say)
        except Exception as error:
            say({"kind": "failed", "reason": f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"})


if __name__ == "__main__":
    main()
