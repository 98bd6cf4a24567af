"""What layers compute, as functions of their parameters; images are (batch, height, width, channels)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, random
from tvmfun.core import dims
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.nn.attention import dot_product_attention
from tvmfun.ops import conv, pointwise

__all__ = [
    "avg_pool",
    "conv2d",
    "dot_product_attention",
    "dropout",
    "gelu",
    "linear",
    "log_softmax",
    "logsumexp",
    "max_pool",
    "one_hot",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
]

Pair: TypeAlias = int | Sequence[int]
Padding: TypeAlias = Pair | Sequence[Sequence[int]] | Literal["SAME", "VALID"]
_Margins: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

# -- activations ---------------------------------------------------------------------------------------------


def relu(x: Any) -> Any:
    """The rectified linear unit: ``max(x, 0)``, with the derivative 0 at 0.

    Args:
        x: an array.

    >>> relu(tnp.asarray([-1.0, 2.0]))
    Array([0., 2.], dtype=float32)
    """
    return pointwise.relu(tnp.asarray(x))


def sigmoid(x: Any) -> Any:
    """The logistic function: ``1 / (1 + exp(-x))``.

    Args:
        x: an array of floats.

    >>> float(sigmoid(tnp.asarray(0.0)))
    0.5
    """
    return pointwise.sigmoid(tnp.asarray(x))


def tanh(x: Any) -> Any:
    """The hyperbolic tangent.

    Args:
        x: an array of floats.

    >>> float(tanh(tnp.asarray(0.0)))
    0.0
    """
    return tnp.tanh(x)


def gelu(x: Any, approximate: bool = True) -> Any:
    """The Gaussian error linear unit: ``x * P(X <= x)`` for a standard normal ``X``.

    Args:
        x: an array of floats.
        approximate: whether to use ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.

    Reference: Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)" (2016).

    >>> f"{float(gelu(tnp.asarray(1.0), approximate=False)):.4f}"
    '0.8413'
    """
    x = tnp.asarray(x)
    if approximate:
        return 0.5 * x * (1 + tnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1 + pointwise.erf(x * math.sqrt(0.5)))


def softmax(x: Any, axis: int = -1) -> Any:
    """Positive numbers that add up to 1: ``exp(x) / sum(exp(x))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis to sum over.

    >>> softmax(tnp.asarray([1000.0, 1000.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    exponentials = tnp.exp(_below_max(x, axis))
    return exponentials / tnp.sum(exponentials, axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of the softmax: ``x - logsumexp(x)``, without overflow or cancellation.

    Args:
        x: an array of floats.
        axis: the axis to sum over.

    >>> log_softmax(tnp.asarray([1000.0, 0.0]))
    Array([    0., -1000.], dtype=float32)
    """
    shifted = _below_max(x, axis)
    return shifted - tnp.log(tnp.sum(tnp.exp(shifted), axis=axis, keepdims=True))


def logsumexp(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """The logarithm of a sum of exponentials: ``log(sum(exp(x)))``, without overflow.

    Args:
        x: an array of floats.
        axis: the axis or axes to sum over; ``None`` for all.
        keepdims: whether to keep the axes, with size 1.

    >>> float(logsumexp(tnp.asarray([1000.0, -1000.0])))
    1000.0
    """
    axes = axis if axis is None or isinstance(axis, int) else tuple(axis)
    largest = lax.stop_gradient(tnp.max(x, axis=axes, keepdims=True))
    largest = tnp.where(tnp.isfinite(largest), largest, tnp.zeros_like(largest))  # inf - inf would be NaN
    total = tnp.log(tnp.sum(tnp.exp(x - largest), axis=axes, keepdims=True)) + largest
    return total if keepdims else tnp.squeeze(total, axis=axes)


def _below_max(x: Any, axis: int) -> Any:
    x = tnp.asarray(x)
    return x - lax.stop_gradient(tnp.max(x, axis=axis, keepdims=True))


def one_hot(labels: Any, num_classes: int, dtype: Any = "float32") -> Any:
    """Ones at the labels and zeros elsewhere, along a new last axis; all zeros for a label out of range.

    Args:
        labels: an array of integers.
        num_classes: the size of the new axis.
        dtype: the dtype of the result.

    Raises:
        DtypeError: if the labels are not integers.

    >>> one_hot(tnp.asarray([1, 0]), 3)
    Array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    labels = tnp.asarray(labels)
    if not dtypes.is_integer(labels.dtype):
        raise DtypeError("one_hot", "the labels must be integers", got=str(labels.dtype), hint='labels.astype("int32")')
    return (labels[..., None] == tnp.arange(num_classes)).astype(dtype)


# -- linear maps ---------------------------------------------------------------------------------------------


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """An affine map of the last axis: ``x @ weight + bias``.

    Args:
        x: an array of shape (..., in).
        weight: an array of shape (in, out).
        bias: an array of shape (out,), or ``None``.

    Returns:
        An array of shape (..., out).

    Raises:
        ShapeError: if the shapes do not fit.

    >>> linear(tnp.asarray([1.0, 2.0]), tnp.asarray([[3.0], [4.0]]), tnp.asarray([0.5]))
    Array([11.5], dtype=float32)
    """
    x, weight = tnp.asarray(x), tnp.asarray(weight)
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[0]:
        raise ShapeError(
            "linear",
            "the array must be (..., in) and the weight (in, out)",
            got=f"{x.shape} and {weight.shape}",
            hint="x.reshape(batch, -1), or another in_features",
        )
    return _add_bias("linear", x @ weight, bias)


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Any:
    """A convolution of images: ``y[i] = sum_k x[i * stride + k * dilation - padding] * weight[k] + bias``.

    Args:
        x: images of shape (batch, height, width, in).
        weight: kernels of shape (height, width, in / groups, out).
        bias: an array of shape (out,), or ``None``.
        stride: the step between windows, one for both axes or (vertical, horizontal).
        padding: zeros around the images: one number for all sides, (vertical, horizontal),
            ((top, bottom), (left, right)), ``"SAME"`` for as many windows as strides fit, or ``"VALID"``.
        dilation: the step between the elements of a window.
        groups: into how many groups the channels are split; each output sees one group of inputs.

    Returns:
        Images of shape (batch, height', width', out).

    Raises:
        ShapeError: if the shapes do not fit.
        ArgumentError: if a stride, padding, dilation or the number of groups makes no sense.

    >>> conv2d(tnp.ones((1, 5, 5, 3)), tnp.ones((3, 3, 3, 8)), padding="SAME").shape
    (1, 5, 5, 8)
    """
    x, weight = _images("conv2d", x), tnp.asarray(weight)
    if weight.ndim != 4 or x.shape[-1] != weight.shape[2] * groups or weight.shape[3] % groups:
        raise ShapeError(
            "conv2d",
            f"the images must be (batch, height, width, in), the weight (height, width, in / {groups}, out)",
            got=f"{x.shape} and {weight.shape}",
            hint="x.transpose(0, 2, 3, 1) for images with channels first",
        )
    strides, holes = pair("conv2d", "stride", stride), pair("conv2d", "dilation", dilation)
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=strides,
        padding=_margins("conv2d", padding, x.shape[1:3], weight.shape[:2], strides, holes),
        rhs_dilation=holes,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return _add_bias("conv2d", y, bias)


def _add_bias(where: str, y: Any, bias: Any) -> Any:
    if bias is None:
        return y
    bias = tnp.asarray(bias)
    if bias.shape != y.shape[-1:]:
        raise ShapeError(where, f"the bias must have the shape {y.shape[-1:]}", got=str(bias.shape))
    return y + bias


# -- pooling -------------------------------------------------------------------------------------------------


def max_pool(x: Any, window: Pair, stride: Pair | None = None, padding: Padding = 0) -> Any:
    """The largest element of every window, channel by channel.

    Args:
        x: images of shape (batch, height, width, channels).
        window: the size of a window, one for both axes or (height, width).
        stride: the step between windows; ``None`` for windows side by side.
        padding: elements around the images that are never the largest; as for :func:`conv2d`.

    Returns:
        Images of shape (batch, height', width', channels).

    Raises:
        ShapeError: if ``x`` does not have four axes.
        ArgumentError: if a window, stride or padding makes no sense.

    >>> max_pool(tnp.arange(16.0).reshape(1, 4, 4, 1), 2).ravel()
    Array([ 5.,  7., 13., 15.], dtype=float32)
    """
    x = _images("max_pool", x)
    _, geometry = _windows("max_pool", x, window, stride, padding)
    return conv.window_max(x, **geometry)


def avg_pool(x: Any, window: Pair, stride: Pair | None = None, padding: Padding = 0) -> Any:
    """The mean of every window, channel by channel; zeros from the padding count as elements.

    Args:
        x: images of floats of shape (batch, height, width, channels).
        window: the size of a window, one for both axes or (height, width).
        stride: the step between windows; ``None`` for windows side by side.
        padding: zeros around the images; as for :func:`conv2d`.

    Returns:
        Images of shape (batch, height', width', channels).

    Raises:
        ShapeError: if ``x`` does not have four axes.
        ArgumentError: if a window, stride or padding makes no sense.

    >>> avg_pool(tnp.arange(16.0).reshape(1, 4, 4, 1), 2).ravel()
    Array([ 2.5,  4.5, 10.5, 12.5], dtype=float32)
    """
    x = _images("avg_pool", x)
    sizes, geometry = _windows("avg_pool", x, window, stride, padding)
    return conv.window_sum(x, **geometry) / math.prod(sizes)


def _windows(
    where: str, x: Any, window: Pair, stride: Pair | None, padding: Padding
) -> tuple[tuple[int, int], dict[str, Any]]:
    sizes = pair(where, "window", window)
    strides = sizes if stride is None else pair(where, "stride", stride)
    margins = _margins(where, padding, x.shape[1:3], sizes, strides, (1, 1))
    for size, margin in zip(sizes, margins, strict=True):
        if any(side >= size for side in margin):
            raise ArgumentError(where, f"the padding must be smaller than the window, {sizes}", got=str(margins))
    geometry = {
        "window": (1, *sizes, 1),
        "stride": (1, *strides, 1),
        "padding": ((0, 0), *margins, (0, 0)),
    }
    return sizes, geometry


# -- dropout -------------------------------------------------------------------------------------------------


def dropout(key: Any, x: Any, rate: float, train: bool = True) -> Any:
    """Zeroes elements at random and scales the others up: ``x / (1 - rate)`` with probability ``1 - rate``.

    Args:
        key: a key of :mod:`tvmfun.random`; the same key drops the same elements. It may be ``None`` where
            nothing is random: if not ``train``, or if ``rate`` is 0 or 1.
        x: an array of floats.
        rate: the probability with which an element is zeroed.
        train: whether to do anything at all.

    Returns:
        An array like ``x``.

    Raises:
        ArgumentError: if ``rate`` is not between 0 and 1, or the key is missing.

    Reference: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014).

    >>> dropout(None, tnp.asarray([1.0, 2.0]), 0.5, train=False)
    Array([1., 2.], dtype=float32)
    """
    check_rate("dropout", rate)
    x = tnp.asarray(x)
    if not train or rate == 0:
        return x
    if rate == 1:
        return tnp.zeros_like(x)
    if key is None:
        raise ArgumentError("dropout", "a key is needed for training", got="None", hint="key=random.key(0)")
    keep = random.bernoulli(key, 1 - rate, x.shape)
    return tnp.where(keep, x * (1 / (1 - rate)), tnp.zeros_like(x))


# -- arguments -----------------------------------------------------------------------------------------------


def check_rate(where: str, rate: float) -> None:
    """Checks that a dropout rate is a probability."""
    if not 0 <= rate <= 1:
        raise ArgumentError(where, "the rate must be between 0 and 1", got=str(rate))


def pair(where: str, name: str, value: Pair) -> tuple[int, int]:
    """A positive number for each of the two spatial axes."""
    numbers = (value, value) if isinstance(value, int) else tuple(value)
    if len(numbers) != 2 or not all(isinstance(number, int) and number > 0 for number in numbers):
        raise ArgumentError(
            where,
            f"the {name} must be one positive integer or two",
            got=repr(value),
            hint=f"{name}=2 or (2, 2)",
        )
    return numbers


def _images(where: str, x: Any) -> Any:
    x = tnp.asarray(x)
    if x.ndim != 4:
        raise ShapeError(
            where,
            "the images must be (batch, height, width, channels)",
            got=str(x.shape),
            hint="x[None] for a single image, x[..., None] for a single channel",
        )
    return x


def _margins(
    where: str,
    padding: Padding,
    sizes: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, int],
    dilation: tuple[int, int],
) -> _Margins:
    """The zeros before and behind each of the two spatial axes."""
    if padding == "VALID":
        return (0, 0), (0, 0)
    if padding == "SAME":
        needed = [
            dims.maximum(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            for n, k, s, d in zip(sizes, window, strides, dilation, strict=True)
        ]
        top, left = (total // 2 for total in needed)
        return (top, needed[0] - top), (left, needed[1] - left)
    axes = (padding, padding) if isinstance(padding, int) else padding
    sides: list[Any] = [(axis, axis) if isinstance(axis, int) else tuple(axis) for axis in axes]
    flat = [number for side in sides for number in side]
    if len(flat) != 4 or len(sides) != 2 or not all(isinstance(number, int) and number >= 0 for number in flat):
        raise ArgumentError(
            where,
            "the padding must be an integer, a pair of integers or of pairs, or a name",
            got=repr(padding),
            hint='1, (1, 2), ((1, 1), (2, 2)), "SAME" or "VALID"',
        )
    return sides[0], sides[1]
