"""The values in the state of an optimizer, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tvmfun import tree as pytree
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import GradientTransformation, OptState, Params, ParamsPlaceholder
from tvmfun.typing import PyTree

__all__ = [
    "NamedTupleKey",
    "get",
    "get_all_with_path",
    "map_params",
    "set",
]


class NamedTupleKey(NamedTuple):
    """A path entry for a field of a named tuple.

    Attributes:
        tuple_name: the name of its type.
        name: the name of the field.
    """

    tuple_name: str
    name: str


def get_all_with_path(
    tree: PyTree, key: str, filtering: Callable[[tuple, Any], bool] | None = None
) -> list[tuple[tuple, Any]]:
    """All values with a name in a tree: fields of named tuples and dataclasses, items of dicts, and named tuples.

    Args:
        tree: a tree, such as the state of an optimizer.
        key: the name of a field or of an item, or of the type of a named tuple.
        filtering: a predicate of a path and a value. A path is a tuple of the keys of dicts, the indices of tuples and
            lists, the field names of dataclasses, and a ``NamedTupleKey`` for the fields of named tuples.

    Returns:
        A list of pairs of a path and a value.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import adam
    >>> state = adam(0.1).init(tnp.asarray(1.0))
    >>> [(path[-1].tuple_name, value.dtype) for path, value in get_all_with_path(state, "mu")]
    [('ScaleByAdamState', dtype('float32'))]
    """
    return [(path, value) for path, value in _named((), tree, key) if filtering is None or filtering(path, value)]


def get(tree: PyTree, key: str, default: Any = None, filtering: Callable[[tuple, Any], bool] | None = None) -> Any:
    """The value of the field with a name in a tree, such as ``"learning_rate"`` in the state of an optimizer.

    Args:
        tree: a tree.
        key: the name, as for :func:`get_all_with_path`.
        default: what to return if there is none.
        filtering: which values to take, as for :func:`get_all_with_path`.

    Returns:
        The value.

    Raises:
        ArgumentError: if there are several.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import adam
    >>> int(get(adam(0.1).init(tnp.asarray(1.0)), "count"))
    0
    """
    matches = get_all_with_path(tree, key, filtering)
    if len(matches) > 1:
        raise ArgumentError(
            "get", f"only one value may have the name {key!r}", got=str(len(matches)), hint="filtering="
        )
    return matches[0][1] if matches else default


def set(tree: PyTree, filtering: Callable[[tuple, Any], bool] | None = None, /, **kwargs: Any) -> PyTree:
    """Replaces the values of some names in a tree.

    Args:
        tree: a tree, such as the state of an optimizer.
        filtering: selects the values to replace, as for :func:`get_all_with_path`.
        **kwargs: the new value of each name.

    Returns:
        A tree with them.

    Raises:
        ArgumentError: if there is no value of a name.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import adam
    >>> state = set(adam(0.1).init(tnp.asarray(1.0)), count=tnp.asarray(5))
    >>> int(get(state, "count"))
    5
    """
    for key in kwargs:
        if not get_all_with_path(tree, key, filtering):
            raise ArgumentError("set", "the names must be those of values", got=repr(key))

    def chosen(name: str, path: tuple, value: Any) -> bool:
        return isinstance(name, str) and name in kwargs and (filtering is None or filtering(path, value))

    def replace(path: tuple, node: Any) -> PyTree:
        if _is_named_tuple(node) and chosen(type(node).__name__, path, node):
            return kwargs[type(node).__name__]
        children = _children(path, node)
        if not children:
            return node
        new = [kwargs[n] if chosen(n, path, child) else replace(path, child) for n, path, child in children]
        _, structure = pytree.flatten(node, is_leaf=lambda x: x is not node)
        return type(node)(*new) if _is_named_tuple(node) else pytree.unflatten(structure, new)

    return replace((), tree)


def map_params(
    initable: Callable[[Params], OptState] | GradientTransformation,
    f: Callable[..., Any],
    state: OptState,
    /,
    *rest: Any,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> OptState:
    """Maps a function over the parts of a state that are like the parameters, such as the moments of Adam.

    Args:
        initable: the optimizer of the state, or its ``init``.
        f: a function of one leaf, and the matching leaves of ``rest``.
        state: a state of that optimizer.
        *rest: trees with the structure of the parameters.
        transform_non_params: a function for the other leaves; ``None`` leaves them as they are.
        is_leaf: a predicate of further leaves of the parameters, such as a ``MaskedNode``.

    Returns:
        A state of the same structure.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import adam
    >>> optimizer = adam(0.1)
    >>> state = map_params(optimizer, lambda m: m + 1, optimizer.init(tnp.asarray(1.0)))
    >>> float(get(state, "nu")), int(get(state, "count"))
    (1.0, 0)
    """
    init = initable.init if isinstance(initable, GradientTransformation) else initable

    def is_placeholder(node: Any) -> bool:
        return isinstance(node, ParamsPlaceholder)

    def apply(marker: Any, value: Any) -> PyTree:
        if is_placeholder(marker):
            return pytree.map(f, value, *rest, is_leaf=is_leaf)
        return value if transform_non_params is None else transform_non_params(value)

    return pytree.map(apply, init(ParamsPlaceholder()), state, is_leaf=is_placeholder)


def _is_named_tuple(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "_fields")


def _children(path: tuple, node: Any) -> list[tuple[Any, tuple, Any]]:
    """The name, path and value of each child; items of tuples and lists have no name."""
    if _is_named_tuple(node):
        name = type(node).__name__
        return [(f, (*path, NamedTupleKey(name, f)), child) for f, child in zip(node._fields, node, strict=True)]
    children, structure = pytree.flatten(node, is_leaf=lambda x: x is not node)
    if structure.is_leaf():
        return []
    named, keys = not isinstance(node, tuple | list), [accessor[0].entry for accessor in structure.accessors()]
    return [(k if named else None, (*path, k), child) for k, child in zip(keys, children, strict=True)]


def _named(path: tuple, node: Any, key: Any) -> Iterator[tuple[tuple, Any]]:
    if _is_named_tuple(node) and type(node).__name__ == key:
        yield path, node
    for name, child_path, child in _children(path, node):
        if name is not None and name == key:
            yield child_path, child
        yield from _named(child_path, child, key)
