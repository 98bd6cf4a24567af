"""Pytrees by the names of ``jax.tree_util``: the functions of :mod:`tvmfun.tree`, and classes that become containers.

>>> tree_map(lambda x: 2 * x, {"w": [1, 2]})
{'w': [2, 4]}
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol, TypeVar

import optree

from tvmfun import tree
from tvmfun.boundary import publish
from tvmfun.errors import ArgumentError, TreeError
from tvmfun.exact_keys import StaticData
from tvmfun.key_paths import DictKey, FlattenedIndexKey, GetAttrKey, OwnKeyEntry, SequenceKey, keystr
from tvmfun.names import missing as _missing
from tvmfun.tree import KeyPath, register_dataclass
from tvmfun.tree import Structure as PyTreeDef
from tvmfun.tree import all as tree_all
from tvmfun.tree import broadcast as tree_broadcast
from tvmfun.tree import flatten as tree_flatten
from tvmfun.tree import flatten_with_path as tree_flatten_with_path
from tvmfun.tree import leaves as tree_leaves
from tvmfun.tree import leaves_with_path as tree_leaves_with_path
from tvmfun.tree import map as tree_map
from tvmfun.tree import map_with_path as tree_map_with_path
from tvmfun.tree import reduce as tree_reduce
from tvmfun.tree import reduce_associative as tree_reduce_associative
from tvmfun.tree import structure as tree_structure
from tvmfun.tree import transpose as tree_transpose
from tvmfun.tree import unflatten as tree_unflatten

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyEntry",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "all_leaves",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
]

_T = TypeVar("_T", bound=type)


def _register(where: str, cls: type, flatten: Callable, unflatten: Callable, entry: type) -> None:
    if not isinstance(cls, type):
        raise ArgumentError(where, "the first argument must be a class", got=repr(cls))
    for name, function in (("flatten", flatten), ("unflatten", unflatten)):
        if not callable(function):
            raise ArgumentError(where, f"the function to {name} must be callable", got=repr(function))
    try:
        tree.register(cls, flatten, unflatten, path_entry_type=entry)
    except ValueError:
        raise ArgumentError(where, "a class can be registered only once", got=cls.__qualname__) from None


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_with_keys_func: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]] | None = None,
) -> None:
    """Makes a class a container, with functions that flatten and unflatten instances.

    Args:
        nodetype: the class.
        flatten_func: takes an instance; returns its children and static data, which are compared with ``==``.
        unflatten_func: takes static data and children; returns an instance.
        flatten_with_keys_func: like ``flatten_func``, but returns pairs of keys and children; for key paths.

    Raises:
        ArgumentError: if ``nodetype`` is not a class or is registered already.

    Source: ``jax.tree_util.register_pytree_node``.

    >>> class Interval:
    ...     def __init__(self, low, high):
    ...         self.low, self.high = low, high
    >>> register_pytree_node(Interval, lambda x: ((x.low, x.high), None), lambda _, children: Interval(*children))
    >>> tree_leaves({"first": Interval(1, 2)})
    [1, 2]
    """
    where = "tree_util.register_pytree_node"

    def flatten(node: Any) -> tuple:
        children, static = flatten_func(node)
        return list(children), StaticData(static)

    def flatten_with_keys(node: Any) -> tuple:
        pairs, static = flatten_with_keys_func(node)  # type: ignore[misc]  # called if there is one
        pairs = tuple(pairs)
        keys, children = zip(*pairs, strict=True) if pairs else ((), ())
        return children, StaticData(static), keys

    unflatten = lambda static, children: unflatten_func(static.value, tuple(children))
    if flatten_with_keys_func is None:
        _register(where, nodetype, flatten, unflatten, optree.FlattenedEntry)
    else:
        _register(where, nodetype, flatten_with_keys, unflatten, OwnKeyEntry)
    tree.flatten_functions[nodetype] = flatten_func, flatten_func is flatten_with_keys_func


def register_pytree_node_class(cls: _T) -> _T:
    """Makes a class a container by its methods ``tree_flatten()`` and ``tree_unflatten(static, children)``.

    Args:
        cls: a class; ``tree_unflatten`` is a class method.

    Returns:
        ``cls``, so that it works as a decorator.

    Source: ``jax.tree_util.register_pytree_node_class``.

    >>> @register_pytree_node_class
    ... class Scaled:
    ...     def __init__(self, value, name):
    ...         self.value, self.name = value, name
    ...     def tree_flatten(self):
    ...         return (self.value,), self.name
    ...     @classmethod
    ...     def tree_unflatten(cls, static, children):
    ...         return cls(*children, static)
    >>> tree_map(lambda x: 2 * x, Scaled(3, "x")).value
    6
    """
    register_pytree_node(cls, lambda node: node.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]] | None = None,
) -> None:
    """Makes a class a container with keys for its children; see :func:`register_pytree_node`.

    Args:
        nodetype: the class.
        flatten_with_keys: takes an instance; returns pairs of keys and children, and static data.
        unflatten_func: takes static data and children; returns an instance.
        flatten_func: like ``flatten_with_keys`` without the keys; optional.

    Source: ``jax.tree_util.register_pytree_with_keys``.

    >>> class Pair(list):
    ...     pass
    >>> def flatten(pair):
    ...     return ((GetAttrKey("first"), pair[0]), (GetAttrKey("second"), pair[1])), None
    >>> register_pytree_with_keys(Pair, flatten, lambda _, children: Pair(children))
    >>> [keystr(path) for path, _ in tree_leaves_with_path({"a": Pair([1, 2])})]
    ["['a'].first", "['a'].second"]
    """
    register_pytree_node(nodetype, flatten_func or flatten_with_keys, unflatten_func, flatten_with_keys)


def register_pytree_with_keys_class(cls: _T) -> _T:
    """Makes a class a container by its methods ``tree_flatten_with_keys()`` and ``tree_unflatten(static, children)``.

    Args:
        cls: a class; ``tree_unflatten`` is a class method.

    Returns:
        ``cls``, so that it works as a decorator.

    Source: ``jax.tree_util.register_pytree_with_keys_class``.
    """
    register_pytree_with_keys(
        cls,
        lambda node: node.tree_flatten_with_keys(),
        cls.tree_unflatten,  # type: ignore[attr-defined]
    )
    return cls


def register_static(cls: _T) -> _T:
    """Makes a class a container without leaves: its instances are part of the structure.

    Args:
        cls: a class whose instances can be hashed and compared.

    Returns:
        ``cls``, so that it works as a decorator.

    Source: ``jax.tree_util.register_static``.

    >>> @register_static
    ... class Name(str):
    ...     pass
    >>> tree_leaves([Name("relu"), 1])
    [1]
    """
    register_pytree_node(cls, lambda node: ((), node), lambda static, _: static)
    return cls


class Partial(functools.partial):
    """A ``functools.partial`` that is a tree: the arguments are its children, and the function is static.

    Source: ``jax.tree_util.Partial``.

    >>> import tvmfun
    >>> add = Partial(lambda x, y: x + y, 1.0)
    >>> tree_leaves(add)
    [1.0]
    >>> float(tvmfun.jit(lambda f, y: f(y))(add, 2.0))
    3.0
    """


register_pytree_with_keys(
    Partial,
    lambda node: (((GetAttrKey("args"), node.args), (GetAttrKey("keywords"), node.keywords)), node.func),
    lambda function, children: Partial(function, *children[0], **children[1]),
)


def all_leaves(iterable: Iterable[Any], is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Returns whether all values are leaves.

    Args:
        iterable: some values.
        is_leaf: returns whether a container counts as a leaf.

    Source: ``jax.tree_util.all_leaves``.

    >>> all_leaves([1, 2.0]), all_leaves([1, [2.0]])
    (True, False)
    """
    return all(tree.structure(value, is_leaf).is_leaf() for value in iterable)


