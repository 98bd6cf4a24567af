"""Sorting and searching along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.numpy.shapes import known_integer, normalize_axis
from tvmfun.ops import shape as shapes
from tvmfun.ops import sorting
from tvmfun.ops.top_k import largest_by_sorting, top_k_indices

__all__ = ["approx_max_k", "approx_min_k", "sort", "sort_key_val", "top_k"]


# The numbers of elements that are kept in a sorted list while a row goes by; more are found faster by sorting.
_LISTED = range(1, 17)


def _order(keys: Sequence[Array]) -> Array:
    """The stable order along the last axis by the first key, then the second, and so on."""
    order = sorting.argsort(keys[-1])
    for key in reversed(keys[:-1]):
        order = sorting.taken(order, sorting.argsort(sorting.taken(key, order)))
    return order


def sort(
    operand: NestedArrayLike, dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> Array | tuple[Array, ...]:
    """Returns arrays sorted along an axis, all in the same order.

    Args:
        operand: an array, or a tuple of arrays of one shape.
        dimension: the axis.
        is_stable: whether equal elements must keep their order; they always do.
        num_keys: the number of arrays of the tuple that are keys: the first, for equal elements the second, and so on.

    Returns:
        An array, or a tuple of as many arrays. NaNs are last. Gradients go where the elements came from.

    Source: ``jax.lax.sort``.

    >>> keys, values = sort((tnp.asarray([3, 1, 2]), tnp.asarray([30, 10, 20])))
    >>> values
    Array([10, 20, 30], dtype=int32)
    """
    several = isinstance(operand, tuple | list)
    arrays = [tnp.asarray(x) for x in (operand if several else (operand,))]
    if not 1 <= num_keys <= len(arrays):
        raise ArgumentError("sort", f"there can be 1 to {len(arrays)} keys", got=str(num_keys))
    if any(x.shape != arrays[0].shape for x in arrays):
        raise ShapeError("sort", "the arrays must have one shape", got=", ".join(str(x.aval) for x in arrays))
    axis, last = normalize_axis("sort", dimension, arrays[0].ndim), arrays[0].ndim - 1
    rows = [shapes.move_axis(x, axis, last) for x in arrays]
    order = _order(rows[:num_keys])
    result = tuple(shapes.move_axis(sorting.taken(x, order), last, axis) for x in rows)
    return result if several else result[0]


def sort_key_val(
    keys: NestedArrayLike, values: NestedArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Returns ``keys`` sorted along an axis, and ``values`` in the same order."""
    sorted_keys, sorted_values = sort((keys, values), dimension, is_stable)
    return sorted_keys, sorted_values


def top_k(operand: NestedArrayLike, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """Returns the ``k`` largest elements along an axis, the largest first, and their indices.

    Args:
        operand: the array.
        k: how many, at most the size of the axis.
        axis: the axis.

    Returns:
        ``(values, indices)``. Equal elements keep their order, and so do 0.0 and -0.0; NaNs are larger than
        numbers.

    Raises:
        ArgumentError: if there are fewer elements.

    Source: ``jax.lax.top_k``.

    >>> values, indices = top_k(tnp.asarray([3.0, 1.0, 7.0]), 2)
    >>> values.tolist(), indices.tolist()
    ([7.0, 3.0], [2, 0])
    """
    x = tnp.asarray(operand)
    axis, last = normalize_axis("top_k", axis, x.ndim), x.ndim - 1
    size = x.shape[axis]
    k = known_integer(k)
    if not 0 <= k <= size:
        raise ArgumentError("top_k", f"there are {size} elements along axis {axis}", got=str(k))
    rows = shapes.move_axis(x, axis, last)
    indices = top_k_indices(rows, k=k) if k in _LISTED else largest_by_sorting(rows, k)
    return tuple(shapes.move_axis(y, last, axis) for y in (sorting.taken(rows, indices), indices))  # type: ignore[return-value]


def approx_max_k(
    operand: NestedArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """Returns the ``k`` largest elements along an axis, and their indices: all of them, as :func:`top_k` does.

    Args:
        operand: the array.
        k: how many.
        reduction_dimension: the axis.
        recall_target: for JAX: the share that must be found; here all are.
        reduction_input_size_override: for JAX; has no effect.
        aggregate_to_topk: for JAX; there are always ``k`` results.
    """
    return top_k(operand, k, axis=reduction_dimension)


def approx_min_k(
    operand: NestedArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """Returns the ``k`` smallest elements along an axis, and their indices; see :func:`approx_max_k`."""
    values, indices = top_k(tnp.negative(operand), k, axis=reduction_dimension)
    return tnp.negative(values), indices
