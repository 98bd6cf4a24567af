"""The first difference between the structures of two trees, as text for errors."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from operator import eq
from typing import Any

from optree import PyTreeAccessor as Path
from optree import PyTreeSpec as Structure

from tvmfun.exact_keys import same_structure
from tvmfun.key_paths import keystr

_MAPPINGS = (dict, OrderedDict, defaultdict)
_SEQUENCES = (list, tuple, deque)


def first_difference(
    expected: Structure, got: Structure, path: Path, prefix: bool, exact: bool = False
) -> tuple[Path, str, str, str] | None:
    """The first path at which two structures differ, descriptions of both nodes there, and a hint.

    Args:
        expected: a structure.
        got: a structure.
        path: where in a larger tree they are.
        prefix: whether ``got`` may have subtrees where ``expected`` has leaves.
        exact: whether static data and keys must have equal types as well, and zeros of one sign.
    """
    is_same = same_structure if exact else eq
    if is_same(expected, got) or (prefix and expected.is_leaf()):
        return None
    here = (path, _describe(expected), _describe(got))
    mappings = prefix and expected.type in _MAPPINGS and got.type in _MAPPINGS
    if expected.type is not got.type and not mappings:
        if here[1] == here[2]:  # different classes of the same name
            here = (path, _qualified(expected.type), _qualified(got.type))
        return (*here, f"{here[1]} at {path_text(path)}")
    ours, theirs = _children(expected), _children(got)
    for key, (entry, _) in ours.items():
        if key not in theirs:
            return (*here, f"adding {keystr(path + entry)}")
    for key, (entry, _) in theirs.items():
        if key not in ours:
            return (*here, f"removing {keystr(path + entry)}")
    for key, (entry, child) in ours.items():
        difference = first_difference(child, theirs[key][1], path + entry, prefix, exact)
        if difference:
            return difference
    ours_alone, theirs_alone = expected.one_level(), got.one_level()
    if mappings or ours_alone is None or theirs_alone is None or is_same(ours_alone, theirs_alone):
        return None
    return path, _describe_static(expected), _describe_static(got), "equal static data in both trees"


def _children(structure: Structure) -> dict[Any, tuple[Path, Structure]]:
    level = structure.one_level()
    paths = level.accessors() if level else []
    return dict(zip(structure.entries(), zip(paths, structure.children(), strict=True), strict=True))


def _qualified(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _describe(structure: Structure) -> str:
    kind, keys = structure.type, structure.entries()
    if kind is None:
        return "a leaf"
    if kind is type(None):
        return "None"
    if kind in _SEQUENCES:
        return f"{kind.__name__} of length {len(keys)}"
    if kind not in _MAPPINGS:
        return kind.__name__
    keys_text = f"the keys {', '.join(map(repr, keys))}" if 0 < len(keys) <= 8 else f"{len(keys)} keys"
    return f"{kind.__name__} with {keys_text}"


def _describe_static(structure: Structure) -> str:
    data = structure.walk(range(structure.num_leaves), lambda kind, data, children: data)
    return f"{_describe(structure)} with the static data {data}"


def path_text(path: Path) -> str:
    """A key path as text."""
    return keystr(path) or "the root"
