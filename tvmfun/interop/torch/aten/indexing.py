"""Operators with arrays of indices: embeddings, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.torch.aten.shapes import along
from tvmfun.interop.torch.aten.table import Family

aten = Family(__name__)


@aten.reads("embedding")
def _embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    rows = tnp.take(weight, indices, axis=0)
    if padding_idx < 0:
        return rows
    # The row of the padding is not trained.
    return tnp.where(tnp.expand_dims(indices == padding_idx, -1), lax.stop_gradient(rows), rows)


@aten.reads("embedding_dense_backward")
def _embedding_backward(gradient: Any, indices: Any, rows: int, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    gradient = tnp.where(tnp.expand_dims(indices == padding_idx, -1), 0.0, gradient)
    return tnp.zeros((rows, gradient.shape[-1]), gradient.dtype).at[indices].add(gradient)


def _as_index(indices: Sequence[Any]) -> tuple:
    return tuple(slice(None) if index is None else index for index in indices)


@aten.reads("index", "_unsafe_index")
def _index(x: Any, indices: Sequence[Any]) -> Any:
    return x[_as_index(indices)]


@aten.reads("index_put", "_unsafe_index_put")
def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    bools = [index for index in indices if index is not None and index.dtype == dtypes.bool_]
    if bools and not accumulate and len(indices) == 1 and not values.ndim:
        (mask,) = bools
        return tnp.where(tnp.reshape(mask, (*mask.shape, *(1,) * (x.ndim - mask.ndim))), values, x)
    at = x.at[_as_index(indices)]
    return at.add(values) if accumulate else at.set(values)


@aten.reads("index_select")
def _index_select(x: Any, dim: int, index: Any) -> Any:
    return tnp.take(x, index, axis=dim) if x.ndim else x


@aten.reads("index_add")
def _index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    return x.at[along(x, dim, index)].add(alpha * source)


@aten.reads("index_copy")
def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    return x.at[along(x, dim, index)].set(source)


@aten.reads("index_fill")
def _index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    return x.at[along(x, dim, index)].set(value)


@aten.reads("gather")
def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    if not x.ndim:
        return tnp.broadcast_to(x, index.shape)
    return x[_grid(x, dim, index)]


def _grid(x: Any, dim: int, index: Any) -> tuple:
    """The indices of elements whose position along ``dim`` is in ``index``, and is the element's own elsewhere."""
    if not index.ndim:
        return (index,)
    ranges = [
        tnp.reshape(tnp.arange(n), tuple(n if i == axis else 1 for i in range(index.ndim)))
        for axis, n in enumerate(index.shape)
    ]
    ranges[dim % x.ndim] = index
    return tuple(ranges)


def _within(source: Any, index: Any) -> Any:
    """The part of the source that the index covers."""
    return source[tuple(slice(0, n) for n in index.shape)] if getattr(source, "ndim", 0) else source


@aten.reads("scatter")
def _scatter(x: Any, dim: int, index: Any, source: Any, *, reduce: str | None = None) -> Any:
    if not x.ndim:
        return tnp.astype(tnp.reshape(tnp.asarray(source), ()), x.dtype)
    at = x.at[_grid(x, dim, index)]
    source = _within(source, index)
    return at.set(source) if reduce is None else at.add(source) if reduce == "add" else at.multiply(source)


@aten.reads("scatter_add")
def _scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
    return x.at[_grid(x, dim, index)].add(_within(source, index)) if x.ndim else x + tnp.reshape(source, ())


@aten.reads("scatter_reduce")
def _scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    grid, source = _grid(x, dim, index), _within(source, index)
    neutral = {"sum": 0, "mean": 0, "prod": 1, "amax": _least(x), "amin": -_least(x) if _is_float(x) else _most(x)}
    start = x if include_self else x.at[grid].set(neutral[reduce])
    if reduce in ("sum", "mean"):
        total = start.at[grid].add(source)
        if reduce == "sum":
            return total
        counts = tnp.full(x.shape, 1 if include_self else 0, "int32").at[grid].add(1)
        counts = tnp.maximum(counts, 1)
        return total / counts.astype(x.dtype) if _is_float(x) else tnp.floor_divide(total, counts.astype(x.dtype))
    update = {"prod": "multiply", "amax": "max", "amin": "min"}[reduce]
    return getattr(start.at[grid], update)(source)


def _is_float(x: Any) -> bool:
    return dtypes.is_float(x.dtype)


def _least(x: Any) -> Any:
    return -tnp.inf if _is_float(x) else int(tnp.iinfo(x.dtype).min)


def _most(x: Any) -> int:
    return int(tnp.iinfo(x.dtype).max)


@aten.reads("searchsorted")
def _searchsorted(
    boundaries: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    return tnp.searchsorted(boundaries, x, side=side or ("right" if right else "left"), sorter=sorter)


@aten.reads("bucketize")
def _bucketize(x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return tnp.searchsorted(boundaries, x, side="right" if right else "left")
