"""Pytest collects the tests of this folder alone: its commands need PyTorch or a GPU to be imported."""

from pathlib import Path

_HERE = Path(__file__).parent
collect_ignore = [path.name for path in _HERE.glob("[!_]*.py") if not path.name.startswith(("test_", "conftest"))]
