"""Arithmetic on trees of arrays, and the values in the state of an optimizer by name."""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, random, tree
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.optim.base import GradientTransformation, OptState, Params, ParamsPlaceholder, Updates, map_updates

__all__ = [
    "NamedTupleKey",
    "add",
    "add_scale",
    "allclose",
    "batch_shape",
    "bias_correction",
    "cast",
    "cast_like",
    "clip",
    "div",
    "dtype",
    "full_like",
    "get",
    "get_all_with_path",
    "map_params",
    "max",
    "min",
    "mul",
    "norm",
    "ones_like",
    "random_like",
    "scale",
    "set",
    "size",
    "split_key_like",
    "sub",
    "sum",
    "update_infinity_moment",
    "update_moment",
    "update_moment_per_elem_norm",
    "vdot",
    "where",
    "zeros_like",
]


# -- arithmetic ----------------------------------------------------------------------------------------------


def add(tree_x: Any, tree_y: Any, *other_trees: Any) -> Any:
    """Adds trees leaf by leaf: ``x + y + ...``.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure.
        *other_trees: more of them.

    Returns:
        A tree of the same structure.

    >>> add({"w": 1.0}, {"w": 2.0}, {"w": 4.0})
    {'w': 7.0}
    """
    return tree.map(lambda *leaves: functools.reduce(operator.add, leaves), tree_x, tree_y, *other_trees)


def sub(tree_x: Any, tree_y: Any) -> Any:
    """Subtracts trees leaf by leaf: ``x - y``.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> sub({"w": 1.0}, {"w": 2.0})
    {'w': -1.0}
    """
    return tree.map(operator.sub, tree_x, tree_y)


def mul(tree_x: Any, tree_y: Any) -> Any:
    """Multiplies trees leaf by leaf: ``x * y``.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> mul({"w": 3.0}, {"w": 2.0})
    {'w': 6.0}
    """
    return tree.map(operator.mul, tree_x, tree_y)


def div(tree_x: Any, tree_y: Any) -> Any:
    """Divides trees leaf by leaf: ``x / y``.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> div({"w": 3.0}, {"w": 2.0})
    {'w': 1.5}
    """
    return tree.map(operator.truediv, tree_x, tree_y)


def scale(scalar: Any, tree_x: Any) -> Any:
    """Multiplies all leaves by a number: ``scalar * x``.

    Args:
        scalar: a number or a 0-d array.
        tree_x: a tree of arrays.

    Returns:
        A tree of the same structure.

    >>> scale(0.5, {"w": 3.0})
    {'w': 1.5}
    """
    return tree.map(lambda x: scalar * x, tree_x)


def add_scale(tree_x: Any, scalar: Any, tree_y: Any) -> Any:
    """Adds a multiple of a tree: ``x + scalar * y``.

    Args:
        tree_x: a tree of arrays; where it has ``None`` the result has, too.
        scalar: a number or a 0-d array.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> add_scale({"w": 1.0}, 0.5, {"w": 3.0})
    {'w': 2.5}
    """
    return map_updates(lambda x, y: x + scalar * y, tree_x, tree_y)


def vdot(tree_x: Any, tree_y: Any) -> Any:
    """The inner product of two trees: the sum of ``x * y`` over all elements.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure and shapes.

    Returns:
        A 0-d array.

    >>> float(vdot({"w": tnp.asarray([1.0, 2.0])}, {"w": tnp.asarray([3.0, 4.0])}))
    11.0
    """
    return _total(tree.leaves(tree.map(lambda x, y: tnp.vdot(tnp.asarray(x), tnp.asarray(y)), tree_x, tree_y)))


def sum(tree_x: Any) -> Any:
    """The sum of all elements of all leaves.

    Args:
        tree_x: a tree of arrays.

    Returns:
        A 0-d array, or 0 for a tree without leaves.

    >>> float(sum({"w": tnp.asarray([1.0, 2.0]), "b": 4.0}))
    7.0
    """
    return _total([tnp.sum(tnp.asarray(leaf)) for leaf in tree.leaves(tree_x)])


