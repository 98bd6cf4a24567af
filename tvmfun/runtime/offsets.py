"""Offsets of buffers in one block: at compile time, or at run time where sizes are dynamic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# The alignment of buffers in the block: a multiple of cache lines, and the alignment of CUDA's allocations.
ALIGNMENT = 256


class Lifetime(NamedTuple):
    """The first and the last step that uses a buffer."""

    first: int
    last: int


def assign_offsets(sizes: Sequence[int], lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Gives each buffer an offset, so that buffers in use at the same time do not overlap.

    The largest buffers come first, each at the lowest offset where it fits.

    Args:
        sizes: the bytes of each buffer.
        lifetimes: the steps that use each buffer.

    Returns:
        The offsets, and the bytes of the block.

    Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020 ("greedy by size").

    >>> assign_offsets([100, 300, 100], [Lifetime(0, 1), Lifetime(1, 2), Lifetime(2, 3)])
    ([512, 0, 512], 768)
    """
    count, total = 0, 0
    offsets = [0] * len(sizes)
    first, last, begin, end = np.zeros((4, len(sizes)), np.int64)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        size = -(-sizes[i] // ALIGNMENT) * ALIGNMENT
        lifetime = lifetimes[i]
        busy = np.nonzero((first[:count] <= lifetime.last) & (last[:count] >= lifetime.first))[0]
        order = busy[np.argsort(begin[busy], kind="stable")]
        # The gaps between neighbours: from the largest end so far to the next beginning.
        ends = np.maximum.accumulate(np.concatenate([[0], end[order]]))
        gaps = np.concatenate([begin[order], [np.iinfo(np.int64).max]]) - ends
        offsets[i] = int(ends[np.argmax(gaps >= size)])
        first[count], last[count], begin[count], end[count] = *lifetime, offsets[i], offsets[i] + size
        count, total = count + 1, max(total, offsets[i] + size)
    return offsets, total
