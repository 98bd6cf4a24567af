"""Arithmetic on trees of arrays, and running means of them."""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun import tree as pytree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import Updates, map_updates, refuse_row_sparse
from tvmfun.typing import PyTree, Scalar

__all__ = [
    "add",
    "add_scale",
    "allclose",
    "bias_correction",
    "clip",
    "div",
    "max",
    "min",
    "mul",
    "norm",
    "scale",
    "size",
    "sub",
    "sum",
    "update_infinity_moment",
    "update_moment",
    "update_moment_per_elem_norm",
    "vdot",
    "where",
]


def _map(f: Callable, *trees: PyTree) -> PyTree:
    """``tree.map`` that converts leaves to arrays."""
    refuse_row_sparse("optim.tree", *trees)
    return pytree.map(f, *trees)


def _leaves(tree: PyTree) -> list:
    refuse_row_sparse("optim.tree", tree)
    return pytree.leaves(tree)


def add(tree_x: PyTree, tree_y: PyTree, *other_trees: PyTree) -> PyTree:
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
    return _map(lambda *leaves: functools.reduce(operator.add, leaves), tree_x, tree_y, *other_trees)


def sub(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Subtracts trees leaf by leaf: ``x - y``.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> sub({"w": 1.0}, {"w": 2.0})
    {'w': -1.0}
    """
    return _map(operator.sub, tree_x, tree_y)


def mul(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Multiplies trees leaf by leaf: ``x * y``.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> mul({"w": 3.0}, {"w": 2.0})
    {'w': 6.0}
    """
    return _map(operator.mul, tree_x, tree_y)


def div(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Divides trees leaf by leaf: ``x / y``.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> div({"w": 3.0}, {"w": 2.0})
    {'w': 1.5}
    """
    return _map(operator.truediv, tree_x, tree_y)


def scale(scalar: Scalar, tree: PyTree) -> PyTree:
    """Multiplies all leaves by a number: ``scalar * x``.

    Args:
        scalar: a number or a 0-d array.
        tree: a tree of arrays.

    Returns:
        A tree of the same structure.

    >>> scale(0.5, {"w": 3.0})
    {'w': 1.5}
    """
    return _map(lambda x: scalar * x, tree)


def add_scale(tree_x: PyTree, scalar: Scalar, tree_y: PyTree) -> PyTree:
    """Adds a multiple of a tree: ``x + scalar * y``.

    Args:
        tree_x: a tree of arrays; ``None`` stays ``None``.
        scalar: a number or a 0-d array.
        tree_y: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> add_scale({"w": 1.0}, 0.5, {"w": 3.0})
    {'w': 2.5}
    """
    return map_updates(lambda x, y: x + scalar * y, tree_x, tree_y)


def vdot(tree_x: PyTree, tree_y: PyTree) -> Array:
    """The inner product of two trees: the sum of ``x * y`` over all elements.

    Args:
        tree_x: a tree of arrays.
        tree_y: a tree of the same structure and shapes.

    Returns:
        A 0-d array.

    >>> float(vdot({"w": tnp.asarray([1.0, 2.0])}, {"w": tnp.asarray([3.0, 4.0])}))
    11.0
    """
    return _total(_leaves(_map(lambda x, y: tnp.vdot(tnp.asarray(x), tnp.asarray(y)), tree_x, tree_y)))


def sum(tree: PyTree) -> Array:
    """The sum of all elements of all leaves.

    Args:
        tree: a tree of arrays.

    Returns:
        A 0-d array, or 0 for a tree without leaves.

    >>> float(sum({"w": tnp.asarray([1.0, 2.0]), "b": 4.0}))
    7.0
    """
    return _total([tnp.sum(tnp.asarray(leaf)) for leaf in _leaves(tree)])


def max(tree: PyTree) -> Scalar:
    """The largest element of all leaves.

    Args:
        tree: a tree of arrays.

    Returns:
        A 0-d array, or ``-inf`` if there is no element.

    >>> float(max({"w": tnp.asarray([1.0, 2.0]), "b": 4.0}))
    4.0
    """
    maxima = [tnp.max(tnp.asarray(leaf)) for leaf in _leaves(tree) if tnp.size(leaf)]
    return functools.reduce(tnp.maximum, maxima) if maxima else -float("inf")


def min(tree: PyTree) -> Scalar:
    """The least element of all leaves.

    Args:
        tree: a tree of arrays.

    Returns:
        A 0-d array, or ``inf`` if there is no element.

    >>> float(min({"w": tnp.asarray([1.0, 2.0]), "b": 4.0}))
    1.0
    """
    minima = [tnp.min(tnp.asarray(leaf)) for leaf in _leaves(tree) if tnp.size(leaf)]
    return functools.reduce(tnp.minimum, minima) if minima else float("inf")


def size(tree: PyTree) -> int:
    """The number of elements of all leaves.

    Args:
        tree: a tree of arrays.

    Returns:
        A Python int.

    >>> size({"w": tnp.zeros((2, 3)), "b": 4.0})
    7
    """
    return builtins.sum(tnp.size(leaf) for leaf in _leaves(tree))


def norm(tree: PyTree, ord: int | float | str | None = None, squared: bool = False) -> Array:
    """The norm of all leaves together, as one vector.

    Args:
        tree: a tree of arrays.
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
        square = tnp.asarray(sum(_map(tnp.square, tree)))
        return square if squared else tnp.sqrt(square)
    if ord == 1:
        result = sum(_map(tnp.abs, tree))
    elif ord in (float("inf"), "inf", "infinity"):
        result = max(_map(tnp.abs, tree))
    else:
        raise ArgumentError("norm", "ord must be 1, 2 or inf", got=repr(ord))
    return tnp.square(result) if squared else tnp.asarray(result)


def clip(tree: PyTree, min_value: Scalar | None = None, max_value: Scalar | None = None) -> PyTree:
    """Limits all elements: ``min(max(x, min_value), max_value)``.

    Args:
        tree: a tree of arrays.
        min_value: the lower limit; ``None`` for none.
        max_value: the upper limit; ``None`` for none.

    Returns:
        A tree of the same structure.

    >>> clip({"w": tnp.asarray([-3.0, 0.5])}, -1.0, 1.0)["w"]
    Array([-1. ,  0.5], dtype=float32)
    """
    return _map(lambda x: tnp.clip(x, min_value, max_value), tree)


def where(condition: PyTree, tree_x: PyTree, tree_y: PyTree) -> PyTree:
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
    return _map(lambda x, y: tnp.where(condition, x, y), tree_x, tree_y)


def allclose(a: PyTree, b: PyTree, rtol: Scalar = 1e-05, atol: Scalar = 1e-08, equal_nan: bool = False) -> Array | bool:
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
    close = _leaves(_map(lambda x, y: tnp.allclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan), a, b))
    return functools.reduce(operator.and_, close) if close else True


def _total(values: list[Array]) -> Any:
    return functools.reduce(operator.add, values) if values else 0


def update_moment(updates: Updates, moments: Updates, decay: Scalar, order: int = 1) -> Updates:
    """One step of a running mean of powers: ``m' = (1 - decay) * u**order + decay * m``.

    Args:
        updates: a tree of arrays; ``None`` stays ``None``.
        moments: the means so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        order: the power.

    Returns:
        The next means.

    >>> update_moment({"w": 3.0}, {"w": 1.0}, 0.5, 2)
    {'w': 5.0}
    """
    return map_updates(lambda u, m: (1 - decay) * u**order + decay * m, updates, moments)


def update_moment_per_elem_norm(updates: Updates, moments: Updates, decay: Scalar, order: int = 1) -> Updates:
    """One step of a running mean of powers: :func:`update_moment`, because there are no complex numbers.

    Args:
        updates: a tree of arrays; ``None`` stays ``None``.
        moments: the means so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        order: the power.

    Returns:
        The next means.

    >>> update_moment_per_elem_norm({"w": 3.0}, {"w": 1.0}, 0.5, 2)
    {'w': 5.0}
    """
    return update_moment(updates, moments, decay, order)


def update_infinity_moment(updates: Updates, moments: Updates, decay: Scalar, eps: Scalar) -> Updates:
    """One step of a decaying maximum: ``m' = max(|u| + eps, decay * m)``.

    Args:
        updates: a tree of arrays; ``None`` stays ``None``.
        moments: the maxima so far, a tree of the same structure.
        decay: the decay rate, a number or a 0-d array.
        eps: keeps the maximum away from zero.

    Returns:
        The next maxima.

    >>> float(update_infinity_moment({"w": tnp.asarray(-3.0)}, {"w": 1.0}, 0.5, 0.0)["w"])
    3.0
    """
    return map_updates(lambda u, m: tnp.maximum(tnp.abs(u) + eps, decay * m), updates, moments)


def bias_correction(moment: Updates, decay: Scalar, count: Array) -> Updates:
    """Removes the bias of a running mean that started from zero: ``m / (1 - decay**count)``.

    Args:
        moment: a tree of arrays; ``None`` stays ``None``.
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
