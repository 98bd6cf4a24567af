"""Losses of embeddings: similarities, contrastive and triplet losses."""

from __future__ import annotations

import math
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.nn.losses.arguments import Axes, floats
from tvmfun.typing import ArrayLike

__all__ = ["cosine_distance", "cosine_similarity", "ntxent", "triplet_margin_loss"]


def cosine_similarity(
    predictions: ArrayLike, targets: ArrayLike, *, epsilon: Any = 0.0, axis: Axes = -1, where: ArrayLike | None = None
) -> Array:
    r"""The cosine of the angle between vectors: :math:`a \cdot b / (\|a\| \|b\|)`.

    Args:
        predictions: vectors, floats of shape (..., n).
        targets: vectors that broadcast with them, floats.
        epsilon: a lower bound of squared norms, against division by zero.
        axis: the axis or axes of the vectors.
        where: a mask of the elements to include; by default all.

    Raises:
        DtypeError: if an argument is not of floats.

    >>> cosine_similarity(tnp.asarray([[3.0, 4.0]]), tnp.asarray([[0.0, 2.0]]))
    Array([0.8], dtype=float32)
    """
    a = floats("cosine_similarity", "predictions", predictions)
    b = floats("cosine_similarity", "targets", targets)
    return tnp.sum(_unit(a, epsilon, axis, where) * _unit(b, epsilon, axis, where), axis=axis, where=where)


def cosine_distance(
    predictions: ArrayLike, targets: ArrayLike, *, epsilon: Any = 0.0, axis: Axes = -1, where: ArrayLike | None = None
) -> Array:
    """One minus the cosine of the angle between vectors.

    Args:
        predictions: vectors, floats of shape (..., n).
        targets: vectors that broadcast with them, floats.
        epsilon: a lower bound of squared norms, against division by zero.
        axis: the axis or axes of the vectors.
        where: a mask of the elements to include; by default all.

    Raises:
        DtypeError: if an argument is not of floats.

    >>> cosine_distance(tnp.asarray([[3.0, 0.0]]), tnp.asarray([[0.0, 2.0]]))
    Array([1.], dtype=float32)
    """
    a = floats("cosine_distance", "predictions", predictions)
    b = floats("cosine_distance", "targets", targets)
    return 1 - cosine_similarity(a, b, epsilon=epsilon, axis=axis, where=where)


def _unit(x: Any, epsilon: Any, axis: Any, where: Any) -> Array:
    return x / tnp.sqrt(tnp.maximum(tnp.sum(tnp.square(x), axis=axis, where=where, keepdims=True), epsilon))


def ntxent(embeddings: ArrayLike, labels: ArrayLike, temperature: Any = 0.07) -> Array:
    r"""The contrastive loss: the mean over pairs of one label of :math:`-\ln \frac{e^{s/T}}{e^{s/T} + \sum e^{s'/T}}`.

    Here :math:`s` is the cosine similarity of the pair, and :math:`s'` are similarities with embeddings of other
    labels.

    Args:
        embeddings: floats of shape (batch, n).
        labels: of shape (batch,); equal ones belong together.
        temperature: the divisor of similarities.

    Raises:
        DtypeError: if the embeddings are not floats.
        ShapeError: if there are not as many labels as embeddings.

    Reference: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (2020).

    >>> ntxent(tnp.asarray([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), tnp.asarray([0, 0, 1]), temperature=1.0)
    Array(0.31326166, dtype=float32)
    """
    embeddings, labels = floats("ntxent", "embeddings", embeddings), tnp.asarray(labels)
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        what = "the embeddings must be (batch, n) and the labels (batch,)"
        raise ShapeError("ntxent", what, got=f"{embeddings.shape} and {labels.shape}")
    least = float(tnp.finfo(embeddings.dtype).eps)
    similar = cosine_similarity(embeddings[None], embeddings[:, None], epsilon=least) / temperature
    same = labels[:, None] == labels[None, :]
    indices = tnp.arange(embeddings.shape[0])
    pairs = same & (indices[:, None] != indices[None, :])
    others, matches = tnp.where(same, -math.inf, similar), tnp.where(pairs, similar, -math.inf)
    largest = lax.stop_gradient(tnp.max(tnp.maximum(others, matches), axis=1, keepdims=True))
    total = tnp.sum(tnp.exp(others - largest), axis=1, keepdims=True) + tnp.exp(matches - largest)
    # Without a match and without others the logarithm would be -inf.
    logs = matches - largest - tnp.log(tnp.where(pairs, total, 1))
    return -tnp.sum(tnp.where(pairs, logs, 0)) / tnp.sum(pairs)


def triplet_margin_loss(
    anchors: ArrayLike,
    positives: ArrayLike,
    negatives: ArrayLike,
    axis: int = -1,
    norm_degree: Any = 2,
    margin: Any = 1.0,
    eps: Any = 1e-6,
) -> Array:
    r"""The triplet loss: the excess distance of the positive over the negative: :math:`\max(0, d_+ - d_- + m)`.

    Args:
        anchors: vectors, floats of shape (..., n).
        positives: vectors they should be near.
        negatives: vectors they should be far from.
        axis: the axis of the vectors.
        norm_degree: the power of the differences that is summed.
        margin: by how much the negative should be farther.
        eps: added to the sum, so that its root has a derivative.

    Raises:
        DtypeError: if an argument is not of floats.

    Reference: Balntas et al., "Learning local feature descriptors with triplets and shallow convolutional neural
    networks" (2016).

    >>> triplet_margin_loss(tnp.zeros((1, 2)), tnp.zeros((1, 2)), tnp.asarray([[0.3, 0.4]]))
    Array([0.500999], dtype=float32)
    """
    name = "triplet_margin_loss"
    anchors, positives = floats(name, "anchors", anchors), floats(name, "positives", positives)
    negatives = floats(name, "negatives", negatives)

    def distance(others: Any) -> Any:
        return tnp.power(tnp.sum((anchors - others) ** norm_degree, axis=axis) + eps, 1 / norm_degree)

    return tnp.maximum(distance(positives) - distance(negatives) + margin, 0)
