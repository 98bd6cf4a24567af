"""Pytrees: nested containers whose leaves are arrays or other values.

Dicts (keys in sorted order), lists, tuples, named tuples, deques, ``None`` (which has no leaves), dataclasses
registered with :func:`register_dataclass`, and every class that jax knows as a pytree node are containers.
Everything else is a leaf.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import itertools
import operator
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import optree
from optree import GetAttrEntry as Field
from optree import PyTreeAccessor as Path
from optree import PyTreeKind
from optree import PyTreeSpec as Structure

from tvmfun.boundary import publish
from tvmfun.errors import ArgumentError, TreeError
from tvmfun.names import missing as _missing

__all__ = [
    "Field",
    "Path",
    "Structure",
    "all",
    "check_same_structure",
    "flatten",
    "flatten_with_path",
    "keystr",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "register_dataclass",
    "structure",
    "transpose",
    "unflatten",
]

_NAMESPACE = "tvmfun"
_MISSING = object()
_MAPPINGS = (dict, OrderedDict, defaultdict)
_SEQUENCES = (list, tuple, deque)
_SEQUENCE_KINDS = (PyTreeKind.LIST, PyTreeKind.TUPLE, PyTreeKind.NAMEDTUPLE)
_T = TypeVar("_T")
_IsLeaf = Callable[[Any], bool] | None
# Of the dataclasses that are containers: the names of the children and of the static fields.
_fields: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}
_register = functools.partial(optree.register_pytree_node, namespace=_NAMESPACE)


def flatten(tree: Any, is_leaf: _IsLeaf = None) -> tuple[list[Any], Structure]:
    """Takes a tree apart into its leaves and its structure.

    Args:
        tree: any nesting of containers.
        is_leaf: says of a container that it counts as a leaf.

    Returns:
        The leaves in order, and the structure, which is hashable and can be compared with ``==``.

    Raises:
        ArgumentError: if a static field of a registered dataclass cannot be hashed.

    >>> flatten({"w": [1, 2], "b": None})
    ([1, 2], PyTreeSpec({'b': None, 'w': [*, *]}))
    """
    leaves, structure = optree.tree_flatten(tree, is_leaf, namespace=_NAMESPACE)
    if not _leaf_types.issuperset(builtins.map(type, leaves)) and _adopt_jax_nodes(leaves, is_leaf):
        return flatten(tree, is_leaf)
    return leaves, structure


class Flattener:
    """:func:`flatten` for a place that meets trees of the same few structures again and again.

    For each structure it writes a function that knows what to expect where, and returns None for any other tree:
    expecting is several times faster than looking. Structures are returned as one object as long as they are equal.

    >>> flatten_arguments = Flattener()
    >>> flatten_arguments({"w": [1, 2], "b": None})
    ([1, 2], PyTreeSpec({'b': None, 'w': [*, *]}))
    >>> flatten_arguments({"w": [3, 4], "b": None})
    ([3, 4], PyTreeSpec({'b': None, 'w': [*, *]}))
    """

    # Trying more than a few costs what it saves.
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
        if len(self._known) < self._KEPT and builtins.all(structure != known for known, _ in self._known):
            expect = _expectation(structure)
            if expect is not None:
                self._known = (*self._known, (structure, expect))
        return leaves, structure


def _expectation(structure: Structure) -> Callable[[Any], list[Any] | None] | None:
    """A function that returns the leaves of a tree of this structure, and None for another tree.

    None if there are containers of other classes than dict, list, tuple, named tuples and our dataclasses.
    """
    lines: list[str] = []
    leaves: list[str] = []
    names: dict[str, Any] = {"leaf_types": _leaf_types}
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
        elif part.type in _fields:
            fields, static = _fields[part.type]
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
    # Whatever goes wrong, a missing key say, is for `flatten` to explain.
    body = "\n".join(f"  {line}" for line in lines)
    exec(f"def expect(tree):\n try:\n{body}\n except Exception:\n  return None", names)
    return names["expect"]


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Puts leaves into a structure; the inverse of :func:`flatten`.

    Args:
        structure: what :func:`flatten` or :func:`structure` returned.
        leaves: one value per leaf, in order; the values may themselves be trees.

    Raises:
        TreeError: if there are too few or too many leaves.

    >>> unflatten(structure({"w": 0, "b": 0}), ["first", "second"])
    {'w': 'second', 'b': 'first'}
    """
    leaves = list(leaves)
    if len(leaves) != structure.num_leaves:
        raise TreeError("tree.unflatten", f"the structure has {structure.num_leaves} leaves", got=str(len(leaves)))
    return structure.unflatten(leaves)


