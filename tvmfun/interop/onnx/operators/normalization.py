"""Normalization, dropout, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, random
from tvmfun.errors import ArgumentError
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.tensors import DTYPES
from tvmfun.nn import functional as nnf

onnx = Family(__name__)


def _per_channel(value: Any, x: Any) -> Any:
    """A value for each channel, with axes that broadcast over (batch, channels, *spatial)."""
    return tnp.reshape(value, (-1, *(1,) * (x.ndim - 2))) if x.ndim > 1 else value


@onnx.reads("BatchNormalization", frozen=(3, 4))
def _batch_normalization(
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    is_test: int = 1,
    consumed_inputs: Any = None,
) -> Any:
    """Normalized channels; in training mode by the statistics of the batch, with new running statistics."""
    used_mean, used_variance = mean, variance
    if training_mode:
        axes = (0, *range(2, x.ndim))
        wide = tnp.astype(x, "float32") if x.dtype.itemsize < 4 else x
        used_mean = tnp.mean(wide, axis=axes)
        used_variance = tnp.var(wide, axis=axes)
        mean = mean * momentum + tnp.astype(lax.stop_gradient(used_mean), mean.dtype) * (1 - momentum)
        variance = variance * momentum + tnp.astype(lax.stop_gradient(used_variance), variance.dtype) * (1 - momentum)
    factor = scale * lax.rsqrt(used_variance + epsilon)
    result = (x - _per_channel(used_mean, x)) * _per_channel(factor, x) + _per_channel(bias, x)
    return tnp.astype(result, x.dtype), mean, variance


def _standardized(x: Any, axes: Sequence[int], epsilon: float, stash_type: int = 1) -> tuple[Any, Any, Any]:
    """The array with mean 0 and variance 1 along axes, the mean, and the inverse standard deviation."""
    wide = tnp.astype(x, DTYPES.get(stash_type, dtypes.float32)) if x.dtype.itemsize < 4 else x
    mean = tnp.mean(wide, axis=tuple(axes), keepdims=True)
    centred = wide - mean
    inverse = lax.rsqrt(tnp.mean(centred * centred, axis=tuple(axes), keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


@onnx.reads("InstanceNormalization")
def _instance_normalization(
    x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5, consumed_inputs: Any = None
) -> Any:
    y = tnp.astype(_standardized(x, range(2, x.ndim), epsilon)[0], x.dtype)
    return y * _per_channel(scale, x) + _per_channel(bias, x)


@onnx.reads("LayerNormalization")
def _layer_normalization(
    x: Any, scale: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    y, mean, inverse = _standardized(x, range(axis % x.ndim, x.ndim), epsilon, stash_type)
    y = tnp.astype(y, x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


@onnx.reads("RMSNormalization")
def _rms_normalization(x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    wide = tnp.astype(x, DTYPES.get(stash_type, dtypes.float32)) if x.dtype.itemsize < 4 else x
    squares = tnp.mean(wide * wide, axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    return tnp.astype(tnp.astype(wide * lax.rsqrt(squares + epsilon), x.dtype) * scale, scale.dtype)


@onnx.reads("GroupNormalization")
def _group_normalization(
    x: Any, scale: Any, bias: Any, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """Version 18 has a scale for each group, later ones for each channel."""
    channels = x.shape[1]
    groups = tnp.reshape(x, (x.shape[0], num_groups, channels // num_groups, *x.shape[2:]))
    y = _standardized(groups, range(2, groups.ndim), epsilon, stash_type)[0]
    y = tnp.astype(tnp.reshape(y, x.shape), x.dtype)
    if scale.shape[0] != channels:
        scale, bias = (tnp.repeat(value, channels // num_groups) for value in (scale, bias))
    return y * _per_channel(scale, x) + _per_channel(bias, x)


@onnx.reads("MeanVarianceNormalization")
def _mean_variance_normalization(x: Any, *, axes: Sequence[int] = (0, 2, 3)) -> Any:
    mean = tnp.mean(x, axis=tuple(axes), keepdims=True)
    squares = tnp.mean(x * x, axis=tuple(axes), keepdims=True)
    return (x - mean) / (tnp.sqrt(squares - mean * mean) + 1e-9)


@onnx.reads("LpNormalization")
def _lp_normalization(x: Any, *, axis: int = -1, p: int = 2) -> Any:
    """Zero where the norm is."""
    total = tnp.sum(tnp.abs(x) if p == 1 else x * x, axis=axis, keepdims=True)
    is_zero = total == 0
    safe = tnp.where(is_zero, tnp.ones_like(total), total)
    return tnp.where(is_zero, tnp.zeros_like(x), x / (safe if p == 1 else tnp.sqrt(safe)))


@onnx.reads("LRN")
def _lrn(x: Any, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    low = (size - 1) // 2
    pads = [(0, 0), (low, size - 1 - low)] + [(0, 0)] * (x.ndim - 2)
    squares = lax.sum_window(x * x, (1, size, *(1,) * (x.ndim - 2)), padding=pads)
    return x / (bias + alpha / size * squares) ** beta


@onnx.reads("GlobalLpPool")
def _global_lp_pool(x: Any, *, p: int = 2) -> Any:
    total = tnp.sum(tnp.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
    return total ** (1.0 / p)


# -- dropout -----------------------------------------------------------------------------------------------------------


@onnx.reads("Dropout", static=(1, 2), context=True)
def _dropout(call: Any, x: Any, ratio: Any = 0.5, training_mode: Any = False, *, is_test: int = 1, **seed: Any) -> Any:
    """The array and a mask of the kept elements; elements are dropped in training mode only."""
    x = tnp.asarray(x)
    rate = 0.5 if ratio is None else float(ratio)
    keep_all = tnp.ones(x.shape, dtype="bool")
    if training_mode is None or not bool(training_mode) or rate == 0:
        return x, keep_all
    if not 0 <= rate < 1:
        raise ArgumentError("Dropout", "the ratio must be at least 0 and below 1", got=str(rate))
    mask = random.bernoulli(call.run.draw(call.node, seed), 1 - rate, x.shape)
    return tnp.where(mask, x / (1 - rate), tnp.zeros_like(x)), mask


# -- losses ------------------------------------------------------------------------------------------------------------


@onnx.reads("NegativeLogLikelihoodLoss")
def _nll(
    log_probabilities: Any, target: Any, weight: Any = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Any:
    """The loss of (batch, classes, *positions) and classes (batch, *positions)."""
    x, classes = log_probabilities, log_probabilities.shape[1]
    ignored = tnp.zeros(target.shape, dtype="bool") if ignore_index is None else target == ignore_index
    index = tnp.where(ignored, tnp.zeros_like(target), target)
    index = tnp.where(index < 0, index + classes, index)
    losses = -tnp.take_along_axis(x, tnp.expand_dims(index, 1), axis=1)[:, 0]
    weights = tnp.ones(target.shape, dtype=x.dtype) if weight is None else tnp.take(weight, index, axis=0)
    weights = tnp.where(ignored, tnp.zeros_like(weights), weights)
    losses = losses * weights
    if reduction == "none":
        return losses
    return tnp.sum(losses) if reduction == "sum" else tnp.sum(losses) / tnp.sum(weights)


@onnx.reads("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(
    scores: Any, labels: Any, weights: Any = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Any:
    """The loss, and the logarithms of the probabilities."""
    logs = nnf.log_softmax(scores, 1)
    return _nll(logs, labels, weights, ignore_index=ignore_index, reduction=reduction), logs
