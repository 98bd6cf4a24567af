"""Indexing: ``x[...]``, and taking elements at computed indices.

Python integers outside an axis are errors. Indices in index arrays may be known at run time only: those outside the
array are clamped to it, unless a mode says otherwise.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, DeviceArray, ShapeDtype, device_array, is_on_cpu
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, IndexingError, ShapeError
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import add, clip, logical_and, minimum, remainder, where
from tvmfun.numpy.promotion import NestedArrayLike, convert, no_out, require_integer
from tvmfun.numpy.shapes import broadcast_to, expand_dims, moveaxis, normalize_axis, permute_dims, ravel, reshape
from tvmfun.ops import index as ops
from tvmfun.ops import pointwise
from tvmfun.ops import shape as shapes

__all__ = ["take", "take_along_axis"]


_BOOL = ShapeDtype((), dtypes.bool_)


def is_array(item: Any) -> bool:
    """Whether an item of an index is an array of indices."""
    return isinstance(item, Array) or (isinstance(item, np.ndarray) and item.ndim > 0)


def normalized(x: Array, index: NestedArrayLike) -> list[Any]:
    """The index as slices, integers, None and integer arrays: one per axis of ``x``, but for None.

    Among them stays an ellipsis that stands for no axis, if there are arrays: it keeps its neighbours apart.
    """
    given = [_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    ellipses = [i for i, item in enumerate(given) if item is Ellipsis]
    named = sum(_axes_of(item) for item in given)
    if named > x.ndim:
        raise IndexingError("index", f"an array with {x.ndim} axes takes at most {x.ndim} indices", got=str(named))
    if len(ellipses) > 1:
        raise IndexingError("index", "there can be one ellipsis", got=str(len(ellipses)))
    position = ellipses[0] if ellipses else len(given)
    filling: list[Any] = [slice(None)] * (x.ndim - named)
    if ellipses and not filling and any(map(is_array, given)):
        filling = [Ellipsis]
    items: list[Any] = []
    axis = 0
    for item in given[:position] + filling + given[position + len(ellipses) :]:
        items += _indices_of(item, x, axis) if _is_mask(item) else [item]
        axis += _axes_of(item)
    return items


def _is_bool(item: Any) -> bool:
    return isinstance(item, bool | np.bool_) or (isinstance(item, Array | np.ndarray) and abstract(item) == _BOOL)


def without_bools(x: Array, index: NestedArrayLike) -> tuple[Array, Any]:
    """The array and the index with an axis of size 1, and an array of indices along it, for each single bool.

    True is the one index along the axis, and False none. So single bools broadcast with the other arrays of an index.
    """
    items = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_bool, items)):
        return x, index
    if any(isinstance(item, Tracer) for item in items if _is_bool(item)):
        what = "a single bool that is being traced selects an unknown number of elements"
        raise ConcretizationError("index", what, got="bool[]", hint="tvmfun.numpy.where(condition, x, y)")
    items = [bool(item) if _is_bool(item) else _item(item) for item in items]
    rest = x.ndim - sum(_axes_of(item) for item in items if not isinstance(item, bool))
    shape, replaced, axis = list(x.shape), [], 0
    for item in items:
        if isinstance(item, bool):
            shape.insert(axis, 1)
            item, count = np.zeros(int(item), np.int32), 1
        else:
            count = rest if item is Ellipsis else _axes_of(item)
        replaced.append(item)
        axis += count
    return reshape(x, tuple(shape)), tuple(replaced)


def _item(item: Any) -> Any:
    """One item of an index, sequences and arrays of other libraries as arrays."""
    if isinstance(item, list | tuple):
        return np.asarray(item) if item else np.zeros(0, np.int32)
    if not isinstance(item, Array | np.ndarray) and hasattr(item, "__array__") and np.ndim(item):
        return asarray(item)
    return item


def _is_mask(item: Any) -> bool:
    return is_array(item) and abstract(item, "index").dtype == dtypes.bool_


def _axes_of(item: Any) -> int:
    """The number of axes that an item of an index consumes; 0 for an ellipsis, which takes the remaining ones."""
    return np.ndim(item) if _is_mask(item) else int(item is not None and item is not Ellipsis)


def _indices_of(mask: Any, x: Array, axis: int) -> list[np.ndarray]:
    """The indices where a mask, which selects from ``axis`` and the following, is true."""
    if isinstance(mask, Tracer):
        raise ConcretizationError(
            "index",
            "a mask that is being traced selects an unknown number of elements",
            got=repr(mask.aval),
            hint="tvmfun.numpy.where(mask, x, y)",
        )
    mask = np.asarray(mask)
    if mask.shape != x.shape[axis : axis + mask.ndim]:
        raise IndexingError("index", "the mask must have the shape of the array", got=f"{mask.shape} for {x.aval}")
    return [indices.astype(np.int32) for indices in np.nonzero(mask)]


def static_integer(item: Any, axis: int, x: Array) -> int:
    """A static integer of the index, counted from the start."""
    try:
        index = dims.index(item)
    except TypeError:
        kinds = "an integer, slice, None, ellipsis or integer array"
        raise IndexingError("index", f"an index is {kinds}", got=repr(item)) from None
    size = x.shape[axis]
    if not -size <= index < size:
        raise IndexingError("index", f"axis {axis} has {size} elements", got=f"index {index} into {x.aval}")
    return index + size if index < 0 else index


def outside_as_arrays(x: Array, items: list[Any]) -> list[Any]:
    """An index in which integers outside of their axes are arrays, which a mode can treat."""
    result, axis = [], 0
    for item in items:
        if item is not None and item is not Ellipsis:
            size = x.shape[axis]
            is_number = isinstance(item, int | np.integer | np.ndarray) and np.ndim(item) == 0
            if is_number and isinstance(size, int) and not -size <= item < size:
                limits = np.iinfo(np.int32)
                item = asarray(np.int32(np.clip(int(item), limits.min, limits.max)))
            axis += 1
        result.append(item)
    return result


def bounds(item: slice, size: int) -> tuple[int, int, int]:
    """The first index, the number of indices, and the step of a slice."""
    if dims.is_dynamic((item.start, item.stop, item.step, size)):
        return _dynamic_bounds(item, size)
    try:
        indices = range(size)[item]
    except ConcretizationError:
        raise ConcretizationError(
            "index",
            "the bounds of a slice must not be traced, because they give the result its shape",
            got=str(item),
            hint="a static argument, lax.dynamic_slice_in_dim, or tvmfun.numpy.take",
        ) from None
    except (TypeError, ValueError) as error:
        raise IndexingError("index", "a slice takes integers and a step that is not 0", got=str(item)) from error
    return indices.start, len(indices), indices.step


def _dynamic_bounds(item: slice, size: Any) -> tuple[Any, Any, Any]:
    """Computes :func:`bounds` where the slice or the axis has a dynamic size."""
    step = 1 if item.step is None else dims.index(item.step)
    if dims.is_dynamic(step):
        raise IndexingError("index", "the step of a slice is static", got=str(item), hint="tvmfun.numpy.take")
    if step == 0:
        raise IndexingError("index", "a slice takes integers and a step that is not 0", got=str(item))
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def end(index: Any, default: Any) -> Any:
        if index is None:
            return default
        index = dims.index(index)
        index = index + size if index < 0 else index
        return dims.minimum(dims.maximum(index, low), high)

    start, stop = end(item.start, low if step > 0 else high), end(item.stop, high if step > 0 else low)
    span = stop - start if step > 0 else start - stop
    return start, dims.maximum(0, -(-span // abs(step))), step


def is_immediate(x: NestedArrayLike) -> bool:
    """Whether NumPy can index ``x`` directly: it is not traced, and nothing has to be compiled for each index."""
    return isinstance(x, DeviceArray) and not is_tracing() and is_on_cpu(x)


def getitem(x: Array, index: NestedArrayLike) -> Array:
    """Returns ``x[index]`` with NumPy's meaning; indices out of bounds are clamped to ``x``.

    As in JAX, a gradient gets to the nearest element from a single index outside, and nowhere from one in an array.

    Raises:
        IndexingError: for a wrong kind of index, too many, or a Python integer outside its axis.
        ConcretizationError: for a mask that is being traced.
    """
    x, index = without_bools(x, index)
    items = normalized(x, index)
    if is_immediate(x):
        indices = numpy_index(x, items)
        try:
            view = x.concrete("index").numpy()[indices]
        except IndexError as error:
            raise ShapeError("index", "the index arrays do not broadcast", got=str(error)) from None
        return device_array(view, weak=x.weak_type)
    is_single = all(item.ndim == 0 for item in items if is_array(item))
    return read(x, items, "clip" if is_single else "in_bounds")


def numpy_index(x: Array, items: list[Any]) -> tuple:
    """The index for NumPy, with indices inside the array."""
    checked, axis = [], 0
    for item in items:
        if item is None or item is Ellipsis:
            checked.append(item)
            continue
        if isinstance(item, slice):
            bounds(item, x.shape[axis])
        elif is_array(item):
            item = wrapped(item, x.shape[axis])
            if item.size and not x.shape[axis]:
                raise IndexingError("index", f"axis {axis} has no elements", got=f"an index into {x.aval}")
            item = np.clip(item, 0, max(x.shape[axis] - 1, 0))
        else:
            item = static_integer(item, axis, x)
        checked.append(item)
        axis += 1
    return tuple(checked)


def read(x: Array, items: list[Any], mode: str, fill_value: NestedArrayLike | None = None) -> Array:
    """``x[items]`` as ops, with the indices of index arrays treated by ``mode``."""
    gap = next((axis for axis, item in enumerate(items) if item is Ellipsis), 0)
    items = [item for item in items if item is not Ellipsis]
    arrays = [axis for axis, item in enumerate(items) if is_array(item)]
    if arrays:  # integers next to arrays are arrays, as in NumPy
        arrays = [axis for axis, item in enumerate(items) if not isinstance(item, slice | None)]
    sizes = iter(x.shape)
    if any(item is None for item in items):
        x = reshape(x, tuple(1 if item is None else next(sizes) for item in items))
        items = [slice(None) if item is None else item for item in items]
    x, dropped = _sliced(x, items, arrays)
    if not arrays:
        return reshape(x, tuple(size for axis, size in enumerate(x.shape) if axis not in dropped))
    indices, shape = joined(x, items, arrays)
    rest = [axis for axis in range(x.ndim) if axis not in arrays]
    front = permute_dims(x, (*arrays, *rest))
    taken = gathered(front, indices, mode, fill_value)
    if arrays[-1] - arrays[0] + 1 == len(arrays) and not arrays[0] < gap <= arrays[-1]:
        # Adjacent array indices: their result takes their position.
        before, rank = arrays[0], len(shape)
        taken = permute_dims(taken, (*range(rank, rank + before), *range(rank), *range(rank + before, taken.ndim)))
    return taken


def gathered(
    x: Array, positions: list[Array], mode: str, fill_value: NestedArrayLike | None = None, batch: int = 0
) -> Array:
    """The elements of ``x`` at indices along the axes that follow the first ``batch`` ones, common to all."""
    shape = positions[0].shape
    indices = stacked(positions)
    if mode != "fill":
        return ops.gather(x, indices, mode=mode, batch=batch)
    if fill_value is None:
        fill_value = missing(x.dtype)
    sizes = x.shape[batch : batch + len(positions)]
    is_zero = isinstance(fill_value, int) and fill_value == 0
    # Elements that are selected below are inside, unless there are none.
    mode = "fill" if is_zero or dims.is_dynamic(sizes) or 0 in sizes else "in_bounds"
    taken = ops.gather(x, indices, mode=mode, batch=batch)
    if is_zero:
        return taken
    here = [logical_and(p >= 0, p < size) for p, size in zip(positions, sizes, strict=True)]
    inside = functools.reduce(logical_and, here)
    inside = reshape(inside, shape + (1,) * (taken.ndim - len(shape)))
    return where(inside, taken, convert("index", fill_value, x.dtype))


def stacked(indices: list[Array]) -> Array:
    """Indices along several axes, of one shape, with a new last axis for the axes."""
    columns = [expand_dims(p, -1) for p in indices]
    return columns[0] if len(columns) == 1 else shapes.concat(*columns, axis=indices[0].ndim)


def missing(dtype: np.dtype) -> Any:
    """The fill value for indices outside the array: NaN, or the integer that is farthest from 0."""
    if dtypes.is_float(dtype):
        return np.nan
    if dtype == dtypes.bool_:
        return True
    limits = np.iinfo(dtype)
    return int(limits.max) if dtype in dtypes.UNSIGNED else int(limits.min)


def _sliced(x: Array, items: list[Any], arrays: list[int]) -> tuple[Array, list[int]]:
    """Applies slices and integers; returns the axes that integers leave after with size 1."""
    start, stop, step, flipped, dropped = [], [], [], [], []
    for axis, (item, size) in enumerate(zip(items, x.shape, strict=True)):
        first, count, stride = 0, size, 1
        if axis in arrays:
            pass
        elif isinstance(item, slice):
            first, count, stride = bounds(item, size)
            if stride < 0:  # the same elements, read forwards and then flipped
                first, stride = first + (count - 1) * stride, -stride
                flipped.append(axis)
        else:
            first, count = static_integer(item, axis, x), 1
            dropped.append(axis)
        start.append(first if count != 0 else 0)
        stop.append(start[-1] + dims.maximum(0, (count - 1) * stride + 1))
        step.append(stride)
    if any(first != 0 for first in start) or tuple(stop) != x.shape or any(stride != 1 for stride in step):
        x = shapes.slice(x, start=tuple(start), stop=tuple(stop), step=tuple(step))
    return (shapes.flip(x, axes=tuple(flipped)) if flipped else x), dropped


def joined(x: Array, items: list[Any], axes: list[int]) -> tuple[list[Array], tuple[int, ...]]:
    """The index arrays of ``axes``, counted from the start and broadcast together, and their shape."""
    arrays = [
        counted(item, x.shape[axis]) if is_array(item) else asarray(np.int32(static_integer(item, axis, x)))
        for item, axis in ((items[axis], axis) for axis in axes)
    ]
    shape = pointwise.broadcast_shapes("index", [a.shape for a in arrays])
    widest = max((a.dtype for a in arrays), key=lambda dtype: dtype.itemsize)
    return [broadcast_to(astype(a, widest), shape) for a in arrays], shape


def counted(item: Any, size: int) -> Array:
    """An index array as int32 or int64, indices from the end counted from the start."""
    if not isinstance(item, Tracer):
        return asarray(wrapped(item, size))
    require_integer("index", item)
    signed = dtypes.int64 if item.dtype.itemsize == 8 else dtypes.int32
    if item.dtype in dtypes.UNSIGNED and item.dtype.itemsize >= 4:  # larger values are out of bounds
        item = minimum(item, int(np.iinfo(signed).max))
    item = astype(item, signed)
    return where(item < 0, item + size, item)


def wrapped(item: Any, size: int) -> Any:
    """An index array with data, indices from the end counted from the start."""
    require_integer("index", item)
    indices = np.asarray(item)
    if indices.dtype == dtypes.uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    indices = indices.astype(np.int64)
    if dims.is_dynamic(size):
        indices = np.clip(indices, -(2**31), np.iinfo(np.int32).max).astype(np.int32)
        return where(indices < 0, add(indices, size), indices) if (indices < 0).any() else indices
    indices = np.where(indices < 0, indices + size, indices)
    # Indices outside stay outside in 32 bits.
    limit = np.iinfo(np.int32).max
    return np.clip(indices, -1, limit).astype(np.int32) if size <= limit else indices


def check_mode(name: str, mode: str | None, default: str, promised: str) -> str:
    """The treatment of indices outside the array: ``clip``, ``fill``, ``wrap``, or ``promised`` if there are none.

    Raises:
        ArgumentError: in the name of the function ``name``, if there is no such mode.
    """
    if mode is None:
        return default
    if mode == "promise_in_bounds":
        return promised
    if mode not in ("clip", "fill", "drop", "wrap"):
        modes = "'fill', 'drop', 'clip', 'wrap' or 'promise_in_bounds'"
        raise ArgumentError(name, f"the mode must be {modes}", got=repr(mode))
    return "fill" if mode == "drop" else mode


def _taking(name: str, x: Array, indices: Array, size: int, mode: str | None) -> tuple[Array, str]:
    """The indices, and how to read: as if all were inside where they are."""
    require_integer(name, indices)
    mode = check_mode(name, mode, "fill", "in_bounds")
    if mode == "wrap":
        wide = dtypes.int64 if indices.dtype.itemsize == 8 else dtypes.int32
        return remainder(astype(indices, wide), size), "in_bounds"
    if mode == "fill" and not dims.is_dynamic(size) and isinstance(indices, DeviceArray) and is_on_cpu(indices):
        host = indices.numpy()
        if not host.size or (host.max() < size and (host.dtype.kind == "u" or host.min() >= -size)):
            return indices, "in_bounds"
    return indices, mode


def take(
    a: NestedArrayLike,
    indices: NestedArrayLike,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: NestedArrayLike | None = None,
) -> Array:
    """Returns the elements at integer ``indices`` along an axis, or of the flattened array.

    Args:
        a: the array.
        indices: which elements; negative ones count from the end.
        axis: the axis.
        out: must be None: arrays are immutable.
        mode: how to treat indices outside the array: ``"fill"``, the default, gives ``fill_value``, ``"clip"`` the
            nearest element, for negative ones the first, ``"wrap"`` the element at the remainder.
            ``"promise_in_bounds"`` promises that there are none.
        unique_indices: for JAX; has no effect.
        indices_are_sorted: for JAX; has no effect.
        fill_value: by default NaN, for integers the one farthest from 0.

    Source: ``jax.numpy.take``.

    >>> take([[1, 2], [3, 4]], [1, 0], axis=1)
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    no_out("take", out)
    a = asarray(a)
    if axis is None:
        a, axis = ravel(a), 0
    axis = normalize_axis("take", axis, a.ndim)
    indices, mode = _taking("take", a, asarray(indices), a.shape[axis], mode)
    if mode == "clip":  # as in NumPy and JAX, negative indices do not count from the end here
        indices = clip(indices, 0, dims.maximum(a.shape[axis] - 1, 0))
    index = (slice(None),) * axis + (indices,)
    if mode in ("clip", "in_bounds"):
        return getitem(a, index)
    return read(a, normalized(a, index), mode, fill_value)


