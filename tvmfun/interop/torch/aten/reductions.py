"""Operators that reduce axes, order them, or run along them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.core import dims
from tvmfun.interop.layouts import ChannelsLast, channels_first, stored_axis
from tvmfun.interop.torch.aten.table import Family
from tvmfun.nn import functional as nnf

aten = Family(__name__)


def axes_of(x: Any, dim: Any) -> tuple[int, ...]:
    """The axes that PyTorch's ``dim`` names; None and () are all of them. Arrays without axes have an axis 0 there."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(x.ndim))
    chosen = tuple(dim) if isinstance(dim, list | tuple) else (dim,)
    return tuple(axis % x.ndim for axis in chosen) if x.ndim else ()


def _reduced(x: Any, dim: Any, keepdim: bool, function: Callable[..., Any]) -> Any:
    """Applies ``function(array, axes)``, which keeps the axes, to an array in either layout."""
    axes = axes_of(x, dim)
    if isinstance(x, ChannelsLast):
        result: Any = ChannelsLast(function(x.stored, tuple(stored_axis(axis, x.ndim) for axis in axes)))
        if keepdim:
            return result
        return tnp.squeeze(channels_first(result), axes)
    result = function(x, axes)
    return result if keepdim else tnp.squeeze(result, axes)


def count_of(x: Any, axes: tuple[int, ...]) -> Any:
    """The number of elements along some axes."""
    return math.prod(x.shape[axis] for axis in axes)


def _cast(x: Any, dtype: str | None) -> Any:
    return x if dtype is None or x.dtype == dtype else tnp.astype(x, dtype)


@aten.reads("sum", layouts=True)
def _sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: str | None = None) -> Any:
    def total(y: Any, axes: tuple) -> Any:
        kind = dtype or ("int64" if not dtypes.is_float(y.dtype) else None)
        return tnp.sum(_cast(y, kind), axis=axes, keepdims=True)

    return _reduced(x, dim, keepdim, total)


@aten.reads("mean", layouts=True)
def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: str | None = None) -> Any:
    return _reduced(x, dim, keepdim, lambda y, axes: tnp.mean(_cast(y, dtype), axis=axes, keepdims=True))


