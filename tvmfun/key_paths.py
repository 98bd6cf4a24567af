"""Key paths: the steps from the root of a tree to one of its leaves, with JAX's names and text."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import optree

from tvmfun.boundary import publish

__all__ = ["DictKey", "FlattenedIndexKey", "GetAttrKey", "SequenceKey", "key_path", "keystr"]


@dataclass(frozen=True)
class DictKey:
    """A step into a dict.

    Source: ``jax.tree_util.DictKey``.

    >>> str(DictKey("w"))
    "['w']"
    """

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True)
class SequenceKey:
    """A step into a list, a tuple or a deque.

    Source: ``jax.tree_util.SequenceKey``.

    >>> str(SequenceKey(0))
    '[0]'
    """

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@dataclass(frozen=True)
class GetAttrKey:
    """A step to a field of a named tuple or of a registered dataclass.

    Source: ``jax.tree_util.GetAttrKey``.

    >>> str(GetAttrKey("weight"))
    '.weight'
    """

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True)
class FlattenedIndexKey:
    """A step to a child of a class that was registered without keys: the number of the child.

    Source: ``jax.tree_util.FlattenedIndexKey``.

    >>> str(FlattenedIndexKey(0))
    '[<flat index 0>]'
    """

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


class OwnKeyEntry(optree.PyTreeEntry):
    """A step into a class that defines its own keys, whose ``str`` is their text."""

    def codify(self, /, node: str = "") -> str:
        return f"{node}{self.entry}"


def _key(entry: optree.PyTreeEntry) -> Any:
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.key)
    if isinstance(entry, optree.NamedTupleEntry | optree.StructSequenceEntry):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.index)
    if isinstance(entry, optree.GetAttrEntry):
        return GetAttrKey(entry.name)
    return entry.entry if isinstance(entry, OwnKeyEntry) else FlattenedIndexKey(entry.entry)


def key_path(path: Iterable[optree.PyTreeEntry]) -> tuple[Any, ...]:
    """The keys of a path of optree."""
    return tuple(map(_key, path))


def keystr(keys: Any, *, simple: bool = False, separator: str = "") -> str:
    """Writes a key path as the Python expression that follows the tree's name.

    Args:
        keys: a path from ``flatten_with_path`` or ``map_with_path``.
        simple: whether to write the bare names and numbers, without brackets, quotes and dots.
        separator: what to write between the steps.

    Source: ``jax.tree_util.keystr``.

    >>> path = (DictKey("layers"), SequenceKey(0), GetAttrKey("weight"))
    >>> keystr(path)
    "['layers'][0].weight"
    >>> keystr(path, simple=True, separator="/")
    'layers/0/weight'
    """
    path = [_key(key) if isinstance(key, optree.PyTreeEntry) else key for key in keys]
    return separator.join(_bare(key) if simple else str(key) for key in path)


def _bare(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


publish(globals(), prefix="tree.", but=("key_path",))