def max(tree_x: Any) -> Any:
    """The largest element of all leaves.

    Args:
        tree_x: a tree of arrays.

    Returns:
        A 0-d array, or ``-inf`` if there is no element.

    >>> float(max({"w": tnp.asarray([1.0, 2.0]), "b": 4.0}))
    4.0
    """
    maxima = [tnp.max(tnp.asarray(leaf)) for leaf in tree.leaves(tree_x) if tnp.size(leaf)]
    return functools.reduce(tnp.maximum, maxima) if maxima else -float("inf")


def min(tree_x: Any) -> Any:
    """The least element of all leaves.

    Args:
        tree_x: a tree of arrays.

    Returns:
        A 0-d array, or ``inf`` if there is no element.

    >>> float(min({"w": tnp.asarray([1.0, 2.0]), "b": 4.0}))
    1.0
    """
    minima = [tnp.min(tnp.asarray(leaf)) for leaf in tree.leaves(tree_x) if tnp.size(leaf)]
    return functools.reduce(tnp.minimum, minima) if minima else float("inf")


def size(tree_x: Any) -> int:
    """The number of elements of all leaves.

    Args:
        tree_x: a tree of arrays.

    Returns:
        A Python int.

    >>> size({"w": tnp.zeros((2, 3)), "b": 4.0})
    7
    """
    return builtins.sum(tnp.size(leaf) for leaf in tree.leaves(tree_x))


def norm(tree_x: Any, ord: int | float | str | None = None, squared: bool = False) -> Any:
    """The norm of all leaves together, as one vector.

    Args:
        tree_x: a tree of arrays.
        ord: ``1``, ``2`` (the default) or ``inf``.
        squared: whether to return its square.

    Returns:
        A 0-d array.

    Raises:
        ArgumentError: if ``ord`` is another number.

    >>> x = {"w": tnp.asarray([3.0, 0.0]), "b": tnp.asarray(-4.0)}
    >>> [float(norm(x, ord)) for ord in (1, 2, "inf")]
    [7.0, 5.0, 4.0]
    """
    if ord is None or ord == 2:
        square = tnp.asarray(sum(tree.map(tnp.square, tree_x)))
        return square if squared else tnp.sqrt(square)
    if ord == 1:
        result = sum(tree.map(tnp.abs, tree_x))
    elif ord in (float("inf"), "inf", "infinity"):
        result = max(tree.map(tnp.abs, tree_x))
    else:
        raise ArgumentError("norm", "ord must be 1, 2 or inf", got=repr(ord))
    return tnp.square(result) if squared else tnp.asarray(result)


def clip(tree_x: Any, min_value: Any = None, max_value: Any = None) -> Any:
    """Limits all elements: ``min(max(x, min_value), max_value)``.

    Args:
        tree_x: a tree of arrays.
        min_value: the lower limit; ``None`` for none.
        max_value: the upper limit; ``None`` for none.

    Returns:
        A tree of the same structure.

    >>> clip({"w": tnp.asarray([-3.0, 0.5])}, -1.0, 1.0)["w"]
    Array([-1. ,  0.5], dtype=float32)
    """
    return tree.map(lambda x: tnp.clip(x, min_value, max_value), tree_x)


def where(condition: Any, tree_x: Any, tree_y: Any) -> Any:
    """Chooses between two trees: ``x`` where the condition is true, else ``y``.

    Args:
        condition: an array of bools that broadcasts with every leaf.
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> float(where(False, {"w": 1.0}, {"w": 2.0})["w"])
    2.0
    """
    return tree.map(lambda x, y: tnp.where(condition, x, y), tree_x, tree_y)


