"""Indexing: ``x[...]``, ``x.at[...]``, and taking elements at computed places.

Python integers outside an axis are errors. Places in index arrays may be known at run time only: reading
clamps those outside the array to it, and updates of them are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, DeviceArray, ShapeDtype, device_array, is_on_cpu
from tvmfun.core.trace import Tracer, abstract, is_tracing
from tvmfun.errors import ConcretizationError, IndexingError, ShapeError
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.elementwise import add, astype, minimum, where
from tvmfun.numpy.manipulation import broadcast_to, expand_dims, normalize_axis, permute_dims, ravel, reshape
from tvmfun.numpy.promotion import convert, require_integer
from tvmfun.ops import index as ops
from tvmfun.ops import pointwise
from tvmfun.ops import shape as shapes

# -- what an index means -------------------------------------------------------------------------------------


_BOOL = ShapeDtype((), dtypes.bool_)


def _is_array(item: Any) -> bool:
    return isinstance(item, Array) or (isinstance(item, np.ndarray) and item.ndim > 0)


def _normalized(x: Array, index: Any) -> list[Any]:
    """The index as slices, integers, None and integer arrays: one per axis of ``x``, but for None."""
    items: list[Any] = []
    axis = 0  # of `x`, as long as there was no ellipsis
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, bool | np.bool_) or (isinstance(item, Array) and item.aval == _BOOL):
            raise IndexingError("index", "a single bool is no index", got=repr(item), hint="tvmfun.numpy.where")
        if isinstance(item, list):
            item = np.asarray(item) if item else np.zeros(0, np.int32)
        elif not isinstance(item, Array | np.ndarray) and hasattr(item, "__array__") and np.ndim(item):
            item = asarray(item)  # of another library
        if _is_array(item) and abstract(item, "index").dtype == dtypes.bool_:
            items += _places_of(item, x, axis)
            axis += np.ndim(item)
        else:
            items.append(item)
            axis = -1 - x.ndim if item is Ellipsis else axis + (item is not None)
    ellipses = [i for i, item in enumerate(items) if item is Ellipsis]
    named = sum(item is not None for item in items) - len(ellipses)
    if named > x.ndim:
        raise IndexingError("index", f"an array with {x.ndim} axes takes at most {x.ndim} indices", got=str(named))
    if len(ellipses) > 1:
        raise IndexingError("index", "there can be one ellipsis", got=str(len(ellipses)))
    place = ellipses[0] if ellipses else len(items)
    return items[:place] + [slice(None)] * (x.ndim - named) + items[place + len(ellipses) :]


def _places_of(mask: Any, x: Array, axis: int) -> list[np.ndarray]:
    """The places where a mask, which selects from ``axis`` and the following, is true."""
    if isinstance(mask, Tracer):
        raise ConcretizationError(
            "index",
            "a mask that is being traced selects an unknown number of elements",
            got=repr(mask.aval),
            hint="tvmfun.numpy.where(mask, x, y)",
        )
    mask = np.asarray(mask)
    if axis >= 0 and mask.shape != x.shape[axis : axis + mask.ndim]:
        raise IndexingError("index", "the mask must have the shape of the array", got=f"{mask.shape} for {x.aval}")
    return [places.astype(np.int32) for places in np.nonzero(mask)]


def _static_integer(item: Any, axis: int, x: Array) -> int:
    """An integer of the index as a place, at least 0."""
    try:
        place = item.__index__()
    except (AttributeError, TypeError):
        kinds = "an integer, slice, None, ellipsis or integer array"
        raise IndexingError("index", f"an index is {kinds}", got=repr(item)) from None
    size = x.shape[axis]
    if not -size <= place < size:
        raise IndexingError("index", f"axis {axis} has {size} elements", got=f"index {place} into {x.aval}")
    return place % size


def _bounds(item: slice, size: int) -> tuple[int, int, int]:
    """The first place, the number of places, and the step of a slice."""
    try:
        places = range(size)[item]
    except ConcretizationError:
        raise ConcretizationError(
            "index",
            "the bounds of a slice must not be traced, because they give the result its shape",
            got=str(item),
            hint="a static argument, or tvmfun.numpy.take",
        ) from None
    except (TypeError, ValueError) as error:
        raise IndexingError("index", "a slice takes integers and a step that is not 0", got=str(item)) from error
    return places.start, len(places), places.step


def _is_immediate(x: Array) -> bool:
    """Whether NumPy can do it at once: there is nothing to trace, and no module to compile for each index."""
    return isinstance(x, DeviceArray) and not is_tracing() and is_on_cpu(x)


# -- x[index] ------------------------------------------------------------------------------------------------


def getitem(x: Array, index: Any) -> Array:
    """Returns ``x[index]`` with NumPy's meaning; places in index arrays are clamped to ``x``.

    Raises:
        IndexingError: for a wrong kind of index, too many, or a Python integer outside its axis.
        ConcretizationError: for a mask that is being traced.
    """
    items = _normalized(x, index)
    if _is_immediate(x):
        view = x.concrete("index").numpy()[_numpy_index(x, items)]
        return device_array(view, weak=x.weak_type)
    return _read(x, items, "clip")


def _numpy_index(x: Array, items: list[Any]) -> tuple:
    """The index for NumPy, with places inside the array."""
    checked, axis = [], 0
    for item in items:
        if item is None:
            checked.append(item)
            continue
        if isinstance(item, slice):
            _bounds(item, x.shape[axis])
        elif _is_array(item):
            item = _wrapped(item, x.shape[axis])
            if item.size and not x.shape[axis]:
                raise IndexingError("index", f"axis {axis} has no elements", got=f"an index into {x.aval}")
            item = np.clip(item, 0, max(x.shape[axis] - 1, 0))
        else:
            item = _static_integer(item, axis, x)
        checked.append(item)
        axis += 1
    return tuple(checked)


def _read(x: Array, items: list[Any], mode: str) -> Array:
    """``x[items]`` as ops; ``mode`` is that of ``gather``."""
    arrays = [axis for axis, item in enumerate(items) if _is_array(item)]
    if arrays:  # integers next to arrays are arrays, as in NumPy
        arrays = [axis for axis, item in enumerate(items) if not isinstance(item, slice | None)]
    sizes = iter(x.shape)
    if any(item is None for item in items):
        x = reshape(x, tuple(1 if item is None else next(sizes) for item in items))
        items = [slice(None) if item is None else item for item in items]
    x, dropped = _sliced(x, items, arrays)
    if not arrays:
        return reshape(x, tuple(size for axis, size in enumerate(x.shape) if axis not in dropped))
    indices, shape = _joined(x, items, arrays)
    rest = [axis for axis in range(x.ndim) if axis not in arrays]
    taken = ops.gather(permute_dims(x, (*arrays, *rest)), indices, mode=mode)
    if arrays == list(range(arrays[0], arrays[0] + len(arrays))):
        # Adjacent array indices: their result takes their place.
        before, rank = arrays[0], len(shape)
        taken = permute_dims(taken, (*range(rank, rank + before), *range(rank), *range(rank + before, taken.ndim)))
    return taken


def _sliced(x: Array, items: list[Any], arrays: list[int]) -> tuple[Array, list[int]]:
    """Applies slices and integers; returns the axes that integers leave behind with size 1."""
    start, stop, step, flipped, dropped = [], [], [], [], []
    for axis, (item, size) in enumerate(zip(items, x.shape, strict=True)):
        first, count, stride = 0, size, 1
        if axis in arrays:
            pass
        elif isinstance(item, slice):
            first, count, stride = _bounds(item, size)
            if stride < 0:  # the same elements, read forwards and then flipped
                first, stride = first + (count - 1) * stride, -stride
                flipped.append(axis)
        else:
            first, count = _static_integer(item, axis, x), 1
            dropped.append(axis)
        start.append(first if count else 0)
        stop.append(start[-1] + max(0, (count - 1) * stride + 1))
        step.append(stride)
    if any(start) or tuple(stop) != x.shape or any(stride != 1 for stride in step):
        x = shapes.slice(x, start=tuple(start), stop=tuple(stop), step=tuple(step))
    return (shapes.flip(x, axes=tuple(flipped)) if flipped else x), dropped


def _joined(x: Array, items: list[Any], axes: list[int]) -> tuple[Array, tuple[int, ...]]:
    """The index arrays of ``axes`` broadcast together, non-negative, along a new last axis; their shape."""
    arrays = []
    for axis in axes:
        item, size = items[axis], x.shape[axis]
        if not _is_array(item):
            arrays.append(asarray(np.int32(_static_integer(item, axis, x))))
        elif not isinstance(item, Tracer):
            arrays.append(asarray(_wrapped(item, size)))
        else:
            require_integer("index", item)
            signed = dtypes.int64 if item.dtype.itemsize == 8 else dtypes.int32
            if item.dtype in dtypes.UNSIGNED and item.dtype.itemsize >= 4:  # what does not fit is outside
                item = minimum(item, int(np.iinfo(signed).max))
            item = astype(item, signed)
            arrays.append(where(item < 0, item + size, item))
    shape = pointwise.broadcast_shapes("index", [a.shape for a in arrays])
    widest = max((a.dtype for a in arrays), key=lambda dtype: dtype.itemsize)
    columns = [expand_dims(broadcast_to(astype(a, widest), shape), -1) for a in arrays]
    return (columns[0] if len(columns) == 1 else shapes.concat(*columns, axis=len(shape))), shape


def _wrapped(item: Any, size: int) -> np.ndarray:
    """An index array with data, places from the end counted from the start."""
    require_integer("index", item)
    places = np.asarray(item)
    if places.dtype == dtypes.uint64:
        places = np.minimum(places, np.uint64(np.iinfo(np.int64).max))
    places = places.astype(np.int64)
    places = np.where(places < 0, places + size, places)
    # Places outside stay outside in 32 bits.
    limit = np.iinfo(np.int32).max
    return np.clip(places, -1, limit).astype(np.int32) if size <= limit else places


# -- x.at[index] ---------------------------------------------------------------------------------------------


_NOWHERE = object()


class At:
    """The places ``x.at[index]`` of an array, for functional updates: they return a new array.

    >>> import tvmfun.numpy as tnp
    >>> tnp.asarray([1, 2, 3]).at[1:].set(0)
    Array([1, 0, 0], dtype=int32)
    """

    def __init__(self, x: Array, index: Any = _NOWHERE) -> None:
        self._x = x
        self._index = index

    def __getitem__(self, index: Any) -> At:
        return At(self._x, index)

    def get(self) -> Array:
        """Returns ``x[index]``."""
        return self._x if self._index is _NOWHERE else getitem(self._x, self._index)

    def set(self, values: Any) -> Array:
        """Returns ``x`` with ``values`` at the places; of several for one place, the last stays."""
        return self._update(values, "set")

    def add(self, values: Any) -> Array:
        """Returns ``x`` with ``values`` added at the places, as often as a place is named."""
        return self._update(values, "add")

    def subtract(self, values: Any) -> Array:
        """Returns ``x`` with ``values`` subtracted at the places, as often as a place is named."""
        return self._update(pointwise.negative(_values(self._x, values)), "add")

    def _update(self, values: Any, mode: str) -> Array:
        x = self._x
        if self._index is _NOWHERE:
            raise IndexingError("at", "an update needs places", got=f"x.at.{mode}", hint=f"x.at[...].{mode}(values)")
        if isinstance(self._index, Tracer) and self._index.dtype == dtypes.bool_:
            return _update_mask(x, self._index, values, mode)
        items = _normalized(x, self._index)
        values = _values(x, values)
        arrays = [item for item in items if _is_array(item)]
        if not arrays:
            return _update_slices(x, items, values, mode)
        leading = items[: len(arrays)]
        if all(map(_is_array, leading)) and all(item == slice(None) for item in items[len(arrays) :]):
            indices, shape = _joined(x, items, list(range(len(arrays))))
            return _scatter(x, indices, values, shape + x.shape[len(arrays) :], mode)
        # Any other index: number the elements, index the numbers, and update the flattened array there.
        # Numbers count from 1, because 0 is what is read outside the array.
        numbers = shapes.iota(shape=(x.size + 1,), axis=0, dtype="int32" if x.size < 2**31 else "int64")[1:]
        places = _read(reshape(numbers, x.shape), items, "fill") - 1
        return reshape(_scatter(ravel(x), expand_dims(places, -1), values, places.shape, mode), x.shape)


def _values(x: Array, values: Any) -> Array:
    """What to put into ``x``, in its dtype."""
    return convert("at", asarray(values) if isinstance(values, list | tuple) else values, x.dtype)


def _fitting(values: Any, shape: tuple[int, ...]) -> Any:
    extra = values.ndim - len(shape)
    if extra > 0 and values.shape[:extra] == (1,) * extra:  # as in NumPy's assignments
        values = reshape(values, values.shape[extra:])
    if values.shape == shape:
        return values
    try:
        return shapes.broadcast_to(values, shape=shape)
    except ShapeError:
        raise ShapeError(
            "at", f"the values must broadcast to the places, {shape}", got=repr(abstract(values))
        ) from None


def _scatter(x: Array, indices: Array, values: Any, shape: tuple[int, ...], mode: str) -> Array:
    return ops.scatter(x, indices, _fitting(values, shape), mode=mode)


def _update_mask(x: Array, mask: Array, values: Any, mode: str) -> Array:
    """Updates where a traced mask is true, with one value: nobody knows how many places there are."""
    values = _values(x, values)
    if values.ndim or mask.shape != x.shape[: mask.ndim]:
        raise ConcretizationError(
            "at",
            "a mask that is being traced takes one value and has the shape of the array",
            got=f"{mask.aval} for {x.aval}, values {abstract(values)}",
            hint="tvmfun.numpy.where(mask, values, x)",
        )
    mask = reshape(mask, mask.shape + (1,) * (x.ndim - mask.ndim))
    return where(mask, values if mode == "set" else add(x, values), x)


def _update_slices(x: Array, items: list[Any], values: Any, mode: str) -> Array:
    if _is_immediate(x) and (isinstance(values, np.generic) or _is_immediate(values)):
        return _update_now(x, _numpy_index(x, items), np.asarray(values), mode)
    # The values, spread out and padded to the shape of `x`: a kernel without any index arrays.
    low, high, interior, sizes, flipped, shape = [], [], [], [], [], []
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        if isinstance(item, slice):
            first, count, step = _bounds(item, x.shape[axis])
            shape.append(count)
            if step < 0:
                first, step = first + (count - 1) * step, -step
                flipped.append(axis)
        else:
            first, count, step = _static_integer(item, axis, x), 1, 1
        sizes.append(count)
        low.append(first)
        high.append(x.shape[axis] - first - (count - 1) * step - 1)
        interior.append(step - 1)
        axis += 1
    updates = reshape(_fitting(values, tuple(shape)), tuple(sizes))
    if not updates.size:
        return x
    if flipped:
        updates = shapes.flip(updates, axes=tuple(flipped))
    margins = {"low": tuple(low), "high": tuple(high), "interior": tuple(interior)}
    spread = shapes.pad(updates, x.dtype.type(0), **margins)
    if mode == "add":
        return add(x, spread)
    here = shapes.broadcast_to(np.bool_(True), shape=tuple(sizes))
    return where(shapes.pad(here, np.bool_(False), **margins), spread, x)


def _update_now(x: Array, index: tuple, values: np.ndarray, mode: str) -> Array:
    result = np.array(x.concrete("at").numpy())
    try:
        result[index] = values if mode == "set" else result[index] + values
    except ValueError:
        got = f"{dtypes.NAMES[x.dtype]}{list(values.shape)}"
        raise ShapeError("at", f"the values must broadcast to the places, {result[index].shape}", got=got) from None
    return device_array(result)


# -- taking and sorting --------------------------------------------------------------------------------------


def take(x: Any, indices: Any, /, axis: int | None = None) -> Array:
    """Returns the elements at integer ``indices`` along an axis, or of the flattened array; clamps to it.

    >>> take([[1, 2], [3, 4]], [1, 0], axis=1)
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    indices = asarray(indices)
    require_integer("take", indices)
    return getitem(x, (slice(None),) * normalize_axis("take", axis, x.ndim) + (indices,))


