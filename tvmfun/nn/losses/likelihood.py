"""Losses over a batch: likelihoods of classes, and squared errors."""

from __future__ import annotations

import math
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.nn.functional.floats import floats
from tvmfun.nn.functional.softmax import maxima, total_of
from tvmfun.nn.losses.arguments import Reduction, are_classes, reduced
from tvmfun.typing import ArrayLike

__all__ = ["cross_entropy", "mse_loss", "nll_loss"]


def nll_loss(log_probs: ArrayLike, labels: ArrayLike, reduction: Reduction = "mean") -> Array:
    """The negative log-likelihood of the labels: ``-log_probs[label]``.

    Args:
        log_probs: the logarithm of the probability of each class, of shape (..., classes).
        labels: the right classes, integers of shape (...). A label out of range, such as -1, makes the
            loss NaN and gets no gradient.
        reduction: ``"mean"`` or ``"sum"`` over all labels, or ``"none"`` for the loss of each.

    Returns:
        A 0-d array, or an array of the shape of ``labels``.

    Raises:
        DtypeError: if ``labels`` are not integers, or ``log_probs`` not floats.
        ShapeError: if the shapes do not fit.
        ArgumentError: if the reduction is unknown.

    >>> log_probs = tnp.log(tnp.asarray([[0.25, 0.75], [0.5, 0.5]]))
    >>> nll_loss(log_probs, tnp.asarray([1, 0]), reduction="none")
    Array([0.28768206, 0.6931472 ], dtype=float32)
    """
    return _nll("nll_loss", log_probs, labels, reduction, are_normalized=True)


def cross_entropy(logits: ArrayLike, labels: ArrayLike, reduction: Reduction = "mean") -> Array:
    """The negative log-likelihood of the labels under the softmax: ``-log_softmax(logits)[label]``.

    Args:
        logits: a score for each class, of shape (..., classes).
        labels: the right classes, integers of shape (...). A label out of range, such as -1, makes the
            loss NaN and gets no gradient.
        reduction: ``"mean"`` or ``"sum"`` over all labels, or ``"none"`` for the loss of each.

    Returns:
        A 0-d array, or an array of the shape of ``labels``.

    Raises:
        DtypeError: if ``labels`` are not integers, or ``logits`` not floats.
        ShapeError: if the shapes do not fit.
        ArgumentError: if the reduction is unknown.

    >>> f"{float(cross_entropy(tnp.zeros((3, 10)), tnp.asarray([0, 5, 9]))):.4f}"
    '2.3026'
    """
    return _nll("cross_entropy", logits, labels, reduction, are_normalized=False)


def mse_loss(predictions: ArrayLike, targets: ArrayLike, reduction: Reduction = "mean") -> Array:
    """The squared error: ``(predictions - targets)**2``.

    Args:
        predictions: an array.
        targets: an array of the same shape.
        reduction: ``"mean"`` or ``"sum"`` over all elements, or ``"none"`` for the error of each.

    Returns:
        A 0-d array, or an array of the shape of the arguments.

    Raises:
        ShapeError: if the shapes differ.
        ArgumentError: if the reduction is unknown.

    >>> mse_loss(tnp.asarray([1.0, 2.0]), tnp.asarray([1.0, 4.0]))
    Array(2., dtype=float32)
    """
    predictions, targets = floats(predictions), floats(targets)
    if predictions.shape != targets.shape:
        raise ShapeError(
            "mse_loss",
            "the predictions and the targets must have one shape",
            got=f"{predictions.shape} and {targets.shape}",
            hint="predictions[..., 0] if they have an axis of size 1 too many",
        )
    return reduced("mse_loss", tnp.square(predictions - targets), reduction)


def _nll(where: str, scores: Any, labels: Any, reduction: Reduction, are_normalized: bool) -> Array:
    scores, labels = tnp.asarray(scores), tnp.asarray(labels)
    if not dtypes.is_float(scores.dtype):
        raise DtypeError(where, "the scores of the classes must be floats", got=str(scores.dtype))
    if not dtypes.is_integer(labels.dtype):
        hint = 'labels.argmax(axis=-1) for one-hot labels, or labels.astype("int32")'
        raise DtypeError(where, "the labels must be integers", got=str(labels.dtype), hint=hint)
    if not scores.ndim or labels.shape != scores.shape[:-1]:
        hint = "labels[:, 0] if they have an axis of size 1 too many"
        if labels.shape == (*scores.shape[:1], *scores.shape[2:]):  # as PyTorch has it
            hint = "tvmfun.numpy.moveaxis(scores, 1, -1), because the classes are the last axis"
        raise ShapeError(
            where,
            "the labels must have the shape of the scores without the last axis",
            got=f"{labels.shape} and {scores.shape}",
            hint=hint,
        )
    if not are_normalized:
        scores = scores - maxima(scores, -1)
    is_class = are_classes(labels, scores.shape[-1])  # indexing would clamp the others
    indices = tnp.where(is_class, labels, 0)
    losses = -tnp.take_along_axis(scores, indices[..., None], axis=-1, mode="fill", fill_value=0)[..., 0]
    if not are_normalized:  # the logarithm is subtracted only from the chosen scores
        losses = tnp.astype(tnp.log(total_of(tnp.exp(scores), -1)[..., 0]), scores.dtype) + losses
    return reduced(where, tnp.where(is_class, losses, math.nan), reduction)
