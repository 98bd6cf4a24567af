"""Reading and writing of elements by their indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun.errors import ArgumentError
from tvmfun.interop.onnx.operators.shapes import ints
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.transforms.vmap import vmap

onnx = Family(__name__)


@onnx.reads("Gather", bits=True)
def _gather(x: Any, indices: Any, *, axis: int = 0) -> Any:
    return tnp.take(x, _counted(indices, x.shape[axis]), axis=axis, mode="clip")


def _counted(indices: Any, size: Any) -> Any:
    """Indices counted from the start."""
    return tnp.where(indices < 0, indices + size, indices)


@onnx.reads("GatherElements")
def _gather_elements(x: Any, indices: Any, *, axis: int = 0) -> Any:
    axis = axis % x.ndim
    others = tuple(slice(0, n) if i != axis else slice(None) for i, n in enumerate(indices.shape))
    return tnp.take_along_axis(x[others], _counted(indices, x.shape[axis]), axis=axis)


@onnx.reads("GatherND")
def _gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    def gather(x: Any, indices: Any) -> Any:
        parts = tnp.moveaxis(indices, -1, 0)
        return x[tuple(_counted(parts[i], x.shape[i]) for i in range(indices.shape[-1]))]

    function: Callable = gather
    for _ in range(batch_dims):
        function = vmap(function)
    return function(x, indices)


_UPDATES = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


def _updated(x: Any, index: tuple, updates: Any, reduction: str) -> Any:
    if reduction not in _UPDATES:
        raise ArgumentError("Scatter", f"the reduction is one of {', '.join(_UPDATES)}", got=repr(reduction))
    return getattr(x.at[index], _UPDATES[reduction])(updates)


@onnx.reads("ScatterND")
def _scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    parts = tnp.moveaxis(indices, -1, 0)
    index = tuple(_counted(parts[i], x.shape[i]) for i in range(indices.shape[-1]))
    return _updated(x, index, updates, reduction)


@onnx.reads("Scatter", "ScatterElements")
def _scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none") -> Any:
    axis = axis % x.ndim
    grid = [
        tnp.reshape(tnp.arange(n), tuple(n if i == j else 1 for j in range(x.ndim)))
        for i, n in enumerate(indices.shape)
    ]
    grid[axis] = _counted(indices, x.shape[axis])
    return _updated(x, tuple(grid), updates, reduction)


@onnx.reads("TensorScatter")
def _tensor_scatter(x: Any, update: Any, starts: Any = None, *, axis: int = -2, mode: str = "linear") -> Any:
    """A cache with new elements along an axis, from another start in each row of the batch."""
    axis = axis % x.ndim
    length, size = update.shape[axis], x.shape[axis]
    starts = tnp.zeros(x.shape[0], dtype="int64") if starts is None else starts
    where = starts[:, None] + tnp.arange(length, dtype="int64")
    where = where % size if mode == "circular" else where

    def write(x: Any, update: Any, where: Any) -> Any:
        return tnp.moveaxis(tnp.moveaxis(x, axis - 1, 0).at[where].set(tnp.moveaxis(update, axis - 1, 0)), 0, axis - 1)

    return vmap(write)(x, update, where)


@onnx.reads("OneHot", static=(1,))
def _one_hot(indices: Any, depth: np.ndarray, values: Any, *, axis: int = -1) -> Any:
    """The second value where the index is, the first one elsewhere; none for indices out of range."""
    (count,) = ints(depth)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    where = tnp.expand_dims(_counted(indices, count), axis)
    numbers = tnp.reshape(tnp.arange(count), tuple(-1 if i == axis else 1 for i in range(where.ndim)))
    return tnp.where(where == tnp.astype(numbers, where.dtype), values[1], values[0])


ml = Family(__name__, "ai.onnx.ml")


@ml.reads("ArrayFeatureExtractor")
def _array_feature_extractor(x: Any, indices: Any) -> Any:
    rows = tnp.reshape(x, (-1, x.shape[-1])) if x.ndim != 1 else x[None]
    return tnp.take(rows, tnp.ravel(indices), axis=1)


@ml.reads("Binarizer")
def _binarizer(x: Any, *, threshold: float = 0.0) -> Any:
    return tnp.astype(x > threshold, x.dtype)
