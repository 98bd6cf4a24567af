"""Convolutions and transposed convolutions, channels last."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.nn.functional.arguments import (
    Padding,
    Sizes,
    add_bias,
    channels_last,
    check_windows,
    kernel_shape,
    margins_of,
    per_axis,
)
from tvmfun.typing import ArrayLike

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

_LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """A convolution of images: ``y[i] = sum_k x[i * stride + k * dilation - padding] * weight[k] + bias``.

    Args:
        x: images of shape (batch, height, width, in).
        weight: kernels of shape (height, width, in / groups, out).
        bias: an array of shape (out,), or ``None``.
        stride: the step between windows, one for both axes or (vertical, horizontal).
        padding: zeros around the images: one number for all sides, (vertical, horizontal),
            ((top, bottom), (left, right)), ``"SAME"`` for ``ceil(size / stride)`` windows, or ``"VALID"``.
        dilation: the step between the elements of a window.
        groups: into how many groups the channels are split; each output sees one group of inputs.

    Returns:
        Images of shape (batch, height', width', out).

    Raises:
        ShapeError: if the shapes do not fit.
        ArgumentError: if a stride, padding, dilation or the number of groups is out of range.

    >>> conv2d(tnp.ones((1, 5, 5, 3)), tnp.ones((3, 3, 3, 8)), padding="SAME").shape
    (1, 5, 5, 8)
    """
    return _conv("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """A convolution of sequences of shape (batch, length, in) with kernels of shape (length, in / groups, out).

    The arguments are as for :func:`conv2d` with one spatial axis.

    >>> conv1d(tnp.ones((1, 5, 3)), tnp.ones((3, 3, 8)), stride=2).shape
    (1, 2, 8)
    """
    return _conv("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """A convolution of volumes (batch, depth, height, width, in) with kernels (depth, height, width, in / groups, out).

    The arguments are as for :func:`conv2d` with three spatial axes.

    >>> conv3d(tnp.ones((1, 4, 5, 5, 3)), tnp.ones((3, 3, 3, 3, 8)), padding=1).shape
    (1, 4, 5, 5, 8)
    """
    return _conv("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


def _conv(
    where: str, rank: int, x: Any, weight: Any, bias: Any, stride: Sizes, padding: Padding, dilation: Sizes, groups: int
) -> Array:
    x, weight = _operands(where, rank, x, weight, groups)
    strides, dilations = per_axis(where, "stride", stride, rank), per_axis(where, "dilation", dilation, rank)
    margins = margins_of(where, padding, x.shape[1:-1], weight.shape[:-2], strides, dilations)
    check_windows(where, x.shape[1:-1], weight.shape[:-2], margins, dilations)
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=strides,
        padding=margins,
        rhs_dilation=dilations,
        dimension_numbers=_LAYOUTS[rank],
        feature_group_count=groups,
    )
    return add_bias(where, y, bias)


def _operands(where: str, rank: int, x: Any, weight: Any, groups: int) -> tuple[Array, Array]:
    x, weight = channels_last(where, x, rank), tnp.asarray(weight)
    if weight.ndim != rank + 2 or x.shape[-1] != weight.shape[-2] * groups or weight.shape[-1] % groups:
        raise ShapeError(
            where,
            f"for an array (batch, ..., in) the weight must be {kernel_shape(rank, groups)}",
            got=f"{x.shape} and {weight.shape}",
            hint=f"x.transpose({', '.join(map(str, (0, *range(2, rank + 2), 1)))}) if channels come first",
        )
    return x, weight


# -- transposed ------------------------------------------------------------------------------------------------


def conv_transpose2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """A transposed convolution of images: it adds ``x[i] * weight[k]`` to ``y[i * stride + k * dilation - padding]``.

    Args:
        x: images of shape (batch, height, width, in).
        weight: kernels of shape (height, width, in / groups, out).
        bias: an array of shape (out,), or ``None``.
        stride: the step in the result between neighbours in ``x``, one for both axes or (vertical, horizontal).
        padding: how much the result is cropped on all sides, one number or (vertical, horizontal).
        output_padding: the size added to the result at the bottom and on the right.
        groups: into how many groups the channels are split.
        dilation: the step between the elements of a window.

    Returns:
        Images of shape (batch, height', width', out), with
        ``height' = (height - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1``.

    Raises:
        ShapeError: if the shapes do not fit.
        ArgumentError: if a stride, padding, dilation or the number of groups is out of range.

    >>> conv_transpose2d(tnp.ones((1, 3, 3, 2)), tnp.ones((2, 2, 2, 4)), stride=2).shape
    (1, 6, 6, 4)
    """
    return _transposed("conv_transpose2d", 2, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """A transposed convolution of sequences (batch, length, in) with kernels (length, in / groups, out).

    The arguments are as for :func:`conv_transpose2d` with one spatial axis.

    >>> conv_transpose1d(tnp.ones((1, 3, 2)), tnp.ones((2, 2, 4)), stride=2).shape
    (1, 6, 4)
    """
    return _transposed("conv_transpose1d", 1, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """A transposed convolution of volumes with kernels of shape (depth, height, width, in / groups, out).

    The arguments are as for :func:`conv_transpose2d` with three spatial axes.

    >>> conv_transpose3d(tnp.ones((1, 2, 3, 3, 2)), tnp.ones((2, 2, 2, 2, 4)), stride=2).shape
    (1, 4, 6, 6, 4)
    """
    return _transposed("conv_transpose3d", 3, x, weight, bias, stride, padding, output_padding, groups, dilation)


def _transposed(
    where: str,
    rank: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Array:
    x, weight = _operands(where, rank, x, weight, groups)
    strides, dilations = per_axis(where, "stride", stride, rank), per_axis(where, "dilation", dilation, rank)
    cropped = per_axis(where, "padding", padding, rank, least=0)
    added = per_axis(where, "output_padding", output_padding, rank, least=0)
    spans = [(k - 1) * d for k, d in zip(weight.shape, dilations, strict=False)]
    y = lax.conv_general_dilated(
        x,
        tnp.flip(weight, tuple(range(rank))),
        window_strides=(1,) * rank,
        padding=[(span - p, span - p + more) for span, p, more in zip(spans, cropped, added, strict=True)],
        lhs_dilation=strides,
        rhs_dilation=dilations,
        dimension_numbers=_LAYOUTS[rank],
        feature_group_count=groups,
    )
    return add_bias(where, y, bias)
