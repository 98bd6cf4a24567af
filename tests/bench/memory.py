"""How much memory a step takes, in a process of its own: ``python -m bench.memory CASE FRAMEWORK [BATCH]``.

``python -m bench.memory --fit MIB [CASE ...]`` tells the largest batches for which that is enough.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

# The C library gives large blocks back to the system when they are freed, and takes none for later.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def in_a_new_process(case: str, framework: str, *batch: str) -> dict[str, float | None]:
    """The MB that are planned for a step with its arguments, and by how much they make the process grow."""
    command = [sys.executable, "-m", "bench.memory", case, framework, *batch]
    environment = {**os.environ, **ENVIRONMENT}
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _status(name: str) -> int:
    """A number of bytes from what the kernel knows about this process."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) << 10  # type: ignore[index]


def grown(make: Callable, step: Callable) -> int:
    """By how many bytes this process, without the files that it maps, grows from before it has arguments until a step.

    Args:
        make: makes the arguments.
        step: to be called several times.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("RssAnon")
    make()
    for _ in range(2):  # the first copies arguments that it may not overwrite, and starts threads
        step()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    for _ in range(2):
        step()
    return _status("VmHWM") - _status("RssFile") - _status("RssShmem") - before


def _measure(case_name: str, framework_name: str, *batch: str) -> dict[str, float | None]:
    from bench.bench_models import BATCHED, CASES, FRAMEWORKS

    case = next(case for case in CASES if case.name == case_name) if not batch else BATCHED[case_name](*map(int, batch))
    framework = next(framework for framework in FRAMEWORKS if framework.name == framework_name)
    runner = framework(case)
    planned = runner.plan()
    measured = grown(runner.fill, runner.step)
    return {"planned MB": planned and planned / 1e6, "measured MB": measured / 1e6}


def largest(size: Callable[[int], float], budget: float, start: int) -> int:
    """The largest number whose size, which grows about linearly, is within the budget; 0 if there is none."""
    low, at_low, high, at_high = 0, 0.0, start, size(start)
    while at_high <= budget:
        low, at_low, high = high, at_high, 2 * high
        at_high = size(high)
    while high - low > 1:
        guess = low + int((high - low) * (budget - at_low) / (at_high - at_low))
        guess = min(max(guess, low + 1), high - 1)
        at_guess = size(guess)
        if at_guess <= budget:
            low, at_low = guess, at_guess
        else:
            high, at_high = guess, at_guess
    return low


def _takes(case: str, framework: str, batch: int) -> float:
    """The bytes of a step: planned where there is a plan, else measured."""
    from bench.bench_models import BATCHED
    from bench.frameworks import Jax
    from bench.ours import Ours

    for planner in (Ours, Jax):
        if planner.name == framework:
            return planner(BATCHED[case](batch)).plan()
    return 1e6 * in_a_new_process(case, framework, str(batch))["measured MB"]


def _fit(mebibytes: int, *cases: str) -> dict[str, dict[str, int]]:
    """The largest batch by the plans of tvmfun and JAX, and by what PyTorch takes."""
    from bench.bench_models import BATCHED

    found = {}
    for case in cases or BATCHED:
        frameworks = ("tvmfun", "JAX", "PyTorch")
        found[case] = {name: largest(partial(_takes, case, name), mebibytes << 20, 8) for name in frameworks}
        print(case, found[case], file=sys.stderr, flush=True)
    return found


def _main(*arguments: str) -> dict:
    if arguments[0] == "--fit":
        return _fit(int(arguments[1]), *arguments[2:])
    return (_measure if ENVIRONMENT.items() <= os.environ.items() else in_a_new_process)(*arguments)


if __name__ == "__main__":
    print(json.dumps(_main(*sys.argv[1:])))
