"""Arguments that a function does not have."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from tvmfun.names.pytorch_names import ARGUMENTS, INSTEAD_OF_ARGUMENTS


def argument_for(name: str, parameters: Collection[str]) -> str | None:
    """The hint for an argument that a function does not have: what to write instead, if there is something alike.

    Args:
        name: of the argument, without ``=``.
        parameters: the names of those that the function has.

    >>> argument_for("dim", ["a", "axis"])
    'axis='
    >>> argument_for("axes", ["a", "axis"])
    'axis='
    """
    if {*(own := ARGUMENTS.get(name, ("",)))} <= {*parameters}:
        return " and ".join(f"{one}=" for one in own)
    longer = [one for one in parameters if one.startswith(f"{name}_")]
    if near := longer or difflib.get_close_matches(name, parameters, 1, 0.7):
        return f"{near[0]}="
    other, instead = INSTEAD_OF_ARGUMENTS.get(name, ("", None))
    return instead if not other or other in parameters else None
