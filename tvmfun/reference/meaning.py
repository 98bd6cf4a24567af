"""The table of meanings: one NumPy function per op, entered by the modules of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

#: What an op computes: ``(*arrays, **params) -> array``, or a tuple of arrays for an op with several results. Floats
#: come in double precision, or as they are stored if the meaning is ``raw``.
Function = Callable[..., Any]


#: Partial sums and products may leave the range of a dtype although the result is in it; what happens in several
#: steps is not known.
Partial = Literal["nothing", "sums", "products", "several"]


class Meaning(NamedTuple):
    """The meaning of one op.

    Args:
        compute: the function.
        exact: whether it only moves, chooses or counts, so that no rounding is involved.
        raw: whether it gets arrays in the dtypes of the Program.
        partial: what it computes on the way to a result, in an order that lowering may change; see :data:`Partial`.
        invariants: for an op with several right results, such as eigenvectors of either sign, what all of them have in
            common: ``(results, *arrays, **params) -> arrays``.
    """

    compute: Function
    exact: bool = False
    raw: bool = False
    partial: Partial = "nothing"
    invariants: Function | None = None


#: Meanings by the names of ops.
MEANINGS: dict[str, Meaning] = {}


def enter(functions: dict[str, Function], **properties: Any) -> None:
    """Adds functions with the same properties to the table."""
    MEANINGS.update((name, Meaning(function, **properties)) for name, function in functions.items())
