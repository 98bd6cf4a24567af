"""Work in several threads that interrupt one another as often as possible."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def in_threads(work: Callable[[int], object], count: int = 8) -> None:
    """Runs ``work(0)`` to ``work(count - 1)`` in as many threads, with the smallest switch interval."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