def leaves(tree: Any, is_leaf: _IsLeaf = None) -> list[Any]:
    """The leaves of a tree, in order.

    Args:
        tree: any nesting of containers.
        is_leaf: says of a container that it counts as a leaf.

    >>> leaves({"w": [1, 2], "b": None, "a": (3,)})
    [3, 1, 2]
    """
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: _IsLeaf = None) -> Structure:
    """The structure of a tree: the tree without its leaves.

    Args:
        tree: any nesting of containers.
        is_leaf: says of a container that it counts as a leaf.

    >>> structure([1, (2, 3)]) == structure(["a", ("b", "c")])
    True
    """
    return flatten(tree, is_leaf)[1]


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: _IsLeaf = None) -> Any:
    """Applies a function to every leaf and returns a tree of the results.

    Args:
        f: takes one leaf of ``tree`` and what each tree of ``rest`` has at the same place.
        tree: the tree that gives the structure of the result.
        rest: trees that begin with the structure of ``tree``; they may go on where ``tree`` has a leaf.
        is_leaf: says of a container in ``tree`` that it counts as a leaf.

    Raises:
        TreeError: if a tree of ``rest`` does not begin with the structure of ``tree``.

    >>> map(lambda a, b: a + b, {"w": 1, "b": 2}, {"w": 10, "b": 20})
    {'w': 11, 'b': 22}
    """
    leaves, structure = flatten(tree, is_leaf)
    columns = [leaves, *_columns("tree.map", structure, rest)]
    return structure.unflatten([f(*args) for args in zip(*columns, strict=True)])


def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: _IsLeaf = None) -> Any:
    """Applies a function to every leaf and its key path.

    Args:
        f: takes a path, one leaf of ``tree``, and what each tree of ``rest`` has at the same place.
        tree: the tree that gives the structure of the result.
        rest: trees that begin with the structure of ``tree``.
        is_leaf: says of a container in ``tree`` that it counts as a leaf.

    Raises:
        TreeError: if a tree of ``rest`` does not begin with the structure of ``tree``.

    >>> map_with_path(lambda path, leaf: f"{keystr(path)} = {leaf}", {"w": [1, 2]})
    {'w': ["['w'][0] = 1", "['w'][1] = 2"]}
    """
    leaves, structure = flatten(tree, is_leaf)
    columns = [structure.accessors(), leaves, *_columns("tree.map_with_path", structure, rest)]
    return structure.unflatten([f(*args) for args in zip(*columns, strict=True)])


def flatten_with_path(tree: Any, is_leaf: _IsLeaf = None) -> tuple[list[tuple[Path, Any]], Structure]:
    """Takes a tree apart into its leaves with their key paths, and its structure.

    Args:
        tree: any nesting of containers.
        is_leaf: says of a container that it counts as a leaf.

    >>> paths_and_leaves, _ = flatten_with_path({"w": [1, 2]})
    >>> [(keystr(path), leaf) for path, leaf in paths_and_leaves]
    [("['w'][0]", 1), ("['w'][1]", 2)]
    """
    leaves, structure = flatten(tree, is_leaf)
    return list(zip(structure.accessors(), leaves, strict=True)), structure


