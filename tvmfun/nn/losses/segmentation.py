"""Segmentation losses: the overlap of masks."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.nn.functional import sigmoid, softmax
from tvmfun.nn.losses.arguments import Axes, Reduction, floats, reduced, same_shape
from tvmfun.typing import ArrayLike

__all__ = ["binary_dice_loss", "dice_loss", "multiclass_generalized_dice_loss"]


def dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    class_weights: ArrayLike | None = None,
    smooth: Any = 1.0,
    alpha: Any = 0.5,
    beta: Any = 0.5,
    apply_softmax: bool = True,
    reduction: Reduction = "mean",
    ignore_background: bool = False,
    axis: Axes = None,
) -> Array:
    r"""One minus the Tversky index, the overlap of masks: :math:`1 - \frac{TP + s}{TP + \alpha FP + \beta FN + s}`.

    Args:
        predictions: logits, floats of shape (batch, ..., classes).
        targets: the masks, an array of the same shape; either may lack the axis of a single class.
        class_weights: a weight for each class, of shape (classes,).
        smooth: added to both sides of the fraction.
        alpha: the weight of false positives.
        beta: the weight of false negatives.
        apply_softmax: whether the predictions are logits, of softmax or, for a single class, of the logistic function;
            otherwise they are probabilities.
        reduction: ``"mean"`` or ``"sum"`` over the classes, or ``"none"``.
        ignore_background: whether to leave out the first of several classes.
        axis: the axes of the masks; by default all but the first and the last.

    Raises:
        DtypeError: if the predictions are not floats.
        ShapeError: if the shapes do not fit.
        ArgumentError: if the reduction is unknown.

    Reference: Milletari et al., "V-Net" (2016); Salehi et al., "Tversky loss function for image segmentation" (2017).

    >>> dice_loss(tnp.asarray([[[9.0], [-9.0]]]), tnp.asarray([[[1.0], [0.0]]])).shape
    (1,)
    """
    return _dice(
        "dice_loss", predictions, targets, class_weights, smooth, alpha, beta, apply_softmax, reduction,
        ignore_background, axis,
    )  # fmt: skip


def multiclass_generalized_dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    smooth: Any = 1.0,
    apply_softmax: bool = True,
    ignore_background: bool = False,
) -> Array:
    """The mean of :func:`dice_loss` with classes weighted by the inverse square of their frequency.

    Args:
        predictions: logits, floats of shape (batch, ..., classes).
        targets: the masks, an array of the same shape.
        smooth: added to both sides of the fraction.
        apply_softmax: whether the predictions are logits; otherwise they are probabilities.
        ignore_background: whether to leave out the first of several classes.

    Raises:
        DtypeError: if the predictions are not floats.
        ShapeError: if the shapes differ.

    Reference: Sudre et al., "Generalised Dice overlap as a deep learning loss function for highly unbalanced
    segmentations" (2017).

    >>> multiclass_generalized_dice_loss(tnp.zeros((2, 4, 3)), tnp.ones((2, 4, 3))).shape
    ()
    """
    name = "multiclass_generalized_dice_loss"
    predictions, targets = floats(name, "predictions", predictions), tnp.asarray(targets)
    same_shape(name, "predictions and targets", predictions, targets)
    counts = tnp.sum(tnp.astype(targets, predictions.dtype), axis=tuple(range(targets.ndim - 1)))
    weights = 1 / (tnp.square(counts) + 1e-7)
    weights = weights / tnp.sum(weights) * weights.shape[0]
    losses = _dice(
        name, predictions, targets, weights, smooth, 0.5, 0.5, apply_softmax, "none", ignore_background, None
    )
    return tnp.mean(losses)


def binary_dice_loss(
    predictions: ArrayLike, targets: ArrayLike, *, smooth: Any = 1.0, apply_sigmoid: bool = True
) -> Array:
    """The :func:`dice_loss` of a single class.

    Args:
        predictions: logits, floats of shape (batch, ...), with or without a last axis of size 1.
        targets: the masks, an array of the same shape.
        smooth: added to both sides of the fraction.
        apply_sigmoid: whether the predictions are logits; otherwise they are probabilities.

    Raises:
        DtypeError: if the predictions are not floats.
        ShapeError: if the shapes do not fit.

    >>> binary_dice_loss(tnp.zeros((2, 4)), tnp.ones((2, 4)))
    Array([0.25, 0.25], dtype=float32)
    """
    name = "binary_dice_loss"
    predictions, targets = floats(name, "predictions", predictions), tnp.asarray(targets)
    if predictions.ndim == targets.ndim and predictions.shape[-1:] != (1,):
        predictions, targets = predictions[..., None], targets[..., None]
    return _dice(name, predictions, targets, None, smooth, 0.5, 0.5, apply_sigmoid, "mean", False, None)


def _dice(
    where: str,
    predictions: Any,
    targets: Any,
    class_weights: Any,
    smooth: Any,
    alpha: Any,
    beta: Any,
    are_logits: bool,
    reduction: Reduction,
    ignore_background: bool,
    axis: Axes,
) -> Array:
    predictions, targets = floats(where, "predictions", predictions), tnp.asarray(targets)
    if predictions.ndim == targets.ndim - 1:
        predictions = predictions[..., None]
    if targets.ndim == predictions.ndim - 1:
        targets = targets[..., None]
    same_shape(where, "predictions and targets", predictions, targets)
    if are_logits:
        predictions = sigmoid(predictions) if predictions.shape[-1] == 1 else softmax(predictions)
    axes = tuple(range(1, predictions.ndim - 1)) if axis is None else axis
    both = tnp.sum(predictions * targets, axis=axes)
    false_positives, false_negatives = tnp.sum(predictions, axis=axes) - both, tnp.sum(targets, axis=axes) - both
    losses = 1 - (both + smooth) / (both + alpha * false_positives + beta * false_negatives + smooth)
    if class_weights is not None:
        class_weights = tnp.asarray(class_weights)
        if class_weights.ndim != 1:
            raise ShapeError(where, "there must be one weight for each class", got=str(class_weights.shape))
        losses = losses * class_weights
    if ignore_background and predictions.shape[-1] > 1:
        losses = losses[..., 1:]
    return reduced(where, losses, reduction, axis=-1)
