"""Resizing of spatial axes: pixel shuffle and interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.nn.functional.arguments import channels_last, per_axis
from tvmfun.resampling import combined
from tvmfun.typing import ArrayLike

__all__ = ["interpolate", "pixel_shuffle", "pixel_unshuffle"]

Mode = Literal["nearest", "linear", "bilinear", "trilinear", "bicubic"]
_RANKS = {"nearest": (1, 2, 3), "linear": (1,), "bilinear": (2,), "trilinear": (3,), "bicubic": (2,)}


def pixel_shuffle(x: ArrayLike, upscale_factor: int) -> Array:
    """Moves channels into pixels: ``y[h * r + i, w * r + j, c] = x[h, w, (c * r + i) * r + j]``.

    Args:
        x: images of shape (batch, height, width, channels * r**2).
        upscale_factor: the factor ``r``.

    Returns:
        Images of shape (batch, height * r, width * r, channels).

    Raises:
        ShapeError: if the channels are not a multiple of ``r**2``.

    Reference: Shi et al., "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel
    Convolutional Neural Network" (2016).

    >>> pixel_shuffle(tnp.arange(4.0).reshape(1, 1, 1, 4), 2)[0, :, :, 0]
    Array([[0., 1.],
           [2., 3.]], dtype=float32)
    """
    x, (r, _) = channels_last("pixel_shuffle", x, 2), per_axis("pixel_shuffle", "upscale_factor", upscale_factor, 2)
    batch, height, width, channels = x.shape
    if channels % (r * r):
        raise ShapeError("pixel_shuffle", f"the channels must be a multiple of {r * r}", got=str(x.shape))
    parts = x.reshape(batch, height, width, channels // (r * r), r, r)
    return tnp.permute_dims(parts, (0, 1, 4, 2, 5, 3)).reshape(batch, height * r, width * r, channels // (r * r))


def pixel_unshuffle(x: ArrayLike, downscale_factor: int) -> Array:
    """Moves pixels into channels; the inverse of :func:`pixel_shuffle`.

    Args:
        x: images of shape (batch, height * r, width * r, channels).
        downscale_factor: the factor ``r``.

    Returns:
        Images of shape (batch, height, width, channels * r**2).

    Raises:
        ShapeError: if height or width is not a multiple of ``r``.

    >>> pixel_unshuffle(tnp.arange(4.0).reshape(1, 2, 2, 1), 2).ravel()
    Array([0., 1., 2., 3.], dtype=float32)
    """
    where = "pixel_unshuffle"
    x, (r, _) = channels_last(where, x, 2), per_axis(where, "downscale_factor", downscale_factor, 2)
    batch, height, width, channels = x.shape
    if height % r or width % r:
        raise ShapeError(where, f"height and width must be multiples of {r}", got=str(x.shape))
    parts = x.reshape(batch, height // r, r, width // r, r, channels)
    return tnp.permute_dims(parts, (0, 1, 3, 5, 2, 4)).reshape(batch, height // r, width // r, channels * r * r)


def interpolate(
    x: ArrayLike,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: Mode = "nearest",
    align_corners: bool = False,
) -> Array:
    """Resizes the spatial axes of an array by interpolation.

    Args:
        x: floats of shape ``(batch, *spatial, channels)`` with one to three spatial axes.
        size: the sizes of the spatial axes of the result, one for all or one for each.
        scale_factor: instead of ``size``, a factor of the sizes; products are rounded down.
        mode: ``"nearest"``, ``"linear"``, ``"bilinear"`` and ``"trilinear"`` for one, two and three spatial axes, or
            ``"bicubic"`` for two.
        align_corners: whether to align the centres of the corner elements, rather than the edges of their cells.

    Returns:
        An array of shape ``(batch, *size, channels)``.

    Raises:
        ShapeError: if ``x`` does not have three to five axes.
        ArgumentError: if the mode is unknown or for another number of axes, or unless exactly one of ``size`` and
            ``scale_factor`` is given.

    >>> interpolate(tnp.asarray([1.0, 2.0]).reshape(1, 2, 1), scale_factor=2).ravel()
    Array([1., 1., 2., 2.], dtype=float32)
    """
    where = "interpolate"
    x = channels_last(where, x)
    rank, sizes = x.ndim - 2, x.shape[1:-1]
    if rank not in _RANKS.get(mode, ()):
        fitting = ", ".join(repr(name) for name, ranks in _RANKS.items() if rank in ranks)
        raise ArgumentError(where, f"the mode for {rank} spatial axes must be one of {fitting}", got=repr(mode))
    if (size is None) == (scale_factor is None):
        raise ArgumentError(where, "either size or scale_factor must be given", got=f"{size} and {scale_factor}")
    if size is None:
        factors = (scale_factor,) * rank if isinstance(scale_factor, int | float) else tuple(scale_factor or ())
        if len(factors) != rank or any(factor <= 0 for factor in factors):
            what = f"scale_factor must be one positive number or {rank}"
            raise ArgumentError(where, what, got=repr(scale_factor))
        wanted = tuple(math.floor(n * factor) for n, factor in zip(sizes, factors, strict=True))
        steps = tuple(1 / factor for factor in factors)
    else:
        wanted = per_axis(where, "size", size, rank)
        steps = tuple(n / m for n, m in zip(sizes, wanted, strict=True))
    for axis, (n, m, step) in enumerate(zip(sizes, wanted, steps, strict=True), 1):
        if n == m and mode != "bicubic":  # as in PyTorch with channels last, for any factor
            continue
        if mode == "nearest":
            positions = np.minimum((np.arange(m, dtype="float32") * np.float32(step)).astype("int32"), n - 1)
            x = tnp.take(x, positions, axis=axis)
        else:
            x = combined(x, _weights(n, m, step, mode == "bicubic", align_corners), axis)
    return x


def _weights(n: int, m: int, step: float, cubic: bool, align_corners: bool) -> np.ndarray:
    """The matrix of shape (n, m) that interpolates ``n`` values at ``m`` positions."""
    if align_corners:
        positions = np.arange(m) * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        positions = (np.arange(m) + 0.5) * step - 0.5
        positions = positions if cubic else np.maximum(positions, 0)
    left = np.floor(positions).astype(int)
    fraction = positions - left
    weights = np.zeros((n, m))
    offsets = range(-1, 3) if cubic else range(2)
    for offset in offsets:
        distance = np.abs(fraction - offset)
        part = _cubic(distance) if cubic else np.maximum(0, 1 - distance)
        np.add.at(weights, (np.clip(left + offset, 0, n - 1), np.arange(m)), part)
    return weights


def _cubic(distance: np.ndarray, a: float = -0.75) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
