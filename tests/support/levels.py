"""Levels of a test run: ``quick`` leaves out slow tests, ``all`` runs every test; the last line counts them.

A test is slow if it is marked ``slow``, if it is a doctest, or if it is a case of a test marked ``quick`` that the mark
does not name::

    @pytest.mark.quick("float64-*", "*-max")
    @pytest.mark.parametrize(...)

The arguments are the ids of the quick cases, with ``*`` for any text. One that matches no case is an error.

Tests named by a path, ``-k`` or ``-m`` are never left out. Without one, ``quick`` is the default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import pytest

_LEFT_OUT = pytest.StashKey[int]()
_RUN = pytest.StashKey[int]()
# The attributes of xdist's workers that hold the same.
_LEVEL_OF_WORKER, _COUNTS_OF_WORKER, _ERROR_OF_WORKER = "tvmfun_level", "tvmfun_counts", "tvmfun_error"


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


def slow(*case: Any, **options: Any) -> Any:
    """Returns a case for ``parametrize`` that only ``--level all`` runs."""
    return pytest.param(*case, marks=pytest.mark.slow, **options)


def _quick_cases(item: pytest.Item) -> tuple[str, ...]:
    """The patterns of a test's ``quick`` mark; none if it has no mark or no cases."""
    mark = item.get_closest_marker("quick")
    return mark.args if mark and hasattr(item, "callspec") else ()


def _id(item: Any) -> str:
    return item.callspec.id


def pytest_itemcollected(item: pytest.Item) -> None:
    patterns = _quick_cases(item)
    if isinstance(item, pytest.DoctestItem):
        # What a docstring shows, tests cover.
        item.add_marker(pytest.mark.slow)
    if patterns and not any(fnmatchcase(_id(item), pattern) for pattern in patterns):
        item.add_marker(pytest.mark.slow)


def _unmatched(items: Iterable[pytest.Item]) -> list[str]:
    """The patterns of ``quick`` marks that match no case of their test."""
    ids: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for item in items:
        patterns = _quick_cases(item)
        if patterns:
            ids[item.nodeid.removesuffix(f"[{_id(item)}]"), patterns].append(_id(item))
    return [
        f"{test}: {pattern!r}"
        for (test, patterns), members in ids.items()
        for pattern in patterns
        if not any(fnmatchcase(member, pattern) for member in members)
    ]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_quick = level(config) == "quick"
    # Where tests are named, the quick cases may not be among them.
    if is_quick and config.args_source is not pytest.Config.ArgsSource.ARGS:
        unmatched = _unmatched(items)
        if unmatched:
            message = f"no case has the id of a quick mark: {', '.join(unmatched)}"
            if not hasattr(config, "workeroutput"):
                raise pytest.UsageError(message)
            # xdist shows no error of a worker's collection.
            config.workeroutput[_ERROR_OF_WORKER] = message
            items.clear()
    slow = [item for item in items if item.get_closest_marker("slow")] if is_quick else []
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
    output = getattr(node, "workeroutput", {})
    if _ERROR_OF_WORKER in output:
        pytest.exit(output[_ERROR_OF_WORKER], pytest.ExitCode.USAGE_ERROR)
    # Each worker collects all tests.
    counts = output.get(_COUNTS_OF_WORKER)
    if counts:
        node.config.stash[_LEFT_OUT], node.config.stash[_RUN] = counts


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out, run = (config.stash.get(key, 0) for key in (_LEFT_OUT, _RUN))
    if left_out:
        line = f"{run:,} of {run + left_out:,} tests, the quick ones; `pytest --level all` runs all"
        terminalreporter.write_line(line)
