"""Layers that rearrange or resize arrays, without parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.nn import functional
from tvmfun.nn.functional.resizing import Mode
from tvmfun.nn.layers.parameters import check_positive, layer
from tvmfun.typing import ArrayLike

__all__ = ["Flatten", "PixelShuffle", "PixelUnshuffle", "Upsample"]


@layer
class Flatten:
    """Merges consecutive axes into one; by default all but the batch.

    Args:
        start_dim: the first axis to merge.
        end_dim: the last axis to merge.

    >>> Flatten()(tnp.ones((2, 3, 4))).shape
    (2, 12)
    """

    start_dim: int = field(metadata={"static": True})
    end_dim: int = field(metadata={"static": True})

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def __call__(self, x: ArrayLike) -> Array:
        """Merges the axes.

        Raises:
            ShapeError: if it does not have the axes, or they are in the wrong order.
        """
        x = tnp.asarray(x)
        first, last = (dim + x.ndim if dim < 0 else dim for dim in (self.start_dim, self.end_dim))
        if not 0 <= first <= last < x.ndim:
            what = f"the axes {self.start_dim} to {self.end_dim} must exist"
            raise ShapeError("Flatten", what, got=str(x.shape))
        size = 1
        for n in x.shape[first : last + 1]:
            size = size * n
        return x.reshape(*x.shape[:first], size, *x.shape[last + 1 :])


@layer
class PixelShuffle:
    """Moves channels into pixels: images (batch, h, w, channels * r**2) become (batch, h * r, w * r, channels).

    Args:
        upscale_factor: the factor ``r``.

    Raises:
        ArgumentError: if it is not positive.

    Reference: Shi et al., "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel
    Convolutional Neural Network" (2016).

    >>> PixelShuffle(2)(tnp.ones((1, 3, 3, 8))).shape
    (1, 6, 6, 2)
    """

    upscale_factor: int = field(metadata={"static": True})

    def __init__(self, upscale_factor: int) -> None:
        check_positive("PixelShuffle", upscale_factor=upscale_factor)
        self.upscale_factor = upscale_factor

    def __call__(self, x: ArrayLike) -> Array:
        """Rearranges images."""
        return functional.pixel_shuffle(x, self.upscale_factor)


@layer
class PixelUnshuffle:
    """Moves pixels into channels; the inverse of :class:`PixelShuffle`.

    Args:
        downscale_factor: the factor ``r``.

    Raises:
        ArgumentError: if it is not positive.

    >>> PixelUnshuffle(2)(tnp.ones((1, 6, 6, 2))).shape
    (1, 3, 3, 8)
    """

    downscale_factor: int = field(metadata={"static": True})

    def __init__(self, downscale_factor: int) -> None:
        check_positive("PixelUnshuffle", downscale_factor=downscale_factor)
        self.downscale_factor = downscale_factor

    def __call__(self, x: ArrayLike) -> Array:
        """Rearranges images."""
        return functional.pixel_unshuffle(x, self.downscale_factor)


@layer
class Upsample:
    """Resizes the spatial axes by interpolation.

    Args:
        size: the sizes of the spatial axes of the result, one for all or one for each.
        scale_factor: instead of ``size``, a factor of the sizes.
        mode: ``"nearest"``, ``"linear"``, ``"bilinear"``, ``"trilinear"`` or ``"bicubic"``.
        align_corners: whether the first and last elements keep their values.

    Raises:
        ArgumentError: unless exactly one of ``size`` and ``scale_factor`` is given.

    >>> Upsample(scale_factor=2, mode="bilinear")(tnp.ones((1, 3, 3, 8))).shape
    (1, 6, 6, 8)
    """

    size: int | tuple[int, ...] | None = field(metadata={"static": True})
    scale_factor: float | tuple[float, ...] | None = field(metadata={"static": True})
    mode: Mode = field(metadata={"static": True})
    align_corners: bool = field(metadata={"static": True})

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: Mode = "nearest",
        align_corners: bool = False,
    ) -> None:
        if (size is None) == (scale_factor is None):
            what = "either size or scale_factor must be given"
            raise ArgumentError("Upsample", what, got=f"{size} and {scale_factor}")
        self.size = tuple(size) if isinstance(size, Sequence) else size
        self.scale_factor = tuple(scale_factor) if isinstance(scale_factor, Sequence) else scale_factor
        self.mode = mode
        self.align_corners = align_corners

    def __call__(self, x: ArrayLike) -> Array:
        """Resizes an array of shape (batch, spatial axes, channels)."""
        return functional.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)