def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Array:
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
    require_integer("take_along_axis", indices)
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    if indices.ndim != x.ndim:
        raise ShapeError("take_along_axis", f"the indices must have {x.ndim} axes", got=repr(indices.aval))
    grid = tuple(
        indices if i == axis else np.arange(size).reshape([-1 if j == i else 1 for j in range(x.ndim)])
        for i, size in enumerate(x.shape)
    )
    return getitem(x, grid)


def argsort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Returns the int32 indices that sort ``x`` along an axis; equal elements keep their order, NaNs go last.

    Args:
        x: the array.
        axis: the axis.
        descending: whether the largest element comes first.
        stable: for the array API; every sort is stable.

    >>> argsort([3, 1, 2])
    Array([1, 2, 0], dtype=int32)
    """
    x = asarray(x)
    axis = normalize_axis("argsort", axis, x.ndim)
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    rows = permute_dims(x, order)
    if x.dtype == dtypes.bool_:
        rows = astype(rows, dtypes.uint8)
    if descending:
        rows = pointwise.negative(rows) if dtypes.is_float(rows.dtype) else pointwise.bitwise_not(rows)
    return permute_dims(ops.argsort(rows), tuple(map(int, np.argsort(order))))


def sort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Returns ``x`` sorted along an axis; NaNs go last. The arguments are those of :func:`argsort`."""
    x = asarray(x)
    axis = normalize_axis("sort", axis, x.ndim)
    return take_along_axis(x, argsort(x, axis, descending=descending, stable=stable), axis)
