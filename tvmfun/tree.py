"""Pytrees: nested containers whose leaves are arrays or other values.

Dicts (keys in sorted order), lists, tuples, named tuples, deques, ``None`` (which has no leaves), dataclasses
registered with :func:`register_dataclass`, and every class that jax knows as a pytree node are containers.
Everything else is a leaf.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, overload

import optree
from optree import GetAttrEntry as Field
from optree import PyTreeAccessor as Path
from optree import PyTreeSpec as Structure

from tvmfun.boundary import publish
from tvmfun.errors import ArgumentError, TreeError
from tvmfun.exact_keys import StaticSnapshot, UnhashableError
from tvmfun.key_paths import OwnKeyEntry, key_path, keystr
from tvmfun.names import missing as _missing
from tvmfun.tree_difference import first_difference, path_text

__all__ = [
    "Field",
    "KeyPath",
    "Path",
    "Structure",
    "all",
    "broadcast",
    "check_same_structure",
    "flatten",
    "flatten_with_path",
    "keystr",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "register_dataclass",
    "static",
    "structure",
    "transpose",
    "unflatten",
]

_NAMESPACE = "tvmfun"
_MISSING = object()
_T = TypeVar("_T")
_IsLeaf = Callable[[Any], bool] | None
#: The steps from the root of a tree to a leaf: ``DictKey``, ``SequenceKey``, ``GetAttrKey``, ...
KeyPath: TypeAlias = tuple[Any, ...]
# For each registered dataclass the names of its children and of its static fields.
dataclass_fields: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}
# For each class that is registered with functions the one that flattens, and whether that returns keys with children.
flatten_functions: dict[type, tuple[Callable[[Any], tuple[Iterable[Any], Any]], bool]] = {}
register = functools.partial(optree.register_pytree_node, namespace=_NAMESPACE)


def flatten(tree: Any, is_leaf: _IsLeaf = None) -> tuple[list[Any], Structure]:
    """Flattens a tree into its leaves and its structure.

    Args:
        tree: any nesting of containers.
        is_leaf: returns whether a container counts as a leaf.

    Returns:
        The leaves in order, and the structure, which is hashable and can be compared with ``==``.

    Raises:
        ArgumentError: if a static field of a registered dataclass cannot be hashed.

    >>> flatten({"w": [1, 2], "b": None})
    ([1, 2], PyTreeSpec({'b': None, 'w': [*, *]}))
    """
    # optree takes only bools.
    is_leaf_bool = None if is_leaf is None else lambda node: bool(is_leaf(node))
    leaves, structure = optree.tree_flatten(tree, is_leaf_bool, namespace=_NAMESPACE)
    if not leaf_types.issuperset(builtins.map(type, leaves)) and _adopt_jax_nodes(leaves, is_leaf):
        return flatten(tree, is_leaf)
    return leaves, structure


def unflatten(treedef: Structure, leaves: Iterable[Any]) -> Any:
    """Builds a tree from a structure and leaves; the inverse of :func:`flatten`.

    Args:
        treedef: the structure, a result of :func:`flatten` or :func:`structure`.
        leaves: one value per leaf, in order; the values may themselves be trees.

    Raises:
        TreeError: if there are too few or too many leaves.

    >>> unflatten(structure({"w": 0, "b": 0}), ["first", "second"])
    {'w': 'second', 'b': 'first'}
    """
    leaves = list(leaves)
    if len(leaves) != treedef.num_leaves:
        raise TreeError("tree.unflatten", f"the structure has {treedef.num_leaves} leaves", got=str(len(leaves)))
    return treedef.unflatten(leaves)


def leaves(tree: Any, is_leaf: _IsLeaf = None) -> list[Any]:
    """The leaves of a tree, in order.

    Args:
        tree: any nesting of containers.
        is_leaf: returns whether a container counts as a leaf.

    >>> leaves({"w": [1, 2], "b": None, "a": (3,)})
    [3, 1, 2]
    """
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: _IsLeaf = None) -> Structure:
    """The structure of a tree: the tree without its leaves.

    Args:
        tree: any nesting of containers.
        is_leaf: returns whether a container counts as a leaf.

    >>> structure([1, (2, 3)]) == structure(["a", ("b", "c")])
    True
    """
    return flatten(tree, is_leaf)[1]


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: _IsLeaf = None) -> Any:
    """Applies a function to every leaf and returns a tree of the results.

    Args:
        f: takes a leaf of ``tree`` and the subtrees of ``rest`` at the same path.
        tree: determines the structure of the result.
        rest: trees of which ``tree`` is a prefix: they may have subtrees where ``tree`` has leaves.
        is_leaf: returns whether a container in ``tree`` counts as a leaf.

    Raises:
        TreeError: if ``tree`` is not a prefix of a tree of ``rest``.

    >>> map(lambda a, b: a + b, {"w": 1, "b": 2}, {"w": 10, "b": 20})
    {'w': 11, 'b': 22}
    """
    leaves, structure = flatten(tree, is_leaf)
    columns = [leaves, *_columns("tree.map", structure, rest)]
    return structure.unflatten([f(*args) for args in zip(*columns, strict=True)])


def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: _IsLeaf = None) -> Any:
    """Applies a function to every leaf and its key path.

    Args:
        f: takes a path, a leaf of ``tree``, and the subtrees of ``rest`` at the same path.
        tree: determines the structure of the result.
        rest: trees of which ``tree`` is a prefix.
        is_leaf: returns whether a container in ``tree`` counts as a leaf.

    Raises:
        TreeError: if ``tree`` is not a prefix of a tree of ``rest``.

    >>> map_with_path(lambda path, leaf: f"{keystr(path)} = {leaf}", {"w": [1, 2]})
    {'w': ["['w'][0] = 1", "['w'][1] = 2"]}
    """
    leaves, structure = flatten(tree, is_leaf)
    columns = [_paths(structure), leaves, *_columns("tree.map_with_path", structure, rest)]
    return structure.unflatten([f(*args) for args in zip(*columns, strict=True)])


def flatten_with_path(tree: Any, is_leaf: _IsLeaf = None) -> tuple[list[tuple[KeyPath, Any]], Structure]:
    """Flattens a tree into its leaves with their key paths, and its structure.

    Args:
        tree: any nesting of containers.
        is_leaf: returns whether a container counts as a leaf.

    >>> paths_and_leaves, _ = flatten_with_path({"w": [1, 2]})
    >>> [(keystr(path), leaf) for path, leaf in paths_and_leaves]
    [("['w'][0]", 1), ("['w'][1]", 2)]
    """
    leaves, structure = flatten(tree, is_leaf)
    return list(zip(_paths(structure), leaves, strict=True)), structure


def _paths(structure: Structure) -> list[KeyPath]:
    return [key_path(accessor) for accessor in structure.accessors()]


def leaves_with_path(tree: Any, is_leaf: _IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """Returns the leaves of a tree with their key paths.

    Args:
        tree: any nesting of containers.
        is_leaf: returns whether a container counts as a leaf.

    Source: ``jax.tree.leaves_with_path``.

    >>> [(keystr(path), leaf) for path, leaf in leaves_with_path({"w": [1, 2]})]
    [("['w'][0]", 1), ("['w'][1]", 2)]
    """
    return flatten_with_path(tree, is_leaf)[0]


def reduce(function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _MISSING, is_leaf: _IsLeaf = None) -> Any:
    """Combines all leaves with a function of two arguments, from the first leaf to the last.

    Args:
        function: takes the accumulated value and the next leaf.
        tree: any nesting of containers.
        initializer: the first accumulated value; by default the first leaf.
        is_leaf: returns whether a container counts as a leaf.

    Raises:
        TypeError: if the tree has no leaves and there is no initializer.

    >>> reduce(lambda total, leaf: total + leaf, {"w": [1, 2], "b": 3}, 0)
    6
    """
    start = () if initializer is _MISSING else (initializer,)
    return functools.reduce(function, leaves(tree, is_leaf), *start)


def all(tree: Any, is_leaf: _IsLeaf = None) -> bool:
    """Returns whether all leaves are true.

    Source: ``jax.tree.all``.

    >>> all({"w": True, "b": [1, 0]})
    False
    """
    return builtins.all(leaves(tree, is_leaf))


def reduce_associative(
    operation: Callable[[Any, Any], Any], tree: Any, *, identity: Any = _MISSING, is_leaf: _IsLeaf = None
) -> Any:
    """Combines all leaves with an associative function of two arguments, pairwise: fewer steps depend on each other.

    Args:
        operation: an associative function of two leaves, or of two results of it.
        tree: any nesting of containers.
        identity: the result for a tree without leaves.
        is_leaf: returns whether a container counts as a leaf.

    Raises:
        TreeError: if the tree has no leaves and there is no identity.

    Source: ``jax.tree.reduce_associative``.

    >>> reduce_associative(lambda a, b: f"({a}{b})", ["a", "b", "c", "d"])
    '((ab)(cd))'
    """
    values = leaves(tree, is_leaf)
    if not values:
        if identity is _MISSING:
            raise TreeError("tree.reduce_associative", "the tree has no leaves", hint="identity=")
        return identity
    while len(values) > 1:
        pairs = [operation(*pair) for pair in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, *values[2 * len(pairs) :]]
    return values[0]


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: _IsLeaf = None) -> Any:
    """Repeats the leaves of a prefix tree, so that it gets the structure of the full tree.

    Args:
        prefix_tree: a tree.
        full_tree: a tree that may have subtrees where ``prefix_tree`` has leaves.
        is_leaf: returns whether a container counts as a leaf.

    Raises:
        TreeError: if ``prefix_tree`` is not a prefix of ``full_tree``.

    Source: ``jax.tree.broadcast``.

    >>> broadcast({"w": 1, "b": 2}, {"w": [0, 0], "b": 0})
    {'w': [1, 1], 'b': 2}
    """
    values, prefix = flatten(prefix_tree, is_leaf)
    (subtrees,) = _columns("tree.broadcast", prefix, [full_tree], ("the prefix tree", "the full tree"))
    filled = [
        map(lambda _, value=value: value, part, is_leaf=is_leaf) for value, part in zip(values, subtrees, strict=True)
    ]
    return prefix.unflatten(filled)


def transpose(outer_treedef: Structure, inner_treedef: Structure | None, pytree_to_transpose: Any) -> Any:
    """Turns a tree of trees inside out.

    Args:
        outer_treedef: the outer structure of the tree.
        inner_treedef: the structure of the subtrees at the leaves of the outer one; ``None`` takes that of the first
            subtree.
        pytree_to_transpose: a tree of the outer structure whose leaves are trees of the inner structure.

    Returns:
        A tree of the inner structure whose leaves are trees of the outer structure.

    Raises:
        TreeError: if the tree has another structure.

    >>> transpose(structure([0, 0]), structure({"w": 0, "b": 0}), [{"w": 1, "b": 2}, {"w": 3, "b": 4}])
    {'w': [1, 3], 'b': [2, 4]}
    """
    where = "tree.transpose"
    outer, inner = outer_treedef, inner_treedef
    (subtrees,) = _columns(where, outer, [pytree_to_transpose], ("outer", "the tree"))
    if inner is None:
        if not subtrees:
            raise TreeError(where, "the outer structure has no leaves", hint="the inner structure instead of None")
        inner = structure(subtrees[0])
    rows = _columns(where, inner, subtrees, ("inner", "every subtree"))
    return inner.unflatten([outer.unflatten([row[i] for row in rows]) for i in range(inner.num_leaves)])


def static(**kwargs: Any) -> Any:
    """Returns a dataclass field that is static: part of the structure, not a child.

    Args:
        **kwargs: arguments of ``dataclasses.field``.

    Source: ``jax.tree.static``.

    >>> @register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class Dense:
    ...     kernel: Any
    ...     activation: str = static(default="relu")
    >>> leaves(Dense(kernel=1))
    [1]
    """
    metadata = {**(kwargs.pop("metadata", None) or {}), "static": True}
    return dataclasses.field(**kwargs, metadata=metadata)


@overload
def register_dataclass(
    cls: type[_T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type[_T]: ...


@overload
def register_dataclass(
    cls: None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Callable[[type[_T]], type[_T]]: ...


def register_dataclass(
    cls: type | None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Any:
    """Makes a dataclass a container whose children are its fields; works as a decorator, too.

    Unflattening calls neither ``__init__`` nor ``__post_init__``. Static fields belong to the structure: they are
    compared with ``==``, and must not hold arrays of several elements. A compiled function tells apart values that are
    equal but compute something else, such as 2 and 2.0. Lists, dictionaries, sets and dataclasses, which may change,
    are copied.

    Args:
        cls: a dataclass.
        data_fields: names of the children; by default all fields that are not static.
        meta_fields: names of static fields, besides those marked ``field(metadata={"static": True})``.
        drop_fields: names of fields that are neither; unflattened trees have their defaults.

    Returns:
        ``cls``, or a decorator without ``cls``.

    Raises:
        ArgumentError: if ``cls`` is not a dataclass or is registered already, or if the names are not exactly its
            fields.

    Source: follows ``jax.tree_util.register_dataclass``.

    >>> @register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class Dense:
    ...     kernel: Any
    ...     activation: str = dataclasses.field(default="relu", metadata={"static": True})
    >>> map(lambda leaf: leaf + 1, Dense(kernel=1))
    Dense(kernel=2, activation='relu')
    """
    if cls is None:
        return functools.partial(
            register_dataclass, data_fields=data_fields, meta_fields=meta_fields, drop_fields=drop_fields
        )
    where = "tree.register_dataclass"
    if "__dataclass_fields__" not in vars(cls):
        raise ArgumentError(
            where,
            "the class must be a dataclass",
            got=cls.__qualname__,
            hint="@dataclass below @register_dataclass",
        )
    fields = {field.name: field for field in dataclasses.fields(cls)}
    named = {"data_fields": data_fields or (), "meta_fields": meta_fields or (), "drop_fields": drop_fields}
    for argument, names in named.items():
        unknown = [name for name in names if name not in fields]
        if unknown:
            raise ArgumentError(where, f"{argument} must name fields of {cls.__qualname__}", got=repr(unknown[0]))
    marked = [name for name, field in fields.items() if field.metadata.get("static")]
    static = [name for name in fields if name in named["meta_fields"] or name in marked]
    children = tuple(name for name in fields if name not in static and name not in drop_fields)
    if data_fields is not None and set(children) != set(data_fields):
        missing = sorted(set(children) ^ set(data_fields))
        what = f"each field of {cls.__qualname__} must be in one of data_fields, meta_fields and drop_fields"
        raise ArgumentError(where, what, got=f"{missing[0]!r} in none or two")
    defaults = [(name, fields[name]) for name in drop_fields]

    def flatten_node(node: Any) -> tuple[list, tuple, tuple]:
        metadata = tuple([(name, _static(cls, name, getattr(node, name))) for name in static])
        return [getattr(node, name) for name in children], metadata, children

    numbered, assign = tuple(enumerate(children)), object.__setattr__

    def unflatten_node(metadata: Any, values: Any) -> Any:
        # No constructor: it may compute or check fields, and transforms build trees of tracers, specs and None.
        node = object.__new__(cls)
        for i, name in numbered:
            assign(node, name, values[i])
        for name, value in metadata:
            assign(node, name, value.restored() if isinstance(value, StaticSnapshot) else value)
        for name, field in defaults:
            if field.default is not dataclasses.MISSING:
                assign(node, name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                assign(node, name, field.default_factory())
        return node

    try:
        register(cls, flatten_node, unflatten_node, path_entry_type=Field)
    except ValueError:
        raise ArgumentError(where, "a class can be registered only once", got=cls.__qualname__) from None
    dataclass_fields[cls] = (children, tuple(static))
    return cls


def _static(cls: type, name: str, value: Any) -> Hashable:
    """The value of a static field, or a snapshot of one that may change."""
    try:
        hash(value)
    except TypeError:
        try:
            return StaticSnapshot(value)
        except UnhashableError as error:
            is_array = hasattr(error.part, "__array__")
            raise ArgumentError(
                cls.__qualname__,
                f"the static field {name!r} must {'not hold arrays' if is_array else 'be hashable'}",
                got=type(error.part).__name__,
                hint="a field that is not static" if is_array else "a tuple, a list, a dictionary or a dataclass",
            ) from None
    return value


def check_same_structure(
    where: str,
    expected: Any,
    got: Any,
    names: tuple[str, str] = ("the first tree", "the second tree"),
    exact: bool = False,
) -> None:
    """Checks that two trees have the same structure.

    Args:
        where: the function that raises the error, for the message.
        expected: a tree or a structure.
        got: a tree or a structure.
        names: what to call ``expected`` and ``got`` in the message.
        exact: whether 2 and 2.0 differ where they are static data or keys.

    Raises:
        TreeError: if they differ; the message names the first key path at which they do.
        ArgumentError: if an option is of another type.

    >>> check_same_structure("update", {"w": 1, "b": 2}, {"w": 1}, ("the params", "the updates"))
    Traceback (most recent call last):
    ...
    tvmfun.errors.TreeError: [update] the updates must have the tree structure of the params: dict with the
    keys 'b', 'w' at the root, got dict with the keys 'w'. Try adding ['b'].
    """
    if not isinstance(exact, bool):
        raise ArgumentError("check_same_structure", "exact must be True or False", got=type(exact).__name__)
    if not (isinstance(names, tuple) and len(names) == 2 and all(isinstance(name, str) for name in names)):
        raise ArgumentError("check_same_structure", "names must be two strings", got=type(names).__name__)
    _check(where, _as_structure(expected), _as_structure(got), names, prefix=False, exact=exact)


# -- comparing structures ---


def _as_structure(tree: Any) -> Structure:
    return tree if isinstance(tree, Structure) else structure(tree)


def _columns(
    where: str, structure: Structure, trees: Sequence[Any], names: tuple[str, str] = ("tree 1", "tree {}")
) -> list[list[Any]]:
    """The subtrees of each tree at the leaves of ``structure``."""
    columns = []
    for number, tree in enumerate(trees, start=2):
        try:
            columns.append(structure.flatten_up_to(tree))
        except (ValueError, TypeError):
            _check(where, structure, _as_structure(tree), (names[0], names[1].format(number)), prefix=True)
            raise
    return columns


def _check(
    where: str, expected: Structure, got: Structure, names: tuple[str, str], prefix: bool, exact: bool = False
) -> None:
    difference = first_difference(expected, got, Path(), prefix, exact)
    if difference:
        path, this, that, hint = difference
        what = f"{names[1]} must have the tree structure of {names[0]}: {this} at {path_text(path)}"
        raise TreeError(where, what, got=that, hint=hint)


# -- classes that jax knows ---

# Types that will never be nodes, so that ``flatten`` skips the search for new classes.
leaf_types: set[type] = {bool, int, float, complex, str, bytes}
_lock = threading.RLock()


def _adopt_jax_nodes(leaves: list[Any], is_leaf: _IsLeaf) -> bool:
    """Registers the classes among the leaves that jax knows as nodes; returns whether to flatten again."""
    jax_tree = sys.modules.get("jax.tree_util")
    again = False
    for leaf in leaves:
        cls = type(leaf)
        if cls in leaf_types or (is_leaf is not None and is_leaf(leaf)):
            continue
        with _lock:
            if not optree.tree_is_leaf(leaf, namespace=_NAMESPACE):
                again = True
            elif jax_tree is not None and not jax_tree.all_leaves([leaf]):
                _register_jax_node(cls, jax_tree)
                again = True
            elif hasattr(cls, "dtype"):
                # Arrays stay leaves; any other class may still be registered with jax later.
                leaf_types.add(cls)
    return again


def _register_jax_node(cls: type, jax_tree: Any) -> None:
    def flatten_node(node: Any) -> tuple[list, tuple, list]:
        children, treedef = jax_tree.tree_flatten_with_path(node, is_leaf=lambda part: part is not node)
        _, static = treedef.node_data()
        return [child for _, child in children], (treedef, static), [path[0] for path, _ in children]

    def unflatten_node(data: Any, children: Iterable[Any]) -> Any:
        treedef, _ = data
        return jax_tree.tree_unflatten(treedef, children)

    register(cls, flatten_node, unflatten_node, path_entry_type=OwnKeyEntry)


__getattr__ = _missing(__name__)
publish(globals(), prefix="tree.", but=("check_same_structure",))
