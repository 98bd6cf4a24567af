"""Arrays of one value, ranges, and shapes: reshaping, axes, broadcasting, joining, splitting and padding."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.promotion import NestedArrayLike, convert
from tvmfun.numpy.shapes import known_integer, normalize_axes, normalize_axis
from tvmfun.ops import pointwise
from tvmfun.ops import shape as shapes
from tvmfun.typing import DTypeLike

__all__ = [
    "broadcast",
    "broadcast_in_dim",
    "broadcast_like",
    "broadcast_shapes",
    "broadcast_to_rank",
    "broadcasted_iota",
    "collapse",
    "concatenate",
    "dtype",
    "empty",
    "expand_dims",
    "full",
    "full_like",
    "iota",
    "pad",
    "reshape",
    "rev",
    "shape_as_value",
    "split",
    "squeeze",
    "stack",
    "tile",
    "transpose",
    "unstack",
]


Ints = Sequence[int]


def full(shape: Ints, fill_value: NestedArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Returns an array of one value, by default of the value's dtype."""
    return tnp.full(tuple(shape), fill_value, dtype)


def full_like(
    x: NestedArrayLike, fill_value: NestedArrayLike, dtype: DTypeLike | None = None, shape: Ints | None = None
) -> Array:
    """Returns an array of one value with the shape and dtype of ``x``, unless others are given."""
    return tnp.full_like(x, fill_value, dtype, None if shape is None else tuple(shape))


def empty(shape: Ints, dtype: DTypeLike) -> Array:
    """Returns an array of zeros: uninitialized memory would not be a function of the arguments."""
    return tnp.zeros(tuple(shape), dtype)


def iota(dtype: DTypeLike, size: int) -> Array:
    """Returns ``0, 1, ..., size - 1``.

    >>> iota("int32", 3)
    Array([0, 1, 2], dtype=int32)
    """
    return broadcasted_iota(dtype, (known_integer(size),), 0)


def broadcasted_iota(dtype: DTypeLike, shape: Ints, dimension: int) -> Array:
    """Returns an array whose elements are their own indices along the axis ``dimension``."""
    shape = tuple(shape)
    axis = normalize_axis("broadcasted_iota", dimension, len(shape))
    return shapes.iota(shape=shape, axis=axis, dtype=dtypes.NAMES[dtypes.canonical(dtype)])


def reshape(operand: NestedArrayLike, new_sizes: Ints, dimensions: Ints | None = None) -> Array:
    """Returns the elements in another shape, after permuting the axes to the order ``dimensions`` if that is given."""
    operand = tnp.asarray(operand)
    return tnp.reshape(operand if dimensions is None else tnp.permute_dims(operand, dimensions), tuple(new_sizes))


