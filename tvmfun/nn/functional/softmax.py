"""Softmax and its relatives: functions of all elements along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.errors import DtypeError

__all__ = ["log_softmax", "logsumexp", "one_hot", "softmax"]


def softmax(x: Any, axis: int = -1) -> Any:
    """Positive numbers that add up to 1: ``exp(x) / sum(exp(x))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis to sum over.

    >>> softmax(tnp.asarray([1000.0, 1000.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    exponentials = tnp.exp(below_max(x, axis))
    return exponentials / tnp.sum(exponentials, axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of the softmax: ``x - logsumexp(x)``, without overflow or cancellation.

    Args:
        x: an array of floats.
        axis: the axis to sum over.

    >>> log_softmax(tnp.asarray([1000.0, 0.0]))
    Array([    0., -1000.], dtype=float32)
    """
    shifted = below_max(x, axis)
    return shifted - tnp.log(tnp.sum(tnp.exp(shifted), axis=axis, keepdims=True))


def logsumexp(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """The logarithm of a sum of exponentials: ``log(sum(exp(x)))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis or axes to sum over; ``None`` for all.
        keepdims: whether to keep the axes, with size 1.

    >>> float(logsumexp(tnp.asarray([1000.0, -1000.0])))
    1000.0
    """
    axes = axis if axis is None or isinstance(axis, int) else tuple(axis)
    largest = lax.stop_gradient(tnp.max(x, axis=axes, keepdims=True))
    largest = tnp.where(tnp.isfinite(largest), largest, tnp.zeros_like(largest))  # inf - inf would be NaN
    total = tnp.log(tnp.sum(tnp.exp(x - largest), axis=axes, keepdims=True)) + largest
    return total if keepdims else tnp.squeeze(total, axis=axes)


def below_max(x: Any, axis: int) -> Any:
    """The array less its maxima along an axis, so that exponentials do not overflow."""
    x = tnp.asarray(x)
    return x - lax.stop_gradient(tnp.max(x, axis=axis, keepdims=True))


def one_hot(labels: Any, num_classes: int, dtype: Any = "float32") -> Any:
    """Ones at the labels and zeros elsewhere, along a new last axis; all zeros for a label out of range.

    Args:
        labels: an array of integers.
        num_classes: the size of the new axis.
        dtype: the dtype of the result.

    Raises:
        DtypeError: if the labels are not integers.

    >>> one_hot(tnp.asarray([1, 0]), 3)
    Array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    labels = tnp.asarray(labels)
    if not dtypes.is_integer(labels.dtype):
        raise DtypeError("one_hot", "the labels must be integers", got=str(labels.dtype), hint='labels.astype("int32")')
    return (labels[..., None] == tnp.arange(num_classes)).astype(dtype)
