"""Collectives: exchanges between the examples of an axis that ``vmap`` gave a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun import numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.trace import axis_size as _axis_size
from tvmfun.errors import ArgumentError
from tvmfun.numpy.shapes import normalize_axis
from tvmfun.ops import collective
from tvmfun.typing import PyTree

__all__ = [
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pswapaxes",
    "reduce_scatter",
]

AxisName = str | Sequence[str]


def _names(where: str, axis_name: AxisName) -> tuple[str, ...]:
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    for name in names:
        _axis_size(name, where)  # explains a name that does not exist
    return names


def _refuse_groups(where: str, groups: Any) -> None:
    if groups is not None:
        hint = "an axis for each group, by reshaping the batch and vmap twice"
        raise ArgumentError(where, "axis_index_groups must be None", got=repr(groups), hint=hint)


def _each(where: str, x: Any, axis_name: AxisName, function: Any) -> Any:
    names = _names(where, axis_name)
    return tree.map(lambda leaf: function(tnp.asarray(leaf), names), x)


def psum(x: PyTree, axis_name: AxisName, *, axis_index_groups: None = None) -> Any:
    """Returns the sum of ``x`` over all examples of the named axis, for each of them.

    Args:
        x: a tree of arrays.
        axis_name: the name that ``vmap(..., axis_name=)`` gave the axis, or several.
        axis_index_groups: must be None: parts of an axis exist on several devices only.

    Raises:
        ArgumentError: if no axis has this name, or there are groups.

    Source: follows ``jax.lax.psum``; so do the others here.

    >>> import tvmfun
    >>> tvmfun.vmap(lambda x: x / psum(x, "i"), axis_name="i")(tnp.asarray([1.0, 3.0]))
    Array([0.25, 0.75], dtype=float32)
    """
    _refuse_groups("psum", axis_index_groups)
    return _each("psum", x, axis_name, lambda leaf, names: collective.psum(leaf, axis_names=names))


def pmean(x: PyTree, axis_name: AxisName, *, axis_index_groups: None = None) -> Any:
    """Returns the mean of ``x`` over all examples of the named axis, for each of them."""
    _refuse_groups("pmean", axis_index_groups)
    count = axis_size(axis_name)
    return tree.map(lambda leaf: leaf / count, psum(x, axis_name))


def pmax(x: PyTree, axis_name: AxisName, *, axis_index_groups: None = None) -> Any:
    """Returns the maximum of ``x`` over all examples of the named axis, for each of them; has no derivative."""
    _refuse_groups("pmax", axis_index_groups)
    return _each("pmax", x, axis_name, lambda leaf, names: collective.pmax(leaf, axis_names=names))


def pmin(x: PyTree, axis_name: AxisName, *, axis_index_groups: None = None) -> Any:
    """Returns the minimum of ``x`` over all examples of the named axis, for each of them; has no derivative."""
    _refuse_groups("pmin", axis_index_groups)
    return _each("pmin", x, axis_name, lambda leaf, names: collective.pmin(leaf, axis_names=names))


def axis_size(axis_name: AxisName) -> Any:
    """Returns the number of examples of the named axis."""
    total = 1
    for name in (axis_name,) if isinstance(axis_name, str) else axis_name:
        total = total * _axis_size(name, "axis_size")
    return total


def axis_index(axis_name: str) -> Array:
    """Returns the position of the example along the named axis, int32.

    >>> import tvmfun
    >>> tvmfun.vmap(lambda x: x * axis_index("i"), axis_name="i")(tnp.asarray([5.0, 5.0]))
    Array([0., 5.], dtype=float32)
    """
    return collective.axis_index(axis_names=_names("axis_index", axis_name))


def all_gather(x: PyTree, axis_name: str, *, axis: int = 0, axis_index_groups: None = None, tiled: bool = False) -> Any:
    """Returns the values of all examples of the named axis, for each of them.

    Args:
        x: a tree of arrays.
        axis_name: the name of the axis.
        axis: where the examples are counted in the result.
        axis_index_groups: must be None.
        tiled: whether to put them one after the other along an old axis instead of a new one.
    """
    _refuse_groups("all_gather", axis_index_groups)

    def gather(leaf: Array, names: tuple[str, ...]) -> Array:
        index = normalize_axis("all_gather", axis, leaf.ndim + (not tiled))
        return collective.all_gather(leaf, axis_names=names, size=axis_size(axis_name), axis=index, tiled=tiled)

    return _each("all_gather", x, axis_name, gather)


def psum_scatter(
    x: PyTree, axis_name: str, *, scatter_dimension: int = 0, axis_index_groups: None = None, tiled: bool = False
) -> Any:
    """Returns for each example its part of the sum over all of them.

    Args:
        x: a tree of arrays.
        axis_name: the name of the axis.
        scatter_dimension: the axis of ``x`` that is split into the parts.
        axis_index_groups: must be None.
        tiled: whether that axis stays, with a part of its size, instead of going away.
    """
    _refuse_groups("psum_scatter", axis_index_groups)

    def scatter(leaf: Array, names: tuple[str, ...]) -> Array:
        index = normalize_axis("psum_scatter", scatter_dimension, leaf.ndim)
        return collective.psum_scatter(leaf, axis_names=names, size=axis_size(axis_name), axis=index, tiled=tiled)

    return _each("psum_scatter", x, axis_name, scatter)


reduce_scatter = psum_scatter


def ppermute(x: PyTree, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
    """Returns for each example the value that another one sent it.

    Args:
        x: a tree of arrays.
        axis_name: the name of the axis.
        perm: pairs ``(from, to)`` of positions; an example that gets nothing gets zeros.
    """
    size = axis_size(axis_name)
    pairs = tuple((int(origin), int(target)) for origin, target in perm)
    for side in zip(*pairs, strict=True):
        if len(set(side)) < len(side) or any(not 0 <= i < size for i in side):
            raise ArgumentError("ppermute", f"each position below {size} may send and get once", got=str(pairs))
    return _each("ppermute", x, axis_name, lambda leaf, names: collective.ppermute(leaf, axis_names=names, perm=pairs))


def all_to_all(
    x: PyTree,
    axis_name: str,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: None = None,
    tiled: bool = False,
) -> Any:
    """Returns for each example the parts that all examples cut off for it.

    Args:
        x: a tree of arrays.
        axis_name: the name of the axis.
        split_axis: the axis that is cut into one part per example.
        concat_axis: the axis along which the parts that arrive are put one after the other.
        axis_index_groups: must be None.
        tiled: whether ``split_axis`` stays, with a part of its size; otherwise it must have one entry per example
            and goes away, and ``concat_axis`` is a new axis.
    """
    _refuse_groups("all_to_all", axis_index_groups)

    def exchange(leaf: Array, names: tuple[str, ...]) -> Array:
        split = normalize_axis("all_to_all", split_axis, leaf.ndim)
        concat = normalize_axis("all_to_all", concat_axis, leaf.ndim)
        size = axis_size(axis_name)
        if not tiled:
            leaf = tnp.moveaxis(leaf, split, concat)
            split = concat
            leaf = tnp.expand_dims(leaf, axis=concat + 1)
            parts = collective.all_to_all(leaf, axis_names=names, size=size, split=split, concat=concat + 1)
            return tnp.squeeze(parts, axis=split)
        return collective.all_to_all(leaf, axis_names=names, size=size, split=split, concat=concat)

    return _each("all_to_all", x, axis_name, exchange)


def pshuffle(x: PyTree, axis_name: str, perm: Sequence[int]) -> Any:
    """Permutes the examples: the one at position ``i`` gets the value of the one at ``perm[i]``.

    Args:
        x: a tree of arrays.
        axis_name: the name of the axis.
        perm: a permutation of all positions.

    Raises:
        ArgumentError: if ``perm`` is not a permutation.

    >>> import tvmfun
    >>> tvmfun.vmap(lambda x: pshuffle(x, "i", [2, 0, 1]), axis_name="i")(tnp.asarray([0, 10, 20])).tolist()
    [20, 0, 10]
    """
    order = [int(i) for i in perm]
    if sorted(order) != list(range(axis_size(axis_name))):
        raise ArgumentError("pshuffle", "there must be each position of the axis once", got=repr(order))
    return ppermute(x, axis_name, list(zip(order, range(len(order)), strict=True)))


def pbroadcast(x: PyTree, axis_name: AxisName, source: int) -> Any:
    """Returns for each example the value of the one at the position ``source``.

    Args:
        x: a tree of arrays.
        axis_name: the name of the axis.
        source: a position.

    Raises:
        ArgumentError: if there is no such position.

    >>> import tvmfun
    >>> tvmfun.vmap(lambda x: pbroadcast(x, "i", 1), axis_name="i")(tnp.asarray([0, 10, 20])).tolist()
    [10, 10, 10]
    """
    size = axis_size(axis_name)
    if not 0 <= source < size:
        raise ArgumentError("pbroadcast", f"the source must be a position below {size}", got=repr(source))

    def broadcast(leaf: Any) -> Array:
        return tnp.asarray(leaf[source])

    return tree.map(broadcast, all_gather(x, axis_name))  # type: ignore[arg-type]


def pswapaxes(x: PyTree, axis_name: str, axis: int, *, axis_index_groups: None = None) -> Any:
    """Exchanges the named axis and an axis of the same size, which every example has.

    Args:
        x: a tree of arrays.
        axis_name: the name of the axis.
        axis: the other axis.
        axis_index_groups: must be None.

    >>> import tvmfun
    >>> tvmfun.vmap(lambda x: pswapaxes(x, "i", 0), axis_name="i")(tnp.asarray([[0, 1], [2, 3]])).tolist()
    [[0, 2], [1, 3]]
    """
    _refuse_groups("pswapaxes", axis_index_groups)
    return all_to_all(x, axis_name, axis, axis)
