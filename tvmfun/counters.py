"""Counts of compilations, calls and copies in this process, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Events since the process started.

    Attributes:
        calls: calls into compiled modules.
        compiles: modules compiled.
        loads: modules loaded from the disk cache.
        to_device: arrays copied in from Python.
        to_host: arrays copied or viewed from Python.
    """

    calls: int = 0
    compiles: int = 0
    loads: int = 0
    to_device: int = 0
    to_host: int = 0


counters = Counters()


@contextmanager
def counted() -> Iterator[Counters]:
    """Counts the events inside a ``with`` block.

    >>> with counted() as events:
    ...     pass
    >>> events.calls
    0
    """
    before = asdict(counters)
    events = Counters()
    try:
        yield events
    finally:
        for name, value in asdict(counters).items():
            setattr(events, name, value - before[name])
