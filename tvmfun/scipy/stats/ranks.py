"""Ranks, modes and standard errors of samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.scipy.stats.standard import arrays
from tvmfun.typing import ArrayLike


class ModeResult(NamedTuple):
    """Result of :func:`mode`."""

    mode: Array
    count: Array


def _along_last(name: str, a: Any, axis: int | None, nan_policy: str) -> Array:
    if nan_policy != "propagate":
        hint = "nan_policy='propagate'"
        raise ArgumentError(name, "NaN is always propagated", got=f"nan_policy={nan_policy!r}", hint=hint)
    x = tnp.asarray(a)
    if axis is None:
        return tnp.ravel(x)
    x = tnp.atleast_1d(x)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(name, f"there is no axis {axis}", got=repr(x.aval))
    return tnp.moveaxis(x, axis, -1)


def _runs(x: Array) -> tuple[Array, Array, Array]:
    """Sorted vectors, and for each of their elements the positions at which its run of equal ones begins and ends."""
    ordered = tnp.sort(x, axis=-1)
    size = x.shape[-1]
    at = tnp.broadcast_to(tnp.arange(size), x.shape)
    differs = tnp.concatenate([tnp.ones((*x.shape[:-1], 1), "bool"), ordered[..., 1:] != ordered[..., :-1]], axis=-1)
    first = lax.associative_scan(tnp.maximum, tnp.where(differs, at, 0), axis=-1)
    is_last = tnp.concatenate([differs[..., 1:], tnp.ones((*x.shape[:-1], 1), "bool")], axis=-1)
    last = lax.associative_scan(tnp.minimum, tnp.where(is_last, at, size), reverse=True, axis=-1)
    return ordered, first, last


def mode(a: ArrayLike, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """Returns the most frequent values along an axis, the smallest of equally frequent ones, and how often they occur.

    Args:
        a: an array.
        axis: the axis, None for the flattened array.
        nan_policy: only ``"propagate"``.
        keepdims: whether to keep the axis, with size 1.

    >>> [int(x) for x in mode(tnp.asarray([1, 2, 2, 3]))]
    [2, 2]
    """
    x = _along_last("mode", a, axis, nan_policy)
    if x.shape[-1]:
        ordered, first, last = _runs(x)
        counts = last - first + 1
        best = tnp.argmax(counts, axis=-1, keepdims=True)
        value = tnp.take_along_axis(ordered, best, -1)[..., 0]
        count = tnp.max(counts, axis=-1)
    else:
        value, count = tnp.full(x.shape[:-1], math.nan), tnp.zeros(x.shape[:-1])
    if keepdims:
        rank = tnp.asarray(a).ndim
        sizes = (1,) * rank if axis is None else None
        value, count = (
            tnp.reshape(y, sizes) if sizes is not None else tnp.expand_dims(y, axis)  # type: ignore[arg-type]
            for y in (value, count)
        )
    return ModeResult(value, count)


def rankdata(a: ArrayLike, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Array:
    """Returns the ranks of the elements, from 1, as floats.

    Args:
        a: an array.
        method: the rank of equal elements: their ``"average"``, ``"min"`` or ``"max"`` position; ``"dense"`` counts
            different elements, and ``"ordinal"`` gives them different ranks, in their order.
        axis: the axis along which to rank, None for the flattened array.
        nan_policy: only ``"propagate"``: where there is a NaN, all ranks are NaN.

    Raises:
        ArgumentError: for another method.

    >>> rankdata(tnp.asarray([10, 30, 20, 20])).tolist()
    [1.0, 4.0, 2.5, 2.5]
    """
    methods = ("average", "min", "max", "dense", "ordinal")
    if method not in methods:
        raise ArgumentError("rankdata", f"the method must be one of {', '.join(methods)}", got=repr(method))
    x = _along_last("rankdata", a, axis, nan_policy)
    if not x.shape[-1]:
        ranks = tnp.zeros(x.shape)
    else:
        _, first, last = _runs(x)
        if method == "average":
            values = (first + last) / 2 + 1
        elif method == "dense":
            at = tnp.arange(x.shape[-1])
            values = tnp.cumsum(tnp.astype(first == at, "int32"), axis=-1)
        else:
            values = {"min": first + 1, "max": last + 1}.get(method)
        positions = tnp.argsort(tnp.argsort(x, axis=-1, stable=True), axis=-1)
        ranks = positions + 1 if values is None else tnp.take_along_axis(values, positions, -1)
        ranks = tnp.astype(ranks, "float32")
        missing = tnp.any(x != x, axis=-1, keepdims=True)
        ranks = tnp.where(missing, math.nan, ranks)
    return ranks if axis is None else tnp.moveaxis(ranks, -1, axis)


def sem(
    a: ArrayLike, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False
) -> Array:
    """Returns the standard error of the mean: the standard deviation over the root of the number of elements.

    Args:
        a: an array.
        axis: the axis, None for the flattened array.
        ddof: subtracted from the number of elements in the variance.
        nan_policy: ``"propagate"``, or ``"omit"`` to leave out NaN.
        keepdims: whether to keep the axis, with size 1.

    Raises:
        ArgumentError: for another policy.

    >>> round(float(sem(tnp.asarray([1.0, 2.0, 3.0]))), 5)
    0.57735
    """
    (x,) = arrays("sem", a)
    if nan_policy == "propagate":
        size = x.size if axis is None else x.shape[axis]
        return tnp.std(x, axis=axis, correction=ddof, keepdims=keepdims) / math.sqrt(size)
    if nan_policy != "omit":
        raise ArgumentError("sem", "the policy must be 'propagate' or 'omit'", got=repr(nan_policy))
    count = tnp.astype(tnp.sum(tnp.logical_not(tnp.isnan(x)), axis=axis, keepdims=keepdims), x.dtype)
    return tnp.nanstd(x, axis=axis, ddof=ddof, keepdims=keepdims) / tnp.sqrt(count)
