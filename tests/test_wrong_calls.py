"""Public functions with wrong arguments, from fixed seeds, in a process of their own, so that crashes are seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "support" / "wrong_calls.py"
X = np.ones((2, 3), "float32")


def run(seed: int, count: int, directory: Path) -> list[dict]:
    command = [sys.executable, str(SCRIPT), str(seed), str(count)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1200)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and "done" in lines[-1], f"{lines[-1:]} ended the process: {done.stderr[-2000:]}"
    assert len(lines) > 1000 * count
    return [line for line in lines if "raw" in line]


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 1), pytest.param(1, 5, marks=pytest.mark.slow), pytest.param(2, 5, marks=pytest.mark.slow)]
)
def test_wrong_calls_raise_errors_of_ours(seed, count, tmp_path):
    assert run(seed, count, tmp_path) == []
