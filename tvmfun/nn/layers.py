"""Layers: parameters that know what to compute. Each is an immutable tree of arrays and static settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tvmfun import dtypes, random, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.jit import jit
from tvmfun.nn import functional
from tvmfun.nn.functional import Padding, Pair
from tvmfun.nn.init import Initializer

__all__ = ["Conv2d", "Dropout", "Linear"]


@tree.register_dataclass
@dataclass(frozen=True, init=False, eq=False)
class Linear:
    """An affine map of the last axis: ``x @ weight + bias``.

    The weight has the shape (in_features, out_features). Weight and bias begin uniform between
    ``-1 / sqrt(in_features)`` and ``1 / sqrt(in_features)``, as in PyTorch.

    Args:
        in_features: the size of the last axis of the argument.
        out_features: the size of the last axis of the result.
        key: a key of :mod:`tvmfun.random`.
        bias: whether to add a bias.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the weight, instead of PyTorch's.
        bias_init: one for the bias.

    Raises:
        ArgumentError: if a number of features is not positive.
        DtypeError: if ``dtype`` is not a float.

    >>> layer = Linear(784, 512, key=random.key(0))
    >>> layer.weight.shape, layer.bias.shape
    ((784, 512), (512,))
    """

    weight: Array
    bias: Array | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        key: Any,
        bias: bool = True,
        dtype: Any = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        _check_positive("Linear", in_features=in_features, out_features=out_features)
        shape = (in_features, out_features)
        _set_parameters(self, key, shape, in_features, bias, dtype, weight_init, bias_init)

    def __call__(self, x: Any) -> Any:
        """Maps an array of shape (..., in_features) to one of shape (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)


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
        _check_positive("Conv2d", in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                "Conv2d", f"{groups} groups must divide the channels", got=f"{in_channels} and {out_channels}"
            )
        kernel = functional.pair("Conv2d", "kernel_size", kernel_size)
        channels = in_channels // groups
        shape = (*kernel, channels, out_channels)
        _set_parameters(self, key, shape, math.prod(kernel) * channels, bias, dtype, weight_init, bias_init)
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


@tree.register_dataclass
@dataclass(frozen=True)
class Dropout:
    """Zeroes elements at random while training and scales the others up; has no parameters.

    Args:
        rate: the probability with which an element is zeroed.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1.

    Reference: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014).

    >>> import tvmfun.numpy as tnp
    >>> Dropout(0.5)(tnp.asarray([1.0, 2.0]), train=False)
    Array([1., 2.], dtype=float32)
    """

    rate: float = field(metadata={"static": True})

    def __post_init__(self) -> None:
        functional.check_rate("Dropout", self.rate)

    def __call__(self, x: Any, *, key: Any = None, train: bool = True) -> Any:
        """Applies dropout; the key is needed only if ``train``, and the same key drops the same elements."""
        return functional.dropout(key, x, self.rate, train)


def _check_positive(where: str, **numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number <= 0:
            raise ArgumentError(where, f"{name} must be a positive integer", got=repr(number))


def _set_parameters(
    layer: Any,
    key: Any,
    shape: tuple[int, ...],
    fan_in: int,
    bias: bool,
    dtype: Any,
    weight_init: Initializer | None,
    bias_init: Initializer | None,
) -> None:
    """Gives a frozen layer its initial weight and bias."""
    where, dtype = type(layer).__name__, dtypes.canonical(dtype)
    if not dtypes.is_float(dtype):
        raise DtypeError(where, "the dtype of the parameters must be a float", got=str(dtype), hint='"float32"')
    drawn = {"weight": weight_init is None, "bias": bias and bias_init is None}
    weight, bias_array = _draw_parameters(key, shape=shape, fan_in=fan_in, dtype=dtype, **drawn)
    if weight_init is not None:
        weight = weight_init(random.split(key)[0], shape, dtype)
    if bias and bias_init is not None:
        bias_array = bias_init(random.split(key)[1], shape[-1:], dtype)
    for name, array, expected in (("weight", weight, shape), ("bias", bias_array, shape[-1:])):
        if array is not None and array.shape != expected:
            raise ShapeError(where, f"the initializer must make a {name} of shape {expected}", got=str(array.shape))
        object.__setattr__(layer, name, array)


# Compiled as a whole: op by op, each new shape would compile every op of the generator.
@partial(jit, static_argnames=("shape", "fan_in", "weight", "bias", "dtype"))
def _draw_parameters(
    key: Any, *, shape: tuple[int, ...], fan_in: int, weight: bool, bias: bool, dtype: Any
) -> tuple[Array | None, Array | None]:
    bound = 1 / math.sqrt(fan_in)
    keys = random.split(key)
    shapes = (shape if weight else None, shape[-1:] if bias else None)
    draws = [
        None if s is None else random.uniform(k, s, dtype, -bound, bound) for k, s in zip(keys, shapes, strict=True)
    ]
    return draws[0], draws[1]


def _hashable(padding: Padding) -> Any:
    if isinstance(padding, int | str):
        return padding
    return tuple([axis if isinstance(axis, int) else tuple(axis) for axis in padding])
