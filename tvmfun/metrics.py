"""Metrics: pure functions of predictions and labels, and a mean that adds up over batches of any size.

They work on arrays inside and outside :func:`tvmfun.jit`. Functions with a ``where`` leave out the elements
at which it is False, such as the padding of the last batch.

>>> import tvmfun.numpy as tnp
>>> logits = tnp.asarray([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 2.0, 1.0]])
>>> labels = tnp.asarray([0, 1, 1])
>>> accuracy(logits, labels), top_k_accuracy(logits, labels, 2)
(Array(0.6666667, dtype=float32), Array(1., dtype=float32))
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.data.sources import positive
from tvmfun.errors import ShapeError
from tvmfun.names import missing as _missing
from tvmfun.nn.losses import cross_entropy
from tvmfun.nn.losses.arguments import are_classes, floats, integers, same_shape
from tvmfun.typing import ArrayLike

__all__ = [
    "Mean",
    "accuracy",
    "confusion_matrix",
    "correct",
    "f1_score",
    "mean_absolute_error",
    "mean_squared_error",
    "perplexity",
    "precision",
    "recall",
    "roc_auc",
    "top_k_accuracy",
]


class Mean(NamedTuple):
    r"""A running mean, :math:`\sum_i x_i / n`, of all values added.

    It is a tree, so that it goes through ``jit`` and ``scan``. The sum of two means, leaf by leaf, is the mean of the
    values of both: see :func:`tvmfun.loops.evaluate`.

    Attributes:
        total: the sum of the values, ``float64``.
        count: their number, ``int64``.

    >>> mean = Mean.init().add(tnp.asarray([1.0, 2.0, 6.0])).add(tnp.asarray([7.0]))
    >>> mean.result()
    Array(4., dtype=float32)
    """

    total: Any
    count: Any

    @staticmethod
    def init() -> Mean:
        """An empty mean."""
        return Mean(tnp.zeros((), "float64"), tnp.zeros((), "int64"))

    def add(self, values: ArrayLike, where: ArrayLike | None = None) -> Mean:
        """Returns the mean with further values.

        Args:
            values: numbers or bools of any shape.
            where: bools that broadcast to the shape of the values: those to count.
        """
        values = tnp.asarray(values)
        if where is None:
            return Mean(self.total + tnp.sum(values, dtype="float64"), self.count + values.size)
        where = tnp.broadcast_to(tnp.asarray(where), values.shape)
        total = tnp.sum(values, dtype="float64", where=where)
        return Mean(self.total + total, self.count + tnp.sum(where, dtype="int64"))

    def result(self) -> Array:
        """The mean, ``float32``; NaN if there are no values."""
        return tnp.astype(self.total / self.count, "float32")


# -- classes ---


def correct(logits: ArrayLike, labels: ArrayLike, k: int = 1) -> Array:
    """Whether the label is among the k classes with the highest scores; ties go to the lower class.

    Args:
        logits: a score for each class, floats of shape (..., classes).
        labels: the right classes, integers of shape (...). A label that is not a class, such as -1, is never right.
        k: the number of guesses.

    Returns:
        ``bool[...]``.

    Raises:
        DtypeError: if the logits are not floats, or the labels not integers.
        ShapeError: if the shapes do not fit.
        ArgumentError: if ``k`` is not positive.

    >>> correct(tnp.asarray([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]), tnp.asarray([1, 2]))
    Array([ True, False], dtype=bool)
    """
    logits, labels = floats("correct", "logits", logits), integers("correct", "labels", labels)
    positive("correct", "k", k)
    if not logits.ndim or logits.shape[:-1] != labels.shape:
        what = "the logits must have the shape of the labels and an axis of classes"
        raise ShapeError("correct", what, got=f"{logits.shape} and {labels.shape}")
    classes, label = tnp.arange(logits.shape[-1]), labels[..., None]
    score = tnp.max(tnp.where(classes == label, logits, -math.inf), axis=-1, keepdims=True, initial=-math.inf)
    # NaN ranks above every number, as in a sort.
    before = ~(logits <= score) | ((logits == score) & (classes < label))
    return (tnp.sum(before, axis=-1) < k) & tnp.any(classes == label, axis=-1)


def accuracy(logits: ArrayLike, labels: ArrayLike, where: ArrayLike | None = None) -> Array:
    """The fraction of examples whose label has the highest score; see :func:`correct`.

    >>> accuracy(tnp.asarray([[0.1, 0.9], [0.8, 0.2]]), tnp.asarray([1, 1]))
    Array(0.5, dtype=float32)
    """
    return tnp.mean(correct(logits, labels), where=where)


def top_k_accuracy(logits: ArrayLike, labels: ArrayLike, k: int, where: ArrayLike | None = None) -> Array:
    """The fraction of examples whose label is among the k highest scores; see :func:`correct`.

    >>> top_k_accuracy(tnp.asarray([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]), tnp.asarray([1, 2]), 2)
    Array(1., dtype=float32)
    """
    return tnp.mean(correct(logits, labels, k), where=where)


def confusion_matrix(
    predictions: ArrayLike, labels: ArrayLike, num_classes: int, where: ArrayLike | None = None
) -> Array:
    """The number of examples of each class (row) by predicted class (column).

    The sum of the matrices of batches is the matrix of all examples.

    Args:
        predictions: the predicted classes, integers of shape (...).
        labels: the right ones, of the same shape.
        num_classes: their number. Examples whose prediction or label is not a class are left out.
        where: bools of the same shape: the examples to count.

    Returns:
        ``int32[num_classes, num_classes]``.

    Raises:
        DtypeError: if the predictions or the labels are not integers.
        ShapeError: if their shapes differ.
        ArgumentError: if ``num_classes`` is not positive.

    >>> confusion_matrix(tnp.asarray([0, 1, 1]), tnp.asarray([0, 0, 1]), 2)
    Array([[1, 1],
           [0, 1]], dtype=int32)
    """
    where_called = "confusion_matrix"
    columns, rows = integers(where_called, "predictions", predictions), integers(where_called, "labels", labels)
    same_shape(where_called, "predictions and the labels", columns, rows)
    positive(where_called, "number of classes", num_classes)
    counted = are_classes(columns, num_classes) & are_classes(rows, num_classes)
    if where is not None:
        counted = counted & tnp.asarray(where)
    cells = tnp.where(counted, tnp.astype(rows, "int32") * num_classes + tnp.astype(columns, "int32"), num_classes**2)
    counts = tnp.bincount(tnp.reshape(cells, (-1,)), length=num_classes**2 + 1)
    return tnp.reshape(tnp.astype(counts[:-1], "int32"), (num_classes, num_classes))


def precision(confusion: ArrayLike) -> Array:
    """The fraction of the predictions of each class that are right; 0 for a class that is never predicted.

    Args:
        confusion: a :func:`confusion_matrix`, or a sum of several.

    Returns:
        ``float32[num_classes]``. Its mean is the macro average; the micro average is the accuracy.

    >>> precision(tnp.asarray([[1, 1], [0, 1]]))
    Array([1. , 0.5], dtype=float32)
    """
    confusion = _square("precision", confusion)
    return _share(tnp.diagonal(confusion), tnp.sum(confusion, axis=0))


def recall(confusion: ArrayLike) -> Array:
    """The fraction of the examples of each class that are predicted; 0 for a class without examples.

    >>> recall(tnp.asarray([[1, 1], [0, 1]]))
    Array([0.5, 1. ], dtype=float32)
    """
    confusion = _square("recall", confusion)
    return _share(tnp.diagonal(confusion), tnp.sum(confusion, axis=1))


def f1_score(confusion: ArrayLike) -> Array:
    r"""The harmonic mean of precision and recall, :math:`2 TP / (2 TP + FP + FN)`; 0 for a class that never occurs.

    >>> f1_score(tnp.asarray([[1, 1], [0, 1]]))
    Array([0.6666667, 0.6666667], dtype=float32)
    """
    confusion = _square("f1_score", confusion)
    return _share(2 * tnp.diagonal(confusion), tnp.sum(confusion, axis=0) + tnp.sum(confusion, axis=1))


def _square(where: str, confusion: ArrayLike) -> Array:
    matrix = tnp.asarray(confusion)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(where, "the confusion matrix must be square", got=str(matrix.shape), hint="confusion_matrix")
    return tnp.astype(matrix, "float64")


def _share(part: Array, whole: Array) -> Array:
    return tnp.astype(part / tnp.maximum(whole, 1), "float32")


def roc_auc(scores: ArrayLike, labels: ArrayLike, where: ArrayLike | None = None) -> Array:
    r"""The area under the ROC curve: the probability that a positive example has a higher score than a negative one.

    It is :math:`P(s^+ > s^-) + \frac 1 2 P(s^+ = s^-)` over all pairs, computed by sorting.

    Args:
        scores: of shape ``(n,)``, floats.
        labels: of the same shape; bools, or integers, where 0 is negative.
        where: bools of the same shape: the examples to count.

    Returns:
        A 0-d ``float32``; NaN without a positive or without a negative example, or if a score is NaN.

    Raises:
        DtypeError: if the scores are not floats.
        ShapeError: if there is more than one axis, or the shapes differ.

    Source: Fawcett, "An introduction to ROC analysis" (2006), section 7.

    >>> roc_auc(tnp.asarray([0.1, 0.4, 0.35, 0.8]), tnp.asarray([0, 0, 1, 1]))
    Array(0.75, dtype=float32)
    """
    scores, labels = floats("roc_auc", "scores", scores), tnp.asarray(labels)
    same_shape("roc_auc", "scores and the labels", scores, labels)
    if scores.ndim != 1:
        raise ShapeError("roc_auc", "the scores must have one axis", got=str(scores.shape), hint="reshape(-1)")
    counted = tnp.ones(scores.shape, "bool") if where is None else tnp.asarray(where)
    order = tnp.argsort(scores)
    scores, positives, counted = scores[order], labels[order] != 0, counted[order]
    negatives = tnp.astype(counted & ~positives, "int32")
    # Entry i is the number of negatives before position i.
    below = tnp.concatenate([tnp.zeros(1, "int32"), tnp.cumsum(negatives)])
    less, up_to = (below[tnp.searchsorted(scores, scores, side=side)] for side in ("left", "right"))
    total = tnp.sum(less + up_to, dtype="float64", where=counted & positives)
    pairs = tnp.sum(negatives, dtype="float64") * tnp.sum(counted & positives, dtype="float64")
    area = tnp.where(tnp.any(tnp.isnan(scores) & counted), math.nan, total / (2 * pairs))
    return tnp.astype(area, "float32")


# -- numbers ---


def perplexity(logits: ArrayLike, labels: ArrayLike, where: ArrayLike | None = None) -> Array:
    r"""The perplexity of a language model, :math:`\exp` of the mean cross entropy per token.

    Over several batches: :math:`\exp` of a :class:`Mean` of ``cross_entropy(..., reduction="none")``.

    Args:
        logits: a score for each token, floats of shape (..., tokens).
        labels: the actual tokens, integers of shape (...).
        where: bools of the shape of the labels: the tokens to count.

    Raises:
        DtypeError: if the logits are not floats, or the labels not integers.
        ShapeError: if the shapes do not fit.

    >>> perplexity(tnp.zeros((2, 5, 4)), tnp.zeros((2, 5), "int32"))
    Array(4., dtype=float32)
    """
    return tnp.exp(tnp.mean(cross_entropy(logits, labels, reduction="none"), where=where))


def mean_squared_error(predictions: ArrayLike, targets: ArrayLike, where: ArrayLike | None = None) -> Array:
    """The mean of the squared differences of two arrays of one shape.

    Raises:
        DtypeError: if the predictions are not floats.
        ShapeError: if the shapes differ.

    >>> mean_squared_error(tnp.asarray([1.0, 2.0]), tnp.asarray([1.0, 4.0]))
    Array(2., dtype=float32)
    """
    return tnp.mean(tnp.square(_differences("mean_squared_error", predictions, targets)), where=where)


def mean_absolute_error(predictions: ArrayLike, targets: ArrayLike, where: ArrayLike | None = None) -> Array:
    """The mean of the absolute differences of two arrays of one shape.

    Raises:
        DtypeError: if the predictions are not floats.
        ShapeError: if the shapes differ.

    >>> mean_absolute_error(tnp.asarray([1.0, 2.0]), tnp.asarray([1.0, 4.0]))
    Array(1., dtype=float32)
    """
    return tnp.mean(tnp.abs(_differences("mean_absolute_error", predictions, targets)), where=where)


def _differences(where: str, predictions: ArrayLike, targets: ArrayLike) -> Array:
    predictions, targets = floats(where, "predictions", predictions), tnp.asarray(targets)
    same_shape(where, "predictions and the targets", predictions, targets)
    return predictions - targets


__getattr__ = _missing(__name__)
