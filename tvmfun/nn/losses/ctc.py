"""Connectionist temporal classification: the likelihood of unaligned label sequences."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.nn.functional import log_softmax
from tvmfun.nn.losses.arguments import are_classes, floats, integers, same_shape
from tvmfun.typing import ArrayLike

__all__ = ["ctc_loss", "ctc_loss_with_forward_probs"]


def ctc_loss(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> Array:
    """The negative log-likelihood of a sequence of labels, summed over all alignments with the time steps.

    Args:
        logits: a score for each class at each time, floats of shape (batch, times, classes).
        logit_paddings: 1 for the times after the end, otherwise 0; of shape (batch, times).
        labels: the sequences, integers of shape (batch, labels).
        label_paddings: 1 for the labels after the end, otherwise 0; of shape (batch, labels).
        blank_id: the class of the blank.
        log_epsilon: a finite substitute for the logarithm of zero.

    Returns:
        An array of shape (batch,). A sequence longer than its time steps has a loss of about ``-log_epsilon``.

    Raises:
        DtypeError: if the logits are not floats, or the labels not integers.
        ShapeError: if the shapes do not fit.

    Reference: Graves et al., "Connectionist temporal classification: labelling unsegmented sequence data with recurrent
    neural networks" (2006).

    >>> f"{float(ctc_loss(tnp.zeros((1, 2, 3)), tnp.zeros((1, 2)), tnp.asarray([[1]]), tnp.zeros((1, 1)))[0]):.4f}"
    '1.0986'
    """
    paddings = logit_paddings, label_paddings
    return _ctc("ctc_loss", logits, labels, *paddings, blank_id, log_epsilon)[0]


def ctc_loss_with_forward_probs(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> Any:
    """The loss of :func:`ctc_loss`, and the log-probabilities of its forward pass.

    Args:
        logits: a score for each class at each time, floats of shape (batch, times, classes).
        logit_paddings: 1 for the times after the end, otherwise 0; of shape (batch, times).
        labels: the sequences, integers of shape (batch, labels).
        label_paddings: 1 for the labels after the end, otherwise 0; of shape (batch, labels).
        blank_id: the class of the blank.
        log_epsilon: a finite substitute for the logarithm of zero.

    Returns:
        The losses; the log-probabilities that after a time a number of labels has been emitted and the last class was
        blank, of shape (times, batch, labels + 1); and that the last class was the label, of shape (times, batch,
        labels).

    Raises:
        DtypeError: if the logits are not floats, or the labels not integers.
        ShapeError: if the shapes do not fit.

    >>> logits, labels = tnp.zeros((1, 2, 3)), tnp.asarray([[1]])
    >>> parts = ctc_loss_with_forward_probs(logits, tnp.zeros((1, 2)), labels, tnp.zeros((1, 1)))
    >>> [part.shape for part in parts]
    [(1,), (2, 1, 2), (2, 1, 1)]
    """
    paddings = logit_paddings, label_paddings
    return _ctc("ctc_loss_with_forward_probs", logits, labels, *paddings, blank_id, log_epsilon)


def _ctc(
    where: str, logits: Any, labels: Any, logit_paddings: Any, label_paddings: Any, blank_id: int, log_epsilon: float
) -> Any:
    logits, labels = floats(where, "logits", logits), integers(where, "labels", labels)
    dtype = logits.dtype
    logit_paddings = tnp.astype(tnp.asarray(logit_paddings), dtype)
    label_paddings = tnp.astype(tnp.asarray(label_paddings), dtype)
    if logits.ndim != 3 or labels.ndim != 2 or labels.shape[0] != logits.shape[0]:
        what = "the logits must be (batch, times, classes) and the labels (batch, labels)"
        raise ShapeError(where, what, got=f"{logits.shape} and {labels.shape}")
    same_shape(where, "labels and label_paddings", labels, label_paddings)
    same_shape(where, "logits without classes and logit_paddings", logits[..., 0], logit_paddings)
    batch, times, classes = logits.shape
    longest = labels.shape[1]
    log_probs = log_softmax(logits)
    repeats = tnp.astype(labels[:, :-1] == labels[:, 1:], dtype)
    repeats = tnp.pad(repeats, ((0, 0), (0, min(1, longest))))
    blank = tnp.permute_dims(log_probs[:, :, blank_id : blank_id + 1], (1, 0, 2))
    # A label that is not a class, as padding may be, has probability one.
    is_class = are_classes(labels, classes)
    indices = tnp.broadcast_to(tnp.where(is_class, labels, 0)[:, None, :], (batch, times, longest))
    emitted = tnp.where(is_class[:, None, :], tnp.take_along_axis(log_probs, indices, axis=-1), 0)
    emitted = tnp.permute_dims(emitted, (1, 0, 2))

    never = tnp.full((batch, longest), log_epsilon, dtype)
    start = tnp.concatenate([tnp.zeros((batch, 1), dtype), never], axis=1)

    def add(phi: Any, score: Any) -> Any:
        return tnp.concatenate([phi[:, :1], tnp.logaddexp(phi[:, 1:], score)], axis=-1)

    def step(carry: Any, x: Any) -> Any:
        phi, emit = carry
        log_emit, log_blank, padding = x
        # Equal labels in a row need a blank between them.
        ready = add(phi, emit + log_epsilon * repeats)
        next_emit = tnp.logaddexp(ready[:, :-1] + log_emit, emit + log_emit)
        next_phi = add(ready + log_blank, emit + log_blank + log_epsilon * (1 - repeats))
        padding = padding[:, None]
        state = padding * phi + (1 - padding) * next_phi, padding * emit + (1 - padding) * next_emit
        return state, state

    _, (phis, emits) = lax.scan(step, (start, never), (emitted, blank, tnp.permute_dims(logit_paddings, (1, 0))))
    last = add(phis[-1], emits[-1])
    phis = phis.at[-1].set(last)
    lengths = longest - tnp.astype(tnp.sum(label_paddings, axis=1), "int32")
    return -tnp.take_along_axis(last, lengths[:, None], axis=1)[:, 0], phis, emits
