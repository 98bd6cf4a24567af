"""Progress bars around the items of a loop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from tvmfun.typing import Scalar

__all__ = ["Progress", "progress"]


def progress(
    iterable: Iterable[Any], description: str = "", *, total: int | None = None, disable: bool = False
) -> Progress:
    """A progress bar around an iterable; it disappears at the end of the loop.

    Args:
        iterable: the items of the loop.
        description: a text before the bar.
        total: the number of items, if the iterable has no ``len``.
        disable: True for no bar; nothing is printed, and tqdm need not be installed.

    Raises:
        ModuleNotFoundError: if tqdm is not installed.

    >>> bar = progress([0.5, 0.25], disable=True)
    >>> for loss in bar:
    ...     bar.show(loss=loss)
    """
    if disable:
        return Progress(iterable, None)
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        message = "[progress] the bar needs tqdm. Try pip install tqdm, or disable=True."
        raise ModuleNotFoundError(message, name="tqdm") from None
    bar = tqdm(iterable, desc=description, total=total, leave=False)
    return Progress(bar, bar)


class Progress:
    """An iterable with a progress bar and numbers beside it; see :func:`progress`."""

    _SECONDS = 0.5

    def __init__(self, iterable: Iterable[Any], bar: Any) -> None:
        self._iterable, self._bar = iterable, bar
        self._next = 0.0

    def __iter__(self) -> Iterator[Any]:
        return iter(self._iterable)

    def write(self, line: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar is None:
            print(line, flush=True)
        else:
            self._bar.write(line)

    def show(self, **values: Scalar) -> None:
        """Shows numbers beside the bar at most twice a second; arrays are not fetched in between."""
        if self._bar is None or time.monotonic() < self._next:
            return
        self._bar.set_postfix({name: f"{float(value):.4g}" for name, value in values.items()}, refresh=False)
        self._next = time.monotonic() + self._SECONDS
