"""Convolutions, channels last."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.nn import functional
from tvmfun.nn.functional import Padding, Pair
from tvmfun.nn.init import Initializer
from tvmfun.nn.layers.parameters import check_positive, set_parameters

__all__ = ["Conv2d"]


@tree.register_dataclass
@dataclass(frozen=True, init=False, eq=False)
class Conv2d:
    """A convolution of images of shape (batch, height, width, channels).

    The weight has the shape (height, width, in_channels / groups, out_channels). Weight and bias begin
    uniform between ``-1 / sqrt(fan_in)`` and ``1 / sqrt(fan_in)`` with
    ``fan_in = height * width * in_channels / groups``, as in PyTorch.

    Args:
        in_channels: the number of channels of the argument.
        out_channels: the number of channels of the result.
        kernel_size: the size of the window, one for both axes or (height, width).
        stride: the step between windows, one for both axes or (vertical, horizontal).
        padding: zeros around the images: one number for all sides, (vertical, horizontal),
            ((top, bottom), (left, right)), ``"SAME"`` for as many windows as strides fit, or ``"VALID"``.
        dilation: the step between the elements of a window.
        groups: into how many groups the channels are split; each output sees one group of inputs.
        bias: whether to add a bias.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the weight, instead of PyTorch's.
        bias_init: one for the bias.

    Raises:
        ArgumentError: if a number is not positive, or the groups do not divide the channels.
        DtypeError: if ``dtype`` is not a float.

    >>> from tvmfun import random
    >>> layer = Conv2d(1, 32, 3, padding="SAME", key=random.key(0))
    >>> layer.weight.shape, layer.bias.shape
    ((3, 3, 1, 32), (32,))
    """

    weight: Array
    bias: Array | None
    stride: Pair = field(metadata={"static": True})
    padding: Padding = field(metadata={"static": True})
    dilation: Pair = field(metadata={"static": True})
    groups: int = field(metadata={"static": True})

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        *,
        stride: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        key: Any,
        dtype: Any = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        check_positive("Conv2d", in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                "Conv2d", f"{groups} groups must divide the channels", got=f"{in_channels} and {out_channels}"
            )
        kernel = functional.pair("Conv2d", "kernel_size", kernel_size)
        channels = in_channels // groups
        shape = (*kernel, channels, out_channels)
        set_parameters(self, key, shape, math.prod(kernel) * channels, bias, dtype, weight_init, bias_init)
        object.__setattr__(self, "stride", functional.pair("Conv2d", "stride", stride))
        object.__setattr__(self, "padding", _hashable(padding))
        object.__setattr__(self, "dilation", functional.pair("Conv2d", "dilation", dilation))
        object.__setattr__(self, "groups", groups)

    def __call__(self, x: Any) -> Any:
        """Convolves images of shape (batch, height, width, in_channels)."""
        return functional.conv2d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )


def _hashable(padding: Padding) -> Any:
    if isinstance(padding, int | str):
        return padding
    return tuple([axis if isinstance(axis, int) else tuple(axis) for axis in padding])
