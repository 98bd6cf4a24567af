"""Loops of small arrays in parallel: what threads do to each other shows only where a loop is cut into tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvmfun.lower import settings
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine


@contextmanager
def parallel_loops() -> Iterator[None]:
    """Compiles for this machine so that loops run in parallel however little work they do."""
    with settings.using(Machine.of(targets.host()).settings._replace(serial_work=1)):
        yield