def leaves_with_path(tree: Any, is_leaf: _IsLeaf = None) -> list[tuple[Path, Any]]:
    """Returns the leaves of a tree with their key paths.

    Args:
        tree: any nesting of containers.
        is_leaf: says of a container that it counts as a leaf.

    Source: ``jax.tree.leaves_with_path``.

    >>> [(keystr(path), leaf) for path, leaf in leaves_with_path({"w": [1, 2]})]
    [("['w'][0]", 1), ("['w'][1]", 2)]
    """
    return flatten_with_path(tree, is_leaf)[0]


def keystr(path: Path) -> str:
    """A key path as the Python expression that follows the tree's name.

    Args:
        path: a path from :func:`flatten_with_path` or :func:`map_with_path`.

    >>> [(path, _)], _ = flatten_with_path({"w": [(1,)]})
    >>> keystr(path)
    "['w'][0][0]"
    """
    return path.codify("")


def reduce(f: Callable[[Any, Any], Any], tree: Any, initializer: Any = _MISSING, is_leaf: _IsLeaf = None) -> Any:
    """Combines all leaves with a function of two arguments, from the first leaf to the last.

    Args:
        f: takes the result so far and the next leaf.
        tree: any nesting of containers.
        initializer: where to start; without it, start with the first leaf.
        is_leaf: says of a container that it counts as a leaf.

    Raises:
        TypeError: if the tree has no leaves and there is no initializer.

    >>> reduce(lambda total, leaf: total + leaf, {"w": [1, 2], "b": 3}, 0)
    6
    """
    start = () if initializer is _MISSING else (initializer,)
    return functools.reduce(f, leaves(tree, is_leaf), *start)


def all(tree: Any, is_leaf: _IsLeaf = None) -> bool:
    """Returns whether all leaves are true.

    Source: ``jax.tree.all``.

    >>> all({"w": True, "b": [1, 0]})
    False
    """
    return builtins.all(leaves(tree, is_leaf))


def transpose(outer: Structure, inner: Structure | None, tree: Any) -> Any:
    """Turns a tree of trees inside out.

    Args:
        outer: the structure that ``tree`` begins with.
        inner: the structure of what ``tree`` has at each leaf of ``outer``; ``None`` takes the first one's.
        tree: a tree of structure ``outer`` whose leaves are trees of structure ``inner``.

    Returns:
        A tree of structure ``inner`` whose leaves are trees of structure ``outer``.

    Raises:
        TreeError: if ``tree`` is not made like that.

    >>> transpose(structure([0, 0]), structure({"w": 0, "b": 0}), [{"w": 1, "b": 2}, {"w": 3, "b": 4}])
    {'w': [1, 3], 'b': [2, 4]}
    """
    where = "tree.transpose"
    (subtrees,) = _columns(where, outer, [tree], ("outer", "the tree"))
    if inner is None:
        if not subtrees:
            raise TreeError(where, "the outer structure has no leaves", hint="the inner structure instead of None")
        inner = structure(subtrees[0])
    rows = _columns(where, inner, subtrees, ("inner", "every subtree"))
    return inner.unflatten([outer.unflatten([row[i] for row in rows]) for i in range(inner.num_leaves)])


@overload
def register_dataclass(cls: type[_T], *, meta_fields: Sequence[str] = ()) -> type[_T]: ...


@overload
def register_dataclass(cls: None = None, *, meta_fields: Sequence[str] = ()) -> Callable[[type[_T]], type[_T]]: ...


