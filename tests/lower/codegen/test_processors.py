"""Kernels compile for processors other than this one, each within a time limit."""

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "support" / "compile_programs.py"
# Seconds for some dozen kernels, which take a fraction of one on a quiet machine.
LIMIT = 60

# The x86-64-v4 has the instructions of a Skylake, and a Zen 4 some of those of a Zen 5. To prefer short vectors changes
# nothing, so only such a Zen 5 is compiled for.
TARGETS = {
    "x86-64-v2": {"mcpu": "x86-64-v2"},
    "x86-64-v3": {"mcpu": "x86-64-v3"},
    "skylake-avx512": {"mcpu": "skylake-avx512"},
    "sapphirerapids": {"mcpu": "sapphirerapids"},
    "znver5-short-vectors": {"mcpu": "znver5", "mattr": ["+prefer-256-bit"]},
    "aarch64": {"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"},
}


@pytest.mark.slow
def test_llvm_finishes_the_kernels_of_every_op():
    described = {name: {"kind": "llvm", "num-cores": 2, **target} for name, target in TARGETS.items()}
    command = [sys.executable, str(SCRIPT), json.dumps(described)]
    # LLVM cannot be interrupted, but a process can be killed.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines: queue.Queue[str] = queue.Queue()
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: [*map(lines.put, process.stdout), lines.put("")])
        reader.start()
        line, begun = "the imports", set()
        try:
            while line.strip() != "done":
                line, before = lines.get(timeout=LIMIT), line
                assert line, f"the process ended while it compiled one of: {before}"
                begun.add(line.split(":")[0])
        except queue.Empty:
            pytest.fail(f"not compiled within {LIMIT} seconds: one of {line}")
        finally:
            process.kill()
            reader.join()
    assert begun >= set(TARGETS)
