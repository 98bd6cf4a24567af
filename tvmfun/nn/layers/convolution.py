"""Convolutions and transposed convolutions, channels last."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar, Literal

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.nn import functional
from tvmfun.nn.functional.arguments import Padding, Sizes, channels_last, hashable_padding, margins_of, per_axis
from tvmfun.nn.init import Initializer
from tvmfun.nn.layers.parameters import check_positive, initial_parameters, layer
from tvmfun.typing import ArrayLike, DTypeLike, Key

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
# NumPy's names of the modes.
_PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@layer
class _Conv:
    """A convolution of any rank."""

    rank: ClassVar[int]
    weight: Array
    bias: Array | None
    stride: Sizes = field(metadata={"static": True})
    padding: Padding = field(metadata={"static": True})
    dilation: Sizes = field(metadata={"static": True})
    groups: int = field(metadata={"static": True})
    padding_mode: PaddingMode = field(metadata={"static": True})

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        *,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        key: Key,
        dtype: DTypeLike = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        where, rank = type(self).__name__, self.rank
        _check_channels(where, in_channels, out_channels, groups)
        if padding_mode not in _PADDING_MODES:
            modes = ", ".join(map(repr, _PADDING_MODES))
            raise ArgumentError(where, f"padding_mode must be one of {modes}", got=repr(padding_mode))
        kernel = per_axis(where, "kernel_size", kernel_size, rank)
        channels = in_channels // groups
        self.weight, self.bias = initial_parameters(
            where,
            key,
            (*kernel, channels, out_channels),
            fan_in=math.prod(kernel) * channels,
            bias=bias,
            dtype=dtype,
            weight_init=weight_init,
            bias_init=bias_init,
        )
        self.stride = per_axis(where, "stride", stride, rank)
        self.padding = hashable_padding(padding)
        self.dilation = per_axis(where, "dilation", dilation, rank)
        self.groups = groups
        self.padding_mode = padding_mode

    def __call__(self, x: ArrayLike) -> Array:
        """Convolves an array of shape (batch, spatial axes, in_channels)."""
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[self.rank - 1]
        padding = self.padding
        if self.padding_mode != "zeros":
            where = type(self).__name__
            x, window = channels_last(where, x, self.rank), self.weight.shape[: self.rank]
            strides, dilations = (per_axis(where, "stride", sizes, self.rank) for sizes in (self.stride, self.dilation))
            margins = margins_of(where, padding, x.shape[1:-1], window, strides, dilations)
            x, padding = tnp.pad(x, ((0, 0), *margins, (0, 0)), _PADDING_MODES[self.padding_mode]), 0
        return convolve(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.groups,
        )


@layer
class Conv2d(_Conv):
    """A convolution of images of shape (batch, height, width, channels).

    The weight has the shape (height, width, in_channels / groups, out_channels). Weight and bias are
    initialized uniform between ``-1 / sqrt(fan_in)`` and ``1 / sqrt(fan_in)`` with
    ``fan_in = height * width * in_channels / groups``, as in PyTorch.

    Args:
        in_channels: the number of channels of the argument.
        out_channels: the number of channels of the result.
        kernel_size: the size of the window, one for both axes or (height, width).
        stride: the step between windows, one for both axes or (vertical, horizontal).
        padding: zeros around the images: one number for all sides, (vertical, horizontal),
            ((top, bottom), (left, right)), ``"SAME"`` for ``ceil(size / stride)`` windows, or ``"VALID"``.
        dilation: the step between the elements of a window.
        groups: into how many groups the channels are split; each output sees one group of inputs.
        bias: whether to add a bias.
        padding_mode: the values of the padding: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the weight, instead of PyTorch's.
        bias_init: an initializer for the bias, instead of PyTorch's.

    Raises:
        ArgumentError: if a number is not positive, the groups do not divide the channels, or the mode is unknown.
        DtypeError: if ``dtype`` is not a float.

    >>> from tvmfun import random
    >>> layer = Conv2d(1, 32, 3, padding="SAME", key=random.key(0))
    >>> layer.weight.shape, layer.bias.shape
    ((3, 3, 1, 32), (32,))
    """

    rank: ClassVar[int] = 2


@layer
class Conv1d(_Conv):
    """A convolution of sequences of shape (batch, length, channels).

    The weight has the shape (length, in_channels / groups, out_channels); arguments, errors and initial values are
    those of :class:`Conv2d` with one spatial axis.

    >>> from tvmfun import random
    >>> Conv1d(4, 8, 3, padding=1, key=random.key(0)).weight.shape
    (3, 4, 8)
    """

    rank: ClassVar[int] = 1


@layer
class Conv3d(_Conv):
    """A convolution of volumes of shape (batch, depth, height, width, channels).

    The weight has the shape (depth, height, width, in_channels / groups, out_channels); arguments, errors and initial
    values are those of :class:`Conv2d` with three spatial axes.

    >>> from tvmfun import random
    >>> Conv3d(4, 8, (1, 3, 3), key=random.key(0)).weight.shape
    (1, 3, 3, 4, 8)
    """

    rank: ClassVar[int] = 3


# -- transposed ------------------------------------------------------------------------------------------------


@layer
class _ConvTranspose:
    """A transposed convolution of any rank."""

    rank: ClassVar[int]
    weight: Array
    bias: Array | None
    stride: Sizes = field(metadata={"static": True})
    padding: Sizes = field(metadata={"static": True})
    output_padding: Sizes = field(metadata={"static": True})
    groups: int = field(metadata={"static": True})
    dilation: Sizes = field(metadata={"static": True})

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        key: Key,
        dtype: DTypeLike = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        where, rank = type(self).__name__, self.rank
        _check_channels(where, in_channels, out_channels, groups)
        kernel = per_axis(where, "kernel_size", kernel_size, rank)
        self.weight, self.bias = initial_parameters(
            where,
            key,
            (*kernel, in_channels // groups, out_channels),
            fan_in=math.prod(kernel) * (out_channels // groups),
            bias=bias,
            dtype=dtype,
            weight_init=weight_init,
            bias_init=bias_init,
        )
        self.stride = strides = per_axis(where, "stride", stride, rank)
        self.padding = per_axis(where, "padding", padding, rank, least=0)
        self.output_padding = added = per_axis(where, "output_padding", output_padding, rank, least=0)
        self.groups = groups
        self.dilation = dilations = per_axis(where, "dilation", dilation, rank)
        if any(more >= max(s, d) for more, s, d in zip(added, strides, dilations, strict=True)):
            what = "output_padding must be smaller than the stride or the dilation"
            raise ArgumentError(where, what, got=f"{added} for {strides} and {dilations}")

    def __call__(self, x: ArrayLike) -> Array:
        """Convolves an array of shape (batch, spatial axes, in_channels)."""
        ranks = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
        return ranks[self.rank - 1](
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            groups=self.groups,
            dilation=self.dilation,
        )


@layer
class ConvTranspose2d(_ConvTranspose):
    """A transposed convolution of images of shape (batch, height, width, channels).

    The weight has the shape (height, width, in_channels / groups, out_channels). Weight and bias are
    initialized uniform between ``-1 / sqrt(fan_in)`` and ``1 / sqrt(fan_in)`` with
    ``fan_in = height * width * out_channels / groups``, as in PyTorch.

    Args:
        in_channels: the number of channels of the argument.
        out_channels: the number of channels of the result.
        kernel_size: the size of the window, one for both axes or (height, width).
        stride: the step in the result between neighbours in the argument, one or (vertical, horizontal).
        padding: how much the result is cropped on all sides, one number or (vertical, horizontal).
        output_padding: the size added to the result at the bottom and on the right.
        groups: into how many groups the channels are split; each output sees one group of inputs.
        bias: whether to add a bias.
        dilation: the step between the elements of a window.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the weight, instead of PyTorch's.
        bias_init: an initializer for the bias, instead of PyTorch's.

    Raises:
        ArgumentError: if a number is not positive, the groups do not divide the channels, or ``output_padding`` is
            not smaller than the stride or the dilation.
        DtypeError: if ``dtype`` is not a float.

    >>> from tvmfun import random
    >>> ConvTranspose2d(8, 4, 2, stride=2, key=random.key(0)).weight.shape
    (2, 2, 8, 4)
    """

    rank: ClassVar[int] = 2


@layer
class ConvTranspose1d(_ConvTranspose):
    """A transposed convolution of sequences of shape (batch, length, channels).

    The weight has the shape (length, in_channels / groups, out_channels); arguments, errors and initial values are
    those of :class:`ConvTranspose2d` with one spatial axis.

    >>> from tvmfun import random
    >>> ConvTranspose1d(8, 4, 2, stride=2, key=random.key(0)).weight.shape
    (2, 8, 4)
    """

    rank: ClassVar[int] = 1


@layer
class ConvTranspose3d(_ConvTranspose):
    """A transposed convolution of volumes of shape (batch, depth, height, width, channels).

    The weight has the shape (depth, height, width, in_channels / groups, out_channels); arguments, errors and initial
    values are those of :class:`ConvTranspose2d` with three spatial axes.

    >>> from tvmfun import random
    >>> ConvTranspose3d(8, 4, 2, stride=2, key=random.key(0)).weight.shape
    (2, 2, 2, 8, 4)
    """

    rank: ClassVar[int] = 3


def _check_channels(where: str, in_channels: int, out_channels: int, groups: int) -> None:
    check_positive(where, in_channels=in_channels, out_channels=out_channels, groups=groups)
    if in_channels % groups or out_channels % groups:
        raise ArgumentError(where, f"{groups} groups must divide the channels", got=f"{in_channels} and {out_channels}")
