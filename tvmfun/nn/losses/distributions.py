"""Losses of distributions over classes, with optional masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.nn.functional import log_softmax, logsumexp, softmax
from tvmfun.nn.losses.arguments import Axes, floats, integers, mask
from tvmfun.transforms import custom_jvp
from tvmfun.typing import ArrayLike

__all__ = [
    "generalized_kl_divergence",
    "kl_divergence",
    "kl_divergence_with_log_targets",
    "poly_loss_cross_entropy",
    "ranking_softmax_loss",
    "safe_softmax_cross_entropy",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
]


def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Array:
    r"""The cross entropy of softmax and the labels: :math:`-\sum_i y_i \ln \operatorname{softmax}(x)_i`.

    Args:
        logits: a score for each class, floats of shape (..., classes).
        labels: the probability of each class, an array that broadcasts to the logits.
        axis: the axis or axes of the classes.
        where: a mask of the classes to include; by default all.

    Raises:
        DtypeError: if the logits are not floats.

    >>> softmax_cross_entropy(tnp.zeros((1, 4)), tnp.asarray([[0.0, 1.0, 0.0, 0.0]]))
    Array([1.3862944], dtype=float32)
    """
    logits = floats("softmax_cross_entropy", "logits", logits)
    where = mask(where, logits, axis)
    return -tnp.sum(tnp.asarray(labels) * log_softmax(logits, axis, where), axis=axis, where=where)


def safe_softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """:func:`softmax_cross_entropy` in which a class with the label 0 contributes 0 even if its logit is -inf.

    Args:
        logits: a score for each class, floats of shape (..., classes).
        labels: the probability of each class, an array of the same shape.

    Raises:
        DtypeError: if the logits are not floats.

    >>> safe_softmax_cross_entropy(tnp.asarray([0.0, 0.0, -tnp.inf]), tnp.asarray([1.0, 0.0, 0.0]))
    Array(0.6931472, dtype=float32)
    """
    logits = floats("safe_softmax_cross_entropy", "logits", logits)
    return -tnp.sum(_weighted_log_softmax(logits, tnp.asarray(labels)), axis=-1)


@custom_jvp
def _weighted_log_softmax(x: Any, weights: Any) -> Array:
    return tnp.where(weights != 0, weights * log_softmax(x), 0)


@_weighted_log_softmax.defjvp
def _weighted_log_softmax_jvp(primals: Any, tangents: Any) -> Any:
    (x, weights), (dx, dweights) = primals, tangents
    mean = tnp.sum(dx * softmax(x), axis=-1, keepdims=True)
    return _weighted_log_softmax(x, weights), weights * (dx - mean) + dweights * log_softmax(x)


def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike, labels: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Array:
    r"""The cross entropy of softmax and a class: :math:`\ln \sum_i e^{x_i} - x_y`.

    Args:
        logits: a score for each class, floats of shape (..., classes).
        labels: the right classes, integers of shape (...). A negative label counts from the end; one out of
            range makes the loss NaN.
        axis: the axis of the classes, or several, which are flattened.
        where: a mask of the classes to include; by default all. The loss without any class is zero.

    Raises:
        DtypeError: if the logits are not floats, or the labels not integers.

    >>> softmax_cross_entropy_with_integer_labels(tnp.zeros((2, 4)), tnp.asarray([1, 3]))
    Array([1.3862944, 1.3862944], dtype=float32)
    """
    name = "softmax_cross_entropy_with_integer_labels"
    logits, labels = floats(name, "logits", logits), integers(name, "labels", labels)
    where = mask(where, logits, axis)
    if axis is None or not isinstance(axis, int):
        inner = [i % logits.ndim for i in (range(logits.ndim) if axis is None else axis)]
        outer = [i for i in range(logits.ndim) if i not in inner]
        logits = _flat(logits, outer, inner)
        where = None if where is None else _flat(where, outer, inner)
        axis = len(outer)
    # The dtype of the labels may be too narrow for the number of classes.
    indices = tnp.expand_dims(tnp.astype(labels, "int64" if labels.dtype.itemsize == 8 else "int32"), axis)
    chosen = tnp.squeeze(tnp.take_along_axis(logits, indices, axis=axis, mode="fill", fill_value=math.nan), axis=axis)
    if where is None:
        return logsumexp(logits, axis=axis) - chosen
    counts = tnp.any(where, axis=axis)
    masked = tnp.where(where, logits, -math.inf)
    # Finite logits where all classes are masked, for finite gradients.
    masked = tnp.where(tnp.expand_dims(counts, axis), masked, 0)
    return tnp.where(counts, logsumexp(masked, axis=axis) - chosen, 0)


def _flat(x: Any, outer: list[int], inner: list[int]) -> Array:
    x = tnp.permute_dims(x, (*outer, *inner))
    return x.reshape(*x.shape[: len(outer)], math.prod(x.shape[len(outer) :]))


def poly_loss_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, *, epsilon: Any = 2.0, axis: Axes = -1, where: ArrayLike | None = None
) -> Array:
    r"""The cross entropy plus a multiple of the missing probability: :math:`CE + \epsilon \sum_i y_i (1 - p_i)`.

    Args:
        logits: a score for each class, floats of shape (..., classes).
        labels: the probability of each class, floats that broadcast to the logits.
        epsilon: the coefficient.
        axis: the axis or axes of the classes.
        where: a mask of the classes to include; by default all.

    Raises:
        DtypeError: if an argument is not of floats.

    Reference: Leng et al., "PolyLoss: A Polynomial Expansion Perspective of Classification Loss Functions" (2022).

    >>> poly_loss_cross_entropy(tnp.zeros((1, 4)), tnp.asarray([[0.0, 1.0, 0.0, 0.0]]))
    Array([2.8862944], dtype=float32)
    """
    name = "poly_loss_cross_entropy"
    logits, labels = floats(name, "logits", logits), floats(name, "labels", labels)
    where = mask(where, logits, axis)
    missing = tnp.sum(labels * (1 - softmax(logits, axis, where)), axis=axis, where=where)
    return softmax_cross_entropy(logits, labels, axis, where) + epsilon * missing


def kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Array:
    r"""The Kullback-Leibler divergence :math:`\sum_i t_i (\ln t_i - \ln p_i)`.

    Args:
        log_predictions: the logarithms of the predicted probabilities, floats.
        targets: the probabilities, floats that broadcast to them.
        axis: the axis or axes of the classes.
        where: a mask of the classes to include; by default all.

    Raises:
        DtypeError: if an argument is not of floats.

    Reference: Kullback and Leibler, "On Information and Sufficiency" (1951).

    >>> kl_divergence(tnp.log(tnp.asarray([0.5, 0.5])), tnp.asarray([1.0, 0.0]))
    Array(0.6931472, dtype=float32)
    """
    log_predictions = floats("kl_divergence", "log_predictions", log_predictions)
    targets = floats("kl_divergence", "targets", targets)
    logs = tnp.log(tnp.where(targets == 0, 1, targets))
    return tnp.sum(targets * (logs - log_predictions), axis=axis, where=where)


def kl_divergence_with_log_targets(
    log_predictions: ArrayLike, log_targets: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Array:
    r"""The Kullback-Leibler divergence of two distributions given as log-probabilities.

    Args:
        log_predictions: the logarithms of the predicted probabilities, floats.
        log_targets: the logarithms of the probabilities, floats that broadcast to them.
        axis: the axis or axes of the classes.
        where: a mask of the classes to include; by default all.

    Raises:
        DtypeError: if an argument is not of floats.

    >>> half = tnp.log(tnp.asarray([0.5, 0.5]))
    >>> kl_divergence_with_log_targets(half, half)
    Array(0., dtype=float32)
    """
    name = "kl_divergence_with_log_targets"
    log_predictions = floats(name, "log_predictions", log_predictions)
    log_targets = floats(name, "log_targets", log_targets)
    return tnp.sum(tnp.exp(log_targets) * (log_targets - log_predictions), axis=axis, where=where)


def generalized_kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Array:
    r"""The Kullback-Leibler divergence of vectors that need not sum to one: :math:`KL + \sum_i (p_i - t_i)`.

    Args:
        log_predictions: the logarithms of the predictions, floats.
        targets: the targets, floats that broadcast to them.
        axis: the axis or axes of the classes.
        where: a mask of the classes to include; by default all.

    Raises:
        DtypeError: if an argument is not of floats.

    >>> generalized_kl_divergence(tnp.zeros(2), tnp.ones(2))
    Array(0., dtype=float32)
    """
    divergence = kl_divergence(log_predictions, targets, axis, where)
    return divergence + tnp.sum(tnp.exp(tnp.asarray(log_predictions)) - tnp.asarray(targets), axis=axis, where=where)


def ranking_softmax_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    where: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    reduce_fn: Callable[..., Any] | None = tnp.mean,
) -> Array:
    r"""The cross entropy of the softmax of a list's scores and its relevances: :math:`-\sum_i w_i y_i \ln s_i`.

    Args:
        logits: scores, floats of shape (..., list).
        labels: the relevance of each item.
        where: a mask of the items to include; by default all.
        weights: a weight for each item.
        reduce_fn: how to reduce over lists, called with ``where=`` a mask of the lists that have items; ``None`` for
            the loss of each. The mean of no lists is zero.

    Raises:
        DtypeError: if the logits are not floats.

    Reference: Cao et al., "Learning to Rank: From Pairwise Approach to Listwise Approach" (2007).

    >>> ranking_softmax_loss(tnp.zeros((2, 2)), tnp.asarray([[0.0, 1.0], [1.0, 0.0]]))
    Array(0.6931472, dtype=float32)
    """
    logits = floats("ranking_softmax_loss", "logits", logits)
    labels = tnp.astype(tnp.asarray(labels), logits.dtype)
    where = None if where is None else tnp.asarray(where)
    if where is not None:
        labels = tnp.where(where, labels, 0)
    if weights is not None:
        labels = labels * tnp.asarray(weights)
    losses = -tnp.sum(labels * log_softmax(logits, -1, where), axis=-1, where=where)
    counts = None if where is None else tnp.any(where, axis=-1)
    if reduce_fn is None:
        return losses if counts is None else tnp.where(counts, losses, 0)
    result = reduce_fn(losses, where=counts)
    if reduce_fn is tnp.mean:
        result = tnp.where(tnp.isnan(result) & ~tnp.any(tnp.isnan(losses)), 0, result)
    return result
