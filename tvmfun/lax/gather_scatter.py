"""Gathers and scatters of slices."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.lax import slicing
from tvmfun.numpy.promotion import NestedArrayLike, convert, require_integer
from tvmfun.numpy.shapes import normalize_axis
from tvmfun.ops import index as ops
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes

__all__ = [
    "GatherDimensionNumbers",
    "GatherScatterMode",
    "ScatterDimensionNumbers",
    "gather",
    "index_take",
    "scatter",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_sub",
]


Ints = tuple[int, ...]


class GatherScatterMode(enum.Enum):
    """The treatment of indices outside the array.

    ``CLIP`` moves them inside; ``FILL_OR_DROP`` reads a fill value there and drops updates; ``PROMISE_IN_BOUNDS``
    says that there are none: should there be some, they are moved inside when read, and dropped when written, also by
    a gradient.
    """

    CLIP = enum.auto()
    FILL_OR_DROP = enum.auto()
    PROMISE_IN_BOUNDS = enum.auto()


_MODES = {
    "clip": GatherScatterMode.CLIP,
    "fill": GatherScatterMode.FILL_OR_DROP,
    "drop": GatherScatterMode.FILL_OR_DROP,
    "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
    None: GatherScatterMode.PROMISE_IN_BOUNDS,
}


@dataclass(frozen=True)
class GatherDimensionNumbers:
    """The roles of the axes in :func:`gather`.

    Args:
        offset_dims: the axes of the result that belong to a slice.
        collapsed_slice_dims: the axes of the operand in which a slice has size 1 and that the result drops.
        start_index_map: for each element of an index vector, the axis of the operand that it indexes.
        operand_batching_dims: the batch axes of the operand.
        start_indices_batching_dims: the batch axes of the indices, in the same order.
    """

    offset_dims: Ints
    collapsed_slice_dims: Ints
    start_index_map: Ints
    operand_batching_dims: Ints = ()
    start_indices_batching_dims: Ints = ()


@dataclass(frozen=True)
class ScatterDimensionNumbers:
    """The roles of the axes in :func:`scatter` and its relatives.

    Args:
        update_window_dims: the axes of the updates that belong to a window.
        inserted_window_dims: the axes of the operand in which a window has size 1 and that the updates lack.
        scatter_dims_to_operand_dims: for each element of an index vector, the axis of the operand that it indexes.
        operand_batching_dims: the batch axes of the operand.
        scatter_indices_batching_dims: the batch axes of the indices, in the same order.
    """

    update_window_dims: Ints
    inserted_window_dims: Ints
    scatter_dims_to_operand_dims: Ints
    operand_batching_dims: Ints = ()
    scatter_indices_batching_dims: Ints = ()


class _Windows(NamedTuple):
    """A gather or scatter as the ops have it: first common axes, then indexed ones, then the rest.

    ``positions`` holds an index vector for each element of each window, ``inside`` tells which windows are inside the
    array, and ``order`` is the order of the operand's axes.
    """

    positions: Array
    inside: Array
    order: Ints
    indexed: Ints


def _mode(name: str, mode: Any) -> GatherScatterMode:
    if isinstance(mode, GatherScatterMode):
        return mode
    if mode not in _MODES:
        raise ArgumentError(name, "the mode is 'clip', 'fill', 'drop' or 'promise_in_bounds'", got=repr(mode))
    return _MODES[mode]


def _windows(
    name: str, operand: Array, indices: Any, sizes: Ints, index_map: Ints, batching: Ints, index_batching: Ints
) -> _Windows:
    """The windows of ``sizes`` that start at ``indices``, moved inside the array."""
    indices = tnp.asarray(indices)
    require_integer(name, indices)
    if len(sizes) != operand.ndim or any(not 0 <= s <= n for s, n in zip(sizes, operand.shape, strict=True)):
        raise ShapeError(name, "a window has a size per axis, within the array", got=f"{sizes} of {operand.aval}")
    if not indices.ndim or indices.shape[-1] != len(index_map):
        raise ShapeError(name, f"an index has {len(index_map)} elements, along the last axis", got=repr(indices.aval))
    if indices.dtype in dtypes.UNSIGNED or indices.dtype.itemsize < 4:
        indices = tnp.astype(indices, dtypes.int64 if indices.dtype.itemsize >= 4 else dtypes.int32)
    lead = indices.ndim - 1
    others = tuple(i for i in range(lead) if i not in index_batching)
    indices = tnp.permute_dims(indices, (*index_batching, *others, lead))
    indexed = tuple(
        i for i in range(operand.ndim) if i not in batching and (i in index_map or sizes[i] != operand.shape[i])
    )
    kind = indices.dtype
    # The iotas of windows lie along axes of their own, after those of the indices.
    grid = (*indices.shape[:-1], *(sizes[i] for i in indexed))
    columns, inside = [], tnp.full(indices.shape[:-1], True)
    for k, axis in enumerate(indexed):
        along = shapes.iota(shape=grid, axis=lead + k, dtype=dtypes.NAMES[kind])
        if axis not in index_map:
            columns.append(along)
            continue
        start = tnp.squeeze(slicing.slice_in_dim(indices, (m := index_map.index(axis)), m + 1, axis=lead), lead)
        last = tnp.astype(operand.shape[axis] - sizes[axis], kind)
        valid = pw.bitwise_and(pw.greater_equal(start, kind.type(0)), pw.less_equal(start, last))
        inside = pw.bitwise_and(inside, valid)
        start = pw.maximum(pw.minimum(start, last), kind.type(0))
        start = tnp.reshape(start, (*start.shape, *(1,) * len(indexed)))
        columns.append(pw.add(shapes.broadcast_to(start, shape=grid), along))
    stacked = [tnp.expand_dims(column, -1) for column in columns]
    positions = shapes.concat(*stacked, axis=len(grid)) if columns else tnp.zeros((*grid, 0), dtypes.int32)
    rest = tuple(i for i in range(operand.ndim) if i not in batching and i not in indexed)
    return _Windows(positions, inside, (*batching, *indexed, *rest), indexed)


def _result_order(index_batching: Ints, lead: int, window_axes: Ints, order: Ints, kept: Ints, batching: int) -> Ints:
    """For each axis of a gather's result, or of updates, its position after the common and other index axes.

    ``window_axes`` are where the windows' axes ``kept`` (of the operand, in order) lie; ``order`` is that of the ops.
    """
    others = [i for i in range(lead) if i not in index_batching]
    index_axes = [*index_batching, *others]
    own = [axis for axis in order[batching:] if axis in kept]
    indices = iter(range(lead))
    result = []
    for axis in range(lead + len(kept)):
        if axis in window_axes:
            result.append(lead + own.index(kept[window_axes.index(axis)]))
        else:
            result.append(index_axes.index(next(indices)))
    return tuple(result)


def _fill_value(dtype: np.dtype, value: Any) -> Any:
    if value is not None:
        return convert("gather", value, dtype)
    if dtypes.is_float(dtype):
        return dtype.type(math.nan)
    if dtype == dtypes.bool_:
        return dtype.type(True)
    return dtype.type(np.iinfo(dtype).min if dtype in dtypes.SIGNED else np.iinfo(dtype).max)


def gather(
    operand: NestedArrayLike,
    start_indices: NestedArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: NestedArrayLike | None = None,
) -> Array:
    """Returns the slices of an array that begin at computed indices.

    Args:
        operand: the array.
        start_indices: integers whose last axis is the index where a slice begins.
        dimension_numbers: which axis is which.
        slice_sizes: the size of a slice along each axis of ``operand``.
        unique_indices: a promise that is not needed.
        indices_are_sorted: a promise that is not needed.
        mode: how to treat slices that are not inside the array: ``"clip"`` moves them inside, ``"fill"`` fills them; by
            default they are moved, and get no gradient.
        fill_value: what to fill with; by default NaN, the smallest signed integer, the largest unsigned one, or True.

    Returns:
        An array with the axes of ``start_indices`` but the last, and between them those of the slices.

    Raises:
        ShapeError: if sizes or numbers of axes do not fit.

    Source: ``jax.lax.gather``.

    >>> numbers = GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,))
    >>> gather(tnp.arange(5), [[1], [3]], numbers, (2,)).tolist()
    [[1, 2], [3, 4]]
    """
    operand, indices, sizes = tnp.asarray(operand), tnp.asarray(start_indices), tuple(slice_sizes)
    numbers, how = dimension_numbers, _mode("gather", mode)
    if not isinstance(numbers, GatherDimensionNumbers):
        raise ArgumentError("gather", "dimension_numbers must be GatherDimensionNumbers", got=repr(numbers))
    batching, index_batching = tuple(numbers.operand_batching_dims), tuple(numbers.start_indices_batching_dims)
    index_map, dropped = tuple(numbers.start_index_map), tuple(numbers.collapsed_slice_dims)
    windows = _windows("gather", operand, indices, sizes, index_map, batching, index_batching)
    kept = tuple(i for i in range(operand.ndim) if i not in batching and i not in dropped)
    _check_kept("gather", sizes, kept, (*batching, *dropped), numbers.offset_dims)
    lead = indices.ndim - 1
    taken = ops.gather(tnp.permute_dims(operand, windows.order), windows.positions, mode="clip", batch=len(batching))
    if how is not GatherScatterMode.CLIP:
        inside = tnp.reshape(windows.inside, (*windows.inside.shape, *(1,) * (taken.ndim - lead)))
        fills = how is GatherScatterMode.FILL_OR_DROP
        outside = _fill_value(operand.dtype, fill_value) if fills else pw.stop_gradient(taken)
        taken = pw.where(inside, taken, outside)
    shape = (*taken.shape[:lead], *(sizes[i] for i in windows.order[len(batching) :] if i in kept))
    taken = tnp.reshape(taken, shape)
    axes = _result_order(index_batching, lead, tuple(numbers.offset_dims), windows.order, kept, len(batching))
    return tnp.permute_dims(taken, axes)


def _check_kept(name: str, sizes: Ints, kept: Ints, dropped: Ints, window_axes: Sequence[int]) -> None:
    if len(window_axes) != len(kept) or any(sizes[i] > 1 for i in dropped):
        raise ShapeError(
            name,
            "each axis of a window is an axis of the result, but for those left out, whose size is 1",
            got=f"window {sizes}, left out {dropped}, axes {tuple(window_axes)}",
        )


def _scatter(
    name: str,
    combine: str,
    operand: Any,
    indices: Any,
    updates: Any,
    numbers: ScatterDimensionNumbers,
    unique: bool,
    mode: Any,
) -> Array:
    operand, indices = tnp.asarray(operand), tnp.asarray(indices)
    updates = tnp.asarray(convert(name, updates, operand.dtype))
    if operand.dtype == dtypes.bool_ and combine != "set":
        raise DtypeError(name, "bools are only set", got=repr(operand.aval), hint="x.astype('int32')")
    how = _mode(name, mode)
    if not isinstance(numbers, ScatterDimensionNumbers):
        raise ArgumentError(name, "dimension_numbers must be ScatterDimensionNumbers", got=repr(numbers))
    batching, index_batching = tuple(numbers.operand_batching_dims), tuple(numbers.scatter_indices_batching_dims)
    index_map, inserted = tuple(numbers.scatter_dims_to_operand_dims), tuple(numbers.inserted_window_dims)
    window_axes = tuple(numbers.update_window_dims)
    kept = tuple(i for i in range(operand.ndim) if i not in batching and i not in inserted)
    if len(kept) != len(window_axes) or len(kept) + indices.ndim - 1 != updates.ndim:
        raise ShapeError(
            name,
            "the updates have the axes of the indices but the last, and those of a window",
            got=f"{updates.aval} for {operand.aval} and {indices.aval}",
        )
    by_axis = {i: updates.shape[axis] for i, axis in zip(kept, window_axes, strict=True)}
    sizes = tuple(by_axis.get(i, 1) for i in range(operand.ndim))
    windows = _windows(name, operand, indices, sizes, index_map, batching, index_batching)
    lead = indices.ndim - 1
    axes = _result_order(index_batching, lead, window_axes, windows.order, kept, len(batching))
    ordered = tnp.permute_dims(updates, tuple(int(i) for i in np.argsort(axes)))
    count = ordered.shape[:lead]
    if count != windows.positions.shape[:lead]:
        raise ShapeError(name, "the updates do not fit the indices", got=f"{updates.aval} and {indices.aval}")
    ordered = tnp.reshape(ordered, (*count, *(sizes[i] for i in windows.order[len(batching) :])))
    positions = windows.positions
    if how is not GatherScatterMode.CLIP:  # an index that is outside for sure
        inside = tnp.reshape(windows.inside, (*count, *(1,) * (positions.ndim - lead)))
        positions = pw.where(inside, positions, positions.dtype.type(-1))
    moved = tnp.permute_dims(operand, windows.order)
    result = ops.scatter(moved, positions, ordered, mode=combine, batch=len(batching), unique=unique)
    return tnp.permute_dims(result, tuple(int(i) for i in np.argsort(windows.order)))


def scatter(
    operand: NestedArrayLike,
    scatter_indices: NestedArrayLike,
    updates: NestedArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns an array with windows at computed indices replaced; of several for one index the last stays.

    Args:
        operand: the array.
        scatter_indices: integers whose last axis is the index where a window begins.
        updates: the windows, of the dtype of ``operand``.
        dimension_numbers: which axis is which.
        indices_are_sorted: a promise that is not needed.
        unique_indices: a promise that no index is updated twice, with which updates run in parallel.
        mode: how to treat windows that are not inside the array: ``"drop"``, the default, or ``"clip"``.

    Raises:
        ShapeError: if sizes or numbers of axes do not fit.

    Source: ``jax.lax.scatter``.

    >>> numbers = ScatterDimensionNumbers((), (0,), (0,))
    >>> scatter(tnp.zeros(4), [[1], [3], [9]], tnp.ones(3), numbers)
    Array([0., 1., 0., 1.], dtype=float32)
    """
    return _scatter("scatter", "set", operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_add(
    operand: NestedArrayLike,
    scatter_indices: NestedArrayLike,
    updates: NestedArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns an array with ``updates`` added to windows at computed indices; see :func:`scatter`."""
    return _scatter("scatter_add", "add", operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_sub(
    operand: NestedArrayLike,
    scatter_indices: NestedArrayLike,
    updates: NestedArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns an array with ``updates`` subtracted from windows at computed indices; see :func:`scatter`."""
    updates = pw.negative(tnp.asarray(updates))
    return _scatter("scatter_sub", "add", operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_mul(
    operand: NestedArrayLike,
    scatter_indices: NestedArrayLike,
    updates: NestedArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns an array with windows at computed indices multiplied by ``updates``; see :func:`scatter`.

    The second derivative is right where no update is 0.
    """
    return _scatter("scatter_mul", "mul", operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_min(
    operand: NestedArrayLike,
    scatter_indices: NestedArrayLike,
    updates: NestedArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the smaller of the array and ``updates`` in windows at computed indices; see :func:`scatter`.

    Elements that are equal share the gradient.
    """
    return _scatter("scatter_min", "min", operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def scatter_max(
    operand: NestedArrayLike,
    scatter_indices: NestedArrayLike,
    updates: NestedArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the larger of the array and ``updates`` in windows at computed indices; see :func:`scatter`.

    Elements that are equal share the gradient.
    """
    return _scatter("scatter_max", "max", operand, scatter_indices, updates, dimension_numbers, unique_indices, mode)


def index_take(src: NestedArrayLike, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """Returns the elements of ``src`` at index arrays for the axes ``axes``, with the indices' axis first.

    Args:
        src: the array.
        idxs: one vector of indices per axis; all have the same length.
        axes: which axes of ``src`` they are for.

    >>> index_take(tnp.asarray([[1, 2], [3, 4]]), (np.asarray([0, 1]), np.asarray([1, 0])), (0, 1))
    Array([2, 3], dtype=int32)
    """
    src = tnp.asarray(src)
    axes = tuple(normalize_axis("index_take", axis, src.ndim) for axis in axes)
    if len(axes) != len(idxs):
        raise ArgumentError("index_take", "there must be one index array per axis", got=f"{len(idxs)} for {axes}")
    indices = tnp.stack([tnp.asarray(idx) for idx in idxs], axis=-1)
    rest = tuple(i for i in range(src.ndim) if i not in axes)
    numbers = GatherDimensionNumbers(tuple(range(indices.ndim - 1, indices.ndim - 1 + len(rest))), axes, axes)
    sizes = tuple(1 if i in axes else size for i, size in enumerate(src.shape))
    return gather(src, indices, numbers, sizes)
