"""Processes that run entries of the file, so that a kernel that fails or never ends spoils no other result."""

from __future__ import annotations

import fcntl
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class WorkerError(Exception):
    """An entry failed in its process, or did not end."""


@contextmanager
def _locked(kind: int) -> Iterator[None]:
    with (Path(tempfile.gettempdir()) / "tvmfun-gpu.lock").open("w") as file:
        fcntl.flock(file, kind)
        yield


def shared() -> Any:
    """Keeps the GPU from processes that measure time, while this one prepares something."""
    return _locked(fcntl.LOCK_SH)


def exclusive() -> Any:
    """Keeps the GPU for this process, which measures time."""
    return _locked(fcntl.LOCK_EX)


def _serve(pipe: Connection, environment: dict[str, str], setup: Callable, arguments: tuple) -> None:
    os.environ |= environment
    call = setup(*arguments)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, call(*task)))
        except Exception as error:
            pipe.send((False, "".join(traceback.format_exception(error, limit=-4))))


class Worker:
    """A process that is replaced after a failure, because the context of the GPU may be lost.

    Args:
        setup: called in the process with ``arguments``; returns the function that tasks are passed to.
        arguments: of ``setup``.
        environment: variables that the process gets besides.
    """

    def __init__(self, setup: Callable, *arguments: Any, environment: dict[str, str] | None = None) -> None:
        self._start_with = (environment or {}, setup, arguments)
        self._pipe: Connection | None = None

    def _start(self) -> Connection:
        context = get_context("spawn")
        pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._start_with), daemon=True)
        self._process.start()
        theirs.close()
        return pipe

    def __call__(self, *task: Any, seconds: float) -> Any:
        """The result of a task.

        Raises:
            WorkerError: if it failed, or did not end in this time.
        """
        if self._pipe is None:
            self._pipe = self._start()
        try:
            self._pipe.send(task)
            if not self._pipe.poll(seconds):
                raise WorkerError(f"it did not end within {seconds:.0f} s")
            is_right, result = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            self.close()
            raise WorkerError(f"its process ended with code {self._process.exitcode}") from None
        except WorkerError:
            self.close()
            raise
        if not is_right:
            self.close()
            raise WorkerError(result)
        return result

    def close(self) -> None:
        """Ends the process."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join(5)
            self._pipe = None
