"""The reference semantics of the ops: a table with one NumPy function per op, filled by the modules of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

#: The function of an op: ``(*arrays, **params) -> array``, or a tuple of arrays for an op with several results. Floats
#: are in double precision, or in the dtypes of the Program if the meaning is ``raw``.
Function = Callable[..., Any]


#: The kind of intermediate results, which may overflow although the result does not; "several" for computations of
#: several steps with intermediates of any kind.
Partial = Literal["nothing", "sums", "products", "several"]


class Meaning(NamedTuple):
    """The reference implementation of one op.

    Args:
        compute: the function.
        exact: whether it does not round: it only moves, selects or counts.
        raw: whether it takes arrays in the dtypes of the Program.
        partial: its intermediate results, in an order that lowering may change; see :data:`Partial`.
        invariants: for an op with several correct results, such as eigenvectors of either sign, values that are equal
            for all of them: ``(results, *arrays, **params) -> arrays``.
    """

    compute: Function
    exact: bool = False
    raw: bool = False
    partial: Partial = "nothing"
    invariants: Function | None = None


#: Reference implementations by the names of ops.
MEANINGS: dict[str, Meaning] = {}


def enter(functions: dict[str, Function], **properties: Any) -> None:
    """Adds the functions of ops with the same properties to the table."""
    MEANINGS.update((name, Meaning(function, **properties)) for name, function in functions.items())