def register_dataclass(cls: type | None = None, *, meta_fields: Sequence[str] = ()) -> Any:
    """Makes a dataclass a container whose children are its fields; works as a decorator, too.

    Instances are put together again without calling ``__init__`` or ``__post_init__``. Static fields belong
    to the structure: they are compared with ``==`` and must be hashable.

    Args:
        cls: a dataclass.
        meta_fields: names of static fields, besides those marked ``field(metadata={"static": True})``.

    Returns:
        ``cls``, or a decorator if ``cls`` is not given.

    Raises:
        ArgumentError: if ``cls`` is no dataclass, is registered already, or lacks a field of ``meta_fields``.

    >>> @register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class Dense:
    ...     kernel: Any
    ...     activation: str = dataclasses.field(default="relu", metadata={"static": True})
    >>> map(lambda leaf: leaf + 1, Dense(kernel=1))
    Dense(kernel=2, activation='relu')
    """
    if cls is None:
        return functools.partial(register_dataclass, meta_fields=meta_fields)
    where = "tree.register_dataclass"
    if "__dataclass_fields__" not in vars(cls):
        raise ArgumentError(
            where,
            "the class must be a dataclass",
            got=cls.__qualname__,
            hint="@dataclass below @register_dataclass",
        )
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = [name for name in meta_fields if name not in fields]
    if unknown:
        raise ArgumentError(where, f"meta_fields must name fields of {cls.__qualname__}", got=repr(unknown[0]))
    static = [name for name, field in fields.items() if name in meta_fields or field.metadata.get("static")]
    children = tuple(name for name in fields if name not in static)

    def flatten_node(node: Any) -> tuple[list, tuple, tuple]:
        metadata = tuple([(name, getattr(node, name)) for name in static])
        for name, value in metadata:
            try:
                hash(value)
            except TypeError:
                raise ArgumentError(
                    cls.__qualname__,
                    f"the static field {name!r} must be hashable",
                    got=type(value).__name__,
                    hint="a tuple for a list, or a field that is not static for an array",
                ) from None
        return [getattr(node, name) for name in children], metadata, children

    numbered, assign = tuple(enumerate(children)), object.__setattr__

    def unflatten_node(metadata: Any, values: Any) -> Any:
        # Constructors may compute fields, and transforms put values into a tree that no check would let pass.
        node = object.__new__(cls)
        for i, name in numbered:
            assign(node, name, values[i])
        for name, value in metadata:
            assign(node, name, value)
        return node

    try:
        _register(cls, flatten_node, unflatten_node, path_entry_type=Field)
    except ValueError:
        raise ArgumentError(where, "a class can be registered only once", got=cls.__qualname__) from None
    _fields[cls] = (children, tuple(static))
    return cls


def check_same_structure(
    where: str, expected: Any, got: Any, names: tuple[str, str] = ("the first tree", "the second tree")
) -> None:
    """Checks that two trees have the same structure.

    Args:
        where: the function that reports the mistake, for the message.
        expected: a tree or a structure.
        got: a tree or a structure.
        names: what to call ``expected`` and ``got`` in the message.

    Raises:
        TreeError: if they differ; the message names the first key path at which they do.

    >>> check_same_structure("update", {"w": 1, "b": 2}, {"w": 1}, ("the params", "the updates"))
    Traceback (most recent call last):
    ...
    tvmfun.errors.TreeError: [update] the updates must have the tree structure of the params: dict with the
    keys 'b', 'w' at the root, got dict with the keys 'w'. Try adding ['b'].
    """
    _check(where, _as_structure(expected), _as_structure(got), names, prefix=False)


# -- comparing structures ---


def _as_structure(tree: Any) -> Structure:
    return tree if isinstance(tree, Structure) else structure(tree)


def _columns(
    where: str, structure: Structure, trees: Sequence[Any], names: tuple[str, str] = ("tree 1", "tree {}")
) -> list[list[Any]]:
    """What each tree has at the leaves of ``structure``."""
    columns = []
    for number, tree in enumerate(trees, start=2):
        try:
            columns.append(structure.flatten_up_to(tree))
        except (ValueError, TypeError):
            _check(where, structure, _as_structure(tree), (names[0], names[1].format(number)), prefix=True)
            raise
    return columns


