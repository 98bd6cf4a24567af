"""Fast flattening of trees that have one of a few known structures."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from optree import PyTreeKind
from optree import PyTreeSpec as Structure

from tvmfun.exact_keys import exact_key, same_structure
from tvmfun.tree import dataclass_fields, flatten, flatten_functions, leaf_types

_SEQUENCE_KINDS = (PyTreeKind.LIST, PyTreeKind.TUPLE, PyTreeKind.NAMEDTUPLE)


class Flattener:
    """:func:`flatten` with a cache of structures: for a caller whose trees have the same few structures.

    For each structure that it meets again it generates a Python function that checks for just this structure while it
    takes the leaves, and returns None for any other tree: several times faster than a general traversal. Equal
    structures that hold the same static data (:func:`exact_key`) are one object.

    >>> flatten_arguments = Flattener()
    >>> flatten_arguments({"w": [1, 2], "b": None})
    ([1, 2], PyTreeSpec({'b': None, 'w': [*, *]}))
    >>> flatten_arguments({"w": [3, 4], "b": None})
    ([3, 4], PyTreeSpec({'b': None, 'w': [*, *]}))
    """

    # Trying more structures costs more than it saves.
    _KEPT = 4

    def __init__(self) -> None:
        self._met: tuple[Structure, ...] = ()
        self._known: tuple[tuple[Structure, Callable[[Any], list[Any] | None]], ...] = ()

    def __call__(self, tree: Any) -> tuple[list[Any], Structure]:
        """The leaves and the structure of a tree."""
        for structure, expect in self._known:
            leaves = expect(tree)
            if leaves is not None:
                return leaves, structure
        leaves, structure = flatten(tree)
        for met in self._met:
            if same_structure(structure, met):
                self._expect(met)
                return leaves, met
        if len(self._met) < self._KEPT:
            self._met = (*self._met, structure)
        return leaves, structure

    def _expect(self, structure: Structure) -> None:
        """Generates the function for a structure, once."""
        if all(structure is not known for known, _ in self._known):
            self._known = (*self._known, (structure, expectation(structure)))


def never_matches(tree: Any) -> None:
    """Returns None for any tree."""


def expectation(structure: Structure, avals: Sequence[Any] | None = None) -> Callable[[Any], Any]:
    """Generates a function that returns the leaves of a tree of this structure, and None for another tree.

    The function always returns None if the structure has containers other than dicts, lists, tuples, named tuples, our
    dataclasses and classes that are registered with functions.

    Args:
        structure: the structure.
        avals: the types of the leaves, if they are arrays on the CPU. The function then returns the leaves and their
            addresses, and None for arrays of other types and for donated ones.
    """
    lines: list[str] = []
    leaves: list[str] = []
    names: dict[str, Any] = {"leaf_types": leaf_types, "exact_key": exact_key}
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
            if not all(type(key) is str for key in part.entries()):
                test += f" or exact_key(set({node})) != {constant(exact_key(set(part.entries())))}"
            taken = f"{targets} = {constant(operator.itemgetter(*part.entries()))}({node})" if size else ""
        elif part.type in dataclass_fields:
            fields, static = dataclass_fields[part.type]
            if static:
                level: Any = part.one_level()
                values = level.walk(range(size), lambda kind, metadata, children: [value for _, value in metadata])
                for name, value in zip(static, values, strict=True):
                    test += f" or {node}.{name} is not {constant(value)}"
                    test += f" and exact_key({node}.{name}) != {constant(exact_key(value))}"
            taken = f"{targets} = {constant(operator.attrgetter(*fields))}({node})" if size else ""
        elif part.type in flatten_functions:
            function, has_keys = flatten_functions[part.type]
            level = part.one_level()
            (static,) = level.walk(range(size), lambda kind, metadata, children: [metadata.value])
            given, data = f"v{next(numbers)}", f"v{next(numbers)}"
            lines += [f"if {test}: return None", f"{given}, {data} = {constant(function)}({node})"]
            test = f"{data} is not {constant(static)} and exact_key({data}) != {constant(exact_key(static))}"
            taken = f"_, [{targets}] = zip(*{given})" if has_keys and size else f"[{targets}] = {given}"
        elif kind != PyTreeKind.NONE:
            return never_matches
        lines += [f"if {test}: return None", taken]
        unvisited += reversed(list(zip(parts, children, strict=True)))
    if avals is None:
        lines += [f"leaves = [{', '.join(leaves)}]"]
        lines += ["return leaves if leaf_types.issuperset(map(type, leaves)) else None"]
    else:
        types = "".join(f"{leaf}.aval, " for leaf in leaves)
        lines += [f"if ({types}) != {constant(tuple(avals))}: return None"]
        # The first decides on the device of the others; addresses elsewhere than on the CPU are negative.
        lines += [f"if {leaf}.address < 0: return None" for leaf in leaves[:1]]
        lines += [f"return [{', '.join(leaves)}], [{', '.join(f'{leaf}.address' for leaf in leaves)}]"]
    # Errors, such as a missing key, are left to `flatten` to report.
    body = "\n".join(f"  {line}" for line in lines)
    exec(f"def expect(tree):\n try:\n{body}\n except Exception:\n  return None", names)
    return names["expect"]
