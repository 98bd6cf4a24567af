"""Ctrl-C while kernels are scheduled and lowered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Calls the handler of SIGINT at the end of the context, if the signal has come within it.

    If a handler raises an exception while TVM's FFI creates the arguments of a callback, the FFI may free one of them
    twice. Only the main thread is interrupted; a context should take at most some milliseconds.
    """
    handler = signal.getsignal(signal.SIGINT) if current_thread() is main_thread() else None
    if not callable(handler):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])
