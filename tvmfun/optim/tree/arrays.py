"""Arrays like the leaves of a tree: zeros, ones, random numbers, other dtypes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, random
from tvmfun import tree as pytree
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.optim.base import map_updates
from tvmfun.typing import ArrayLike, DTypeLike, Key, PyTree

__all__ = [
    "batch_shape",
    "cast",
    "cast_like",
    "dtype",
    "full_like",
    "ones_like",
    "random_like",
    "split_key_like",
    "zeros_like",
]


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Zeros with the structure and shapes of a tree.

    Args:
        tree: a tree of arrays.
        dtype: the dtype; ``None`` for the dtype of each leaf.

    Returns:
        A tree of the same structure.

    >>> zeros_like({"w": tnp.ones(2)})["w"]
    Array([0., 0.], dtype=float32)
    """
    return pytree.map(lambda x: tnp.zeros_like(x, dtype=dtype), tree)


def ones_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Ones with the structure and shapes of a tree.

    Args:
        tree: a tree of arrays.
        dtype: the dtype; ``None`` for the dtype of each leaf.

    Returns:
        A tree of the same structure.

    >>> ones_like({"w": tnp.zeros(2)})["w"]
    Array([1., 1.], dtype=float32)
    """
    return pytree.map(lambda x: tnp.ones_like(x, dtype=dtype), tree)


def full_like(tree: PyTree, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> PyTree:
    """One value everywhere, with the structure and shapes of a tree.

    Args:
        tree: a tree of arrays.
        fill_value: a number or a 0-d array.
        dtype: the dtype; ``None`` for the dtype of each leaf.

    Returns:
        A tree of the same structure.

    >>> full_like({"w": tnp.zeros(2)}, 3)["w"]
    Array([3., 3.], dtype=float32)
    """
    return pytree.map(lambda x: tnp.full_like(x, fill_value, dtype=dtype), tree)


def batch_shape(tree: PyTree, shape: tuple[int, ...] = ()) -> PyTree:
    """Repeats each leaf along new leading axes.

    Args:
        tree: a tree of arrays.
        shape: the lengths of the new axes.

    Returns:
        A tree of the same structure.

    >>> batch_shape({"w": tnp.zeros(2)}, (3,))["w"].shape
    (3, 2)
    """
    return pytree.map(lambda x: tnp.broadcast_to(x, (*shape, *tnp.shape(x))), tree)


def cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    """Converts all leaves to a dtype.

    Args:
        tree: a tree of arrays.
        dtype: the dtype; ``None`` leaves them as they are.

    Returns:
        A tree of the same structure.

    Raises:
        DtypeError: if the dtype is unknown.

    >>> cast({"w": tnp.zeros(2)}, "bfloat16")["w"].dtype
    dtype(bfloat16)
    """
    return tree if dtype is None else map_updates(lambda x: tnp.asarray(x).astype(dtype), tree)


def cast_like(tree: PyTree, other_tree: PyTree) -> PyTree:
    """Converts each leaf to the dtype of a leaf of another tree.

    Args:
        tree: a tree of arrays.
        other_tree: a tree of the same structure.

    Returns:
        A tree of the same structure.

    >>> cast_like({"w": tnp.zeros(2)}, {"w": np.zeros((), "float64")})["w"].dtype
    dtype('float64')
    """
    return pytree.map(lambda x, other: tnp.asarray(x).astype(abstract(other).dtype), tree, other_tree)


def dtype(tree: PyTree, mixed_dtype_handler: str | None = None) -> np.dtype:
    """The dtype of the leaves.

    Args:
        tree: a tree of arrays.
        mixed_dtype_handler: how to choose if they differ: ``"promote"`` them, or take the ``"highest"`` or the
            ``"lowest"``; ``None`` for an error.

    Returns:
        The dtype; float32 for a tree without leaves.

    Raises:
        DtypeError: if they differ and no choice is possible.
        ArgumentError: if ``mixed_dtype_handler`` is unknown.

    >>> dtype({"w": np.zeros((), "float32"), "b": np.zeros((), "float64")}, "lowest")
    dtype('float32')
    """
    leaf_dtypes = [abstract(leaf).dtype for leaf in pytree.leaves(tree)] or [np.dtype("float32")]
    if mixed_dtype_handler is None:
        if any(other != leaf_dtypes[0] for other in leaf_dtypes):
            names = sorted({str(other) for other in leaf_dtypes})
            raise DtypeError("dtype", "all leaves must have one dtype", got=", ".join(names), hint='"promote"')
        return leaf_dtypes[0]
    if mixed_dtype_handler not in ("promote", "highest", "lowest"):
        raise ArgumentError(
            "dtype", "mixed_dtype_handler must be 'promote', 'highest' or 'lowest'", got=repr(mixed_dtype_handler)
        )
    result = functools.reduce(dtypes.result_type, leaf_dtypes)
    if mixed_dtype_handler == "promote":
        return result
    chosen = leaf_dtypes[0]
    for other in leaf_dtypes[1:]:
        pair = dtypes.result_type(chosen, other)
        if pair not in (chosen, other):
            raise DtypeError("dtype", "the dtypes must be comparable", got=f"{chosen}, {other}", hint='"promote"')
        higher, lower = (chosen, other) if pair == chosen else (other, chosen)
        chosen = higher if mixed_dtype_handler == "highest" else lower
    return chosen


def split_key_like(rng_key: Key, target_tree: PyTree) -> PyTree:
    """Splits a key into one for each leaf.

    Args:
        rng_key: a key of :mod:`tvmfun.random`.
        target_tree: a tree.

    Returns:
        A tree of keys, of the same structure.

    >>> sorted(split_key_like(random.key(0), {"w": 1.0, "b": 2.0}))
    ['b', 'w']
    """
    leaves, structure = pytree.flatten(target_tree)
    keys = random.split(rng_key, len(leaves))
    return pytree.unflatten(structure, [keys[i] for i in range(len(leaves))])


def random_like(
    rng_key: Key,
    target_tree: PyTree,
    sampler: Callable[[Any, Any, Any], Any] = random.normal,
    dtype: DTypeLike | None = None,
) -> PyTree:
    """Random numbers with the structure and shapes of a tree.

    Args:
        rng_key: a key of :mod:`tvmfun.random`.
        target_tree: a tree of arrays.
        sampler: takes a key, a shape and a dtype, and returns an array.
        dtype: the dtype; ``None`` for the dtype of each leaf.

    Returns:
        A tree of the same structure.

    >>> random_like(random.key(0), {"w": tnp.zeros((2, 3))})["w"].shape
    (2, 3)
    """
    keys = split_key_like(rng_key, target_tree)
    return pytree.map(lambda x, key: sampler(key, tnp.shape(x), dtype or abstract(x).dtype), target_tree, keys)
