"""The log of compilations: their kernels, and their seconds by stage."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tvmfun.errors import ArgumentError

#: A line per compilation, at the level INFO.
LOGGER = logging.getLogger("tvmfun.compile")
_VARIABLE = "TVMFUN_LOG"


class _Stages(threading.local):
    seconds: dict[str, float] | None = None


_STAGES = _Stages()


def _configure() -> None:
    """Shows the log on stderr if ``TVMFUN_LOG`` asks for it."""
    wanted = os.environ.get(_VARIABLE, "")
    if wanted == "compile":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("tvmfun: %(message)s"))
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.INFO)
    elif wanted:
        raise ArgumentError(_VARIABLE, 'it must be "compile", or not set', got=repr(wanted))


_configure()


@contextmanager
def compiling(name: str) -> Iterator[None]:
    """Logs the compilation of a function within the context, if the log is shown."""
    if not LOGGER.isEnabledFor(logging.INFO):
        yield
        return
    started, outer = time.perf_counter(), _STAGES.seconds
    stages = _STAGES.seconds = {}
    LOGGER.info("compiling %s", name)
    try:
        yield
    finally:
        _STAGES.seconds = outer
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages.items())
    LOGGER.info("compiled %s in %.2f s (%s)", name, time.perf_counter() - started, parts)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Adds the seconds within the context to a stage of the compilation that is logged."""
    stages, started = _STAGES.seconds, time.perf_counter()
    try:
        yield
    finally:
        if stages is not None:
            stages[name] = stages.get(name, 0.0) + time.perf_counter() - started
