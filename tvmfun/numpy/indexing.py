"""Indexing: ``x[...]``, ``x.at[...]``, and taking elements at computed places."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import Tracer
from tvmfun.errors import ConcretizationError, IndexingError, ShapeError
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.elementwise import astype, multiply
from tvmfun.numpy.manipulation import broadcast_to, normalize_axis, permute_dims, ravel, reshape
from tvmfun.numpy.promotion import convert, require_integer
from tvmfun.ops import index as ops
from tvmfun.ops import pointwise
from tvmfun.ops import shape as shapes


def _is_array_index(item: Any) -> bool:
    return isinstance(item, Array | np.ndarray | list) and not (
        isinstance(item, np.ndarray) and item.ndim == 0
    )


def _expand(index: Any, ndim: int) -> list[Any]:
    """The index with masks as integer arrays, the ellipsis written out and one entry per axis (or None)."""
    items = list(index) if isinstance(index, tuple) else [index]
    expanded: list[Any] = []
    for item in items:
        if isinstance(item, bool | np.bool_):
            raise IndexingError(
                "index", "a single bool is no index", got=repr(item), hint="tvmfun.numpy.where"
            )
        if isinstance(item, list):
            item = np.asarray(item) if item else np.zeros(0, np.int32)
        if _is_array_index(item) and abstract(item).dtype == dtypes.bool_:
            if isinstance(item, Tracer):
                raise ConcretizationError(
                    "index",
                    "a mask that is being traced selects an unknown number of elements",
                    got=repr(item.aval),
                    hint="tvmfun.numpy.where(mask, x, y)",
                )
            expanded += [_mask_indices(np.asarray(item), len(expanded))][0]
        else:
            expanded.append(item)
    named = sum(item is not None and item is not Ellipsis for item in expanded)
    if named > ndim:
        raise IndexingError(
            "index", f"an array with {ndim} axes takes at most {ndim} indices", got=str(named)
        )
    ellipses = [i for i, item in enumerate(expanded) if item is Ellipsis]
    if len(ellipses) > 1:
        raise IndexingError("index", "there can be one ellipsis", got=str(len(ellipses)))
    place = ellipses[0] if ellipses else len(expanded)
    return expanded[:place] + [slice(None)] * (ndim - named) + expanded[place + len(ellipses) :]


def _mask_indices(mask: np.ndarray, axis: int) -> list[np.ndarray]:
    return [places.astype(np.int32) for places in np.nonzero(mask)]


def _check_masks(x: Array, index: Any) -> None:
    """A mask must have the shape of the axes it selects from."""
    axis = 0
    for item in index if isinstance(index, tuple) else (index,):
        if item is Ellipsis:
            return
        if item is None:
            continue
        if (
            _is_array_index(item)
            and abstract(np.asarray(item) if isinstance(item, list) else item).dtype == dtypes.bool_
        ):
            shape = np.shape(item)
            if shape != x.shape[axis : axis + len(shape)]:
                raise IndexingError(
                    "index", "the mask must have the shape of the array", got=f"{shape} for {x.aval}"
                )
            axis += len(shape)
        else:
            axis += 1


def getitem(x: Array, index: Any) -> Array:
    """Returns ``x[index]`` with NumPy's meaning; places outside the array that are only known at run time are clamped.

    Raises:
        IndexingError: for a wrong kind of index, too many, or a Python integer outside its axis.
        ConcretizationError: for a mask that is being traced.
    """
    _check_masks(x, index)
    items = _expand(index, x.ndim)
    if any(item is None for item in items):
        sizes = iter(x.shape)
        x = reshape(x, tuple(1 if item is None else next(sizes) for item in items))
        items = [slice(None) if item is None else item for item in items]
    arrays = [axis for axis, item in enumerate(items) if _is_array_index(item)]
    if arrays:  # integers next to arrays are arrays, as in NumPy
        arrays = [axis for axis, item in enumerate(items) if not isinstance(item, slice)]
    x, dropped = _slice(x, items, arrays)
    if not arrays:
        return (
            reshape(x, tuple(size for axis, size in enumerate(x.shape) if axis not in dropped))
            if dropped
            else x
        )
    indices, shape = _joined([items[axis] for axis in arrays], [x.shape[axis] for axis in arrays])
    rest = [axis for axis in range(x.ndim) if axis not in arrays]
    taken = ops.gather(permute_dims(x, (*arrays, *rest)), indices, mode="clip")
    if arrays == list(range(arrays[0], arrays[0] + len(arrays))) and arrays[0]:
        # Adjacent array indices: their result takes their place.
        before, rank = arrays[0], len(shape)
        order = (*range(rank, rank + before), *range(rank), *range(rank + before, taken.ndim))
        taken = permute_dims(taken, order)
    return taken


def _slice(x: Array, items: list[Any], arrays: list[int]) -> tuple[Array, list[int]]:
    """Applies slices and integers; returns the axes that integers leave behind with size 1."""
    start, stop, step, flipped, dropped = [], [], [], [], []
    for axis, (item, size) in enumerate(zip(items, x.shape, strict=True)):
        first, last, stride = 0, size, 1
        if axis in arrays:
            pass
        elif isinstance(item, slice):
            first, last, stride = _indices(item, size)
            if stride < 0:  # the same elements, read forwards and then flipped
                count = max(0, -(-(last - first) // stride))
                first, last, stride = first + (count - 1) * stride, first + 1, -stride
                first, last = (0, 0) if not count else (first, last)
                flipped.append(axis)
        else:
            place = _static_integer(item)
            if not -size <= place < size:
                raise IndexingError(
                    "index", f"axis {axis} has {size} elements", got=f"index {place} into {x.aval}"
                )
            first = place % size
            last = first + 1
            dropped.append(axis)
        start.append(first)
        stop.append(max(first, last))
        step.append(stride)
    if any(start) or tuple(stop) != x.shape or any(s != 1 for s in step):
        x = shapes.slice(x, start=tuple(start), stop=tuple(stop), step=tuple(step))
    return (shapes.flip(x, axes=tuple(flipped)) if flipped else x), dropped


def _indices(item: slice, size: int) -> tuple[int, int, int]:
    try:
        return item.indices(size)
    except ConcretizationError:
        raise ConcretizationError(
            "index",
            "the bounds of a slice must not be traced, because they give the result its shape",
            got=str(item),
            hint="a static argument, or tvmfun.numpy.take",
        ) from None
    except (TypeError, ValueError) as error:
        raise IndexingError(
            "index", "a slice takes integers and a step that is not 0", got=str(item)
        ) from error


def _static_integer(item: Any) -> int:
    try:
        return item.__index__()
    except (AttributeError, TypeError):
        raise IndexingError(
            "index", "an index is an integer, slice, None, ellipsis or integer array", got=repr(item)
        ) from None


def _joined(items: list[Any], sizes: list[int]) -> tuple[Array, tuple[int, ...]]:
    """Index arrays broadcast together, non-negative, along a new last axis."""
    arrays = []
    for item, size in zip(items, sizes, strict=True):
        if not isinstance(item, Array | np.ndarray):
            item = np.asarray(_static_integer(item), np.int32)
        require_integer("index", item)
        if not isinstance(item, Tracer):
            arrays.append(asarray(_wrapped(np.asarray(item), size)))
            continue
        item = item if item.dtype.itemsize >= 4 else astype(item, dtypes.int32)
        if item.dtype not in dtypes.UNSIGNED:
            item = pointwise.where(
                pointwise.less(item, pointwise.constant(0, item)),
                pointwise.add(item, pointwise.constant(size, item)),
                item,
            )
        arrays.append(astype(item, dtypes.int64 if item.dtype.itemsize == 8 else dtypes.int32))
    shape = pointwise.broadcast_shapes("index", [a.shape for a in arrays])
    widest = max((a.dtype for a in arrays), key=lambda d: d.itemsize)
    columns = [reshape(broadcast_to(astype(a, widest), shape), (*shape, 1)) for a in arrays]
    return (columns[0] if len(columns) == 1 else shapes.concat(*columns, axis=len(shape))), shape


def _wrapped(places: np.ndarray, size: int) -> np.ndarray:
    wrapped = np.where(places < 0, places.astype(np.int64) + size, places.astype(np.int64))
    return wrapped.astype(np.int32 if size <= np.iinfo(np.int32).max else np.int64)


class At:
    """The places ``x.at[index]`` of an array, for functional updates: ``x.at[index].set(y)`` returns a new array."""

    def __init__(self, x: Array, index: Any = None) -> None:
        self._x = x
        self._index = index

    def __getitem__(self, index: Any) -> At:
        return At(self._x, index)

    def get(self) -> Array:
        """Returns ``x[index]``."""
        return getitem(self._x, self._index)

    def set(self, values: Any) -> Array:
        """Returns ``x`` with ``values`` at the places; of several for one place, the last stays."""
        return self._scatter(values, "set")

    def add(self, values: Any) -> Array:
        """Returns ``x`` with ``values`` added at the places, as often as a place is named."""
        return self._scatter(values, "add")

    def subtract(self, values: Any) -> Array:
        """Returns ``x`` with ``values`` subtracted at the places, as often as a place is named."""
        return self._scatter(multiply(convert(values, self._x.dtype), -1), "add")

    def _scatter(self, values: Any, mode: str) -> Array:
        x = self._x
        _check_masks(x, self._index)
        items = _expand(self._index, x.ndim)
        leading = [
            axis for axis, item in enumerate(items) if not isinstance(item, slice) and item is not None
        ]
        whole = all(item == slice(None) for item in items[len(leading) :])
        if leading and leading == list(range(len(leading))) and whole and None not in items[: len(leading)]:
            indices, lead = _joined([items[axis] for axis in leading], [x.shape[axis] for axis in leading])
            return self._put(x, indices, values, lead + x.shape[len(leading) :], mode)
        # Any other index: number the elements, index the numbers, and update the flattened array there.
        numbers = asarray(np.arange(x.size, dtype=np.int32 if x.size < 2**31 else np.int64).reshape(x.shape))
        places = getitem(numbers, self._index)
        flat = self._put(ravel(x), reshape(places, (*places.shape, 1)), values, places.shape, mode)
        return reshape(flat, x.shape)

    @staticmethod
    def _put(x: Array, indices: Array, values: Any, shape: tuple[int, ...], mode: str) -> Array:
        updates = asarray(convert(values, x.dtype))
        try:
            updates = broadcast_to(updates, shape)
        except ShapeError:
            raise ShapeError(
                "at", f"the values must broadcast to the places, {shape}", got=repr(updates.aval)
            ) from None
        return ops.scatter(x, indices, updates, mode=mode)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """Returns the elements at integer ``indices`` along an axis, or of the flattened array; outside is clamped."""
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    return getitem(x, (slice(None),) * normalize_axis("take", axis, x.ndim) + (asarray(indices),))


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Array:
    """Returns, for each place of ``indices``, the element it names along an axis.

    Args:
        x: the array.
        indices: integers; the shape of ``x`` but for ``axis``, where sizes may differ.
        axis: the axis.

    >>> take_along_axis([[1.0, 2.0], [3.0, 4.0]], [[1], [0]], axis=1)
    Array([[2.],
           [3.]], dtype=float32)
    """
    x, indices = asarray(x), asarray(indices)
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    if indices.ndim != x.ndim:
        raise ShapeError("take_along_axis", f"the indices must have {x.ndim} axes", got=repr(indices.aval))
    grid = tuple(
        indices if i == axis else np.arange(size).reshape([-1 if j == i else 1 for j in range(x.ndim)])
        for i, size in enumerate(x.shape)
    )
    return getitem(x, grid)


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False) -> Array:
    """Returns the int32 indices that sort ``x`` along an axis; equal elements keep their order, NaNs go last."""
    x = asarray(x)
    axis = normalize_axis("argsort", axis, x.ndim)
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    rows = permute_dims(x, order)
    if x.dtype == dtypes.bool_:
        rows = astype(rows, dtypes.uint8)
    if descending:
        rows = pointwise.bitwise_not(rows) if dtypes.is_integer(rows.dtype) else pointwise.negative(rows)
    return permute_dims(ops.argsort(rows), tuple(map(int, np.argsort(order))))


def sort(x: Any, /, *, axis: int = -1, descending: bool = False) -> Array:
    """Returns ``x`` sorted along an axis; NaNs go last."""
    x = asarray(x)
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)
