"""Trees in a manifest: nested containers as JSON.

:func:`described` is for loaders without the classes, such as that of exported libraries. :func:`stored` is exact: it
has what :func:`restored` needs to find the classes again.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any

from tvmfun import tree
from tvmfun.errors import ExportError, ProgramError
from tvmfun.key_paths import DictKey, GetAttrKey, key_path
from tvmfun.manifest.static import found, read_static, reference, written_static

#: A leaf. Other nodes are null for None, or an object of one item: the kind of container, and its children.
LEAF = "*"
_MOST_LEVELS = 100


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


def stored(structure: tree.Structure) -> Any:
    """Describes a structure as JSON, exactly.

    It is as :func:`described`, but for these: classes are references ``module:name``, ``fields`` have the static ones
    as a third item, and there are ``{"ordered": [[key, child], ...]}`` and ``{"deque": [maxlen, [child, ...]]}``.

    Raises:
        ProgramError: if a container is of a class that cannot be found again by its name, or a static field or the key
            of a dict is not plain.

    >>> stored(tree.structure((1, None)))
    {'tuple': ['*', None]}
    """
    kind = structure.type
    if kind is None:
        return LEAF
    level = structure.one_level()
    if kind is type(None) or level is None:
        return None
    children = list(map(stored, structure.children()))
    node = level.unflatten(children)
    if kind in (dict, OrderedDict):
        for key in node:
            if type(key) not in (str, int):
                what = "keys of dicts among the arguments and results must be text or integers"
                raise ProgramError("Program.save", what, got=repr(key))
        return {"ordered" if kind is OrderedDict else "dict": [list(pair) for pair in node.items()]}
    if kind in (list, tuple):
        return {kind.__name__: children}
    if kind is deque:
        return {"deque": [node.maxlen, children]}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return {"named": [reference(kind), [list(pair) for pair in zip(node._fields, node, strict=True)]]}
    if kind not in tree.dataclass_fields:
        hint = "a dict" if kind is defaultdict else "a dataclass with tvmfun.tree.register_dataclass, or a dict"
        what = "a container among the arguments and results is of a class that cannot be saved"
        raise ProgramError("Program.save", what, got=kind.__qualname__, hint=hint)
    names, static = tree.dataclass_fields[kind]
    settings = [[name, written_static(getattr(node, name), f"{kind.__qualname__}.{name}")] for name in static]
    return {"fields": [reference(kind), [[name, getattr(node, name)] for name in names], settings]}


def restored(node: Any) -> tree.Structure:
    """The structure that :func:`stored` described. No function of a class is called, and no module of others imported.

    Raises:
        ProgramError: if a class is not found in the modules that are imported, or has other fields.
        ValueError: if the description is not one of :func:`stored`.

    >>> restored({"dict": [["w", "*"], ["b", None]]}) == tree.structure({"w": 1.0, "b": None})
    True
    """
    return tree.structure(_built(node, 0))


def _built(node: Any, level: int) -> Any:
    """A tree with 0 for its leaves."""
    if node == LEAF and isinstance(node, str):
        return 0
    if node is None:
        return None
    if level >= _MOST_LEVELS:
        raise ValueError(f"a tree of more than {_MOST_LEVELS} levels")
    if not isinstance(node, dict) or len(node) != 1:
        raise ValueError("a node of a tree that is not one container")
    ((kind, content),) = node.items()
    build = lambda child: _built(child, level + 1)
    pairs = lambda pairs: {_key(key): build(child) for key, child in pairs}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(map(build, content))
    if kind in ("dict", "ordered"):
        return pairs(content) if kind == "dict" else OrderedDict(pairs(content))
    if kind == "deque":
        most, children = content
        if not (most is None or (type(most) is int and most >= len(children))):
            raise ValueError(f"the length {most!r} of a deque")
        return deque(map(build, children), most)
    if kind == "named":
        name, fields = content
        cls = found(name)
        if not (issubclass(cls, tuple) and getattr(cls, "_fields", None) == tuple(field for field, _ in fields)):
            raise _other_fields(name)
        return tuple.__new__(cls, [build(child) for _, child in fields])
    if kind != "fields":
        raise ValueError(f"{kind!r} in a tree")
    name, fields, static = content
    cls = found(name)
    names = tuple(field for field, _ in fields), tuple(field for field, _ in static)
    if tree.dataclass_fields.get(cls) != names:
        raise _other_fields(name)
    result = object.__new__(cls)
    values = [(field, build(child)) for field, child in fields] + [(field, read_static(text)) for field, text in static]
    for field, value in values:
        object.__setattr__(result, field, value)
    return result


def _key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise ValueError(f"the key {key!r} of a dict")
    return key


def _other_fields(name: str) -> ProgramError:
    what = "a class of the arguments and results has other fields here"
    return ProgramError("Program.load", what, got=name, hint="the version of the class that the file was written with")


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
