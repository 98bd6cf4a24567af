"""Pooling: maxima and means of windows, channel by channel, for one to three spatial axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.nn.functional.arguments import Margins, Padding, Sizes, channels_last, check_windows, margins_of, per_axis
from tvmfun.ops import conv
from tvmfun.typing import ArrayLike

__all__ = ["adaptive_avg_pool", "adaptive_max_pool", "avg_pool", "lp_pool", "max_pool"]


def max_pool(
    x: ArrayLike, window: Sizes, stride: Sizes | None = None, padding: Padding = 0, ceil_mode: bool = False
) -> Array:
    """The largest element of every window, channel by channel.

    Args:
        x: an array of shape ``(batch, *spatial, channels)`` with one to three spatial axes; for images
            (batch, height, width, channels).
        window: the size of a window, one for all spatial axes or one for each.
        stride: the step between windows; by default the size of a window.
        padding: elements around the array that are never the largest; as for :func:`conv2d`.
        ceil_mode: whether to add a last window that begins inside but ends outside.

    Returns:
        An array of shape ``(batch, *spatial', channels)``.

    Raises:
        ShapeError: if ``x`` does not have three to five axes.
        ArgumentError: if a window, stride or padding is out of range.

    >>> max_pool(tnp.arange(16.0).reshape(1, 4, 4, 1), 2).ravel()
    Array([ 5.,  7., 13., 15.], dtype=float32)
    """
    x = channels_last("max_pool", x)
    sizes, strides, margins, extra = _windows("max_pool", x, window, stride, padding, ceil_mode)
    return conv.window_max(x, **_geometry(sizes, strides, _with_extra(margins, extra)))


def avg_pool(
    x: ArrayLike,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    """The mean of every window, channel by channel.

    Args:
        x: floats of shape ``(batch, *spatial, channels)`` with one to three spatial axes; for images
            (batch, height, width, channels).
        window: the size of a window, one for all spatial axes or one for each.
        stride: the step between windows; by default the size of a window.
        padding: zeros around the array; as for :func:`conv2d`.
        ceil_mode: whether to add a last window that begins inside but ends outside.
        count_include_pad: whether zeros from the padding count as elements.

    Returns:
        An array of shape ``(batch, *spatial', channels)``.

    Raises:
        ShapeError: if ``x`` does not have three to five axes.
        ArgumentError: if a window, stride or padding is out of range.

    >>> avg_pool(tnp.arange(16.0).reshape(1, 4, 4, 1), 2).ravel()
    Array([ 2.5,  4.5, 10.5, 12.5], dtype=float32)
    """
    x = channels_last("avg_pool", x)
    sizes, strides, margins, extra = _windows("avg_pool", x, window, stride, padding, ceil_mode)
    total = conv.window_sum(x, **_geometry(sizes, strides, _with_extra(margins, extra)))
    counted = margins if count_include_pad else ((0, 0),) * len(sizes)
    if counted == margins and not any(extra):
        return total / math.prod(sizes)
    for axis, (k, s, (low, _), (below, above)) in enumerate(zip(sizes, strides, margins, counted, strict=True), 1):
        starts = tnp.arange(total.shape[axis]) * s - low
        counts = tnp.minimum(starts + k, x.shape[axis] + above) - tnp.maximum(starts, -below)
        total = total / counts.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return total


def lp_pool(
    x: ArrayLike, norm_type: float, window: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Array:
    """The norm of every window, channel by channel: ``sum(x ** p) ** (1 / p)``; its gradient is 0 where it is 0.

    Args:
        x: floats of shape ``(batch, *spatial, channels)`` with one to three spatial axes, non-negative if
            ``norm_type`` is not even.
        norm_type: the exponent ``p``.
        window: the size of a window, one for all spatial axes or one for each.
        stride: the step between windows; by default the size of a window.
        ceil_mode: whether to add a last window that begins inside but ends outside.

    Returns:
        An array of shape ``(batch, *spatial', channels)``.

    Raises:
        ShapeError: if ``x`` does not have three to five axes.
        ArgumentError: if a window or stride is out of range, or the exponent is not positive.

    >>> lp_pool(tnp.asarray([3.0, 4.0]).reshape(1, 2, 1), 2, 2)
    Array([[[5.]]], dtype=float32)
    """
    x = channels_last("lp_pool", x)
    if not norm_type > 0:
        raise ArgumentError("lp_pool", "the exponent must be positive", got=str(norm_type))
    sizes, strides, margins, extra = _windows("lp_pool", x, window, stride, 0, ceil_mode)
    geometry = _geometry(sizes, strides, _with_extra(margins, extra))
    if math.isinf(norm_type):
        return conv.window_max(tnp.abs(x), **geometry)
    exponent = int(norm_type) if norm_type == int(norm_type) else norm_type  # exact for x < 0
    total = conv.window_sum(x**exponent, **geometry)
    is_zero = total == 0
    return tnp.where(is_zero, tnp.zeros_like(total), tnp.where(is_zero, 1, total) ** (1 / norm_type))


def _windows(
    where: str, x: Any, window: Sizes, stride: Sizes | None, padding: Padding, ceil_mode: bool
) -> tuple[tuple[int, ...], tuple[int, ...], Margins, tuple[int, ...]]:
    """The sizes of windows, strides, margins, and the extra margin after them that a last window needs."""
    rank = x.ndim - 2
    sizes = per_axis(where, "window", window, rank)
    strides = sizes if stride is None else per_axis(where, "stride", stride, rank)
    margins = margins_of(where, padding, x.shape[1:-1], sizes, strides, (1,) * rank)
    for size, margin in zip(sizes, margins, strict=True):
        if any(side >= size for side in margin):
            raise ArgumentError(where, f"the padding must be smaller than the window, {sizes}", got=str(margins))
    extra = (0,) * rank
    if ceil_mode:
        extra = tuple(
            _overhang(n, k, s, low, high)
            for n, k, s, (low, high) in zip(x.shape[1:-1], sizes, strides, margins, strict=True)
        )
    check_windows(where, x.shape[1:-1], sizes, _with_extra(margins, extra))
    return sizes, strides, margins, extra


def _overhang(n: int, k: int, s: int, low: int, high: int) -> int:
    """The number of elements by which the last window that begins inside the array exceeds the trailing padding."""
    room = n + low + high - k
    last = -(-room // s) * s
    return last - room if last < n + low else 0


def _with_extra(margins: Margins, extra: tuple[int, ...]) -> Margins:
    return tuple((low, high + more) for (low, high), more in zip(margins, extra, strict=True))


def _geometry(sizes: tuple[int, ...], strides: tuple[int, ...], margins: Margins) -> dict[str, Any]:
    return {"window": (1, *sizes, 1), "stride": (1, *strides, 1), "padding": ((0, 0), *margins, (0, 0))}


# -- windows by the size of the result -------------------------------------------------------------------------


def adaptive_avg_pool(x: ArrayLike, output_size: int | Sequence[int | None] | None) -> Array:
    """The means of windows that cover the array evenly, one per element of the result.

    Window ``i`` of ``m`` along an axis of ``n`` elements goes from ``floor(i * n / m)`` to ``ceil((i + 1) * n / m)``.

    Args:
        x: floats of shape ``(batch, *spatial, channels)`` with one to three spatial axes.
        output_size: the sizes of the spatial axes of the result, one for all or one for each; ``None`` to keep
            an axis.

    Returns:
        An array of shape ``(batch, *output_size, channels)``.

    Raises:
        ShapeError: if ``x`` does not have three to five axes.
        ArgumentError: if a size is not positive.

    >>> adaptive_avg_pool(tnp.arange(4.0).reshape(1, 4, 1), 2).ravel()
    Array([0.5, 2.5], dtype=float32)
    """
    return _adaptive("adaptive_avg_pool", x, output_size, avg_pool, tnp.mean)


def adaptive_max_pool(x: ArrayLike, output_size: int | Sequence[int | None] | None) -> Array:
    """The maxima of windows that cover the array evenly; otherwise as :func:`adaptive_avg_pool`.

    >>> adaptive_max_pool(tnp.arange(4.0).reshape(1, 4, 1), 2).ravel()
    Array([1., 3.], dtype=float32)
    """
    return _adaptive("adaptive_max_pool", x, output_size, max_pool, tnp.max)


def _adaptive(where: str, x: Any, output_size: Any, pool: Callable, reduce: Callable) -> Array:
    x = channels_last(where, x)
    sizes = x.shape[1:-1]
    if output_size is None or isinstance(output_size, int):
        output_size = (output_size,) * len(sizes)
    if len(output_size) == len(sizes):
        output_size = tuple(n if m is None else m for n, m in zip(sizes, output_size, strict=True))
    wanted = per_axis(where, "output_size", output_size, len(sizes))
    if all(m == 1 for m in wanted):
        return reduce(x, axis=tuple(range(1, x.ndim - 1)), keepdims=True)
    if all(n % m == 0 for n, m in zip(sizes, wanted, strict=True)):
        return pool(x, tuple(n // m for n, m in zip(sizes, wanted, strict=True)))
    for axis, (n, m) in enumerate(zip(sizes, wanted, strict=True), 1):
        if n != m:
            lead = (slice(None),) * axis
            parts = [reduce(x[(*lead, slice(i * n // m, -(-(i + 1) * n // m)))], axis, keepdims=True) for i in range(m)]
            x = tnp.concat(parts, axis)
    return x
