"""Normalizations, dropout and losses."""

from __future__ import annotations

import math
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax, random
from tvmfun.interop.layouts import ChannelsLast, stored_axis
from tvmfun.interop.relax import layers
from tvmfun.interop.relay.operators.table import Context, Family, Ints, axis_of, refuse
from tvmfun.numpy.promotion import at_least_float32

relay = Family(__name__)

#: The part of a batch's mean and variance in the moving ones; the operator has no attribute for it.
MOMENTUM = 0.1


def _along(parameter: Any, axis: int, ndim: int) -> Any:
    return tnp.reshape(parameter, (-1, *(1,) * (ndim - axis - 1)))


def _affine(y: Any, gamma: Any, beta: Any, axis: int, center: bool, scale: bool) -> Any:
    y = y * _along(gamma, axis, y.ndim) if scale else y
    return y + _along(beta, axis, y.ndim) if center else y


def _moments(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    mean = tnp.mean(x, axis=axes, keepdims=True)
    return mean, tnp.mean((x - mean) ** 2, axis=axes, keepdims=True)


def _standardized(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    mean, variance = _moments(x, axes)
    return (x - mean) * lax.rsqrt(variance + epsilon)


@relay.reads("nn.batch_norm", mixed=True, contextual=True, layouts=True)
def _batch_norm(
    context: Context,
    x: Any,
    gamma: Any,
    beta: Any,
    moving_mean: Any,
    moving_var: Any,
    *,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Any:
    """The normalized array, and the moving mean and variance; in training these are new, and not used."""
    axis = axis_of("nn.batch_norm", axis, x.ndim)
    if isinstance(x, ChannelsLast):
        options = {"axis": stored_axis(axis, x.ndim), "epsilon": epsilon, "center": center, "scale": scale}
        y, *statistics = _batch_norm(context, x.stored, gamma, beta, moving_mean, moving_var, **options)
        return ChannelsLast(y), *statistics
    wide = at_least_float32(x)
    if context.train:
        others = tuple(one for one in range(x.ndim) if one != axis)
        mean, variance = _moments(wide, others)
        count = math.prod(x.shape[one] for one in others)
        count = tnp.asarray(count).astype(wide.dtype)

        def moved(old: Any, new: Any) -> Any:
            new = tnp.astype(lax.stop_gradient(tnp.reshape(new, old.shape)), old.dtype)
            return (1 - MOMENTUM) * old + MOMENTUM * new

        moving_mean = context.update(moving_mean, lambda old: moved(old, mean))
        moving_var = context.update(moving_var, lambda old: moved(old, variance * (count / (count - 1))))
    else:
        mean, variance = _along(moving_mean, axis, x.ndim), _along(moving_var, axis, x.ndim)
    y = (wide - mean) * lax.rsqrt(variance + epsilon)
    y = _affine(y, gamma, beta, axis, center, scale)
    return tnp.astype(y, x.dtype), moving_mean, moving_var


@relay.reads("nn.layer_norm")
def _layer_norm(
    x: Any, gamma: Any, beta: Any, *, axis: int = -1, epsilon: float = 1e-5, center: bool = True, scale: bool = True
) -> Any:
    axis = axis_of("nn.layer_norm", axis, x.ndim)
    y = _standardized(at_least_float32(x), (axis,), epsilon)
    return tnp.astype(_affine(y, gamma, beta, axis, center, scale), x.dtype)


@relay.reads("nn.instance_norm")
def _instance_norm(
    x: Any, gamma: Any, beta: Any, *, axis: int = 1, epsilon: float = 1e-5, center: bool = True, scale: bool = True
) -> Any:
    axis = axis_of("nn.instance_norm", axis, x.ndim)
    y = _standardized(at_least_float32(x), tuple(one for one in range(1, x.ndim) if one != axis), epsilon)
    return tnp.astype(_affine(y, gamma, beta, axis, center, scale), x.dtype)


@relay.reads("nn.group_norm")
def _group_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    *,
    num_groups: int = 0,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Any:
    axis = axis_of("nn.group_norm", axis, x.ndim)
    if num_groups < 1 or x.shape[axis] % num_groups:
        raise refuse("nn.group_norm", f"num_groups must divide {x.shape[axis]}", num_groups)
    sizes = (*x.shape[:axis], num_groups, x.shape[axis] // num_groups, *x.shape[axis + 1 :])
    groups = tnp.reshape(at_least_float32(x), sizes)
    y = _standardized(groups, tuple(one for one in range(1, groups.ndim) if one != axis), epsilon)
    return tnp.astype(_affine(tnp.reshape(y, x.shape), gamma, beta, axis, center, scale), x.dtype)


@relay.reads("nn.l2_normalize")
def _l2_normalize(x: Any, *, eps: float, axis: Ints | None = None) -> Any:
    axes = tuple(range(x.ndim)) if not axis else tuple(axis_of("nn.l2_normalize", one, x.ndim) for one in axis)
    return x * lax.rsqrt(tnp.maximum(tnp.sum(x * x, axis=axes, keepdims=True), eps))


@relay.reads("nn.lrn")
def _lrn(x: Any, *, size: int = 5, axis: int = 1, bias: float = 2.0, alpha: float = 1e-4, beta: float = 0.75) -> Any:
    """Local response normalization: each element by the squares around it along an axis."""
    axis = axis_of("nn.lrn", axis, x.ndim)
    if size < 1 or size > 1024:
        raise refuse("nn.lrn", "the size must be between 1 and 1024", size)
    low = (size - 1) // 2
    widths = [(low, size - 1 - low) if one == axis else (0, 0) for one in range(x.ndim)]
    squares = tnp.pad(x * x, widths)
    parts = [lax.slice_in_dim(squares, i, i + x.shape[axis], axis=axis) for i in range(size)]
    return x / (bias + sum(parts[1:], parts[0]) * (alpha / size)) ** beta


@relay.reads("nn.dropout", contextual=True, layouts=True)
def _dropout(context: Context, x: Any, *, rate: float = 0.5) -> Any:
    """The array with elements dropped while training, and the mask of what is kept."""
    if not 0 <= rate <= 1:
        raise refuse("nn.dropout", "the rate must be between 0 and 1", rate)
    if isinstance(x, ChannelsLast):
        return tuple(map(ChannelsLast, _dropout(context, x.stored, rate=rate)))
    if not context.train or rate == 0:
        return tnp.asarray(x), tnp.ones_like(x)
    mask = tnp.astype(random.bernoulli(context.key(), 1 - rate, x.shape), x.dtype)
    return x * mask / (1 - rate) if rate < 1 else x * mask, mask


# -- losses ------------------------------------------------------------------------------------------------------------


@relay.reads("nn.cross_entropy")
def _cross_entropy(predictions: Any, targets: Any) -> Any:
    return _cross_entropy_with_logits(tnp.log(predictions), targets)


@relay.reads("nn.cross_entropy_with_logits")
def _cross_entropy_with_logits(predictions: Any, targets: Any) -> Any:
    """The mean over the batch; the predictions are logarithms of probabilities, in spite of the operator's name."""
    return -tnp.sum(predictions * targets) / tnp.asarray(predictions.shape[0]).astype(predictions.dtype)


@relay.reads("nn.nll_loss", mixed=True)
def _nll_loss(
    predictions: Any, targets: Any, weights: Any, *, reduction: str = "mean", ignore_index: int = -100
) -> Any:
    if reduction not in ("none", "mean", "sum"):
        raise refuse("nn.nll_loss", "reduction must be none, mean or sum", reduction)
    return layers.nll_loss(predictions, targets, weights, reduction=reduction, ignore_index=ignore_index)
