"""Operators that move elements without computing: views, joins, parts, paddings, and new arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun.core import dims
from tvmfun.interop.layouts import ChannelsLast, channels_last, stored_axis
from tvmfun.interop.torch.aten.table import Family

aten = Family(__name__)

#: The largest integer of PyTorch's slices: up to the end.
_END = 2**63 - 1


def along(x: Any, dim: int, index: Any) -> tuple:
    """An index of the axis ``dim`` alone."""
    return (slice(None),) * (dim % x.ndim) + (index,)


@aten.reads("sym_size", layouts=True)
def _size(x: Any, dim: int) -> Any:
    return x.shape[dim]


@aten.reads("sym_numel", layouts=True)
def _count(x: Any) -> Any:
    return math.prod(x.shape)


# -- views -------------------------------------------------------------------------------------------------------------


@aten.reads("view", "_unsafe_view")
def _view(x: Any, size: Sequence[int]) -> Any:
    return tnp.reshape(x, tuple(size))


@aten.reads("view.dtype")
def _view_dtype(x: Any, dtype: str) -> Any:
    return x.view(dtype)


@aten.reads("permute")
def _permute(x: Any, order: Sequence[int]) -> Any:
    return tnp.permute_dims(x, tuple(axis % x.ndim for axis in order))


@aten.reads("transpose")
def _transpose(x: Any, first: int, second: int) -> Any:
    return tnp.swapaxes(x, first, second) if x.ndim else x


@aten.reads("t")
def _t(x: Any) -> Any:
    return tnp.permute_dims(x, (1, 0)) if x.ndim == 2 else x


@aten.reads("unsqueeze")
def _unsqueeze(x: Any, dim: int) -> Any:
    return tnp.expand_dims(x, dim)


@aten.reads("squeeze")
def _squeeze(x: Any, dim: Any = None) -> Any:
    chosen = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return tnp.squeeze(x, tuple(axis for axis in chosen if x.ndim and x.shape[axis] == 1))


@aten.reads("expand")
def _expand(x: Any, size: Sequence[int], *, implicit: bool = False) -> Any:
    lead = len(size) - x.ndim
    kept = (x.shape[i - lead] if isinstance(n, int) and n == -1 else n for i, n in enumerate(size))
    return tnp.broadcast_to(x, tuple(kept))


@aten.reads("as_strided")
def _as_strided(x: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Any:
    """The elements at ``storage_offset + index @ stride`` of an array that is contiguous, as results are here."""
    position = np.full((), storage_offset or 0)
    for n, step in zip(size, stride, strict=True):
        position = position[..., None] + np.arange(n) * step
    return tnp.take(tnp.ravel(x), tnp.asarray(position), axis=0)


@aten.reads("diagonal")
def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return tnp.diagonal(x, offset, dim1, dim2)


@aten.reads("flip")
def _flip(x: Any, axes: Sequence[int]) -> Any:
    return tnp.flip(x, tuple(axes)) if axes and x.ndim else x


@aten.reads("roll")
def _roll(x: Any, shifts: Any, axes: Sequence[int] = ()) -> Any:
    return tnp.roll(x, shifts if axes else shifts[0], tuple(axes) if axes else None)


@aten.reads("repeat")
def _repeat(x: Any, repeats: Sequence[int]) -> Any:
    return tnp.tile(x, tuple(repeats))


# -- joins and parts ---------------------------------------------------------------------------------------------------


@aten.reads("cat", layouts=True, promotes=True)
def _cat(arrays: Sequence[Any], dim: int = 0) -> Any:
    if any(isinstance(x, ChannelsLast) for x in arrays):
        ndim = arrays[0].ndim
        return ChannelsLast(tnp.concat([channels_last(x) for x in arrays], axis=stored_axis(dim, ndim)))
    # An array of shape (0,) joins others of any shape.
    kept = [x for x in arrays if x.shape != (0,)] or arrays[:1]
    return tnp.concat(kept, axis=dim)


@aten.reads("stack", promotes=True)
def _stack(arrays: Sequence[Any], dim: int = 0) -> Any:
    return tnp.stack(arrays, axis=dim)


def _bounds(start: Any, end: Any) -> slice:
    return slice(start, None if isinstance(end, int) and end >= _END else end)


@aten.reads("slice")
def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    part = _bounds(start, end)
    return x[along(x, dim, slice(part.start, part.stop, step))]


@aten.reads("select")
def _select(x: Any, dim: int, index: Any) -> Any:
    return x[along(x, dim, index)]


@aten.reads("split")
def _split(x: Any, split_size: Any, dim: int = 0) -> Any:
    size = x.shape[dim]
    sizes = [min(split_size, size - start) for start in range(0, size, split_size)]
    return _split_with_sizes(x, sizes, dim)


@aten.reads("split_with_sizes")
def _split_with_sizes(x: Any, sizes: Sequence[Any], dim: int = 0) -> Any:
    parts, start = [], 0
    for size in sizes:
        parts.append(x[along(x, dim, slice(start, start + size))])
        start = start + size
    return parts


@aten.reads("unbind")
def _unbind(x: Any, dim: int = 0) -> Any:
    return [x[along(x, dim, i)] for i in range(x.shape[dim])]


@aten.reads("slice_scatter")
def _slice_scatter(x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    part = _bounds(start, end)
    return x.at[along(x, dim, slice(part.start, part.stop, step))].set(source)


@aten.reads("select_scatter")
def _select_scatter(x: Any, source: Any, dim: int, index: Any) -> Any:
    return x.at[along(x, dim, index)].set(source)


@aten.reads("diagonal_scatter")
def _diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    moved, at = tnp.moveaxis(x, (dim1, dim2), (-2, -1)), np.arange(source.shape[-1])
    moved = moved.at[..., at + max(-offset, 0), at + max(offset, 0)].set(source)
    return tnp.moveaxis(moved, (-2, -1), (dim1, dim2))


@aten.reads("tril")
def _tril(x: Any, diagonal: int = 0) -> Any:
    return tnp.tril(x, diagonal)


@aten.reads("triu")
def _triu(x: Any, diagonal: int = 0) -> Any:
    return tnp.triu(x, diagonal)


# -- paddings ----------------------------------------------------------------------------------------------------------


def _pairs(x: Any, padding: Sequence[int]) -> list[tuple[int, int]]:
    """PyTorch's padding, which begins with the last axis, as (before, after) for every axis."""
    given = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]
    return [(0, 0)] * (x.ndim - len(given)) + given[::-1]


