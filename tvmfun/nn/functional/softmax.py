"""Softmax, its logarithm, and sums of exponentials along axes, without overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.core.array import Array
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.nn.functional.floats import floats
from tvmfun.numpy.promotion import at_least_float32
from tvmfun.numpy.shapes import normalize_axes
from tvmfun.typing import ArrayLike, DTypeLike

__all__ = ["log_softmax", "logmeanexp", "logsumexp", "one_hot", "softmax"]

Axis: TypeAlias = int | Sequence[int] | None


def softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> Array:
    """Positive numbers that add up to 1: ``exp(x) / sum(exp(x))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis or axes to sum over; ``None`` for all.
        where: a mask that broadcasts to ``x``; elements where it is false become 0.

    >>> softmax(tnp.asarray([1000.0, 1000.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    x = floats(x)
    axes = normalize_axes("softmax", axis, x.ndim)
    return softmax_of_shifted(below_max(x, axes, where), axes, where)


def log_softmax(x: ArrayLike, axis: Axis = -1, where: ArrayLike | None = None) -> Array:
    """The logarithm of the softmax: ``x - logsumexp(x)``, without overflow or cancellation.

    Args:
        x: an array of floats.
        axis: the axis or axes to sum over; ``None`` for all.
        where: a mask that broadcasts to ``x``; elements where it is false become -inf.

    >>> log_softmax(tnp.asarray([1000.0, 0.0]))
    Array([    0., -1000.], dtype=float32)
    """
    x = floats(x)
    axes = normalize_axes("log_softmax", axis, x.ndim)
    shifted = below_max(x, axes, where)
    logarithm = tnp.log(_sum(_exp(shifted, where), axes, where))
    result = shifted - tnp.astype(logarithm, shifted.dtype)
    return result if where is None else tnp.where(where, result, -math.inf)


def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any:
    """The logarithm of a sum of exponentials: ``log(sum(b * exp(a)))``, without overflow.

    Args:
        a: an array of floats.
        axis: the axis or axes to sum over; ``None`` for all.
        b: factors that broadcast to ``a``; 1 by default. They may be negative.
        keepdims: whether to keep the axes, with size 1.
        return_sign: whether to return the logarithm of the absolute value of the sum, and its sign.
        where: a mask that broadcasts to ``a``; only elements where it is true are summed.

    Returns:
        An array, NaN where the sum is negative; with ``return_sign`` a pair of an array and the signs -1, 0 and 1.

    >>> float(logsumexp(tnp.asarray([1000.0, -1000.0])))
    1000.0
    >>> logsumexp(tnp.asarray([1.0, 1.0]), b=tnp.asarray([1.0, -3.0]), return_sign=True)
    (Array(1.6931472, dtype=float32), Array(-1., dtype=float32))
    """
    x = floats(a)
    axes = normalize_axes("logsumexp", axis, x.ndim)
    if b is not None:
        x, b = tnp.broadcast_arrays(x, tnp.asarray(b))
        where = (b != 0) if where is None else tnp.logical_and(b != 0, where)
    masked = x if where is None else tnp.where(where, x, -math.inf)
    largest = lax.stop_gradient(tnp.max(masked, axis=axes, keepdims=True, initial=-math.inf))
    largest = tnp.where(tnp.isfinite(largest), largest, tnp.zeros_like(largest))  # inf - inf would be NaN
    exponentials = tnp.exp(masked - largest)
    if b is not None:
        exponentials = tnp.where(b != 0, b * exponentials, 0)
    total = total_of(exponentials, axes)
    sign = tnp.astype(tnp.sign(total), x.dtype)
    logarithm = tnp.log(tnp.abs(total) if return_sign else total)
    result = tnp.astype(logarithm, x.dtype) + largest
    if not keepdims:
        result, sign = tnp.squeeze(result, axis=axes), tnp.squeeze(sign, axis=axes)
    return (result, sign) if return_sign else result


def logmeanexp(x: ArrayLike, axis: Axis = None, where: ArrayLike | None = None, keepdims: bool = False) -> Array:
    """The logarithm of a mean of exponentials: ``log(mean(exp(x)))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis or axes to take the mean over; ``None`` for all.
        where: a mask that broadcasts to ``x``; the mean is over elements where it is true.
        keepdims: whether to keep the axes, with size 1.

    >>> float(logmeanexp(tnp.asarray([1000.0, 1000.0])))
    1000.0
    """
    x = floats(x)
    axes = normalize_axes("logmeanexp", axis, x.ndim)
    counted = tnp.broadcast_to(True if where is None else tnp.asarray(where), x.shape)
    count = tnp.sum(at_least_float32(tnp.astype(counted, x.dtype)), axis=axes, keepdims=keepdims)
    return logsumexp(x, axis, keepdims=keepdims, where=where) - tnp.astype(tnp.log(count), x.dtype)


def one_hot(x: ArrayLike, num_classes: int, dtype: DTypeLike | None = None, axis: int = -1) -> Array:
    """Ones at the labels and zeros elsewhere, along a new axis; all zeros for a label out of range.

    Args:
        x: the labels, an array of integers.
        num_classes: the size of the new axis.
        dtype: the dtype of the result; by default float32.
        axis: the index of the new axis in the result.

    Raises:
        DtypeError: if the labels are not integers.
        ShapeError: if the axis is out of range.

    >>> one_hot(tnp.asarray([1, 0]), 3)
    Array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    labels = tnp.asarray(x)
    if not dtypes.is_integer(labels.dtype):
        raise DtypeError("one_hot", "the labels must be integers", got=str(labels.dtype), hint='labels.astype("int32")')
    if not -labels.ndim - 1 <= axis <= labels.ndim:
        raise ShapeError("one_hot", f"the axis must be one of {labels.ndim + 1}", got=str(axis))
    axis %= labels.ndim + 1
    classes = tnp.arange(num_classes).reshape((-1,) + (1,) * (labels.ndim - axis))
    return (tnp.expand_dims(labels, axis) == classes).astype(dtypes.DEFAULT_FLOAT if dtype is None else dtype)


# -- parts that attention and losses share ---------------------------------------------------------------------


def below_max(x: Array, axis: Axis, where: ArrayLike | None = None) -> Array:
    """The array less its maximum along axes, so that exponentials do not overflow; 0 where a mask is false."""
    if where is None:
        is_empty = isinstance(x.size, int) and not x.size
        return x - maxima(x, axis, initial=-math.inf if is_empty else None)
    where = tnp.asarray(where)
    return tnp.where(where, x - maxima(tnp.where(where, x, -math.inf), axis, initial=-math.inf), 0)


def maxima(x: Array, axis: Axis, initial: float | None = None) -> Array:
    """The maximum along axes, which stay with size 1, and without a gradient: softmax does not depend on it."""
    return lax.stop_gradient(tnp.max(x, axis=axis, keepdims=True, initial=initial))


def total_of(exponentials: Array, axis: Axis) -> Array:
    """The sum along axes, which stay with size 1; of float16 in float32, where 65,520 ones are not infinite."""
    is_narrow = exponentials.dtype == dtypes.float16
    return tnp.sum(at_least_float32(exponentials) if is_narrow else exponentials, axis=axis, keepdims=True)


def softmax_of_shifted(shifted: Array, axis: Axis, where: ArrayLike | None = None) -> Array:
    """The softmax of an array that :func:`below_max` has returned."""
    exponentials = _exp(shifted, where)
    return tnp.astype(exponentials / _sum(exponentials, axis, where), shifted.dtype)


def _exp(shifted: Array, where: ArrayLike | None) -> Array:
    return tnp.exp(shifted) if where is None else tnp.where(where, tnp.exp(shifted), 0)


def _sum(exponentials: Array, axis: Axis, where: ArrayLike | None) -> Array:
    total = total_of(exponentials, axis)
    # Where the mask is false everywhere the sum is 0, and a division by it would make gradients elsewhere NaN.
    return total if where is None else tnp.where(total > 0, total, 1)
