"""Relax's normalizations, attention and losses."""

from __future__ import annotations

import math
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.interop.relax.table import reads, refuse


def _spread(parameter: Any, ndim: int, axes: tuple) -> Any:
    """A parameter with the axes ``axes`` of an array of rank ``ndim``, with axes that broadcast."""
    shape = [1] * ndim
    for axis, size in zip(axes, parameter.shape, strict=True):
        shape[axis] = size
    return tnp.reshape(parameter, tuple(shape))


def _normalized(x: Any, axes: tuple, epsilon: float) -> Any:
    centered = x - tnp.mean(x, axis=axes, keepdims=True)
    return centered / tnp.sqrt(tnp.mean(centered * centered, axis=axes, keepdims=True) + epsilon)


def _affine(x: Any, gamma: Any, beta: Any, axes: tuple, center: bool, scale: bool) -> Any:
    x = x * _spread(gamma, x.ndim, axes) if scale else x
    return x + _spread(beta, x.ndim, axes) if center else x


@reads("relax.nn.layer_norm")
def _layer_norm(x: Any, gamma: Any, beta: Any, *, axes: tuple, epsilon: float, center: bool, scale: bool) -> Any:
    axes = tuple(axis % x.ndim for axis in axes)
    return _affine(_normalized(x, axes, epsilon), gamma, beta, axes, center, scale)


@reads("relax.nn.instance_norm")
def _instance_norm(
    x: Any, gamma: Any, beta: Any, *, channel_axis: int, axes: tuple, epsilon: float, center: bool, scale: bool
) -> Any:
    axes = tuple(axis % x.ndim for axis in axes)
    return _affine(_normalized(x, axes, epsilon), gamma, beta, (channel_axis % x.ndim,), center, scale)


@reads("relax.nn.group_norm")
def _group_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    *,
    num_groups: int,
    channel_axis: int,
    axes: tuple,
    epsilon: float,
    center: bool,
    scale: bool,
) -> Any:
    channel = channel_axis % x.ndim
    sizes = x.shape
    grouped = tnp.reshape(x, (*sizes[:channel], num_groups, sizes[channel] // num_groups, *sizes[channel + 1 :]))
    own = {axis % x.ndim for axis in axes} | {channel}
    normalized = _normalized(grouped, tuple(axis + (axis >= channel) for axis in sorted(own)), epsilon)
    return _affine(tnp.reshape(normalized, sizes), gamma, beta, (channel,), center, scale)


@reads("relax.nn.rms_norm")
def _rms_norm(x: Any, weight: Any, *, axes: tuple, epsilon: float) -> Any:
    axes = tuple(axis % x.ndim for axis in axes)
    mean = tnp.mean(x * x, axis=axes, keepdims=True)
    return x / tnp.sqrt(mean + epsilon) * _spread(weight, x.ndim, axes)


@reads("relax.nn.batch_norm")
def _batch_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    moving_mean: Any,
    moving_var: Any,
    *,
    axis: int,
    epsilon: float,
    center: bool,
    scale: bool,
    momentum: float,
    training: bool,
) -> Any:
    channel = (axis % x.ndim,)
    mean, var = moving_mean, moving_var
    if training:
        rest = tuple(other for other in range(x.ndim) if other not in channel)
        mean, var = tnp.mean(x, axis=rest), tnp.var(x, axis=rest)
        moving_mean = (1 - momentum) * moving_mean + momentum * mean
        moving_var = (1 - momentum) * moving_var + momentum * var
    normalized = (x - _spread(mean, x.ndim, channel)) / tnp.sqrt(_spread(var, x.ndim, channel) + epsilon)
    return _affine(normalized, gamma, beta, channel, center, scale), moving_mean, moving_var


@reads("relax.nn.attention", limits="without `window_size`")
@reads("relax.nn.attention_bias", limits="without `window_size`")
def _attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    *,
    scale: float | None,
    causal_mask: str | None,
    window_size: int | None,
) -> Any:
    """Axes are batch, position, head and feature; the bias has batch, head, query position and key position."""
    if window_size is not None:
        raise refuse("relax.nn.attention", "sliding windows have no meaning that TVM compiles", window_size)
    scores = tnp.einsum("bqhd,bkhd->bhqk", query, key)
    scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
    if bias is not None:
        scores = scores + bias
    if causal_mask is not None:
        *_, rows, columns = scores.shape
        if causal_mask == "BottomRight" and rows > columns:
            raise refuse("relax.nn.attention", "the first queries of this mask would see no key", (rows, columns))
        offset = columns - rows if causal_mask == "BottomRight" else 0
        seen = tnp.arange(columns)[None, :] <= tnp.arange(rows)[:, None] + offset
        scores = tnp.where(seen, scores, -math.inf)
    largest = tnp.max(scores, axis=-1, keepdims=True)
    weights = tnp.exp(scores - largest)
    return tnp.einsum("bhqk,bkhd->bqhd", weights / tnp.sum(weights, axis=-1, keepdims=True), value)


@reads("relax.nn.cross_entropy_with_logits")
def _cross_entropy_with_logits(predictions: Any, labels: Any) -> Any:
    total = -tnp.sum(predictions * labels)
    return total / predictions.shape[0] if predictions.ndim > 1 else total


@reads("relax.nn.nll_loss")
def nll_loss(predictions: Any, targets: Any, weights: Any = None, *, reduction: str, ignore_index: int) -> Any:
    """The negative log likelihoods at the targets, weighted by class; the class ``ignore_index`` is not counted."""
    classes = 1 if predictions.ndim > 1 else 0
    targets = tnp.asarray(targets)
    counted = targets != ignore_index
    labels = tnp.where(counted, targets, 0)
    picked = tnp.squeeze(
        tnp.take_along_axis(predictions, tnp.expand_dims(labels, axis=classes), axis=classes), axis=classes
    )
    own = tnp.ones(targets.shape, predictions.dtype) if weights is None else tnp.take(weights, labels, axis=0)
    own = tnp.where(counted, own, 0)
    losses = -picked * own
    if reduction == "none":
        return losses
    return tnp.sum(losses) / tnp.sum(own) if reduction == "mean" else tnp.sum(losses)
