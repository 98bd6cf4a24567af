"""The table of meanings: one NumPy function per op, entered by the modules of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

#: What an op computes: ``(*arrays, **params) -> array``, or a tuple of arrays for an op with several results. Floats
#: come in double precision, or as they are stored if the meaning is ``raw``.
Function = Callable[..., Any]


class Meaning(NamedTuple):
    """The meaning of one op.

    Args:
        compute: the function.
        exact: whether it only moves, chooses or counts, so that no rounding is involved.
        raw: whether it gets arrays in the dtypes of the Program.
        sums: whether it adds up terms, in an order that lowering may change.
    """

    compute: Function
    exact: bool = False
    raw: bool = False
    sums: bool = False


#: Meanings by the names of ops.
MEANINGS: dict[str, Meaning] = {}


def enter(functions: dict[str, Function], **properties: bool) -> None:
    """Adds functions with the same properties to the table."""
    MEANINGS.update((name, Meaning(function, **properties)) for name, function in functions.items())
