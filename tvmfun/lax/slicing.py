"""Slices with static and with traced starts."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.lax.shapes import Ints
from tvmfun.numpy.promotion import NestedArrayLike, convert, require_integer
from tvmfun.numpy.shapes import known_integer, normalize_axis
from tvmfun.ops import dynamic_slice as slices
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes

__all__ = [
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim",
    "dynamic_update_slice",
    "dynamic_update_slice_in_dim",
    "index_in_dim",
    "slice",
    "slice_in_dim",
]


def slice(operand: NestedArrayLike, start_indices: Ints, limit_indices: Ints, strides: Ints | None = None) -> Array:
    """Returns ``operand[start:limit:stride]`` along each axis.

    Args:
        operand: the array.
        start_indices: the first index along each axis, inside the array.
        limit_indices: the index after the last one.
        strides: distances, at least 1; by default 1.

    Raises:
        ShapeError: if an index is outside the array.
    """
    operand = tnp.asarray(operand)
    steps = (1,) * operand.ndim if strides is None else tuple(strides)
    start, stop = tuple(start_indices), tuple(limit_indices)
    if not len(start) == len(stop) == len(steps) == operand.ndim:
        raise ShapeError(
            "slice", "there must be one index per axis", got=f"{start}, {stop}, {steps} for {operand.aval}"
        )
    return shapes.slice(operand, start=start, stop=stop, step=steps)


def slice_in_dim(
    operand: NestedArrayLike, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Array:
    """Returns ``operand[start_index:limit_index:stride]`` along one axis; indices may be counted from the end."""
    operand = tnp.asarray(operand)
    axis = normalize_axis("slice_in_dim", axis, operand.ndim)
    if stride < 1:
        raise ArgumentError("slice_in_dim", "the stride is at least 1", got=str(stride), hint="rev")
    first, last, _ = builtins.slice(start_index, limit_index).indices(operand.shape[axis])
    start, stop, step = [0] * operand.ndim, list(operand.shape), [1] * operand.ndim
    start[axis], stop[axis], step[axis] = first, max(first, last), stride
    return shapes.slice(operand, start=tuple(start), stop=tuple(stop), step=tuple(step))


def index_in_dim(operand: NestedArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """Returns the elements at a static index along one axis, which stays with size 1 if ``keepdims``."""
    operand = tnp.asarray(operand)
    axis = normalize_axis("index_in_dim", axis, operand.ndim)
    size = operand.shape[axis]
    if not -size <= index < size:
        raise ArgumentError("index_in_dim", f"axis {axis} has {size} elements", got=str(index))
    result = slice_in_dim(operand, index % size, index % size + 1, axis=axis)
    return result if keepdims else tnp.squeeze(result, axis)


def _starts(name: str, operand: Array, starts: Any, negative: bool | Sequence[bool]) -> list[Any]:
    """One scalar per axis; indices that are negative count from the end, or where that is not allowed are 0."""
    if hasattr(starts, "ndim") and starts.ndim == 1:
        starts = [starts[i] for i in range(starts.shape[0])]
    starts = list(starts)
    if len(starts) != operand.ndim:
        raise ShapeError(name, "there must be one start per axis", got=f"{len(starts)} for {operand.aval}")
    wraps = [negative] * len(starts) if isinstance(negative, bool) else list(negative)
    result = []
    for start, size, wrap in zip(starts, operand.shape, wraps, strict=True):
        require_integer(name, start)
        if isinstance(start, int | np.integer) and isinstance(size, int):
            result.append(np.int32(np.clip(start + size if start < 0 and wrap else start, 0, size)))
            continue
        start = tnp.asarray(start)
        if start.shape:
            raise ShapeError(name, "a start is a scalar", got=repr(start.aval))
        if start.dtype in dtypes.SIGNED and wrap:
            wide = start.dtype if start.dtype.itemsize >= 4 else dtypes.int32
            start = tnp.astype(start, wide)
            whole = wide.type(size) if isinstance(size, int) else tnp.asarray(size, wide)
            start = pw.where(pw.less(start, wide.type(0)), pw.add(start, whole), start)
        result.append(start)
    return result


def dynamic_slice(
    operand: Any,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Returns the part of an array that begins at computed indices.

    Args:
        operand: the array.
        start_indices: the first index along each axis, as scalars or one vector. Negative ones count from the end,
            and then the part is moved inside the array.
        slice_sizes: its static sizes.
        allow_negative_indices: False for negative indices, along all axes or some, to mean the first index.

    Raises:
        ShapeError: if a size is larger than the axis.

    Source: ``jax.lax.dynamic_slice``.

    >>> dynamic_slice(tnp.arange(5), (tnp.asarray(4),), (2,))
    Array([3, 4], dtype=int32)
    """
    operand = tnp.asarray(operand)
    starts, sizes = _starts("dynamic_slice", operand, start_indices, allow_negative_indices), tuple(slice_sizes)
    if all(isinstance(start, np.generic) for start in starts) and len(sizes) == operand.ndim:
        fits = all(0 <= size <= n for size, n in zip(sizes, operand.shape, strict=True))
        if fits:  # known indices: a slice that can be simplified
            begin = [min(int(s), n - size) for s, n, size in zip(starts, operand.shape, sizes, strict=True)]
            return slice(operand, begin, [b + size for b, size in zip(begin, sizes, strict=True)])
    return slices.dynamic_slice(operand, *starts, sizes=sizes)


