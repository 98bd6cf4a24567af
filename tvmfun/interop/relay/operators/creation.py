"""Operators that make arrays, and that ask for sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun.interop.relay.operators.table import (
    LONGEST_AXIS,
    DType,
    Family,
    Ints,
    Unread,
    as_dtype,
    axis_of,
    check_sizes,
    refuse,
)

relay = Family(__name__)


@relay.reads("zeros")
def _zeros(*, shape: Ints, dtype: DType) -> Any:
    check_sizes("zeros", shape)
    return tnp.zeros(shape, dtype)


@relay.reads("ones")
def _ones(*, shape: Ints, dtype: DType) -> Any:
    check_sizes("ones", shape)
    return tnp.ones(shape, dtype)


@relay.reads("full")
def _full(value: Any, *, shape: Ints, dtype: DType | None = None) -> Any:
    check_sizes("full", shape)
    return tnp.broadcast_to(as_dtype(tnp.asarray(value), dtype), shape)


@relay.reads("full_like", mixed=True)
def _full_like(like: Any, value: Any) -> Any:
    return tnp.broadcast_to(as_dtype(tnp.asarray(value), like.dtype.name), like.shape)


def _known(where: str, value: Any) -> float:
    if not isinstance(value, np.generic | np.ndarray) or np.ndim(value):
        raise refuse(where, "sizes must not depend on data", f"an array of shape {value.shape}")
    return np.asarray(value)[()].item()


@relay.reads("arange", mixed=True)
def _arange(
    first: Any, last: Any, stride: Any, *, dtype: DType, start: Unread = None, stop: Unread = None, step: Unread = None
) -> Any:
    # TVM prints the arguments again as attributes.
    first, last, stride = (_known("arange", value) for value in (first, last, stride))
    if not stride or not all(map(math.isfinite, (first, last, stride))):
        raise refuse("arange", "the step must not be 0, and the limits must be finite", (first, last, stride))
    check_sizes("arange", (max(0, math.ceil((last - first) / stride)),), LONGEST_AXIS * 64)
    return tnp.arange(first, last, stride, dtype=dtype)


@relay.reads("one_hot", mixed=True)
def _one_hot(
    indices: Any, on_value: Any, off_value: Any, *, depth: int = 1, axis: int = -1, dtype: DType | None = None
) -> Any:
    axis = axis_of("one_hot", axis, indices.ndim + 1)
    check_sizes("one_hot", (depth,), LONGEST_AXIS * 64)
    classes = tnp.reshape(tnp.arange(depth, dtype=indices.dtype), (-1, *(1,) * (indices.ndim - axis)))
    hot = tnp.expand_dims(indices, axis=axis) == classes
    name = dtype or on_value.dtype.name
    return tnp.where(hot, as_dtype(on_value, name), as_dtype(off_value, name))


@relay.reads("meshgrid")
def _meshgrid(arrays: tuple, *, indexing: str = "ij") -> Any:
    if indexing not in ("ij", "xy"):
        raise refuse("meshgrid", "the indexing must be 'ij' or 'xy'", indexing)
    return tuple(tnp.meshgrid(*arrays, indexing=indexing))


@relay.reads("shape_of")
def _shape_of(x: Any, *, dtype: DType | None = None) -> Any:
    name = dtype or "int32"
    if all(isinstance(size, int) for size in x.shape):
        return np.asarray(x.shape, name)
    return tnp.stack([tnp.asarray(size).astype(name) for size in x.shape])


@relay.reads("ndarray_size")
def _ndarray_size(x: Any, *, dtype: DType | None = None) -> Any:
    return as_dtype(tnp.asarray(x.size), dtype or "int32")
