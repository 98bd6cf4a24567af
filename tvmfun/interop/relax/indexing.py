"""Relax operators that read and write at indices."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax.table import reads


@reads("relax.take")
def _take(x: Any, indices: Any, *, axis: int | None, mode: str) -> Any:
    indices = tnp.asarray(indices)
    axis = 0 if axis is None else axis % x.ndim
    size = x.shape[axis]
    # `fast` is undefined for indices outside the array.
    inside = indices % size if mode == "wrap" else tnp.clip(indices, 0, size - 1)
    found = tnp.take(x, inside, axis=axis)
    if mode != "nan":
        return found
    known = tnp.reshape((indices >= 0) & (indices < size), (*indices.shape, *(1,) * (x.ndim - axis - 1)))
    return tnp.where(known, found, tnp.nan)


@reads("relax.strided_slice")
def _strided_slice(x: Any, axes: tuple, begin: tuple, end: tuple, strides: tuple | None = None) -> Any:
    spans = [slice(None)] * x.ndim
    for axis, first, last, stride in zip(axes, begin, end, strides or (1,) * len(axes), strict=True):
        spans[axis] = slice(first, last, stride)
    return x[tuple(spans)]


def _grid(shape: tuple) -> list:
    """The index arrays of every element of the shape."""
    return [lax.broadcasted_iota("int32", shape, axis) for axis in range(len(shape))]


def elements(indices: Any, axis: int) -> tuple:
    """Index arrays that replace the index along one axis by ``indices``."""
    positions = _grid(indices.shape)
    positions[axis] = indices
    return tuple(positions)


@reads("relax.gather_elements")
def _gather_elements(x: Any, indices: Any, *, axis: int) -> Any:
    return x[elements(indices, axis % x.ndim)]


def points(indices: Any, batch_dims: int = 0) -> tuple:
    """Index arrays from the vectors along the last axis."""
    lead = _grid(indices.shape[:-1])[:batch_dims]
    return (*lead, *(indices[..., i] for i in range(indices.shape[-1])))


@reads("relax.gather_nd")
def _gather_nd(x: Any, indices: Any, *, batch_dims: int) -> Any:
    return x[points(indices, batch_dims)]


@reads("relax.index_tensor")
def _index_tensor(x: Any, indices: tuple) -> Any:
    return x[tuple(indices)]


def combined(x: Any, indices: tuple, updates: Any, reduction: str) -> Any:
    """The array with updates combined with its elements at indices."""
    here = x.at[indices]
    if reduction == "mean":
        # The mean of the old element and the update; with repeated indices TVM's result depends on their order.
        return here.set((x[indices] + updates) / 2)
    names = {"update": "set", "add": "add", "mul": "multiply", "min": "min", "max": "max"}
    return getattr(here, names[reduction])(updates)


@reads("relax.index_put")
def _index_put(x: Any, indices: Any, values: Any, *, accumulate: bool) -> Any:
    positions = indices if isinstance(indices, tuple) else (indices,)
    return combined(x, positions, values, "add" if accumulate else "update")


@reads("relax.scatter_elements")
def _scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int, reduction: str) -> Any:
    return combined(x, elements(indices, axis % x.ndim), updates, reduction)


@reads("relax.scatter_nd")
def _scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str) -> Any:
    return combined(x, points(indices), updates, reduction)


@reads("relax.slice_scatter")
def _slice_scatter(x: Any, source: Any, start: int, end: int, step: int, *, axis: int) -> Any:
    spans = [slice(None)] * x.ndim
    spans[axis] = slice(start, end, step)
    return x.at[tuple(spans)].set(source)


@reads("relax.reverse_sequence")
def reverse_sequence(x: Any, lengths: Any, *, seq_axis: int, batch_axis: int) -> Any:
    """The array with the beginning of each sequence reversed, of a length per example."""
    seq_axis, batch_axis = seq_axis % x.ndim, batch_axis % x.ndim
    size = x.shape[seq_axis]
    shape = [1] * x.ndim
    shape[batch_axis] = x.shape[batch_axis]
    lengths = tnp.reshape(tnp.clip(tnp.astype(lengths, "int32"), 0, size), tuple(shape))
    indices = lax.broadcasted_iota("int32", x.shape, seq_axis)
    return x[elements(tnp.where(indices < lengths, lengths - 1 - indices, indices), seq_axis)]


@reads("relax.one_hot", "none: the arguments are not floats")
def _one_hot(indices: Any, on_value: Any, off_value: Any, *, depth: int, axis: int, result: ShapeDtype) -> Any:
    axis = axis % (indices.ndim + 1)
    hot = tnp.expand_dims(indices, axis=axis) == lax.broadcasted_iota(indices.dtype, result.shape, axis)
    return tnp.where(hot, tnp.asarray(on_value, dtype=result.dtype), tnp.asarray(off_value, dtype=result.dtype))


@reads("relax.bucketize", "zero: constant almost everywhere")
def _bucketize(x: Any, boundaries: Any, *, right: bool) -> Any:
    return tnp.searchsorted(boundaries, x, side="right" if right else "left")
