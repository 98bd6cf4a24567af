"""Test runs report the tests they left out, and never leave out named ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.parametrize("x", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_new_op(x):
    pass

@pytest.mark.quick("a-*")
@pytest.mark.parametrize("y", [1, 2])
@pytest.mark.parametrize("z", ["a", "b"])
def test_cases(y, z):
    pass

def test_other():
    pass
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\nmarkers =\n    slow\n    quick\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    for name in [name for name in environment if name.startswith(("PYTEST_", "TVMFUN_"))]:
        del environment[name]
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing the others takes most of the time

    def call(*arguments, status=0):
        plugins = ["-p", "xdist", "-p", "support.levels", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *plugins, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        return int((re.findall(r"(\d+) passed", done.stdout) or [0])[0]), done.stdout + done.stderr

    return call


@pytest.mark.quick("workers1")
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_quick_ones_are_the_default_and_the_rest_is_counted(run, workers):
    passed, said = run(*workers)
    assert passed == 4
    assert "4 of 8 tests, the quick ones; `pytest --level all` runs all" in said


@pytest.mark.quick("arguments0", "arguments3")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--level", "all"),
        ("--level", "all", "-n", "2"),
        ("test_some.py",),
        ("test_some.py", "-n", "2"),
        ("-k", "test_"),
    ],
)
def test_all(run, arguments):
    passed, said = run(*arguments)
    assert passed == 8 and "quick" not in said


@pytest.mark.slow
def test_what_is_named_is_run(run):
    assert run("-k", "new_op")[0] == 3
    assert run("-m", "slow")[0] == 4
    assert run("test_some.py::test_new_op")[0] == 3
    assert run("--level", "quick", "test_some.py")[0] == 4


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_quick_mark_that_names_no_case_is_an_error(run, tmp_path, workers):
    (tmp_path / "test_some.py").write_text(TESTS.replace("a-*", "c-*"))
    assert "no case has the id of a quick mark: test_some.py::test_cases: 'c-*'" in run(*workers, status=4)[1]