def collapse(operand: NestedArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """Returns the array with its axes from ``start_dimension`` up to but without ``stop_dimension`` made one.

    >>> collapse(tnp.zeros((2, 3, 4)), 0, 2).shape
    (6, 4)
    """
    operand = tnp.asarray(operand)
    first, last, _ = builtins.slice(start_dimension, stop_dimension).indices(operand.ndim)
    size = math.prod(operand.shape[first:last])
    return tnp.reshape(operand, (*operand.shape[:first], size, *operand.shape[max(first, last) :]))


def squeeze(array: NestedArrayLike, dimensions: Ints) -> Array:
    """Returns the array without the axes ``dimensions``, whose size is 1."""
    return tnp.squeeze(array, tuple(dimensions))


def expand_dims(array: NestedArrayLike, dimensions: Ints) -> Array:
    """Returns the array with axes of size 1 at the positions ``dimensions`` of the result."""
    return tnp.expand_dims(array, tuple(dimensions))


def transpose(operand: NestedArrayLike, permutation: Ints) -> Array:
    """Returns the array with its axes in another order."""
    return tnp.permute_dims(operand, tuple(permutation))


def broadcast(operand: NestedArrayLike, sizes: Ints) -> Array:
    """Returns the array repeated along new axes of the given sizes before the others."""
    operand = tnp.asarray(operand)
    return shapes.broadcast_to(operand, shape=(*sizes, *operand.shape))


def broadcast_in_dim(operand: NestedArrayLike, shape: Ints, broadcast_dimensions: Ints) -> Array:
    """Returns the array repeated to ``shape``; its axis ``i`` becomes the axis ``broadcast_dimensions[i]``.

    >>> broadcast_in_dim(iota("int32", 2), (2, 3), (0,)).tolist()
    [[0, 0, 0], [1, 1, 1]]
    """
    operand, shape, axes = tnp.asarray(operand), tuple(shape), tuple(broadcast_dimensions)
    if len(axes) != operand.ndim or list(axes) != sorted(set(axes)) or any(not 0 <= i < len(shape) for i in axes):
        raise ArgumentError(
            "broadcast_in_dim", "there must be one axis of the result per axis, in order", got=f"{axes} for {shape}"
        )
    sizes = [1] * len(shape)
    for axis, size in zip(axes, operand.shape, strict=True):
        sizes[axis] = size
    return shapes.broadcast_to(tnp.reshape(operand, tuple(sizes)), shape=shape)


def broadcast_like(arr: NestedArrayLike, like_arr: NestedArrayLike) -> Array:
    """Returns the array repeated to the shape of another one."""
    return tnp.broadcast_to(arr, tnp.asarray(like_arr).shape)


def broadcast_to_rank(x: NestedArrayLike, rank: int) -> Array:
    """Returns the array with leading axes of size 1 until there are ``rank`` axes.

    >>> broadcast_to_rank(iota("int32", 2), 3).shape
    (1, 1, 2)
    """
    x = tnp.asarray(x)
    return tnp.reshape(x, (1,) * (rank - x.ndim) + x.shape)


def rev(operand: NestedArrayLike, dimensions: Ints) -> Array:
    """Returns the array with the elements along ``dimensions`` in reverse order."""
    operand = tnp.asarray(operand)
    return shapes.flip(operand, axes=normalize_axes("rev", tuple(dimensions), operand.ndim))


def concatenate(operands: Sequence[Any], dimension: int) -> Array:
    """Returns the arrays one after another along ``dimension``."""
    return tnp.concat(operands, axis=dimension)


def split(operand: NestedArrayLike, sizes: Ints, axis: int = 0) -> list[Array]:
    """Returns the parts of the given sizes into which the array falls along ``axis``."""
    operand = tnp.asarray(operand)
    if sum(sizes) != operand.shape[normalize_axis("split", axis, operand.ndim)]:
        raise ShapeError("split", f"the sizes must add up to that of axis {axis}", got=f"{tuple(sizes)} of {operand}")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return tnp.split(operand, ends, axis=axis)


def stack(operands: Sequence[Any], axis: int = 0) -> Array:
    """Returns the arrays side by side along a new axis."""
    return tnp.stack(operands, axis)


def unstack(x: NestedArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """Returns the slices along an axis."""
    return tnp.unstack(x, axis)


def tile(operand: NestedArrayLike, reps: Ints) -> Array:
    """Returns the array repeated ``reps[i]`` times along each axis ``i``."""
    return tnp.tile(operand, tuple(reps))


def pad(
    operand: NestedArrayLike, padding_value: NestedArrayLike, padding_config: Sequence[tuple[int, int, int]]
) -> Array:
    """Returns the array with a value put around and between its elements.

    Args:
        operand: the array.
        padding_value: a scalar of its dtype.
        padding_config: ``(low, high, interior)`` per axis: how many values go before, after and between elements.
            Negative ones cut elements off.

    >>> pad(iota("int32", 3), 9, [(1, 0, 1)])
    Array([9, 0, 9, 1, 9, 2], dtype=int32)
    """
    operand = tnp.asarray(operand)
    if len(padding_config) != operand.ndim or any(len(entry) != 3 for entry in padding_config):
        raise ShapeError("pad", "there must be (low, high, interior) per axis", got=f"{padding_config} for {operand}")
    low, high, interior = (tuple(entry[i] for entry in padding_config) for i in range(3))
    return shapes.pad(operand, convert("pad", padding_value, operand.dtype), low=low, high=high, interior=interior)


def broadcast_shapes(*shapes: Ints) -> tuple[int, ...]:
    """Returns the shape that shapes broadcast to.

    >>> broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    return pointwise.broadcast_shapes("broadcast_shapes", [tuple(shape) for shape in shapes])


def shape_as_value(shape: Ints) -> Array:
    """Returns a shape as a vector."""
    return tnp.asarray([tnp.asarray(size) for size in shape]) if len(shape) else tnp.zeros((0,), dtypes.int32)


def dtype(x: NestedArrayLike) -> np.dtype:
    """Returns the dtype of an array or a number."""
    return tnp.result_type(x)
