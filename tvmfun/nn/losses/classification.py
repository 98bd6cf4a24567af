"""Losses of classification scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import Array
from tvmfun.nn.functional import log_sigmoid, one_hot
from tvmfun.nn.losses.arguments import Axes, fits_into, floats, integers, same_shape
from tvmfun.nn.losses.simplex import project_on_simplex
from tvmfun.transforms import vmap
from tvmfun.typing import ArrayLike

__all__ = [
    "hinge_loss",
    "make_fenchel_young_loss",
    "multiclass_hinge_loss",
    "multiclass_perceptron_loss",
    "multiclass_sparsemax_loss",
    "perceptron_loss",
    "sigmoid_binary_cross_entropy",
    "sigmoid_focal_loss",
    "smooth_labels",
    "sparsemax_loss",
]


def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    r"""The cross entropy of two classes: :math:`-y \ln \sigma(x) - (1 - y) \ln(1 - \sigma(x))`.

    Args:
        logits: a score for each example, floats.
        labels: the probability of the second class, an array that broadcasts to the logits.

    Raises:
        DtypeError: if the logits are not floats.

    >>> sigmoid_binary_cross_entropy(tnp.asarray([0.0, 0.0]), tnp.asarray([1, 0]))
    Array([0.6931472, 0.6931472], dtype=float32)
    """
    logits = floats("sigmoid_binary_cross_entropy", "logits", logits)
    labels = tnp.astype(tnp.asarray(labels), logits.dtype)
    fits_into("sigmoid_binary_cross_entropy", "labels", labels, "logits", logits)
    return -labels * log_sigmoid(logits) - (1 - labels) * log_sigmoid(-logits)


def sigmoid_focal_loss(logits: ArrayLike, labels: ArrayLike, *, alpha: Any = None, gamma: Any = 2.0) -> Array:
    r"""The cross entropy of two classes with less weight on sure predictions: :math:`\alpha_t (1 - p_t)^\gamma CE`.

    Args:
        logits: a score for each example, floats.
        labels: the probability of the second class, an array of the same shape.
        alpha: the weight of the second class, one minus the weight of the first; by default both have the weight 1.
        gamma: the exponent of the weight.

    Raises:
        DtypeError: if the logits are not floats.

    Reference: Lin et al., "Focal Loss for Dense Object Detection" (2017).

    >>> sigmoid_focal_loss(tnp.asarray([0.0]), tnp.asarray([1.0]))
    Array([0.1732868], dtype=float32)
    """
    logits = floats("sigmoid_focal_loss", "logits", logits)
    labels = tnp.astype(tnp.asarray(labels), logits.dtype)
    # ln(1 - p_t) is a log-sum-exp; a term of weight zero must not determine its maximum.
    terms = (
        tnp.where(labels == 1, -math.inf, log_sigmoid(logits)),
        tnp.where(labels == 0, -math.inf, log_sigmoid(-logits)),
    )
    largest = lax.stop_gradient(tnp.maximum(*terms))
    parts = (1 - labels) * tnp.exp(terms[0] - largest) + labels * tnp.exp(terms[1] - largest)
    losses = sigmoid_binary_cross_entropy(logits, labels) * tnp.exp(gamma * (tnp.log(parts) + largest))
    return losses if alpha is None else (alpha * labels + (1 - alpha) * (1 - labels)) * losses


def hinge_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Array:
    """The hinge loss ``maximum(0, 1 - predictor_outputs * targets)``.

    Args:
        predictor_outputs: a score for each example.
        targets: the classes, -1 or 1.

    Reference: Cortes and Vapnik, "Support-vector networks" (1995).

    >>> hinge_loss(tnp.asarray([0.5, 2.0]), tnp.asarray([1.0, 1.0]))
    Array([0.5, 0. ], dtype=float32)
    """
    return tnp.maximum(0, 1 - tnp.asarray(predictor_outputs) * tnp.asarray(targets))


def perceptron_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Array:
    """The loss of the perceptron, ``maximum(0, -predictor_outputs * targets)``.

    Args:
        predictor_outputs: a score for each example.
        targets: the classes, -1 or 1, of the same shape.

    Raises:
        ShapeError: if the shapes differ.

    Reference: Rosenblatt, "The Perceptron" (1958).

    >>> perceptron_loss(tnp.asarray([0.5, 2.0]), tnp.asarray([-1.0, 1.0]))
    Array([0.5, 0. ], dtype=float32)
    """
    scores, targets = tnp.asarray(predictor_outputs), tnp.asarray(targets)
    same_shape("perceptron_loss", "predictor_outputs and targets", scores, targets)
    return tnp.maximum(0, -scores * targets)


def sparsemax_loss(logits: ArrayLike, labels: ArrayLike) -> Array:
    r"""The loss of sparsemax with two classes: 0 below -1, :math:`(x + 1)^2 / 4` up to 1, then :math:`x`.

    Args:
        logits: a score for each example.
        labels: whether an example is of the second class, whose logits are negated.

    Reference: Martins and Astudillo, "From Softmax to Sparsemax" (2016).

    >>> sparsemax_loss(tnp.asarray([0.0, 3.0]), tnp.asarray([1, 0]))
    Array([0.25, 3.  ], dtype=float32)
    """
    logits = tnp.asarray(logits)
    x = tnp.where(tnp.asarray(labels) != 0, -logits, logits)
    return tnp.where(x <= -1, 0, tnp.where(x >= 1, x, tnp.square(x + 1) / 4))


def multiclass_hinge_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    r"""The margin by which the right class fails to lead by one: :math:`\max_i (s_i + 1 - [i = y]) - s_y`.

    Args:
        scores: a score for each class, floats of shape (..., classes).
        labels: the right classes, integers of shape (...).

    Raises:
        DtypeError: if the scores are not floats, or the labels not integers.

    Reference: Crammer and Singer, "On the algorithmic implementation of multiclass kernel-based vector machines"
    (2001).

    >>> multiclass_hinge_loss(tnp.asarray([[1.0, 1.5]]), tnp.asarray([1]))
    Array([0.5], dtype=float32)
    """
    scores = floats("multiclass_hinge_loss", "scores", scores)
    chosen = _one_hot("multiclass_hinge_loss", scores, labels)
    return tnp.max(scores + 1 - chosen, axis=-1) - tnp.sum(scores * chosen, axis=-1)


def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    r"""The margin by which the right class fails to lead: :math:`\max_i s_i - s_y`.

    Args:
        scores: a score for each class, floats of shape (..., classes).
        labels: the right classes, integers of shape (...).

    Raises:
        DtypeError: if the scores are not floats, or the labels not integers.

    Reference: Michael Collins, "Discriminative training methods for Hidden Markov Models" (2002).

    >>> multiclass_perceptron_loss(tnp.asarray([[1.0, 1.5]]), tnp.asarray([0]))
    Array([0.5], dtype=float32)
    """
    scores = floats("multiclass_perceptron_loss", "scores", scores)
    chosen = _one_hot("multiclass_perceptron_loss", scores, labels)
    return tnp.max(scores, axis=-1) - tnp.sum(scores * chosen, axis=-1)


def multiclass_sparsemax_loss(scores: ArrayLike, labels: ArrayLike) -> Array:
    r"""The loss of sparsemax: :math:`p \cdot (s - s_y) + (1 - p \cdot p) / 2` with :math:`p` nearest to :math:`s`.

    Args:
        scores: a score for each class, floats of shape (..., classes).
        labels: the right classes, integers of shape (...).

    Raises:
        DtypeError: if the scores are not floats, or the labels not integers.

    Reference: Martins and Astudillo, "From Softmax to Sparsemax" (2016).

    >>> multiclass_sparsemax_loss(tnp.asarray([[0.0, 0.0], [0.0, 5.0]]), tnp.asarray([0, 1]))
    Array([0.25, 0.  ], dtype=float32)
    """
    scores = floats("multiclass_sparsemax_loss", "scores", scores)
    chosen = _one_hot("multiclass_sparsemax_loss", scores, labels)
    right = tnp.sum(tnp.where(chosen != 0, scores, 0), axis=-1, keepdims=True)
    nearest = project_on_simplex(scores)
    # A class of probability zero may have the score -inf, and 0 * -inf is NaN.
    ahead = tnp.where((nearest != 0) & (chosen == 0), scores - right, 0)
    return tnp.sum(nearest * ahead, axis=-1) + 0.5 * (1 - tnp.sum(tnp.square(nearest), axis=-1))


def make_fenchel_young_loss(max_fun: Callable[..., Any]) -> Callable[..., Any]:
    r"""The Fenchel-Young loss of a convex function of scores: :math:`f(s) - t \cdot s`, with the gradient of f minus t.

    Args:
        max_fun: a function from scores of shape (n,) to a number, such as ``logsumexp``.

    Returns:
        A function of scores and targets of shape (..., n), and of further arguments for ``max_fun``.

    Reference: Blondel et al., "Learning with Fenchel-Young Losses" (2020).

    >>> from tvmfun.nn.functional import logsumexp
    >>> make_fenchel_young_loss(logsumexp)(tnp.zeros((1, 4)), tnp.asarray([[1.0, 0.0, 0.0, 0.0]]))
    Array([1.3862944], dtype=float32)
    """

    def fenchel_young_loss(scores: Any, targets: Any, *args: Any, **kwargs: Any) -> Any:
        scores, targets = tnp.asarray(scores), tnp.asarray(targets)
        largest = lambda row: max_fun(row, *args, **kwargs)
        for _ in scores.shape[:-1]:
            largest = vmap(largest)
        return largest(scores) - tnp.sum(targets * scores, axis=-1)

    return fenchel_young_loss


def smooth_labels(labels: ArrayLike, alpha: Any, *, axis: Axes = -1, where: ArrayLike | None = None) -> Array:
    r"""Labels mixed with the uniform distribution: :math:`(1 - \alpha) y + \alpha / n` for :math:`n` classes.

    Args:
        labels: the probability of each class, floats of shape (..., classes).
        alpha: the weight of the uniform distribution.
        axis: the axis or axes of the classes.
        where: a mask of the classes to include; by default all.

    Raises:
        DtypeError: if the labels are not floats.

    Reference: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (2015).

    >>> smooth_labels(tnp.asarray([0.0, 1.0]), 0.5)
    Array([0.25, 0.75], dtype=float32)
    """
    labels = floats("smooth_labels", "labels", labels)
    if where is None:
        count = tnp.sum(tnp.ones_like(labels), axis=axis, keepdims=True)
    else:
        count = tnp.astype(tnp.sum(tnp.asarray(where), axis=axis, keepdims=True), labels.dtype)
    return (1 - alpha) * labels + alpha / count


def _one_hot(where: str, scores: Any, labels: Any) -> Array:
    return one_hot(integers(where, "labels", labels), scores.shape[-1], scores.dtype)