def take_along_axis(
    arr: NestedArrayLike,
    indices: NestedArrayLike,
    axis: int | None = -1,
    mode: str | None = None,
    fill_value: NestedArrayLike | None = None,
    *,
    wrap_negative_indices: bool | None = None,
) -> Array:
    """Returns, for each position of ``indices``, the element that the index there names along an axis.

    Args:
        arr: the array.
        indices: integers; the shape of ``arr`` but for ``axis``, or one that broadcasts to that.
        axis: the axis; None for the flattened array.
        mode: as for :func:`take`, but negative indices count from the end also for ``"clip"``.
        fill_value: as for :func:`take`.
        wrap_negative_indices: False for negative indices outside the array; by default they count from the end.

    >>> take_along_axis([[1.0, 2.0], [3.0, 4.0]], [[1], [0]], axis=1)
    Array([[2.],
           [3.]], dtype=float32)
    """
    arr, indices = asarray(arr), asarray(indices)
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = normalize_axis("take_along_axis", axis, arr.ndim)
    if indices.ndim != arr.ndim:
        raise ShapeError("take_along_axis", f"the indices must have {arr.ndim} axes", got=repr(indices.aval))
    if wrap_negative_indices is False:
        inside = mode in ("clip", "wrap", "promise_in_bounds")
        indices = where(indices < 0, 0 if inside else arr.shape[axis], indices)
    indices, mode = _taking("take_along_axis", arr, indices, arr.shape[axis], mode)
    if mode in ("clip", "in_bounds") and is_immediate(arr) and is_immediate(indices) and arr.shape[axis]:
        positions = np.clip(wrapped(indices, arr.shape[axis]), 0, arr.shape[axis] - 1)
        return device_array(np.take_along_axis(arr.concrete("take").numpy(), positions, axis), weak=arr.weak_type)
    arr, indices = moveaxis(arr, axis, -1), moveaxis(indices, axis, -1)
    lead = pointwise.broadcast_shapes("take_along_axis", [arr.shape[:-1], indices.shape[:-1]])
    arr, indices = broadcast_to(arr, (*lead, arr.shape[-1])), broadcast_to(indices, (*lead, indices.shape[-1]))
    taken = gathered(arr, [counted(indices, arr.shape[-1])], mode, fill_value, batch=len(lead))
    return moveaxis(taken, -1, axis)
