"""Normalizations, over the batch, over layers, and over groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.interop.layouts import ChannelsLast, channels_last
from tvmfun.interop.torch.aten.reductions import count_of
from tvmfun.interop.torch.aten.table import Family
from tvmfun.nn import functional as nnf
from tvmfun.numpy.promotion import at_least_float32

aten = Family(__name__)


def _statistics(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any, Any]:
    """The array minus its mean, the mean, the variance and the inverse deviation; the last three keep the axes."""
    wide = at_least_float32(x)
    mean = tnp.mean(wide, axis=axes, keepdims=True)
    centred = wide - mean
    var = tnp.mean(centred * centred, axis=axes, keepdims=True)
    return centred, mean, var, lax.rsqrt(var + eps)


def _affine(y: Any, weight: Any, bias: Any) -> Any:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _like(y: Any, x: Any) -> Any:
    """A result that is stored as ``x`` is where PyTorch's channels are axis 1."""
    return ChannelsLast(y) if x.ndim > 2 else y


# -- batches -----------------------------------------------------------------------------------------------------------


def _normalized_batch(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    """The normalized batch, and the mean, variance and inverse deviation of each channel."""
    stored = channels_last(x)
    centred, mean, var, inverse = _statistics(stored, tuple(range(stored.ndim - 1)), eps)
    y = _affine(centred * inverse, weight, bias).astype(x.dtype)
    mean, var, inverse = (tnp.reshape(part, (-1,)) for part in (mean, var, inverse))
    return _like(y, x), mean, var, inverse


@aten.reads("_native_batch_norm_legit_functional", layouts=True)
def _batch_norm_functional(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The result, statistics of the batch, and the new running mean and variance."""
    if not training:
        y, mean, inverse = _batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps)
        return y, mean, inverse, running_mean, running_var
    y, mean, var, inverse = _normalized_batch(x, weight, bias, eps)
    stored = channels_last(x)
    count = tnp.asarray(count_of(stored, tuple(range(stored.ndim - 1))) * 1.0).astype(var.dtype)
    unbiased = var * (count / (count - 1))
    running = [
        ((1 - momentum) * old + momentum * lax.stop_gradient(new)).astype(old.dtype)
        for old, new in ((running_mean, mean), (running_var, unbiased))
    ]
    return y, mean, inverse, *running


@aten.reads("native_batch_norm", layouts=True)
def _native_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if training:
        y, mean, _, inverse = _normalized_batch(x, weight, bias, eps)
        return y, mean, inverse
    return _batch_norm_inference(x, weight, bias, mean, var, momentum, eps)


@aten.reads("_native_batch_norm_legit.no_stats", layouts=True)
def _batch_norm_alone(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    y, mean, _, inverse = _normalized_batch(x, weight, bias, eps)
    return y, mean, inverse


@aten.reads("_native_batch_norm_legit_no_training", layouts=True)
def _batch_norm_inference(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    stored = at_least_float32(channels_last(x))
    y = _affine((stored - running_mean) * lax.rsqrt(running_var + eps), weight, bias).astype(x.dtype)
    return _like(y, x), tnp.zeros((0,), x.dtype), tnp.zeros((0,), x.dtype)


# -- layers and groups -------------------------------------------------------------------------------------------------


@aten.reads("layer_norm")
def _layer_norm(
    x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enable: bool = True
) -> Any:
    return nnf.layer_norm(x, tuple(shape), weight, bias, eps=eps)


@aten.reads("native_layer_norm")
def _native_layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    centred, mean, _, inverse = _statistics(x, axes, eps)
    return _affine(centred * inverse, weight, bias).astype(x.dtype), mean, inverse


@aten.reads("rms_norm")
def _rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    return nnf.rms_norm(x, tuple(shape), weight, eps=eps)


@aten.reads("native_group_norm", layouts=True)
def _native_group_norm(
    x: Any, weight: Any, bias: Any, batch: Any, channels: int, size: Any, groups: int, eps: float
) -> Any:
    stored = channels_last(x)
    parts = tnp.reshape(stored, (*stored.shape[:-1], groups, channels // groups))
    axes = (*range(1, parts.ndim - 2), parts.ndim - 1)
    centred, mean, _, inverse = _statistics(parts, axes, eps)
    y = _affine(tnp.reshape(centred * inverse, stored.shape), weight, bias).astype(x.dtype)
    return _like(y, x), *(tnp.reshape(part, (-1, groups)) for part in (mean, inverse))