def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether all elements are about equal: ``|a - b| <= atol + rtol * |b|``.

    Args:
        a: a tree of arrays.
        b: a tree of the same structure.
        rtol: the relative tolerance.
        atol: the absolute one.
        equal_nan: whether a NaN equals another.

    Returns:
        A 0-d array of bool, or ``True`` for trees without leaves.

    >>> bool(allclose({"w": 1.0}, {"w": 1.0 + 1e-6}))
    True
    """
    close = tree.leaves(tree.map(lambda x, y: tnp.allclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan), a, b))
    return functools.reduce(operator.and_, close) if close else True


def _total(values: list) -> Any:
    return functools.reduce(operator.add, values) if values else 0


# -- arrays like others --------------------------------------------------------------------------------------


def zeros_like(tree_x: Any, dtype: Any = None) -> Any:
    """Zeros with the structure and shapes of a tree.

    Args:
        tree_x: a tree of arrays.
        dtype: the dtype; ``None`` for that of each leaf.

    Returns:
        A tree of the same structure.

    >>> zeros_like({"w": tnp.ones(2)})["w"]
    Array([0., 0.], dtype=float32)
    """
    return tree.map(lambda x: tnp.zeros_like(x, dtype=dtype), tree_x)


def ones_like(tree_x: Any, dtype: Any = None) -> Any:
    """Ones with the structure and shapes of a tree.

    Args:
        tree_x: a tree of arrays.
        dtype: the dtype; ``None`` for that of each leaf.

    Returns:
        A tree of the same structure.

    >>> ones_like({"w": tnp.zeros(2)})["w"]
    Array([1., 1.], dtype=float32)
    """
    return tree.map(lambda x: tnp.ones_like(x, dtype=dtype), tree_x)


def full_like(tree_x: Any, fill_value: Any, dtype: Any = None) -> Any:
    """One value everywhere, with the structure and shapes of a tree.

    Args:
        tree_x: a tree of arrays.
        fill_value: a number or a 0-d array.
        dtype: the dtype; ``None`` for that of each leaf.

    Returns:
        A tree of the same structure.

    >>> full_like({"w": tnp.zeros(2)}, 3)["w"]
    Array([3., 3.], dtype=float32)
    """
    return tree.map(lambda x: tnp.full_like(x, fill_value, dtype=dtype), tree_x)


def batch_shape(tree_x: Any, shape: tuple[int, ...] = ()) -> Any:
    """Repeats each leaf along new leading axes.

    Args:
        tree_x: a tree of arrays.
        shape: the lengths of the new axes.

    Returns:
        A tree of the same structure.

    >>> batch_shape({"w": tnp.zeros(2)}, (3,))["w"].shape
    (3, 2)
    """
    return tree.map(lambda x: tnp.broadcast_to(x, (*shape, *tnp.shape(x))), tree_x)


def cast(tree_x: Any, dtype: Any) -> Any:
    """Converts all leaves to a dtype.

    Args:
        tree_x: a tree of arrays.
        dtype: the dtype; ``None`` leaves them as they are.

    Returns:
        A tree of the same structure.

    Raises:
        DtypeError: if the dtype is unknown.

    >>> cast({"w": tnp.zeros(2)}, "bfloat16")["w"].dtype
    dtype(bfloat16)
    """
    return tree_x if dtype is None else map_updates(lambda x: tnp.asarray(x).astype(dtype), tree_x)


def cast_like(tree_x: Any, other_tree: Any) -> Any:
    """Converts each leaf to the dtype of a leaf of another tree.

    Args:
        tree_x: a tree of arrays.
        other_tree: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> cast_like({"w": tnp.zeros(2)}, {"w": np.zeros((), "float64")})["w"].dtype
    dtype('float64')
    """
    return tree.map(lambda x, other: tnp.asarray(x).astype(abstract(other).dtype), tree_x, other_tree)


def dtype(tree_x: Any, mixed_dtype_handler: str | None = None) -> np.dtype:
    """The dtype of the leaves.

    Args:
        tree_x: a tree of arrays.
        mixed_dtype_handler: what to do if they differ: ``"promote"`` them, or take the ``"highest"`` or the
            ``"lowest"``; ``None`` for an error.

    Returns:
        The dtype; float32 for a tree without leaves.

    Raises:
        DtypeError: if they differ and there is no way to choose.
        ArgumentError: if ``mixed_dtype_handler`` is unknown.

    >>> dtype({"w": np.zeros((), "float32"), "b": np.zeros((), "float64")}, "lowest")
    dtype('float32')
    """
    found = [abstract(leaf).dtype for leaf in tree.leaves(tree_x)] or [np.dtype("float32")]
    if mixed_dtype_handler is None:
        if any(other != found[0] for other in found):
            names = sorted({str(other) for other in found})
            raise DtypeError("dtype", "all leaves must have one dtype", got=", ".join(names), hint='"promote"')
        return found[0]
    if mixed_dtype_handler not in ("promote", "highest", "lowest"):
        raise ArgumentError(
            "dtype", "mixed_dtype_handler must be 'promote', 'highest' or 'lowest'", got=repr(mixed_dtype_handler)
        )
    result = functools.reduce(dtypes.result_type, found)
    if mixed_dtype_handler == "promote":
        return result
    chosen = found[0]
    for other in found[1:]:
        pair = dtypes.result_type(chosen, other)
        if pair not in (chosen, other):
            raise DtypeError("dtype", "the dtypes must be comparable", got=f"{chosen}, {other}", hint='"promote"')
        higher, lower = (chosen, other) if pair == chosen else (other, chosen)
        chosen = higher if mixed_dtype_handler == "highest" else lower
    return chosen


# -- random numbers ------------------------------------------------------------------------------------------


def split_key_like(rng_key: Any, target_tree: Any) -> Any:
    """Splits a key into one for each leaf.

    Args:
        rng_key: a key of :mod:`tvmfun.random`.
        target_tree: a tree.

    Returns:
        A tree of keys, of the same structure.

    >>> sorted(split_key_like(random.key(0), {"w": 1.0, "b": 2.0}))
    ['b', 'w']
    """
    leaves, structure = tree.flatten(target_tree)
    keys = random.split(rng_key, len(leaves))
    return tree.unflatten(structure, [keys[i] for i in range(len(leaves))])


def random_like(
    rng_key: Any, target_tree: Any, sampler: Callable[[Any, Any, Any], Any] = random.normal, dtype: Any = None
) -> Any:
    """Random numbers with the structure and shapes of a tree.

    Args:
        rng_key: a key of :mod:`tvmfun.random`.
        target_tree: a tree of arrays.
        sampler: takes a key, a shape and a dtype, and returns an array.
        dtype: the dtype; ``None`` for that of each leaf.

    Returns:
        A tree of the same structure.

    >>> random_like(random.key(0), {"w": tnp.zeros((2, 3))})["w"].shape
    (2, 3)
    """
    keys = split_key_like(rng_key, target_tree)
    return tree.map(lambda x, key: sampler(key, tnp.shape(x), dtype or abstract(x).dtype), target_tree, keys)


# -- running means -------------------------------------------------------------------------------------------


def update_moment(updates: Updates, moments: Updates, decay: Any, order: int = 1) -> Updates:
    """One step of a running mean of powers: ``m' = (1 - decay) * u**order + decay * m``.

    Args:
        updates: a tree of arrays; where it has ``None`` the result has, too.
        moments: the means so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        order: the power.

    Returns:
        The next means.

    >>> update_moment({"w": 3.0}, {"w": 1.0}, 0.5, 2)
    {'w': 5.0}
    """
    return map_updates(lambda u, m: (1 - decay) * u**order + decay * m, updates, moments)


def update_moment_per_elem_norm(updates: Updates, moments: Updates, decay: Any, order: int = 1) -> Updates:
    """One step of a running mean of powers, as :func:`update_moment`: they differ for complex numbers only.

    Args:
        updates: a tree of arrays; where it has ``None`` the result has, too.
        moments: the means so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        order: the power.

    Returns:
        The next means.

    >>> update_moment_per_elem_norm({"w": 3.0}, {"w": 1.0}, 0.5, 2)
    {'w': 5.0}
    """
    return update_moment(updates, moments, decay, order)


def update_infinity_moment(updates: Updates, moments: Updates, decay: Any, eps: Any) -> Updates:
    """One step of a decaying maximum: ``m' = max(|u| + eps, decay * m)``.

    Args:
        updates: a tree of arrays; where it has ``None`` the result has, too.
        moments: the maxima so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        eps: keeps the maximum away from zero.

    Returns:
        The next maxima.

    >>> float(update_infinity_moment({"w": tnp.asarray(-3.0)}, {"w": 1.0}, 0.5, 0.0)["w"])
    3.0
    """
    return map_updates(lambda u, m: tnp.maximum(tnp.abs(u) + eps, decay * m), updates, moments)


def bias_correction(moment: Updates, decay: Any, count: Any) -> Updates:
    """Removes the bias of a running mean that started from zero: ``m / (1 - decay**count)``.

    Args:
        moment: a tree of arrays; where it has ``None`` the result has, too.
        decay: the decay rate, a number or a 0-d array.
        count: the number of steps, a 0-d array of integers.

    Returns:
        A tree of the same structure.

    >>> float(bias_correction(tnp.asarray(1.5), 0.5, tnp.asarray(1)))
    3.0
    """

    @functools.cache  # one power for all leaves of a dtype
    def missing(dtype: np.dtype) -> Any:
        # In half precision decay**count would round to 1, and the result be infinite.
        wide = dtypes.result_type(dtype, "float32")
        return (1 - decay ** tnp.asarray(count).astype(wide)).astype(dtype)

    return map_updates(lambda m: m / missing(abstract(m).dtype), moment)


# -- the state of an optimizer -------------------------------------------------------------------------------


class NamedTupleKey(NamedTuple):
    """The step of a path into a named tuple.

    Attributes:
        tuple_name: the name of its type.
        name: the name of the field.
    """

    tuple_name: str
    name: str


def get_all_with_path(
    tree_x: Any, key: Any, filtering: Callable[[tuple, Any], bool] | None = None
) -> list[tuple[tuple, Any]]:
    """All values of a name in a tree: fields of named tuples and dataclasses, items of dicts, and named tuples.

    Args:
        tree_x: a tree, such as the state of an optimizer.
        key: the name of a field or of an item, or of the type of a named tuple.
        filtering: takes a path and a value, and says whether to take it. A path is a tuple of the keys of dicts, the
            indices of tuples and lists, the names of fields of dataclasses, and a ``NamedTupleKey`` for those of named
            tuples.

    Returns:
        A list of pairs of a path and a value.

    >>> from tvmfun.optim import adam
    >>> state = adam(0.1).init(tnp.asarray(1.0))
    >>> [(path[-1].tuple_name, value.dtype) for path, value in get_all_with_path(state, "mu")]
    [('ScaleByAdamState', dtype('float32'))]
    """
    return [(path, value) for path, value in _named((), tree_x, key) if filtering is None or filtering(path, value)]


def get(tree_x: Any, key: Any, default: Any = None, filtering: Callable[[tuple, Any], bool] | None = None) -> Any:
    """The value of a name in a tree, such as ``"learning_rate"`` in the state of an optimizer.

    Args:
        tree_x: a tree.
        key: the name, as for :func:`get_all_with_path`.
        default: what to return if there is none.
        filtering: which values to take, as for :func:`get_all_with_path`.

    Returns:
        The value.

    Raises:
        ArgumentError: if there are several.

    >>> from tvmfun.optim import adam
    >>> int(get(adam(0.1).init(tnp.asarray(1.0)), "count"))
    0
    """
    found = get_all_with_path(tree_x, key, filtering)
    if len(found) > 1:
        raise ArgumentError("get", f"only one value may have the name {key!r}", got=str(len(found)), hint="filtering=")
    return found[0][1] if found else default


def set(tree_x: Any, filtering: Callable[[tuple, Any], bool] | None = None, /, **kwargs: Any) -> Any:
    """Replaces the values of some names in a tree.

    Args:
        tree_x: a tree, such as the state of an optimizer.
        filtering: which values to replace, as for :func:`get_all_with_path`.
        **kwargs: the new value of each name.

    Returns:
        A tree with them.

    Raises:
        ArgumentError: if there is no value of one of the names.

    >>> from tvmfun.optim import adam
    >>> state = set(adam(0.1).init(tnp.asarray(1.0)), count=tnp.asarray(5))
    >>> int(get(state, "count"))
    5
    """
    for key in kwargs:
        if not get_all_with_path(tree_x, key, filtering):
            raise ArgumentError("set", "the names must be those of values", got=repr(key))

    def chosen(name: Any, path: tuple, value: Any) -> bool:
        return isinstance(name, str) and name in kwargs and (filtering is None or filtering(path, value))

    def replace(path: tuple, node: Any) -> Any:
        if _is_named_tuple(node) and chosen(type(node).__name__, path, node):
            return kwargs[type(node).__name__]
        children = _children(path, node)
        if not children:
            return node
        new = [kwargs[n] if chosen(n, path, child) else replace(path, child) for n, path, child in children]
        _, structure = tree.flatten(node, is_leaf=lambda x: x is not node)
        return type(node)(*new) if _is_named_tuple(node) else tree.unflatten(structure, new)

    return replace((), tree_x)


def map_params(
    initable: Callable[[Params], OptState] | GradientTransformation,
    f: Callable[..., Any],
    state: OptState,
    /,
    *rest: Any,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> OptState:
    """Maps a function over what has the structure of the parameters in a state, such as both moments of Adam.

    Args:
        initable: the optimizer of the state, or its ``init``.
        f: a function of one leaf, and of those of ``rest``.
        state: a state of that optimizer.
        *rest: trees with the structure of the parameters.
        transform_non_params: a function for the other leaves; ``None`` leaves them as they are.
        is_leaf: what else counts as a leaf of the parameters, such as a ``MaskedNode``.

    Returns:
        A state of the same structure.

    >>> from tvmfun.optim import adam
    >>> optimizer = adam(0.1)
    >>> state = map_params(optimizer, lambda m: m + 1, optimizer.init(tnp.asarray(1.0)))
    >>> float(get(state, "nu")), int(get(state, "count"))
    (1.0, 0)
    """
    init = getattr(initable, "init", initable)

    def is_place(node: Any) -> bool:
        return isinstance(node, ParamsPlaceholder)

    def apply(place: Any, value: Any) -> Any:
        if is_place(place):
            return tree.map(f, value, *rest, is_leaf=is_leaf)
        return value if transform_non_params is None else transform_non_params(value)

    return tree.map(apply, init(ParamsPlaceholder()), state, is_leaf=is_place)


def _is_named_tuple(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "_fields")


def _children(path: tuple, node: Any) -> list[tuple[Any, tuple, Any]]:
    """The name, path and value of each child; those of tuples and lists have no name."""
    if _is_named_tuple(node):
        name = type(node).__name__
        return [(f, (*path, NamedTupleKey(name, f)), child) for f, child in zip(node._fields, node, strict=True)]
    children, structure = tree.flatten_with_path(node, is_leaf=lambda x: x is not node)
    if structure.is_leaf():
        return []
    named, keys = not isinstance(node, tuple | list), [key[0].entry for key, _ in children]
    return [(k if named else None, (*path, k), child) for k, (_, child) in zip(keys, children, strict=True)]


def _named(path: tuple, node: Any, key: Any) -> Iterator[tuple[tuple, Any]]:
    if _is_named_tuple(node) and type(node).__name__ == key:
        yield path, node
    for name, place, child in _children(path, node):
        if name is not None and name == key:
            yield place, child
        yield from _named(place, child, key)
