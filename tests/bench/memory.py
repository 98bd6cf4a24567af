"""How much memory a step takes, in a process of its own: ``python -m bench.memory CASE FRAMEWORK``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path


def in_a_new_process(case: str, framework: str) -> dict[str, float | None]:
    """The MB planned, and by how much the process has grown, with what the compiler left behind."""
    command = [sys.executable, "-m", "bench.memory", case, framework]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _status(name: str) -> int:
    """A number of bytes from what the kernel knows about this process."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) << 10  # type: ignore[index]


def _measure(case_name: str, framework_name: str) -> dict[str, float | None]:
    from bench.bench_models import CASES, FRAMEWORKS

    case = next(case for case in CASES if case.name == case_name)
    framework = next(framework for framework in FRAMEWORKS if framework.name == framework_name)
    before = _status("VmRSS")
    runner = framework(case)
    planned = runner.planned_bytes()
    runner.step()  # copies what it is given and may not overwrite
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    runner.step()
    runner.step()
    grown = _status("VmHWM") - before
    return {"planned MB": planned and planned / 1e6, "process MB": grown / 1e6}


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
