"""Operators that read and write at indices, or order elements."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.interop.relax.indexing import combined, elements, points
from tvmfun.interop.relay.operators.table import (
    DType,
    Family,
    Ints,
    as_dtype,
    axis_of,
    check_sizes,
    refuse,
)
from tvmfun.transforms import vmap

relay = Family(__name__)


@relay.reads("take", mixed=True)
def _take(x: Any, indices: Any, *, batch_dims: int = 0, axis: int | None = None, mode: str = "clip") -> Any:
    """Elements at indices; those outside are clipped, or wrapped around (``fast`` leaves them undefined)."""
    if mode not in ("clip", "wrap", "fast"):
        raise refuse("take", "mode must be clip, wrap or fast", mode)
    if axis is None:
        return _taken(tnp.ravel(x), indices, 0, mode)
    batch_dims += indices.ndim if batch_dims < 0 else 0
    axis = axis_of("take", axis, x.ndim)
    if not 0 <= batch_dims <= min(axis, indices.ndim):
        raise refuse("take", "batch_dims must be at most the axis and the number of axes of the indices", batch_dims)
    function = lambda x, indices: _taken(x, indices, axis - batch_dims, mode)
    for _ in range(batch_dims):
        function = vmap(function)
    return function(tnp.asarray(x), tnp.asarray(indices))


def _taken(x: Any, indices: Any, axis: int, mode: str) -> Any:
    size = x.shape[axis]
    return tnp.take(x, indices % size if mode == "wrap" else tnp.clip(indices, 0, size - 1), axis=axis)


@relay.reads("gather", mixed=True)
def _gather(x: Any, indices: Any, *, axis: int) -> Any:
    return x[elements(tnp.asarray(indices), axis_of("gather", axis, x.ndim))]


@relay.reads("gather_nd", mixed=True)
def _gather_nd(x: Any, indices: Any, *, batch_dims: int = 0, index_rank: int | None = None) -> Any:
    """Elements at vectors of indices, which are along the first axis."""
    return x[points(tnp.moveaxis(tnp.asarray(indices), 0, -1), batch_dims)]


@relay.reads("adv_index", mixed=True)
def _adv_index(arrays: tuple) -> Any:
    """The first array at the others, which broadcast, as indices of its first axes."""
    x, *indices = arrays
    return tnp.asarray(x)[tuple(tnp.asarray(index) for index in indices)]


_REDUCTIONS = ("update", "add", "mul", "min", "max", "mean")


@relay.reads("scatter_elements", mixed=True)
def _scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "update") -> Any:
    if reduction not in _REDUCTIONS:
        raise refuse("scatter_elements", f"reduction must be one of {', '.join(_REDUCTIONS)}", reduction)
    axis = axis_of("scatter_elements", axis, x.ndim)
    return combined(tnp.asarray(x), elements(tnp.asarray(indices), axis), updates, reduction)


@relay.reads("scatter", mixed=True)
def _scatter(x: Any, indices: Any, updates: Any, *, axis: int = 0) -> Any:
    return _scatter_elements(x, indices, updates, axis=axis)


@relay.reads("scatter_add", mixed=True)
def _scatter_add(x: Any, indices: Any, updates: Any, *, axis: int = 0) -> Any:
    return _scatter_elements(x, indices, updates, axis=axis, reduction="add")


@relay.reads("scatter_nd", mixed=True)
def _scatter_nd(x: Any, indices: Any, updates: Any, *, mode: str = "update") -> Any:
    """Writes at vectors of indices, which are along the first axis."""
    if mode not in _REDUCTIONS:
        raise refuse("scatter_nd", f"mode must be one of {', '.join(_REDUCTIONS)}", mode)
    return combined(tnp.asarray(x), points(tnp.moveaxis(tnp.asarray(indices), 0, -1)), updates, mode)


@relay.reads("sparse_to_dense", mixed=True)
def _sparse_to_dense(indices: Any, values: Any, default: Any = None, *, output_shape: Ints) -> Any:
    check_sizes("sparse_to_dense", output_shape)
    values = tnp.asarray(values)
    fill = tnp.zeros((), values.dtype) if default is None else tnp.asarray(default)
    dense = tnp.broadcast_to(fill, output_shape)
    positions = tnp.asarray(indices)
    if positions.ndim < 2:
        return dense.at[positions].set(values)
    return dense.at[points(positions)].set(values)


@relay.reads("unravel_index", mixed=True)
def _unravel_index(indices: Any, shape: Any) -> Any:
    sizes = tnp.asarray(shape).astype(indices.dtype)
    rest, axes = indices, []
    for axis in reversed(range(sizes.shape[0])):
        axes.append(rest % sizes[axis])
        rest = rest // sizes[axis]
    return tnp.stack(axes[::-1])


@relay.reads("sequence_mask", mixed=True)
def _sequence_mask(x: Any, lengths: Any, *, mask_value: float = 0.0, axis: int = 0) -> Any:
    """The sequences along axis 0 or 1, with ``mask_value`` from their lengths on; the other axis is the batch."""
    if axis not in (0, 1) or x.ndim < 2:
        raise refuse("sequence_mask", "the axis must be 0 or 1", axis)
    steps = tnp.expand_dims(tnp.arange(x.shape[axis], dtype=lengths.dtype), axis=1 - axis)
    inside = steps < tnp.expand_dims(lengths, axis=axis)
    inside = tnp.reshape(inside, (*x.shape[:2], *(1,) * (x.ndim - 2)))
    return tnp.where(inside, x, tnp.asarray(mask_value, dtype=x.dtype))


# -- orders ------------------------------------------------------------------------------------------------------------


@relay.reads("sort")
def _sort(x: Any, *, axis: int = -1, is_ascend: bool = True) -> Any:
    return tnp.sort(x, axis=axis_of("sort", axis, x.ndim), descending=not is_ascend)


@relay.reads("argsort")
def _argsort(x: Any, *, axis: int = -1, is_ascend: bool = True, dtype: DType | None = None) -> Any:
    order = tnp.argsort(x, axis=axis_of("argsort", axis, x.ndim), descending=not is_ascend)
    return as_dtype(order, dtype or "int32")


@relay.reads("topk")
def _topk(
    x: Any, *, k: int = 1, axis: int = -1, ret_type: str = "both", is_ascend: bool = False, dtype: DType | None = None
) -> Any:
    if ret_type not in ("both", "values", "indices"):
        raise refuse("topk", "ret_type must be both, values or indices", ret_type)
    axis = axis_of("topk", axis, x.ndim)
    order = tnp.argsort(x, axis=axis, descending=not is_ascend)
    if k >= 1:
        order = lax.slice_in_dim(order, 0, min(k, x.shape[axis]), axis=axis)
    indices = as_dtype(order, dtype or "int32")
    if ret_type == "indices":
        return indices
    values = tnp.take_along_axis(x, order, axis=axis)
    return values if ret_type == "values" else (values, indices)


@relay.reads("searchsorted")
def _searchsorted(rows: Any, values: Any, *, right: bool = False, dtype: DType | None = None) -> Any:
    function = lambda row, values: tnp.searchsorted(row, values, side="right" if right else "left")
    for _ in range(rows.ndim - 1):
        function = vmap(function)
    return as_dtype(function(tnp.asarray(rows), tnp.asarray(values)), dtype or "int32")
