"""The tests that optax comes with, run with tvmfun in the place of JAX."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

optax = pytest.importorskip("optax")
TESTS = Path(optax.__file__).parent
STAND_IN = Path(__file__).parent / "stand_in"
PARTS = (
    *("projections", "losses", "tree_utils", "schedules", "transforms", "perturbations", "assignment"),
    *("microbatching", "experimental", "contrib", "_src"),
)
#: What tests may fail for: numbers, devices and packages that are not there, and texts of optax's or JAX's.
REASONS = re.compile(
    r"complex|\dj\b|sharding|PartitionSpec|Mesh|'flax'|'sklearn'|compiler_ir"
    r"|cannot access local variable"  # of a subtest that failed
    r"|Incompatible shapes for broadcasting|Dict key mismatch|not found in ''"
    # NumPy's float64 stays float64.
    r"|of the carry must stay float32\S*, got float64"
)


@pytest.mark.quick("projections")
@pytest.mark.parametrize("part", PARTS)
def test_tests_of_optax_pass(part, tmp_path):
    # Imported first, so that the directory of optax, where JAX may be, does not come before.
    run = "import jax, pytest, sys; assert jax.trace; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-c", run, *options, "--continue-on-collection-errors", str(TESTS / part)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(STAND_IN), str(Path(__file__).parents[2])])},
        capture_output=True,
        text=True,
    )
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None and int(passed[1]) > 1, result.stdout[-2000:] + result.stderr[-2000:]
    failures = re.split(r"^_{3,} .* _{3,}$", result.stdout, flags=re.MULTILINE)[1:]
    errors = ["\n".join(re.findall(r"^E   .*", failure, re.MULTILINE)) for failure in failures]
    assert [error for error in errors if not REASONS.search(error)] == []
