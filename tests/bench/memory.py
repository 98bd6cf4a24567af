"""How much memory a step takes, in a process of its own: ``python -m bench.memory CASE FRAMEWORK``."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path

# The C library gives large blocks back to the system when they are freed, and takes none for later.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def in_a_new_process(case: str, framework: str) -> dict[str, float | None]:
    """The MB that are planned for a step with its arguments, and by how much they make the process grow."""
    command = [sys.executable, "-m", "bench.memory", case, framework]
    environment = {**os.environ, **ENVIRONMENT}
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _status(name: str) -> int:
    """A number of bytes from what the kernel knows about this process."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) << 10  # type: ignore[index]


def grown(make, step) -> int:
    """By how many bytes the memory of this process, without files it maps, grows at most from before the arguments
    are made to the end of a step.

    Args:
        make: makes the arguments.
        step: to be called several times.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("RssAnon")
    make()
    for _ in range(2):  # the first copies what it is given and may not overwrite, and starts threads
        step()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    for _ in range(2):
        step()
    return _status("VmHWM") - _status("RssFile") - _status("RssShmem") - before


def _measure(case_name: str, framework_name: str) -> dict[str, float | None]:
    from bench.bench_models import CASES, FRAMEWORKS

    case = next(case for case in CASES if case.name == case_name)
    framework = next(framework for framework in FRAMEWORKS if framework.name == framework_name)
    runner = framework(case)
    planned = runner.plan()
    measured = grown(runner.fill, runner.step)
    return {"planned MB": planned and planned / 1e6, "measured MB": measured / 1e6}


if __name__ == "__main__":
    ready = ENVIRONMENT.items() <= os.environ.items()
    print(json.dumps((_measure if ready else in_a_new_process)(*sys.argv[1:])))