def _plain(reduce: Callable) -> Callable:
    def function(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return _reduced(x, dim, keepdim, lambda y, axes: reduce(y, axis=axes, keepdims=True))

    return function


for _name, _function in {"amax": tnp.max, "amin": tnp.min, "any": tnp.any, "all": tnp.all}.items():
    aten.reads(_name, layouts=True)(_plain(_function))


@aten.reads("prod")
def _prod(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: str | None = None) -> Any:
    kind = dtype or ("int64" if not dtypes.is_float(x.dtype) else None)
    return tnp.prod(_cast(x, kind), axis=axes_of(x, dim), keepdims=keepdim)


def _degrees_of_freedom(x: Any, axes: tuple, correction: float) -> Any:
    count = count_of(x, axes) - correction
    if isinstance(count, int | float):
        return max(count, 0)
    return tnp.maximum(dims.as_array(count), 0)


def _variance(x: Any, axes: tuple, correction: float) -> Any:
    wide = x.astype("float32") if x.dtype.itemsize < 4 else x
    centred = wide - tnp.mean(wide, axis=axes, keepdims=True)
    total = tnp.sum(centred * centred, axis=axes, keepdims=True)
    return tnp.astype(tnp.divide(total, _degrees_of_freedom(x, axes, correction)), x.dtype)


def _correction(unbiased: bool | None, correction: float | None) -> float:
    return (1 if unbiased is None or unbiased else 0) if correction is None else correction


@aten.reads("var", layouts=True)
def _var(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    degrees = _correction(unbiased, correction)
    return _reduced(x, dim, keepdim, lambda y, axes: _variance(y, axes, degrees))


@aten.reads("std", layouts=True)
def _std(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    degrees = _correction(unbiased, correction)
    return _reduced(x, dim, keepdim, lambda y, axes: tnp.sqrt(_variance(y, axes, degrees)))


@aten.reads("var_mean", layouts=True)
def _var_mean(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    mean = _mean(x, None if isinstance(dim, bool) else dim, keepdim)
    return _var(x, dim, unbiased, keepdim, correction=correction), mean


@aten.reads("logsumexp")
def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    return nnf.logsumexp(x, axis=axes_of(x, dim), keepdims=keepdim)


@aten.reads("linalg_vector_norm")
def _vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: str | None = None) -> Any:
    return tnp.linalg.vector_norm(_cast(x, dtype), axis=axes_of(x, dim), keepdims=keepdim, ord=ord)


@aten.reads("_cdist_forward")
def _distances(x: Any, y: Any, p: float, compute_mode: int | None = None) -> Any:
    """The p-norms of the differences of all rows of ``x`` and ``y``; 0 has the derivative 0."""
    differences = x[..., :, None, :] - y[..., None, :, :]
    if p == 0 or math.isinf(p):
        return tnp.linalg.vector_norm(differences, axis=-1, ord=p)
    powers = tnp.abs(differences) ** p if p != 2 else differences * differences
    total = tnp.sum(powers, axis=-1)
    is_zero = total == 0
    return tnp.where(is_zero, 0.0, tnp.where(is_zero, 1.0, total) ** (1 / p))


# -- softmax -----------------------------------------------------------------------------------------------------------


@aten.reads("_softmax")
def _softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    x = _cast(x, "float32" if half_to_float else None)
    return nnf.softmax(x, axis=dim) if x.ndim else tnp.ones_like(x)


@aten.reads("_safe_softmax")
def _safe_softmax(x: Any, dim: int, dtype: str | None = None) -> Any:
    """Softmax, and zeros along an axis whose elements are all -inf."""
    empty = tnp.max(x, axis=dim, keepdims=True) == -math.inf
    return tnp.where(empty, 0.0, _softmax(_cast(tnp.where(empty, 0.0, x), dtype), dim))


@aten.reads("_log_softmax")
def _log_softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    x = _cast(x, "float32" if half_to_float else None)
    return nnf.log_softmax(x, axis=dim) if x.ndim else tnp.zeros_like(x)


# -- extrema and order -------------------------------------------------------------------------------------------------


def _picked(x: Any, at: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The elements at the positions ``at``, which have the axis ``dim`` of size 1, and the positions."""
    values = tnp.take_along_axis(x, at, axis=dim)
    return (values, at) if keepdim else (tnp.squeeze(values, dim), tnp.squeeze(at, dim))


def _extremum(reduce: Callable, position: Callable) -> Callable:
    def function(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return reduce(x)
        if not x.ndim:
            return x, tnp.zeros((), "int64")
        return _picked(x, position(x, axis=dim, keepdims=True), dim, keepdim)

    return function


aten.reads("max")(_extremum(tnp.max, tnp.argmax))
aten.reads("min")(_extremum(tnp.min, tnp.argmin))
aten.reads("max.other", promotes=True)(tnp.maximum)
aten.reads("min.other", promotes=True)(tnp.minimum)


def _position(function: Callable) -> Callable:
    return lambda x, dim=None, keepdim=False: function(x, axis=dim, keepdims=keepdim)


aten.reads("argmax")(_position(tnp.argmax))
aten.reads("argmin")(_position(tnp.argmin))


@aten.reads("sort")
def _sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    if not x.ndim:
        return x, tnp.zeros((), "int64")
    order = tnp.argsort(x, axis=dim, descending=descending)
    return tnp.take_along_axis(x, order, axis=dim), order


@aten.reads("sort.stable")
def _stable_sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return _sort(x, dim, descending)


@aten.reads("topk")
def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.ndim:
        return x, tnp.zeros((), "int64")
    order = tnp.argsort(x, axis=dim, descending=largest)
    order = order[(slice(None),) * (dim % x.ndim) + (slice(0, k),)]
    return tnp.take_along_axis(x, order, axis=dim), order


@aten.reads("kthvalue")
def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, tnp.zeros((), "int64")
    order = tnp.take(tnp.argsort(x, axis=dim), tnp.asarray([k - 1]), axis=dim)
    return _picked(x, order, dim, keepdim)


@aten.reads("median")
def _median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the two middle elements; NaN where there is one, which is sorted last."""
    if dim is None:
        flat = tnp.sort(tnp.ravel(x))
        return tnp.where(tnp.isnan(flat[-1]), flat[-1], flat[(x.size - 1) // 2])
    if not x.ndim:
        return x, tnp.zeros((), "int64")
    order = tnp.argsort(x, axis=dim)
    lead = (slice(None),) * (dim % x.ndim)
    middle, last = (order[(*lead, slice(i, i + 1))] for i in ((x.shape[dim] + 1) // 2 - 1, x.shape[dim] - 1))
    at = tnp.where(tnp.isnan(tnp.take_along_axis(x, last, axis=dim)), last, middle)
    return _picked(x, at, dim, keepdim)


@aten.reads("nanmedian")
def _nanmedian(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the two middle elements that are numbers."""
    rows = tnp.ravel(x) if dim is None else x
    if not rows.ndim:
        return x if dim is None else (x, tnp.zeros((), "int64"))
    axis = -1 if dim is None else dim
    count = tnp.sum(~tnp.isnan(rows), axis=axis, keepdims=True)
    order = tnp.argsort(rows, axis=axis)
    at = tnp.take_along_axis(order, tnp.maximum((count + 1) // 2 - 1, 0), axis=axis)
    values, at = _picked(rows, at, axis, keepdim if dim is not None else False)
    return values if dim is None else (values, at)


@aten.reads("mode")
def _mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The smallest of the most frequent elements, and the position of its last occurrence."""
    if not x.ndim:
        return x, tnp.zeros((), "int64")
    rows = tnp.moveaxis(x, dim, -1)
    ordered, order = tnp.sort(rows, axis=-1), tnp.argsort(rows, axis=-1)
    # How many there are of an element is how far its run has come at its last one.
    begins = tnp.concatenate([tnp.ones_like(ordered[..., :1], "bool"), ordered[..., 1:] != ordered[..., :-1]], axis=-1)
    position = tnp.arange(rows.shape[-1])
    length = position - lax.cummax(tnp.where(begins, position, 0), axis=x.ndim - 1)
    last = tnp.argmax(length, axis=-1, keepdims=True)
    at = tnp.moveaxis(tnp.take_along_axis(order, last, axis=-1), -1, dim)
    return _picked(x, at, dim, keepdim)


def _running_extremum(function: Callable, reach: Callable) -> Callable:
    def run(x: Any, dim: int) -> Any:
        """The extrema so far, and the position of the last element that is one."""
        if not x.ndim:
            return x, tnp.zeros((), "int64")
        axis = dim % x.ndim
        position = tnp.arange(x.shape[axis]).reshape(tuple(-1 if i == axis else 1 for i in range(x.ndim)))
        extremum = lax.stop_gradient(function(x, axis=axis))
        attains = (x == extremum) | tnp.isnan(x) if dtypes.is_float(x.dtype) else x == extremum
        at = reach(tnp.where(attains, tnp.broadcast_to(position, x.shape), 0), axis=axis)
        return tnp.take_along_axis(x, at, axis=axis), at

    return run


aten.reads("cummax")(_running_extremum(lax.cummax, lax.cummax))
aten.reads("cummin")(_running_extremum(lax.cummin, lax.cummax))


def _running(function: Callable) -> Callable:
    def run(x: Any, dim: int, *, dtype: str | None = None) -> Any:
        kind = dtype or ("int64" if not dtypes.is_float(x.dtype) else None)
        x = _cast(x, kind)
        return function(x, axis=dim) if x.ndim else x

    return run


aten.reads("cumsum")(_running(tnp.cumsum))
aten.reads("cumprod")(_running(tnp.cumprod))