def is_tree_node(typ: Hashable) -> bool:
    """Returns whether instances of a class are containers.

    Args:
        typ: a class.

    Source: ``jax.tree_util.is_tree_node``.

    >>> is_tree_node(dict), is_tree_node(str)
    (True, False)
    """
    if isinstance(typ, type) and issubclass(typ, tuple) and hasattr(typ, "_fields"):
        return True
    return typ in optree.register_pytree_node.get(namespace="tvmfun")  # type: ignore[attr-defined]


def flatten_one_level(tree: Any) -> tuple[list[Any], Hashable]:
    """Returns the children of a container and its static data.

    Args:
        tree: a container.

    Raises:
        TreeError: if it is a leaf.

    Source: ``jax.tree_util.flatten_one_level``.

    >>> flatten_one_level({"b": [1, 2], "a": 3})
    ([3, [1, 2]], ['a', 'b'])
    """
    children, static, *_ = _one_level("flatten_one_level", tree)
    return list(children), static


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], Hashable]:
    """Returns pairs of keys and children of a container, and its static data.

    Args:
        tree: a container.

    Raises:
        TreeError: if it is a leaf.

    Source: ``jax.tree_util.flatten_one_level_with_keys``.

    >>> flatten_one_level_with_keys(["x"])
    ([(SequenceKey(idx=0), 'x')], None)
    """
    _, static, *_ = _one_level("flatten_one_level_with_keys", tree)
    paths = tree_leaves_with_path(tree, is_leaf=lambda node: node is not tree)
    return [(path[0], child) for path, child in paths], static


def _one_level(name: str, tree: Any) -> Any:
    if all_leaves([tree]):
        raise TreeError(name, "a leaf has no children", got=type(tree).__name__, hint="a container")
    return optree.tree_flatten_one_level(tree, none_is_leaf=False, namespace="tvmfun")


class KeyEntry(Protocol):
    """The type of the elements of key paths: anything that can be compared and hashed."""

    def __hash__(self) -> int:
        """The hash of the entry."""
        ...

    def __eq__(self, other: object) -> bool:
        """Whether two entries are the same."""
        ...


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """Returns the structures of the children of a structure.

    >>> treedef_children(tree_structure((1, [2])))
    [PyTreeSpec(*), PyTreeSpec([*])]
    """
    return treedef.children()


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Returns whether a structure is that of a single leaf.

    >>> treedef_is_leaf(tree_structure(1)), treedef_is_leaf(tree_structure([1]))
    (True, False)
    """
    return treedef.num_nodes == 1


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """Returns the structure of a tuple of trees of these structures.

    >>> treedef_tuple([tree_structure(1), tree_structure([1])]) == tree_structure((1, [2]))
    True
    """
    return optree.treespec_tuple(treedefs, namespace="tvmfun")


__getattr__ = _missing(__name__)
publish(globals(), prefix="tree_util.")