def _check(where: str, expected: Structure, got: Structure, names: tuple[str, str], prefix: bool) -> None:
    difference = _first_difference(expected, got, Path(), prefix)
    if difference:
        path, this, that, hint = difference
        what = f"{names[1]} must have the tree structure of {names[0]}: {this} at {_place(path)}"
        raise TreeError(where, what, got=that, hint=hint)


def _first_difference(
    expected: Structure, got: Structure, path: Path, prefix: bool
) -> tuple[Path, str, str, str] | None:
    """The first place where two structures differ, what each has there, and a hint."""
    if expected == got or (prefix and expected.is_leaf()):
        return None
    here = (path, _describe(expected), _describe(got))
    mappings = prefix and expected.type in _MAPPINGS and got.type in _MAPPINGS
    if expected.type is not got.type and not mappings:
        if here[1] == here[2]:  # two classes of one name
            here = (path, _qualified(expected.type), _qualified(got.type))
        return (*here, f"{here[1]} at {_place(path)}")
    ours, theirs = _children(expected), _children(got)
    for key, (entry, _) in ours.items():
        if key not in theirs:
            return (*here, f"adding {keystr(path + entry)}")
    for key, (entry, _) in theirs.items():
        if key not in ours:
            return (*here, f"removing {keystr(path + entry)}")
    for key, (entry, child) in ours.items():
        difference = _first_difference(child, theirs[key][1], path + entry, prefix)
        if difference:
            return difference
    if mappings or expected.one_level() == got.one_level():
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
    shown = f"the keys {', '.join(builtins.map(repr, keys))}" if 0 < len(keys) <= 8 else f"{len(keys)} keys"
    return f"{kind.__name__} with {shown}"


def _describe_static(structure: Structure) -> str:
    data = structure.walk(range(structure.num_leaves), lambda kind, data, children: data)
    return f"{_describe(structure)} with the static data {data}"


def _place(path: Path) -> str:
    return keystr(path) or "the root"


# -- classes that jax knows ---

# Types that are leaves for good, so that the fast path of ``flatten`` need not ask again.
_leaf_types: set[type] = {bool, int, float, complex, str, bytes}
_lock = threading.RLock()


class _JaxEntry(optree.PyTreeEntry):
    """A step of a key path through a class of jax; jax's own key knows how to write it."""

    def codify(self, /, node: str = "") -> str:
        return f"{node}{self.entry}"


def _adopt_jax_nodes(leaves: list[Any], is_leaf: _IsLeaf) -> bool:
    """Registers the classes among the leaves that jax knows as nodes; returns whether to flatten again."""
    jax_tree = sys.modules.get("jax.tree_util")
    again = False
    for leaf in leaves:
        cls = type(leaf)
        if cls in _leaf_types or (is_leaf is not None and is_leaf(leaf)):
            continue
        with _lock:
            if not optree.tree_is_leaf(leaf, namespace=_NAMESPACE):
                again = True
            elif jax_tree is not None and not jax_tree.all_leaves([leaf]):
                _register_jax_node(cls, jax_tree)
                again = True
            elif hasattr(cls, "dtype"):
                # Arrays stay leaves; any other class may still be registered with jax later.
                _leaf_types.add(cls)
    return again


def _register_jax_node(cls: type, jax_tree: Any) -> None:
    def flatten_node(node: Any) -> tuple[list, Any, list]:
        children, treedef = jax_tree.tree_flatten_with_path(node, is_leaf=lambda part: part is not node)
        return [child for _, child in children], treedef, [path[0] for path, _ in children]

    def unflatten_node(treedef: Any, children: Iterable[Any]) -> Any:
        return jax_tree.tree_unflatten(treedef, children)

    _register(cls, flatten_node, unflatten_node, path_entry_type=_JaxEntry)


__getattr__ = _missing(__name__)
publish(globals(), prefix="tree.", but=("check_same_structure",))