def dynamic_update_slice(
    operand: NestedArrayLike,
    update: NestedArrayLike,
    start_indices: NestedArrayLike,
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Returns an array with the part that begins at computed indices replaced.

    Args:
        operand: the array.
        update: what to put there, of the dtype of ``operand``.
        start_indices: the first index along each axis, as for :func:`dynamic_slice`.
        allow_negative_indices: as for :func:`dynamic_slice`.

    Source: ``jax.lax.dynamic_update_slice``.

    >>> dynamic_update_slice(tnp.zeros(4), tnp.ones(2), (1,))
    Array([0., 1., 1., 0.], dtype=float32)
    """
    operand = tnp.asarray(operand)
    update = _update_for("dynamic_update_slice", operand, update)
    if update.ndim != operand.ndim:
        what = f"the update must have as many axes as the array, {operand.ndim}"
        got = f"{update.aval} into {operand.aval}"
        raise ShapeError("dynamic_update_slice", what, got=got, hint="update.reshape(...)")
    return slices.dynamic_update_slice(
        operand, update, *_starts("dynamic_update_slice", operand, start_indices, allow_negative_indices)
    )


def _update_for(name: str, operand: Array, update: NestedArrayLike) -> Array:
    """An update in the dtype of an array, which must hold its elements."""
    is_array = hasattr(update, "dtype")
    if is_array and tnp.result_type(operand, update) != operand.dtype:
        what = f"an array of {dtypes.NAMES[operand.dtype]} cannot hold the elements of the update"
        raise DtypeError(name, what, got=repr(tnp.asarray(update).aval), hint="update.astype(operand.dtype)")
    return tnp.asarray(convert(name, update, operand.dtype))


def _along(operand: Array, axis: int, value: Any) -> list[Any]:
    return [value if i == axis else 0 for i in range(operand.ndim)]


def dynamic_slice_in_dim(
    operand: NestedArrayLike, start_index: Any, slice_size: int, axis: int = 0, *, allow_negative_indices: bool = True
) -> Array:
    """Returns ``slice_size`` elements along one axis from a computed index on; see :func:`dynamic_slice`."""
    operand = tnp.asarray(operand)
    axis = normalize_axis("dynamic_slice_in_dim", axis, operand.ndim)
    slice_size = known_integer(slice_size)
    sizes = [slice_size if i == axis else size for i, size in enumerate(operand.shape)]
    return dynamic_slice(
        operand, _along(operand, axis, start_index), sizes, allow_negative_indices=allow_negative_indices
    )


def dynamic_index_in_dim(
    operand: NestedArrayLike,
    index: NestedArrayLike,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Returns the elements at a computed index along one axis, which stays with size 1 if ``keepdims``."""
    result = dynamic_slice_in_dim(operand, index, 1, axis, allow_negative_indices=allow_negative_indices)
    return result if keepdims else tnp.squeeze(result, normalize_axis("dynamic_index_in_dim", axis, result.ndim))


def dynamic_update_slice_in_dim(
    operand: NestedArrayLike,
    update: NestedArrayLike,
    start_index: Any,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Returns an array with the elements along one axis from a computed index on replaced."""
    operand = tnp.asarray(operand)
    axis = normalize_axis("dynamic_update_slice_in_dim", axis, operand.ndim)
    return dynamic_update_slice(
        operand, update, _along(operand, axis, start_index), allow_negative_indices=allow_negative_indices
    )


def dynamic_update_index_in_dim(
    operand: NestedArrayLike,
    update: NestedArrayLike,
    index: NestedArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Returns an array with the elements at a computed index along one axis replaced.

    ``update`` has the axis with size 1, or lacks it.
    """
    operand = tnp.asarray(operand)
    axis = normalize_axis("dynamic_update_index_in_dim", axis, operand.ndim)
    update = _update_for("dynamic_update_index_in_dim", operand, update)
    if update.ndim != operand.ndim:
        update = tnp.expand_dims(update, axis)
    return dynamic_update_slice_in_dim(operand, update, index, axis, allow_negative_indices=allow_negative_indices)
