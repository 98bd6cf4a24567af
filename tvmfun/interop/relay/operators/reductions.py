"""Operators that reduce axes, or accumulate along one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.interop.layouts import ChannelsLast, channels_first, stored_axis
from tvmfun.interop.relax.reductions import accumulated
from tvmfun.interop.relay.operators.table import DType, Family, Ints, as_dtype, axis_of
from tvmfun.nn import functional as nnf

relay = Family(__name__)


def _axes(where: str, axis: Ints | None, exclude: bool, ndim: int) -> tuple[int, ...]:
    """The axes that are reduced: those that are written, or all others."""
    if axis is None:
        return () if exclude else tuple(range(ndim))
    chosen = {axis_of(where, one, ndim) for one in axis}
    return tuple(one for one in range(ndim) if (one in chosen) != exclude)


def _reduction(name: str, function: Callable) -> Callable:
    def reduced(x: Any, *, axis: Ints | None = None, keepdims: bool = False, exclude: bool = False) -> Any:
        axes = _axes(name, axis, exclude, x.ndim)
        if isinstance(x, ChannelsLast):
            # Batch and channels stay next to each other, as in the means of images.
            if 0 in axes or 1 in axes or not axes:
                return reduced(channels_first(x), axis=axes, keepdims=keepdims)
            y = reduced(x.stored, axis=tuple(stored_axis(one, x.ndim) for one in axes), keepdims=keepdims)
            return ChannelsLast(y) if y.ndim > 2 else y
        return as_dtype(function(x, axis=axes, keepdims=keepdims), x.dtype.name) if axes else tnp.asarray(x)

    return reduced


for _name, _function in (
    ("all", tnp.all),
    ("any", tnp.any),
    ("logsumexp", nnf.logsumexp),
    ("max", tnp.max),
    ("mean", tnp.mean),
    ("min", tnp.min),
    ("prod", tnp.prod),
    ("sum", tnp.sum),
):
    relay.reads(_name, layouts=True)(_reduction(_name, _function))


@relay.reads("variance")
def _variance(
    x: Any,
    mean: Any,
    *,
    axis: Ints | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Any:
    """The mean square of ``x - mean``; the mean has the axes that are reduced, of size 1."""
    axes = _axes("variance", axis, exclude, x.ndim)
    count = math.prod(x.shape[one] for one in axes) - unbiased
    return tnp.sum((x - mean) ** 2, axis=axes, keepdims=keepdims) / tnp.asarray(count).astype(x.dtype)


def _position(name: str, function: Callable) -> Callable:
    def found(
        x: Any,
        *,
        axis: Ints | None = None,
        keepdims: bool = False,
        select_last_index: bool = False,
        exclude: bool = False,
    ) -> Any:
        """The index of the first, or the last, extreme element among the elements of all axes that are reduced."""
        axes = _axes(name, axis, exclude, x.ndim)
        kept = tuple(one for one in range(x.ndim) if one not in axes)
        sizes = tuple(x.shape[one] for one in kept)
        count = math.prod(x.shape[one] for one in axes)
        rows = tnp.reshape(tnp.permute_dims(x, (*kept, *axes)), (*sizes, count))
        if select_last_index:
            rows = tnp.flip(rows, axis=-1)
        index = tnp.astype(function(rows, axis=-1), "int32")
        if select_last_index:
            index = tnp.asarray(count - 1).astype("int32") - index
        shape = tuple(1 if one in axes else size for one, size in enumerate(x.shape))
        return tnp.reshape(index, shape) if keepdims else index

    return found


relay.reads("argmax")(_position("argmax", tnp.argmax))
relay.reads("argmin")(_position("argmin", tnp.argmin))


@relay.reads("cumsum")
def _cumsum(x: Any, *, axis: int | None = None, dtype: DType | None = None, exclusive: bool = False) -> Any:
    return accumulated(tnp.cumsum, 0, x, axis, exclusive, dtype or x.dtype)


@relay.reads("cumprod")
def _cumprod(x: Any, *, axis: int | None = None, dtype: DType | None = None, exclusive: bool = False) -> Any:
    return accumulated(tnp.cumprod, 1, x, axis, exclusive, dtype or x.dtype)
