"""Donation: taking the buffers of arrays away, so that a compiled function can overwrite them.

An address is a large integer, and therefore an object with a reference count. A reader of an array holds its address.
References are only counted at donation, so calls need not count readers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from sys import getrefcount
from threading import RLock
from typing import TYPE_CHECKING, Any

from tvmfun.errors import DonatedArrayError

if TYPE_CHECKING:
    from tvmfun.core.array import DeviceArray

#: The call that arrays were donated to, stored as their ``memory``: a function that names the donated
#: argument at a position, and the ids of the arrays. An array looks up its own id, which is unique because it is alive.
Donation = tuple[Callable[[int], str], list[int]]

#: Guards claims: if concurrent calls donate the same arrays, one of them gets all its arrays.
CLAIMS = RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=CLAIMS.acquire, after_in_parent=CLAIMS.release, after_in_child=CLAIMS.release)

# The count that `map(getrefcount, objects)` yields for an object that no list refers to.
_IN_NO_LIST = max(map(getrefcount, [int("9" * 18)])) - 1


def donated_error(where: str, array: DeviceArray) -> DonatedArrayError:
    """The error for a use of an array that was donated."""
    donation: Any = getattr(array, "memory", None)
    receiver = "a compiled function"
    if isinstance(donation, tuple):
        name, ids = donation
        receiver = name(ids.index(id(array)))
    return DonatedArrayError(
        where,
        f"the buffer was donated to {receiver} and is gone",
        got=repr(array.aval),
        hint="the array that function returned, or call it without donate_argnums",
    )


def claim(arrays: Sequence[DeviceArray], addresses: Sequence[int], where: str, lists: int) -> list[int]:
    """Deletes the addresses of arrays, so that no new reader can begin.

    Args:
        arrays: the donated arrays.
        addresses: their addresses.
        where: the function that they are donated to, for an error.
        lists: the number of lists of the caller that hold the addresses.

    Returns:
        The number of other readers of each array, now or later; [] if there are none.

    Raises:
        DonatedArrayError: if one of the arrays is donated already; the others remain usable.
    """
    with CLAIMS:
        rest = iter(arrays)
        try:
            for array in rest:
                del array.address
        except BaseException as error:
            taken = len(arrays) - length_hint(rest) - 1
            restore(zip(arrays[:taken], addresses[:taken], strict=True))
            if not isinstance(error, AttributeError):
                raise
            _claim_each_once(arrays, where)
    counts, unread = list(map(getrefcount, addresses)), _IN_NO_LIST + lists
    # The usual case; this test is faster than a loop.
    return [] if counts.count(unread) == len(counts) else [count - unread for count in counts]


def _claim_each_once(arrays: Sequence[DeviceArray], where: str) -> None:
    """Claims arrays one by one, if one is already donated or an argument twice."""
    gone = next((array for array in arrays if array.is_deleted()), None)
    if gone is not None:
        raise donated_error(where, gone) from None
    for array in arrays:
        if not array.is_deleted():
            del array.address


def restore(claimed: Iterable[tuple[DeviceArray, int]]) -> None:
    """Undoes :func:`claim` for arrays that were not overwritten, with their addresses."""
    for array, address in claimed:
        array.address = address


def discard(arrays: Sequence[DeviceArray], where: str) -> None:
    """Frees the buffers of arrays; a buffer with readers stays as long as its array."""
    addresses = [array.held() for array in arrays]
    reading = claim(arrays, addresses, where, lists=1) or [0] * len(arrays)
    for array, count in zip(arrays, reading, strict=True):
        if count == hasattr(array, "shared"):
            del array.memory