@aten.reads("constant_pad_nd", layouts=True)
def _constant_pad(x: Any, padding: Sequence[int], value: Any = 0) -> Any:
    pairs = _pairs(x, padding)
    stored = x.stored if isinstance(x, ChannelsLast) else x
    if isinstance(x, ChannelsLast):
        pairs = [pairs[0], *pairs[2:], pairs[1]]
    cut = tuple(
        slice(max(-low, 0), n - max(-high, 0)) if min(low, high) < 0 else slice(None)
        for n, (low, high) in zip(stored.shape, pairs, strict=True)
    )
    pairs = [(max(low, 0), max(high, 0)) for low, high in pairs]
    result = tnp.pad(stored[cut], pairs, constant_values=tnp.astype(tnp.asarray(value), x.dtype))
    return ChannelsLast(result) if isinstance(x, ChannelsLast) else result


@aten.reads("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection_pad(x: Any, padding: Sequence[int]) -> Any:
    return tnp.pad(x, _pairs(x, padding), mode="reflect")


@aten.reads("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(x: Any, padding: Sequence[int]) -> Any:
    return tnp.pad(x, _pairs(x, padding), mode="edge")


@aten.reads("pixel_shuffle")
def _pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    *lead, channels, height, width = x.shape
    r = upscale_factor
    parts = tnp.reshape(x, (*lead, channels // (r * r), r, r, height, width))
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return tnp.reshape(tnp.permute_dims(parts, order), (*lead, channels // (r * r), height * r, width * r))


# -- new arrays --------------------------------------------------------------------------------------------------------


@aten.reads("full")
def _full(size: Sequence[int], value: Any, *, dtype: str | None = None) -> Any:
    return tnp.full(tuple(size), value, dtype)


@aten.reads("full_like")
def _full_like(x: Any, value: Any, *, dtype: str | None = None) -> Any:
    return tnp.full(x.shape, value, dtype or x.dtype)


@aten.reads("new_full")
def _new_full(x: Any, size: Sequence[int], value: Any, *, dtype: str | None = None) -> Any:
    return tnp.full(tuple(size), value, dtype or x.dtype)


@aten.reads("zeros", "empty", "empty_permuted", "empty_strided")
def _zeros(size: Sequence[int], layout: Any = None, *, dtype: str | None = None) -> Any:
    return tnp.zeros(tuple(size), dtype or "float32")


@aten.reads("ones")
def _ones(size: Sequence[int], *, dtype: str | None = None) -> Any:
    return tnp.ones(tuple(size), dtype or "float32")


@aten.reads("zeros_like", "empty_like")
def _zeros_like(x: Any, *, dtype: str | None = None) -> Any:
    return tnp.zeros(x.shape, dtype or x.dtype)


@aten.reads("ones_like")
def _ones_like(x: Any, *, dtype: str | None = None) -> Any:
    return tnp.ones(x.shape, dtype or x.dtype)


@aten.reads("new_zeros", "new_empty", "new_empty_strided")
def _new_zeros(x: Any, size: Sequence[int], stride: Any = None, *, dtype: str | None = None) -> Any:
    return tnp.zeros(tuple(size), dtype or x.dtype)


@aten.reads("new_ones")
def _new_ones(x: Any, size: Sequence[int], *, dtype: str | None = None) -> Any:
    return tnp.ones(tuple(size), dtype or x.dtype)


@aten.reads("scalar_tensor")
def _scalar_tensor(value: Any, *, dtype: str | None = None) -> Any:
    value = tnp.asarray(dims.as_array(value) if isinstance(value, dims.Dim) else value)
    return tnp.astype(value, dtype or "float32")


@aten.reads("arange")
def _arange(start: Any, end: Any = None, step: Any = 1, *, dtype: str | None = None) -> Any:
    floats = any(isinstance(bound, float) for bound in (start, end, step))
    if end is None:
        start, end = 0, start
    if floats:  # in double precision, as PyTorch counts and computes them
        count = math.ceil((end - start) / step)
        return tnp.asarray((start + np.arange(count) * step).astype(dtype or "float32"))
    return tnp.arange(start, end, step, dtype=dtype or "int64")


@aten.reads("linspace")
def _linspace(start: float, end: float, steps: int, *, dtype: str | None = None) -> Any:
    return tnp.linspace(start, end, steps, dtype=dtype or "float32")


@aten.reads("eye")
def _eye(rows: int, columns: int | None = None, *, dtype: str | None = None) -> Any:
    return tnp.eye(rows, columns if isinstance(columns, int) else None, dtype=dtype or "float32")
