"""Orders of axes, which Relay writes with letters, and paddings of spatial axes.

Windows are computed with the axes (batch, *spatial, channels), for any order of the array's axes.
"""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun.interop.layouts import ChannelsLast, channels_first, channels_last
from tvmfun.interop.relay.operators.table import Ints, refuse

#: The largest padding of one side.
_MOST = 2**20


def check_layout(where: str, layout: str, letters: str, x: Any) -> None:
    """Raises unless a layout has each letter once, and the array has as many axes.

    Raises:
        ArgumentError: likewise for layouts with blocks, such as ``NCHW16c``.
    """
    if sorted(layout) != sorted(letters):
        raise refuse(where, f"a layout must be an order of the axes {letters}, without blocks", layout)
    if x.ndim != len(letters):
        raise refuse(where, f"an array of the layout {layout} has {len(letters)} axes", x.ndim)


def sides(where: str, padding: Ints, rank: int) -> list[tuple[int, int]]:
    """The padding before and after each axis: from one size for all, one for each, or all leading and all trailing."""
    if len(padding) not in (1, rank, 2 * rank) or any(abs(size) > _MOST for size in padding):
        raise refuse(where, f"the padding must have 1, {rank} or {2 * rank} sizes", padding)
    padding = padding * rank if len(padding) == 1 and rank > 1 else padding
    low, high = padding[:rank], padding[-rank:]
    return list(zip(low, high, strict=True))


def stored(x: Any, layout: str) -> Any:
    """The array as (batch, *spatial, channels), with the spatial axes in the order of the layout."""
    if layout.startswith("NC"):
        return channels_last(x)
    spatial = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    return tnp.permute_dims(channels_first(x), (layout.index("N"), *spatial, layout.index("C")))


def laid_out(y: Any, layout: str, out_layout: str) -> Any:
    """A result of (batch, *spatial, channels), whose spatial axes are those of ``layout``, in ``out_layout``."""
    letters = ["N", *(letter for letter in layout if letter not in "NC"), "C"]
    if out_layout == f"NC{''.join(letters[1:-1])}":
        return ChannelsLast(y)
    return tnp.permute_dims(y, [letters.index(letter) for letter in out_layout])
