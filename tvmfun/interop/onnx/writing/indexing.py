"""Spellings of reads and writes at computed indices, and of sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.errors import ProgramError
from tvmfun.interop.onnx.writing.builder import Builder, Value, composed, spells
from tvmfun.interop.onnx.writing.shapes import Ints, padded, sliced

_REDUCTIONS = {"set": "none", "add": "add", "multiply": "mul", "mul": "mul", "max": "max", "min": "min"}


def _inside(b: Builder, indices: str, sizes: Ints) -> str:
    """Whether all of the indices along the last axis are those of elements."""
    zero = b.constant(0, np.int64)
    fits = b("And", b("GreaterOrEqual", indices, zero), b("Less", indices, b.ints(*sizes)))
    return b.cast(b("ReduceMin", b.cast(fits, np.int32), b.ints(-1), keepdims=0), np.bool_)


@spells("gather")
def _gather(b: Builder, x: Value, indices: Value, *, mode: str, batch: int = 0) -> str:
    depth = indices.shape[-1]
    sizes = x.shape[batch : batch + depth]
    if not depth:
        return b("Expand", _spread(b, x, indices, batch), b.ints(*indices.shape[:-1], *x.shape[batch:]))
    index = b.cast(indices, np.int64)
    last = b.ints(*(max(n - 1, 0) for n in sizes))
    held = b("Max", b("Min", index, last), b.constant(0, np.int64))
    read = b("GatherND", x, held, batch_dims=batch)
    if mode != "fill":
        return read
    rest = (1,) * (x.ndim - batch - depth)
    inside = b.reshape(_inside(b, index, sizes), (*indices.shape[:-1], *rest))
    return b("Where", inside, read, b.constant(0, x.dtype))


def _spread(b: Builder, x: Value, indices: Value, batch: int) -> str:
    ones = (1,) * (indices.ndim - 1 - batch)
    return b.reshape(x, (*x.shape[:batch], *ones, *x.shape[batch:]))


@spells("scatter")
def _scatter(
    b: Builder,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    mode: str,
    batch: int = 0,
    unique: bool = False,
    size: Ints | None = None,
) -> str:
    """Updates out of range go to one more row, which is cut off."""
    if size is not None:
        x = Value(b("Expand", x, b.ints(*size)), size, x.dtype)
    depth = indices.shape[-1]
    if mode not in _REDUCTIONS or not depth:
        raise ProgramError("to_onnx", "a scatter must have indices and a known mode", got=f"{mode}, {depth} indices")
    sizes = x.shape[batch : batch + depth]
    index = b.cast(indices, np.int64)
    outside = b("Not", _inside(b, index, sizes))
    outside = b.reshape(outside, (*indices.shape[:-1], 1))
    beyond = b.ints(sizes[0], *(0 for _ in sizes[1:]))
    index = b("Where", outside, beyond, index)
    if batch:
        lead = indices.shape[:-1]
        grids = np.stack(np.meshgrid(*map(np.arange, lead[:batch]), indexing="ij"), axis=-1)
        grids = grids.reshape(*lead[:batch], *(1,) * (len(lead) - batch), batch)
        index = b("Concat", b.constant(np.broadcast_to(grids, (*lead, batch)), np.int64), index, axis=-1)
    zeros, one = (0,) * x.ndim, tuple(int(i == batch) for i in range(x.ndim))
    longer = padded(b, x, b.constant(0, x.dtype), zeros, one, zeros)
    result = b("ScatterND", longer.name, index, updates, reduction=_REDUCTIONS[mode])
    return sliced(b, result, zeros, x.shape, (1,) * x.ndim)


@spells("dynamic_slice")
def _dynamic_slice(b: Builder, x: Value, *starts: Value, sizes: Ints) -> Any:
    if not starts:
        return x.name
    if starts[0].ndim:
        return b.inline(lambda x, *starts: _rows(x, starts, sizes), x, *starts)
    first = b("Concat", *(b.reshape(b.cast(s, np.int64), (1,)) for s in starts), axis=0)
    last = b.ints(*(n - size for n, size in zip(x.shape, sizes, strict=True)))
    first = b("Max", b("Min", first, last), b.constant(0, np.int64))
    return b("Slice", x, first, b("Add", first, b.ints(*sizes)), b.ints(*range(x.ndim)))


def _rows(x: Any, starts: Any, sizes: Ints) -> Any:
    """A part of each row, from another start."""
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True), 1):
        begin = tnp.clip(start, 0, x.shape[axis] - size)
        index = tnp.reshape(begin, (-1, *(1,) * (x.ndim - 1))) + _counted(size, axis, x.ndim)
        x = tnp.take_along_axis(x, index, axis=axis)
    return x


def _counted(size: int, axis: int, ndim: int) -> Any:
    return tnp.reshape(tnp.arange(size), tuple(-1 if i == axis else 1 for i in range(ndim)))


@composed("dynamic_update_slice")
def _dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    """The update where it is, read at the distance from its start, and the array elsewhere."""
    if not starts:
        return update
    if 0 in update.shape:
        return x
    lead = starts[0].ndim
    inside: Any = True
    for axis, start in enumerate(starts, lead):
        begin = tnp.clip(start, 0, x.shape[axis] - update.shape[axis])
        begin = tnp.reshape(begin, (*start.shape, *(1,) * (x.ndim - lead)))
        at = _counted(x.shape[axis], axis, x.ndim) - begin
        inside = inside & (at >= 0) & (at < update.shape[axis])
        update = tnp.take_along_axis(update, tnp.clip(at, 0, update.shape[axis] - 1), axis=axis)
    return tnp.where(inside, update, x)


def _order(b: Builder, x: Value, count: int, largest: int) -> str:
    """The indices of the smallest or largest elements of rows, of equal ones the first."""
    number: Any = b.cast(x, np.int32) if x.dtype.itemsize < 4 and not dtypes.is_float(x.dtype) else x
    _, order = b.node("TopK", [number, b.ints(count)], 2, axis=-1, largest=largest, sorted=1)
    return b.cast(order, np.int32)


@spells("argsort")
def _argsort(b: Builder, x: Value) -> str:
    return _order(b, x, x.shape[-1], largest=0)


@spells("top_k_indices")
def _top_k_indices(b: Builder, x: Value, *, k: int) -> str:
    return _order(b, x, k, largest=1)


@composed("searchsorted")
def _searchsorted(x: Any, values: Any, *, side: str, batch: int = 0) -> Any:
    """The number of elements before each value."""
    ones = (1,) * (values.ndim - batch)
    rows = tnp.reshape(x, (*x.shape[:batch], *ones, x.shape[-1]))
    wanted = values[..., None]
    before = rows <= wanted if side == "right" else rows < wanted
    if dtypes.is_float(x.dtype):  # NaN is after all numbers
        before = before | (tnp.isnan(wanted) if side == "right" else tnp.isnan(wanted) & ~tnp.isnan(rows))
    return tnp.sum(before, axis=-1, dtype="int32")
