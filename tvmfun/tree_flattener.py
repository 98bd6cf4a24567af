"""Fast flattening of trees that have one of a few known structures."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

from optree import PyTreeKind
from optree import PyTreeSpec as Structure

from tvmfun.tree import dataclass_fields, flatten, leaf_types

_SEQUENCE_KINDS = (PyTreeKind.LIST, PyTreeKind.TUPLE, PyTreeKind.NAMEDTUPLE)


class Flattener:
    """:func:`flatten` with a cache of structures: for a caller whose trees have the same few structures.

    For each structure it generates a Python function that checks for just this structure while it takes the leaves, and
    returns None for any other tree: several times faster than a general traversal. Equal structures are one object.

    >>> flatten_arguments = Flattener()
    >>> flatten_arguments({"w": [1, 2], "b": None})
    ([1, 2], PyTreeSpec({'b': None, 'w': [*, *]}))
    >>> flatten_arguments({"w": [3, 4], "b": None})
    ([3, 4], PyTreeSpec({'b': None, 'w': [*, *]}))
    """

    # Trying more structures costs more than it saves.
    _KEPT = 4

    def __init__(self) -> None:
        self._known: tuple[tuple[Structure, Callable[[Any], list[Any] | None]], ...] = ()

    def __call__(self, tree: Any) -> tuple[list[Any], Structure]:
        """The leaves and the structure of a tree."""
        for structure, expect in self._known:
            leaves = expect(tree)
            if leaves is not None:
                return leaves, structure
        leaves, structure = flatten(tree)
        if len(self._known) < self._KEPT and all(structure != known for known, _ in self._known):
            expect = _expectation(structure)
            if expect is not None:
                self._known = (*self._known, (structure, expect))
        return leaves, structure


def _expectation(structure: Structure) -> Callable[[Any], list[Any] | None] | None:
    """Generates a function that returns the leaves of a tree of this structure, and None for another tree.

    Returns None for structures with containers other than dicts, lists, tuples, named tuples and our dataclasses.
    """
    lines: list[str] = []
    leaves: list[str] = []
    names: dict[str, Any] = {"leaf_types": leaf_types}
    numbers = itertools.count()

    def constant(value: Any) -> str:
        name = f"c{len(names)}"
        names[name] = value
        return name

    unvisited = [("tree", structure)]
    while unvisited:
        node, part = unvisited.pop()
        kind, children = part.kind, part.children()
        if kind == PyTreeKind.LEAF:
            leaves.append(node)
            continue
        parts = [f"v{next(numbers)}" for _ in children]
        size, targets = len(parts), ", ".join(parts)
        test, taken = f"type({node}) is not {constant(part.type)}", ""
        if kind in _SEQUENCE_KINDS and getattr(part.type, "__iter__", None) in (list.__iter__, tuple.__iter__):
            test += f" or len({node}) != {size}"
            taken = f"[{targets}] = {node}"
        elif kind == PyTreeKind.DICT:
            test += f" or len({node}) != {size}"
            taken = f"{targets} = {constant(operator.itemgetter(*part.entries()))}({node})" if size else ""
        elif part.type in dataclass_fields:
            fields, static = dataclass_fields[part.type]
            if static:
                level: Any = part.one_level()
                values = level.walk(range(size), lambda kind, metadata, children: [value for _, value in metadata])
                wanted = constant(tuple(values) if len(values) > 1 else values[0])
                test += f" or {constant(operator.attrgetter(*static))}({node}) != {wanted}"
            taken = f"{targets} = {constant(operator.attrgetter(*fields))}({node})" if size else ""
        elif kind != PyTreeKind.NONE:
            return None
        lines += [f"if {test}: return None", taken]
        unvisited += reversed(list(zip(parts, children, strict=True)))
    lines += [f"leaves = [{', '.join(leaves)}]", "return leaves if leaf_types.issuperset(map(type, leaves)) else None"]
    # Errors, such as a missing key, are left to `flatten` to report.
    body = "\n".join(f"  {line}" for line in lines)
    exec(f"def expect(tree):\n try:\n{body}\n except Exception:\n  return None", names)
    return names["expect"]
