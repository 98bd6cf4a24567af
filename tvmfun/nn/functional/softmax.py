"""Softmax and its relatives: functions of all elements along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.errors import DtypeError, ShapeError

__all__ = ["log_softmax", "logmeanexp", "logsumexp", "one_hot", "softmax"]

Axis: TypeAlias = int | Sequence[int] | None


def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """Positive numbers that add up to 1: ``exp(x) / sum(exp(x))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis or axes to sum over; ``None`` for all.
        where: bools that broadcast: which elements count; the others become 0.

    >>> softmax(tnp.asarray([1000.0, 1000.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    if where is None:
        exponentials = tnp.exp(below_max(x, axis))
        return exponentials / tnp.sum(exponentials, axis=_axes(axis), keepdims=True)
    x, where = _floats(x), tnp.asarray(where)
    exponentials = tnp.where(where, tnp.exp(_below_max_where(x, axis, where)), 0)
    total = tnp.sum(exponentials, axis=_axes(axis), keepdims=True)
    return exponentials / tnp.where(total > 0, total, 1)


def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """The logarithm of the softmax: ``x - logsumexp(x)``, without overflow or cancellation.

    Args:
        x: an array of floats.
        axis: the axis or axes to sum over; ``None`` for all.
        where: bools that broadcast: which elements count; the others become -inf.

    >>> log_softmax(tnp.asarray([1000.0, 0.0]))
    Array([    0., -1000.], dtype=float32)
    """
    if where is None:
        shifted = below_max(x, axis)
        return shifted - tnp.log(tnp.sum(tnp.exp(shifted), axis=_axes(axis), keepdims=True))
    x, where = _floats(x), tnp.asarray(where)
    shifted = _below_max_where(x, axis, where)
    total = tnp.sum(tnp.where(where, tnp.exp(shifted), 0), axis=_axes(axis), keepdims=True)
    return tnp.where(where, shifted - tnp.log(tnp.where(total > 0, total, 1)), -math.inf)


def logsumexp(
    x: Any, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """The logarithm of a sum of exponentials: ``log(sum(b * exp(x)))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis or axes to sum over; ``None`` for all.
        b: factors that broadcast; 1 by default. They may be negative.
        keepdims: whether to keep the axes, with size 1.
        return_sign: whether to return the logarithm of the absolute value of the sum, and its sign.
        where: bools that broadcast: which elements count.

    Returns:
        An array, NaN where the sum is negative; or a pair of an array and the signs -1, 0 and 1.

    >>> float(logsumexp(tnp.asarray([1000.0, -1000.0])))
    1000.0
    >>> logsumexp(tnp.asarray([1.0, 1.0]), b=tnp.asarray([1.0, -3.0]), return_sign=True)
    (Array(1.6931472, dtype=float32), Array(-1., dtype=float32))
    """
    x, axes = _floats(x), _axes(axis)
    if b is not None:
        b = tnp.asarray(b)
        x, b = tnp.broadcast_arrays(x, b)
        where = (b != 0) if where is None else tnp.logical_and(b != 0, where)
    counted = x if where is None else tnp.where(where, x, -math.inf)
    largest = lax.stop_gradient(tnp.max(counted, axis=axes, keepdims=True, initial=-math.inf))
    largest = tnp.where(tnp.isfinite(largest), largest, tnp.zeros_like(largest))  # inf - inf would be NaN
    exponentials = tnp.exp(counted - largest)
    if b is not None:
        exponentials = tnp.where(b != 0, b * exponentials, 0)
    total = tnp.sum(exponentials, axis=axes, keepdims=True)
    sign = tnp.sign(total)
    result = tnp.log(tnp.abs(total) if return_sign else total) + largest
    if not keepdims:
        result, sign = tnp.squeeze(result, axis=axes), tnp.squeeze(sign, axis=axes)
    return (result, sign) if return_sign else result


def logmeanexp(x: Any, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Any:
    """The logarithm of a mean of exponentials: ``log(mean(exp(x)))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis or axes to take the mean over; ``None`` for all.
        where: bools that broadcast: which elements count.
        keepdims: whether to keep the axes, with size 1.

    >>> float(logmeanexp(tnp.asarray([1000.0, 1000.0])))
    1000.0
    """
    x, axes = _floats(x), _axes(axis)
    counted = tnp.broadcast_to(True if where is None else tnp.asarray(where), x.shape)
    count = tnp.sum(tnp.astype(counted, x.dtype), axis=axes, keepdims=keepdims)
    return logsumexp(x, axis, keepdims=keepdims, where=where) - tnp.log(count)


def below_max(x: Any, axis: Axis) -> Any:
    """The array less its maxima along axes, so that exponentials do not overflow."""
    x = tnp.asarray(x)
    return x - lax.stop_gradient(tnp.max(x, axis=_axes(axis), keepdims=True))


def _below_max_where(x: Any, axis: Axis, where: Any) -> Any:
    """The same where elements count, and 0 elsewhere."""
    counted = tnp.where(where, x, -math.inf)
    largest = lax.stop_gradient(tnp.max(counted, axis=_axes(axis), keepdims=True, initial=-math.inf))
    return tnp.where(where, x - largest, 0)


def _axes(axis: Axis) -> int | tuple[int, ...] | None:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


def _floats(x: Any) -> Any:
    x = tnp.asarray(x)
    return x if dtypes.is_float(x.dtype) else tnp.astype(x, dtypes.DEFAULT_FLOAT)


def one_hot(labels: Any, num_classes: int, dtype: Any = None, axis: int = -1) -> Any:
    """Ones at the labels and zeros elsewhere, along a new axis; all zeros for a label out of range.

    Args:
        labels: an array of integers.
        num_classes: the size of the new axis.
        dtype: the dtype of the result; by default float32.
        axis: where the new axis goes.

    Raises:
        DtypeError: if the labels are not integers.
        ShapeError: if there is no such axis.

    >>> one_hot(tnp.asarray([1, 0]), 3)
    Array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    labels = tnp.asarray(labels)
    if not dtypes.is_integer(labels.dtype):
        raise DtypeError("one_hot", "the labels must be integers", got=str(labels.dtype), hint='labels.astype("int32")')
    if not -labels.ndim - 1 <= axis <= labels.ndim:
        raise ShapeError("one_hot", f"the axis must be one of {labels.ndim + 1}", got=str(axis))
    axis %= labels.ndim + 1
    numbers = tnp.arange(num_classes).reshape((-1,) + (1,) * (labels.ndim - axis))
    return (tnp.expand_dims(labels, axis) == numbers).astype(dtypes.DEFAULT_FLOAT if dtype is None else dtype)
