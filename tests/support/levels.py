"""How much a test run takes: ``quick`` leaves out what is marked as slow, ``all`` nothing, and both say what they did.

What a path, ``-k`` or ``-m`` names is never left out. Without one, ``quick`` is the default.
"""

from __future__ import annotations

from typing import Any

import pytest

_LEFT_OUT = pytest.StashKey[int]()
_RUN = pytest.StashKey[int]()
# The attributes of xdist's workers that hold the same.
_LEVEL_OF_WORKER, _COUNTS_OF_WORKER = "tvmfun_level", "tvmfun_counts"


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "quick: without tests marked as slow, the default where no test is named; all: every test"
    parser.addoption("--level", choices=("quick", "all"), help=help)


def level(config: pytest.Config) -> str:
    """Returns the level of this run."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        return worker[_LEVEL_OF_WORKER]
    options = config.option
    if options.level:
        return options.level
    is_named = options.keyword or options.markexpr or config.args_source is pytest.Config.ArgsSource.ARGS
    return "all" if is_named else "quick"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[_LEVEL_OF_WORKER] = level(node.config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [item for item in items if item.get_closest_marker("slow")] if level(config) == "quick" else []
    if slow:
        left_out = set(slow)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=slow)
    config.stash[_LEFT_OUT], config.stash[_RUN] = len(slow), len(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workeroutput", None)
    if worker is not None:
        worker[_COUNTS_OF_WORKER] = [session.config.stash.get(key, 0) for key in (_LEFT_OUT, _RUN)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Each worker collects all tests.
    counts = getattr(node, "workeroutput", {}).get(_COUNTS_OF_WORKER)
    if counts:
        node.config.stash[_LEFT_OUT], node.config.stash[_RUN] = counts


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out, run = (config.stash.get(key, 0) for key in (_LEFT_OUT, _RUN))
    if left_out:
        line = f"{run:,} of {run + left_out:,} tests, the quick ones; `pytest --level all` runs all"
        terminalreporter.write_line(line)
