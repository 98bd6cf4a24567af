"""The report that all benchmarks of a run add their rows to."""

import os
from pathlib import Path

# XLA has to optimize here; it reads the flags of tests/conftest.py at the first computation.
os.environ.pop("XLA_FLAGS", None)

import pytest
from bench.harness import Report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the figures go."""
    parser.addoption("--json", type=Path, default=None, help="a file to merge the rows into")


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest):
    """The rows of this run."""
    report = Report(request.config.getoption("--json"))
    yield report
    report.close()
