"""Pooling layers, channels last, without parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.nn import functional
from tvmfun.nn.functional.arguments import Padding, Sizes, channels_last, hashable_padding, per_axis
from tvmfun.nn.layers.parameters import layer
from tvmfun.typing import ArrayLike

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]


def _windows(
    where: str, kernel_size: Sizes, stride: Sizes | None, rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The size of a window and the step between windows along each axis; by default they do not overlap."""
    sizes = per_axis(where, "kernel_size", kernel_size, rank)
    return sizes, sizes if stride is None else per_axis(where, "stride", stride, rank)


@layer
class _MaxPool:
    rank: ClassVar[int]
    kernel_size: Sizes = field(metadata={"static": True})
    stride: Sizes = field(metadata={"static": True})
    padding: Padding = field(metadata={"static": True})
    ceil_mode: bool = field(metadata={"static": True})

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, *, ceil_mode: bool = False
    ) -> None:
        self.kernel_size, self.stride = _windows(type(self).__name__, kernel_size, stride, self.rank)
        self.padding = hashable_padding(padding)
        self.ceil_mode = ceil_mode

    def __call__(self, x: ArrayLike) -> Array:
        """Pools an array of shape (batch, spatial axes, channels)."""
        x = channels_last(type(self).__name__, x, self.rank)
        return functional.max_pool(x, self.kernel_size, self.stride, self.padding, self.ceil_mode)


