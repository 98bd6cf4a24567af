"""The pools of workspaces: memory that kernels allocate while they run, and that threads keep for later kernels."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any, TypeAlias

# As in TVM's runtime: allocations are rounded up to pages.
_PAGE = 4096

#: ``(bytes, threads)`` for an allocation, whose bytes may be a formula; None frees the most recent one.
Allocation: TypeAlias = tuple[Any, int] | None


def kept_by_threads(order: Iterable[Allocation], threads: int) -> int:
    """Returns the bytes that the threads of one caller keep for kernels that allocate in this order.

    Each thread has a pool, which grows to the most bytes in use at a time and never shrinks.

    Args:
        order: the allocations and frees of the kernels.
        threads: the number of threads.
    """
    events = list(order)
    return sum(kept(events, thread) for thread in range(threads))


def kept(events: Iterable[Allocation], thread: int) -> int:
    """The final bytes in a thread's pool, which returns the smallest piece that fits, or enlarges the largest one."""
    idle: list[int] = []
    in_use: list[int | None] = []
    for event in events:
        if event is None:
            piece = in_use.pop()
            if piece is not None:
                insort(idle, piece)
            continue
        size, at_work = event
        if thread >= at_work:
            in_use.append(None)
            continue
        size = max(1, -(-size // _PAGE)) * _PAGE
        position = bisect_left(idle, size)
        if position < len(idle):
            size = idle.pop(position)
        elif idle:
            idle.pop()
        in_use.append(size)
    return sum(idle)
