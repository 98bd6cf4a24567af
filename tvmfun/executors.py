"""Executors of functions in threads, as in :mod:`concurrent.futures`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class ThreadPool(ThreadPoolExecutor):
    """Executor whose calling thread runs what no other thread can.

    Python starts no threads once its main thread has ended, although other threads may go on, and functions that are
    registered with ``atexit`` have yet to run.

    >>> pool = ThreadPool(2)
    >>> pool.shutdown()
    >>> pool.submit(pow, 2, 3).result()
    8
    """

    def submit(self, function: Callable, /, *arguments: Any, **options: Any) -> Future:
        """Returns the future result of a call, which is known already if the executor takes no more calls."""
        try:
            return super().submit(function, *arguments, **options)
        except RuntimeError:
            future: Future = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future
