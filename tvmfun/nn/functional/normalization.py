"""Normalizations: mean 0 and variance 1 over some of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.nn.functional.floats import floats
from tvmfun.numpy.promotion import at_least_float32
from tvmfun.typing import ArrayLike, DType

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm", "standardize"]


def standardize(
    x: ArrayLike,
    axis: int | Sequence[int] | None = -1,
    mean: ArrayLike | None = None,
    variance: Any = None,
    epsilon: float = 1e-5,
    where: ArrayLike | None = None,
) -> Array:
    """Mean 0 and variance 1 over some axes: ``(x - mean) / sqrt(variance + epsilon)``.

    Args:
        x: an array of floats.
        axis: the axis or axes to take mean and variance over; ``None`` for all.
        mean: the mean, of a shape that broadcasts, if known; computed by default.
        variance: the variance, if known; computed by default.
        epsilon: a small number against division by zero.
        where: a mask that broadcasts to ``x``; mean and variance are over elements where it is true.

    >>> standardize(tnp.asarray([1.0, 3.0]), epsilon=0.0)
    Array([-1.,  1.], dtype=float32)
    """
    x = floats(x)
    axes = axis if axis is None or isinstance(axis, int) else tuple(axis)
    wide = at_least_float32(x)
    centred = wide - (tnp.mean(wide, axis=axes, keepdims=True, where=where) if mean is None else mean)
    if variance is None:
        variance = tnp.mean(centred * centred, axis=axes, keepdims=True, where=where)
    return (centred * lax.rsqrt(variance + epsilon)).astype(x.dtype)


def batch_norm(
    x: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    train: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    axis_name: str | None = None,
) -> tuple[Array, Array, Array]:
    """Batch normalization: mean 0 and variance 1 of every channel, over the batch and the spatial axes.

    It computes ``(x - mean) / sqrt(var + eps) * weight + bias`` with the statistics of the batch while training, and
    with the running ones otherwise.

    Args:
        x: floats of shape ``(batch, *spatial, channels)``.
        running_mean: an array of shape (channels,).
        running_var: an array of shape (channels,).
        weight: an array of shape (channels,), or ``None``.
        bias: an array of shape (channels,), or ``None``.
        train: whether to use the statistics of the batch, and to update the running ones.
        momentum: the weight of the batch in ``(1 - momentum) * running + momentum * new``; the new variance is the
            unbiased one.
        eps: a small number against division by zero.
        axis_name: the name of an axis of :func:`tvmfun.vmap` over which the batch is split; statistics are taken over
            the whole batch.

    Returns:
        The normalized array, and the running mean and variance, without a gradient; an empty batch changes neither.

    Raises:
        ShapeError: if the shapes do not fit.
        ArgumentError: if there is only one value per channel to train with.

    Reference: Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
    Covariate Shift" (2015).

    >>> y, mean, var = batch_norm(tnp.asarray([[1.0], [3.0]]), tnp.zeros(1), tnp.ones(1))
    >>> y.ravel(), mean, var
    (Array([-0.999995,  0.999995], dtype=float32), Array([0.2], dtype=float32), Array([1.1], dtype=float32))
    """
    x, running_mean, running_var = tnp.asarray(x), tnp.asarray(running_mean), tnp.asarray(running_var)
    channels = _check_parameters(
        "batch_norm", x, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias
    )
    wide, axes, count = at_least_float32(x), tuple(range(x.ndim - 1)), x.size // max(channels, 1)
    count = count if axis_name is None else count * lax.axis_size(axis_name)
    if not train or (isinstance(count, int) and count == 0):
        y = (wide - running_mean) * _scale(running_var, weight, eps)
        return _moved(y, bias).astype(x.dtype), running_mean, running_var
    if isinstance(count, int) and count == 1:
        what = "there must be more than one value per channel to train with"
        raise ArgumentError("batch_norm", what, got=str(x.shape), hint="train=False, or a larger batch")
    mean = _mean(wide, axes, axis_name)
    centred = wide - mean
    var = _mean(centred * centred, axes, axis_name)
    y = _moved(centred * _scale(var, weight, eps), bias).astype(x.dtype)
    unbiased = var * _unbiasing(count, wide.dtype)
    running = [
        (old * (1 - momentum) + momentum * lax.stop_gradient(new)).astype(old.dtype)
        for old, new in ((running_mean, mean), (running_var, unbiased))
    ]
    return y, *running


def layer_norm(
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
) -> Array:
    """Layer normalization: mean 0 and variance 1 over the last axes, ``(x - mean) / sqrt(var + eps) * weight + bias``.

    Args:
        x: floats of shape ``(..., *normalized_shape)``.
        normalized_shape: the sizes of the last axes.
        weight: an array of shape ``normalized_shape``, or ``None``.
        bias: an array of shape ``normalized_shape``, or ``None``.
        eps: a small number against division by zero.

    Raises:
        ShapeError: if the shapes do not fit.

    Reference: Ba, Kiros and Hinton, "Layer Normalization" (2016).

    >>> layer_norm(tnp.asarray([[1.0, 3.0]]), 2, eps=0.0)
    Array([[-1.,  1.]], dtype=float32)
    """
    x = tnp.asarray(x)
    axes = _last_axes("layer_norm", x, normalized_shape, weight, bias)
    wide = at_least_float32(x)
    centred = wide - tnp.mean(wide, axis=axes, keepdims=True)
    y = centred * lax.rsqrt(tnp.mean(centred * centred, axis=axes, keepdims=True) + eps)
    return _moved(y if weight is None else y * weight, bias).astype(x.dtype)


def rms_norm(
    x: ArrayLike, normalized_shape: int | Sequence[int], weight: ArrayLike | None = None, *, eps: float | None = None
) -> Array:
    """Normalization by the root of the mean square over the last axes: ``x / sqrt(mean(x**2) + eps) * weight``.

    Args:
        x: floats of shape ``(..., *normalized_shape)``.
        normalized_shape: the sizes of the last axes.
        weight: an array of shape ``normalized_shape``, or ``None``.
        eps: a small number against division by zero; by default the machine epsilon of the dtype of ``x``.

    Raises:
        ShapeError: if the shapes do not fit.

    Reference: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    >>> rms_norm(tnp.asarray([[3.0, 3.0]]), 2)
    Array([[1., 1.]], dtype=float32)
    """
    x = tnp.asarray(x)
    axes = _last_axes("rms_norm", x, normalized_shape, weight)
    wide = at_least_float32(x)
    eps = float(tnp.finfo(x.dtype).eps) if eps is None else eps
    y = wide * lax.rsqrt(tnp.mean(wide * wide, axis=axes, keepdims=True) + eps)
    return (y if weight is None else y * weight).astype(x.dtype)


def group_norm(
    x: ArrayLike, num_groups: int, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *, eps: float = 1e-5
) -> Array:
    """Group normalization: mean 0 and variance 1 over the spatial axes and the channels of a group.

    Args:
        x: floats of shape ``(batch, *spatial, channels)``.
        num_groups: the number of groups of channels.
        weight: an array of shape (channels,), or ``None``.
        bias: an array of shape (channels,), or ``None``.
        eps: a small number against division by zero.

    Raises:
        ShapeError: if the shapes do not fit, or the groups do not divide the channels.

    Reference: Wu and He, "Group Normalization" (2018).

    >>> group_norm(tnp.asarray([[1.0, 3.0, 5.0, 5.0]]), 2, eps=0.0)[0, :2]
    Array([-1.,  1.], dtype=float32)
    """
    x = tnp.asarray(x)
    channels = _check_parameters("group_norm", x, weight=weight, bias=bias)
    if num_groups < 1 or channels % num_groups:
        raise ShapeError("group_norm", f"{num_groups} groups must divide the channels", got=str(x.shape))
    wide = at_least_float32(x).reshape(*x.shape[:-1], num_groups, channels // num_groups)
    axes = (*range(1, x.ndim - 1), x.ndim)
    centred = wide - tnp.mean(wide, axis=axes, keepdims=True)
    y = centred * lax.rsqrt(tnp.mean(centred * centred, axis=axes, keepdims=True) + eps)
    weight, bias = (None if p is None else tnp.asarray(p).reshape(wide.shape[-2:]) for p in (weight, bias))
    return _moved(y if weight is None else y * weight, bias).astype(x.dtype).reshape(x.shape)


def instance_norm(
    x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *, eps: float = 1e-5
) -> Array:
    """Instance normalization: mean 0 and variance 1 over the spatial axes of every example and channel.

    Args:
        x: floats of shape ``(batch, *spatial, channels)``.
        weight: an array of shape (channels,), or ``None``.
        bias: an array of shape (channels,), or ``None``.
        eps: a small number against division by zero.

    Raises:
        ShapeError: if the shapes do not fit.

    Reference: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization: The Missing Ingredient for Fast Stylization"
    (2016).

    >>> instance_norm(tnp.asarray([[[1.0], [3.0]]]), eps=0.0).ravel()
    Array([-1.,  1.], dtype=float32)
    """
    x = tnp.asarray(x)
    _check_parameters("instance_norm", x, weight=weight, bias=bias)
    if x.ndim < 3:
        what = "the array must be (batch, *spatial, channels) with a spatial axis"
        raise ShapeError("instance_norm", what, got=str(x.shape))
    wide = at_least_float32(x)
    axes = tuple(range(1, x.ndim - 1))
    centred = wide - tnp.mean(wide, axis=axes, keepdims=True)
    y = centred * _scale(tnp.mean(centred * centred, axis=axes, keepdims=True), weight, eps)
    return _moved(y, bias).astype(x.dtype)


def _scale(variance: Any, weight: Any, eps: float) -> Array:
    scale = lax.rsqrt(variance + eps)
    return scale if weight is None else scale * weight


def _moved(x: Any, bias: Any) -> Array:
    return x if bias is None else x + bias


def _mean(x: Any, axes: tuple[int, ...], axis_name: str | None) -> Array:
    mean = tnp.mean(x, axis=axes)
    return mean if axis_name is None else lax.pmean(mean, axis_name)


def _unbiasing(count: Any, dtype: DType) -> Array | float:
    """``count / (count - 1)``, for a static or a dynamic count."""
    if isinstance(count, int):
        return count / (count - 1)
    count = tnp.asarray(dims.as_array(count) if isinstance(count, dims.Dim) else count).astype(dtype)
    return count / (count - 1)


def _check_parameters(where: str, x: Any, **parameters: Any) -> int:
    """Checks that every parameter has one number per channel, and returns the number of channels."""
    if x.ndim < 2 or not dtypes.is_float(x.dtype):
        raise ShapeError(where, "the array must be floats of shape (batch, ..., channels)", got=f"{x.dtype}{x.shape}")
    channels = x.shape[-1]
    for name, value in parameters.items():
        if value is not None and tnp.asarray(value).shape != (channels,):
            what = f"{name} must have the shape ({channels},) for an array of shape {x.shape}"
            raise ShapeError(where, what, got=str(tnp.asarray(value).shape))
    return channels


def _last_axes(where: str, x: Any, normalized_shape: int | Sequence[int], *parameters: Any) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ShapeError(where, f"the array must have the shape (..., {', '.join(map(str, shape))})", got=str(x.shape))
    for parameter in parameters:
        if parameter is not None and tnp.asarray(parameter).shape != shape:
            raise ShapeError(where, f"weight and bias must have the shape {shape}", got=str(parameter.shape))
    return tuple(range(x.ndim - len(shape), x.ndim))
