"""Relax operators that reduce, accumulate or order along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax.table import TRANSLATIONS, Translation, reads


def _along(function: Callable) -> Callable:
    def reduced(x: Any, *, axis: Any, keepdims: bool) -> Any:
        return function(x, axis=axis, keepdims=keepdims)

    return reduced


for _name, _function, _derivative in (
    # The records of these four keep no axes.
    ("max", tnp.max, ""),
    ("min", tnp.min, ""),
    ("prod", tnp.prod, ""),
    ("sum", tnp.sum, ""),
    ("mean", tnp.mean, ""),
    ("std", tnp.std, ""),
    ("variance", tnp.var, ""),
    ("argmax", tnp.argmax, "zero: constant almost everywhere"),
    ("argmin", tnp.argmin, "zero: constant almost everywhere"),
):
    TRANSLATIONS[f"relax.{_name}"] = Translation(f"relax.{_name}", _along(_function), _derivative)


@reads("relax.median")
def _median(x: Any, *, axis: tuple | None, result: Any) -> Any:
    """The lower median along one axis and its index there; of all elements only the value."""
    along = tnp.ravel(x) if not axis else x
    dimension = axis[0] if axis else 0
    order = tnp.argsort(along, axis=dimension)
    middle = lax.index_in_dim(order, (along.shape[dimension] - 1) // 2, dimension % along.ndim)
    value = tnp.take_along_axis(along, middle, axis=dimension)
    if not isinstance(result, tuple):
        return tnp.reshape(value, result.shape)
    return tnp.reshape(value, result[0].shape), tnp.reshape(middle, result[1].shape)


def accumulated(function: Callable, start: int, x: Any, axis: int | None, exclusive: bool, dtype: Any) -> Any:
    """Sums or products along an axis, or of all elements; ``start`` and all but the last one if exclusive."""
    x = tnp.astype(tnp.ravel(x) if axis is None else x, dtype)
    along = 0 if axis is None else axis % x.ndim
    if exclusive:
        widths = [(1, 0) if i == along else (0, 0) for i in range(x.ndim)]
        x = lax.slice_in_dim(tnp.pad(x, widths, constant_values=start), 0, x.shape[along], axis=along)
    return function(x, axis=along)


@reads("relax.cumsum")
def _cumsum(x: Any, *, axis: int | None, exclusive: bool, result: ShapeDtype) -> Any:
    return accumulated(tnp.cumsum, 0, x, axis, exclusive, result.dtype)


@reads("relax.cumprod")
def _cumprod(x: Any, *, axis: int | None, exclusive: bool, result: ShapeDtype) -> Any:
    return accumulated(tnp.cumprod, 1, x, axis, exclusive, result.dtype)


@reads("relax.sort")
def _sort(x: Any, *, axis: int, descending: bool) -> Any:
    return tnp.sort(x, axis=axis, descending=descending)


@reads("relax.argsort", "zero: constant almost everywhere")
def _argsort(x: Any, *, axis: int, descending: bool) -> Any:
    return tnp.argsort(x, axis=axis, descending=descending)


@reads("relax.topk")
def _topk(x: Any, *, k: int, axis: int, ret_type: str, largest: bool) -> Any:
    order = tnp.argsort(x, axis=axis, descending=largest)
    indices = order if k < 1 else lax.slice_in_dim(order, 0, k, axis=axis % x.ndim)
    values = tnp.take_along_axis(x, indices, axis=axis)
    return {"both": (values, indices), "values": values, "indices": indices}[ret_type]
