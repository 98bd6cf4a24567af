"""Keys by which compiled functions tell static values apart: 2 and 2.0 are equal, but compute different results."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Hashable
from functools import cache
from typing import Any

import numpy as np
from optree import PyTreeSpec as Structure

# The file of the code that ``dataclasses`` generates.
_GENERATED = "<string>"
# Equal values of one of these types are the same value.
_PLAIN: frozenset[type] = frozenset({str, int, bool, bytes, type(None), type})


class StaticData:
    """The static data of a node, hashable also if the data are not, because structures are hashed."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticData) and (self.value is other.value or bool(self.value == other.value))

    def __hash__(self) -> int:
        try:
            return hash(self.value)
        except TypeError:
            return hash(type(self.value))

    def __repr__(self) -> str:
        return repr(self.value)


class StaticSnapshot(StaticData):
    """Static data that may change, such as a list: a copy of what they were when the structure was made.

    Raises:
        UnhashableError: as :func:`copied`.
    """

    __slots__ = ("key",)

    def __init__(self, value: Any) -> None:
        super().__init__(copied(value))
        self.key = exact_key(self.value)

    def restored(self) -> Any:
        """The data as they were, in containers that the caller may change."""
        return copied(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticSnapshot) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class UnhashableError(TypeError):
    """Static data have a part that has no hash, and is no container that can be compared by its parts.

    Args:
        part: the part.
    """

    def __init__(self, part: Any) -> None:
        super().__init__(f"unhashable: {type(part).__name__}")
        self.part = part


def copied(value: Any) -> Any:
    """Returns the value with copies of lists, dictionaries, sets, dataclasses and arrays that may change.

    Raises:
        UnhashableError: for a part that is none of these and has no hash, and for arrays, unless they are one number.

    >>> options = {"sizes": [1, 2]}
    >>> copied(options) == options, copied(options)["sizes"] is options["sizes"]
    (True, False)
    """
    try:
        hash(value)
    except TypeError:
        kind = type(value)
    else:
        return value
    if hasattr(value, "__array__"):
        if not _is_number(value):
            raise UnhashableError(value)
        return value.copy() if isinstance(value, np.ndarray) else value  # others do not change
    comparison = kind.__eq__
    if comparison is tuple.__eq__:
        parts = map(copied, value)
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    result = copy.copy(value)
    if comparison is list.__eq__:
        result[:] = map(copied, value)
    elif comparison is dict.__eq__:
        result.update({name: copied(part) for name, part in value.items()})
    elif fields := _compared_fields(kind):
        for name in fields:
            object.__setattr__(result, name, copied(getattr(value, name)))
    elif comparison is not set.__eq__:
        raise UnhashableError(value)
    return result


def _is_number(array: Any) -> bool:
    """Whether an array has one element, whose value is known."""
    try:
        return np.asarray(array).size == 1
    except TypeError:  # it is being traced
        return False


def exact_key(value: Any) -> Hashable:
    """Returns a key that is equal for equal values of one type whose zeros have one sign.

    Elements of tuples, lists, sets and dictionaries, and fields of dataclasses, are told apart in the same way. Classes
    with an ``==`` of their own decide by it.

    >>> exact_key(2) == exact_key(2.0), exact_key((0.0,)) == exact_key((-0.0,)), exact_key("a") == exact_key("a")
    (False, False, True)
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, StaticData):
        return value.key if isinstance(value, StaticSnapshot) else exact_key(value.value)
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if hasattr(value, "__array__") and kind.__hash__ is None:
        array = np.asarray(value)
        return kind, str(getattr(value, "aval", array.dtype)), array.shape, array.tobytes()
    comparison = kind.__eq__
    if comparison is float.__eq__:
        return kind, float.hex(value)
    if comparison is complex.__eq__:
        return kind, value.real.hex(), value.imag.hex()
    if comparison is tuple.__eq__ or comparison is list.__eq__:
        return kind, tuple(map(exact_key, value))
    if comparison is frozenset.__eq__ or comparison is set.__eq__:
        return kind, frozenset(map(exact_key, value))
    if comparison is dict.__eq__:
        return kind, frozenset([(exact_key(name), exact_key(part)) for name, part in value.items()])
    return kind, StaticData(value), tuple([exact_key(getattr(value, name)) for name in _compared_fields(kind)])


@cache
def _compared_fields(kind: type) -> list[str]:
    """The fields by which a dataclass compares; none if it is not a dataclass or has an ``==`` of its own."""
    code = getattr(kind.__eq__, "__code__", None)
    if not dataclasses.is_dataclass(kind) or code is None or code.co_filename != _GENERATED:
        return []
    return [field.name for field in dataclasses.fields(kind) if field.compare]


def structure_key(structure: Structure) -> tuple[Hashable, ...]:
    """Returns the exact keys of a structure's data besides its nodes: static data, and keys that are not text."""
    found: list[Hashable] = []

    def visit(_: Any, data: Any, __: Any) -> None:
        if data is not None and not (type(data) is list and all(type(key) is str for key in data)):
            found.append(exact_key(data))

    structure.walk(range(structure.num_leaves), visit)
    return tuple(found)


def same_structure(first: Structure, second: Structure) -> bool:
    """Returns whether two structures are equal and hold the same static data and keys."""
    return first is second or (first == second and structure_key(first) == structure_key(second))
