"""Trees in a manifest: nested containers as JSON, which a loader can take apart and build without their classes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tvmfun import tree
from tvmfun.errors import ExportError
from tvmfun.key_paths import DictKey, GetAttrKey, key_path

#: A leaf. Other nodes are null for None, or an object of one item: the kind of container, and its children.
LEAF = "*"


def described(structure: tree.Structure) -> Any:
    """Describes a structure as JSON.

    Dicts become ``{"dict": [[key, child], ...]}``, lists and tuples ``{"list": [...]}`` and ``{"tuple": [...]}``.
    Named tuples become ``{"named": [class name, [[field, child], ...]]}``, and other classes with named children
    ``{"fields": ...}``. Classes whose children have no names become tuples.

    Raises:
        ExportError: if a key of a dict is neither text nor an integer.

    >>> described(tree.structure({"w": [1, None]}))
    {'dict': [['w', {'list': ['*', None]}]]}
    """
    kind = structure.type
    if kind is None:
        return LEAF
    if kind is type(None):
        return None
    level = structure.one_level()
    keys = [key_path(path)[-1] for path in level.accessors()] if level else []
    children = list(map(described, structure.children()))
    if issubclass(kind, dict) or (keys and isinstance(keys[0], DictKey)):
        names = [key.key for key in keys]
        for name in names:
            if type(name) not in (str, int):
                what = "keys of dicts in an exported function must be text or integers"
                raise ExportError("export", what, got=repr(name))
        return {"dict": [list(pair) for pair in zip(names, children, strict=True)]}
    is_sequence = issubclass(kind, list | tuple | deque) and not hasattr(kind, "_fields")
    if not is_sequence and all(isinstance(key, GetAttrKey) for key in keys):
        fields = [[key.name, child] for key, child in zip(keys, children, strict=True)]
        return {"named" if issubclass(kind, tuple) else "fields": [kind.__name__, fields]}
    return {"list" if issubclass(kind, list) else "tuple": children}


def leaf_names(structure: tree.Structure, arguments: Sequence[str]) -> list[str]:
    """The names of the leaves of ``(args, kwargs)``: the name of the argument and the path in it.

    Args:
        structure: of ``(args, kwargs)``.
        arguments: the names of the arguments, in order.

    >>> leaf_names(tree.structure((({"w": 0},), {"x": 0})), ["params", "x"])
    ["params['w']", 'x']
    """
    names = iter(arguments)
    found: list[str] = []
    for group in structure.children():
        for child in group.children():
            name = next(names)
            found += [name + tree.keystr(path) for path in child.accessors()]
    return found


def result_names(structure: tree.Structure) -> list[str]:
    """The names of the leaves of a result: the paths in it; ``result`` for one array.

    >>> result_names(tree.structure(({"w": 0}, 0)))
    ["[0]['w']", '[1]']
    """
    return [tree.keystr(path) or "result" for path in structure.accessors()]
