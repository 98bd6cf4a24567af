"""Reductions, positions of extrema, sorting and selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.interop.onnx.operators.shapes import ints
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.nn import functional as nnf

onnx = Family(__name__)


def _extremum(function: Callable, unit: Callable) -> Callable:
    def reduce(x: Any, axis: Any, keepdims: bool) -> Any:
        if 0 in x.shape:
            return function(x, axis=axis, keepdims=keepdims, initial=unit(x.dtype))
        return function(x, axis=axis, keepdims=keepdims)

    return reduce


def _sum(x: Any, axis: Any, keepdims: bool) -> Any:
    return tnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


_FUNCTIONS: dict[str, Callable[[Any, Any, bool], Any]] = {
    "ReduceL1": lambda x, axis, keep: _sum(tnp.abs(x), axis, keep),
    "ReduceL2": lambda x, axis, keep: tnp.astype(tnp.sqrt(_sum(x * x, axis, keep)), x.dtype),
    "ReduceLogSum": lambda x, axis, keep: tnp.astype(tnp.log(_sum(x, axis, keep)), x.dtype),
    "ReduceLogSumExp": lambda x, axis, keep: tnp.astype(_log_sum_exp(x, axis, keep), x.dtype),
    "ReduceMax": _extremum(tnp.max, dtypes.lowest),
    "ReduceMean": lambda x, axis, keep: tnp.astype(tnp.mean(x, axis=axis, keepdims=keep), x.dtype),
    "ReduceMin": _extremum(tnp.min, dtypes.highest),
    "ReduceProd": lambda x, axis, keep: tnp.prod(x, axis=axis, keepdims=keep, dtype=x.dtype),
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axis, keep: _sum(x * x, axis, keep),
}


def _log_sum_exp(x: Any, axis: Any, keepdims: bool) -> Any:
    x = x if dtypes.is_float(x.dtype) else tnp.astype(x, "float64")
    return nnf.logsumexp(x, axis=axis, keepdims=keepdims)


def _reduction(name: str) -> Callable:
    """A reduction over axes from an attribute or, since version 13 or 18, from an input."""
    function, of_one = _FUNCTIONS[name], name in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")

    def reduce(x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        over = tuple(ints(axes)) if axes is not None else ()
        if not over and noop_with_empty_axes:
            return function(x, (), True) if of_one else x
        return function(x, over or tuple(range(x.ndim)), bool(keepdims))

    return reduce


for _name in _FUNCTIONS:
    onnx.reads(_name, static=(1,))(_reduction(_name))


def _position(function: Callable) -> Callable:
    def find(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        if select_last_index:
            last = x.shape[axis] - 1
            return tnp.astype(last - function(tnp.flip(x, axis), axis=axis, keepdims=bool(keepdims)), "int64")
        return tnp.astype(function(x, axis=axis, keepdims=bool(keepdims)), "int64")

    return find


onnx.reads("ArgMax")(_position(tnp.argmax))
onnx.reads("ArgMin")(_position(tnp.argmin))


@onnx.reads("TopK", static=(1,))
def _top_k(x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """The largest or smallest elements, and their indices: equal ones in the order of the array."""
    (count,) = ints(k)
    order = tnp.argsort(x, axis=axis, stable=True, descending=bool(largest))
    index = [slice(None)] * x.ndim
    index[axis % x.ndim] = slice(0, count)
    order = order[tuple(index)]
    return tnp.take_along_axis(x, order, axis=axis), tnp.astype(order, "int64")


# -- results whose sizes depend on the elements ------------------------------------------------------------------------


@onnx.reads("NonZero", static=(-1,))
def _non_zero(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.nonzero(np.atleast_1d(x)), np.int64).reshape(max(x.ndim, 1), -1)


@onnx.reads("Compress", static=(1,))
def _compress(x: Any, condition: np.ndarray, *, axis: int | None = None) -> Any:
    indices = np.flatnonzero(condition)
    return tnp.take(tnp.ravel(x) if axis is None else x, indices, axis=0 if axis is None else axis)


@onnx.reads("Unique", static=(-1,))
def _unique(x: np.ndarray, *, axis: int | None = None, sorted: int = 1) -> Any:
    """The unique slices, the first index of each, where each element's is, and their counts."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, axis=axis or 0)
        inverse = np.argsort(order)[inverse]
        first, counts = first[order], counts[order]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)