@layer
class _AvgPool:
    rank: ClassVar[int]
    kernel_size: Sizes = field(metadata={"static": True})
    stride: Sizes = field(metadata={"static": True})
    padding: Padding = field(metadata={"static": True})
    ceil_mode: bool = field(metadata={"static": True})
    count_include_pad: bool = field(metadata={"static": True})

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        *,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.kernel_size, self.stride = _windows(type(self).__name__, kernel_size, stride, self.rank)
        self.padding = hashable_padding(padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def __call__(self, x: ArrayLike) -> Array:
        """Pools an array of shape (batch, spatial axes, channels)."""
        x = channels_last(type(self).__name__, x, self.rank)
        windows = (self.kernel_size, self.stride, self.padding)
        return functional.avg_pool(x, *windows, self.ceil_mode, self.count_include_pad)


@layer
class _LPPool:
    rank: ClassVar[int]
    norm_type: float = field(metadata={"static": True})
    kernel_size: Sizes = field(metadata={"static": True})
    stride: Sizes = field(metadata={"static": True})
    ceil_mode: bool = field(metadata={"static": True})

    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, *, ceil_mode: bool = False
    ) -> None:
        if not norm_type > 0:
            raise ArgumentError(type(self).__name__, "the exponent must be positive", got=str(norm_type))
        self.kernel_size, self.stride = _windows(type(self).__name__, kernel_size, stride, self.rank)
        self.norm_type = norm_type
        self.ceil_mode = ceil_mode

    def __call__(self, x: ArrayLike) -> Array:
        """Pools an array of shape (batch, spatial axes, channels)."""
        x = channels_last(type(self).__name__, x, self.rank)
        return functional.lp_pool(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


@layer
class _AdaptivePool:
    rank: ClassVar[int]
    output_size: int | tuple[int | None, ...] | None = field(metadata={"static": True})

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        if isinstance(output_size, int) or output_size is None:
            numbers = (output_size,) * self.rank
        else:
            numbers = tuple(output_size)
        per_axis(type(self).__name__, "output_size", tuple(1 if n is None else n for n in numbers), self.rank)
        self.output_size = numbers


@layer
class _AdaptiveAvgPool(_AdaptivePool):
    def __call__(self, x: ArrayLike) -> Array:
        """Pools an array of shape (batch, spatial axes, channels)."""
        return functional.adaptive_avg_pool(channels_last(type(self).__name__, x, self.rank), self.output_size)


@layer
class _AdaptiveMaxPool(_AdaptivePool):
    def __call__(self, x: ArrayLike) -> Array:
        """Pools an array of shape (batch, spatial axes, channels)."""
        return functional.adaptive_max_pool(channels_last(type(self).__name__, x, self.rank), self.output_size)


@layer
class MaxPool2d(_MaxPool):
    """The largest element of every window of images (batch, height, width, channels).

    Args:
        kernel_size: the size of a window, one for both axes or (height, width).
        stride: the step between windows; by default the size of a window.
        padding: elements around the images that are never the largest: one number, (vertical, horizontal),
            ((top, bottom), (left, right)), ``"SAME"`` or ``"VALID"``.
        ceil_mode: whether to add a last window that begins inside but ends outside.

    Raises:
        ArgumentError: if a number is out of range.

    >>> import tvmfun.numpy as tnp
    >>> MaxPool2d(2)(tnp.arange(16.0).reshape(1, 4, 4, 1)).ravel()
    Array([ 5.,  7., 13., 15.], dtype=float32)
    """

    rank: ClassVar[int] = 2


@layer
class MaxPool1d(_MaxPool):
    """The largest element of every window of sequences (batch, length, channels); otherwise as :class:`MaxPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> MaxPool1d(2)(tnp.arange(4.0).reshape(1, 4, 1)).ravel()
    Array([1., 3.], dtype=float32)
    """

    rank: ClassVar[int] = 1


@layer
class MaxPool3d(_MaxPool):
    """The largest element of every window of volumes (batch, depth, height, width, channels).

    The arguments are as for :class:`MaxPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> MaxPool3d(2)(tnp.arange(8.0).reshape(1, 2, 2, 2, 1)).ravel()
    Array([7.], dtype=float32)
    """

    rank: ClassVar[int] = 3


@layer
class AvgPool2d(_AvgPool):
    """The mean of every window of images (batch, height, width, channels).

    Args:
        kernel_size: the size of a window, one for both axes or (height, width).
        stride: the step between windows; by default the size of a window.
        padding: zeros around the images: one number, (vertical, horizontal), ((top, bottom), (left, right)),
            ``"SAME"`` or ``"VALID"``.
        ceil_mode: whether to add a last window that begins inside but ends outside.
        count_include_pad: whether zeros from the padding count as elements.

    Raises:
        ArgumentError: if a number is out of range.

    >>> import tvmfun.numpy as tnp
    >>> AvgPool2d(2)(tnp.arange(16.0).reshape(1, 4, 4, 1)).ravel()
    Array([ 2.5,  4.5, 10.5, 12.5], dtype=float32)
    """

    rank: ClassVar[int] = 2


@layer
class AvgPool1d(_AvgPool):
    """The mean of every window of sequences (batch, length, channels); otherwise as :class:`AvgPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> AvgPool1d(2)(tnp.arange(4.0).reshape(1, 4, 1)).ravel()
    Array([0.5, 2.5], dtype=float32)
    """

    rank: ClassVar[int] = 1


@layer
class AvgPool3d(_AvgPool):
    """The mean of every window of volumes (batch, depth, height, width, channels); otherwise as :class:`AvgPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> AvgPool3d(2)(tnp.arange(8.0).reshape(1, 2, 2, 2, 1)).ravel()
    Array([3.5], dtype=float32)
    """

    rank: ClassVar[int] = 3


@layer
class LPPool2d(_LPPool):
    """The norm ``sum(x ** p) ** (1 / p)`` of every window of images (batch, height, width, channels).

    Args:
        norm_type: the exponent ``p``.
        kernel_size: the size of a window, one for both axes or (height, width).
        stride: the step between windows; by default the size of a window.
        ceil_mode: whether to add a last window that begins inside but ends outside.

    Raises:
        ArgumentError: if a number is out of range.

    >>> import tvmfun.numpy as tnp
    >>> LPPool2d(2, 2)(tnp.ones((1, 2, 2, 1))).ravel()
    Array([2.], dtype=float32)
    """

    rank: ClassVar[int] = 2


@layer
class LPPool1d(_LPPool):
    """The norm of every window of sequences (batch, length, channels); otherwise as :class:`LPPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> LPPool1d(2, 2)(tnp.asarray([3.0, 4.0]).reshape(1, 2, 1)).ravel()
    Array([5.], dtype=float32)
    """

    rank: ClassVar[int] = 1


@layer
class LPPool3d(_LPPool):
    """The norm of every window of volumes (batch, depth, height, width, channels); otherwise as :class:`LPPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> LPPool3d(1, 2)(tnp.ones((1, 2, 2, 2, 1))).ravel()
    Array([8.], dtype=float32)
    """

    rank: ClassVar[int] = 3


@layer
class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The means of evenly spread windows of images, one per element of the result.

    Args:
        output_size: the size of the result, one for both axes or (height, width); ``None`` to keep an axis.

    Raises:
        ArgumentError: if a size is not positive.

    >>> import tvmfun.numpy as tnp
    >>> AdaptiveAvgPool2d(1)(tnp.ones((1, 5, 7, 3))).shape
    (1, 1, 1, 3)
    """

    rank: ClassVar[int] = 2


@layer
class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The means of evenly spread windows of sequences (batch, length, channels); as :class:`AdaptiveAvgPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> AdaptiveAvgPool1d(2)(tnp.arange(4.0).reshape(1, 4, 1)).ravel()
    Array([0.5, 2.5], dtype=float32)
    """

    rank: ClassVar[int] = 1


@layer
class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The means of evenly spread windows of volumes (batch, depth, height, width, channels).

    The arguments are as for :class:`AdaptiveAvgPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> AdaptiveAvgPool3d((1, 2, None))(tnp.ones((1, 4, 4, 4, 3))).shape
    (1, 1, 2, 4, 3)
    """

    rank: ClassVar[int] = 3


@layer
class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The maxima of evenly spread windows of images, one per element of the result.

    Args:
        output_size: the size of the result, one for both axes or (height, width); ``None`` to keep an axis.

    Raises:
        ArgumentError: if a size is not positive.

    >>> import tvmfun.numpy as tnp
    >>> AdaptiveMaxPool2d(1)(tnp.ones((1, 5, 7, 3))).shape
    (1, 1, 1, 3)
    """

    rank: ClassVar[int] = 2


@layer
class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The maxima of evenly spread windows of sequences (batch, length, channels); as :class:`AdaptiveMaxPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> AdaptiveMaxPool1d(2)(tnp.arange(4.0).reshape(1, 4, 1)).ravel()
    Array([1., 3.], dtype=float32)
    """

    rank: ClassVar[int] = 1


@layer
class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The maxima of evenly spread windows of volumes (batch, depth, height, width, channels).

    The arguments are as for :class:`AdaptiveMaxPool2d`.

    >>> import tvmfun.numpy as tnp
    >>> AdaptiveMaxPool3d((1, 2, None))(tnp.ones((1, 4, 4, 4, 3))).shape
    (1, 1, 2, 4, 3)
    """

    rank: ClassVar[int] = 3
