"""Convolutions and reductions over sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.promotion import operands
from tvmfun.ops import conv as conv_ops

Padding = str | Sequence[tuple[int, int]]


def _paddings(
    name: str, padding: Padding, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The padding of each axis, given as pairs or by name."""
    if not isinstance(padding, str):
        if len(padding) != len(sizes) or any(len(pair) != 2 for pair in padding):
            raise ShapeError(name, f"there must be {len(sizes)} pairs of paddings", got=str(padding))
        return tuple((int(low), int(high)) for low, high in padding)
    kind = padding.upper()
    if kind == "VALID":
        return ((0, 0),) * len(sizes)
    if kind not in ("SAME", "SAME_LOWER"):
        raise ArgumentError(name, "the padding must be 'SAME', 'SAME_LOWER', 'VALID' or pairs", got=repr(padding))
    pairs = []
    for size, k, stride in zip(sizes, window, strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + k - size)
        less, more = total // 2, total - total // 2
        pairs.append((less, more) if kind == "SAME" else (more, less))
    return tuple(pairs)


def _order(name: str, layout: str, *, kernel: bool, spatial: str) -> tuple[int, ...]:
    """Which axis of ``layout`` is each axis that the op expects: ``N...C``, for kernels ``...IO``."""
    wanted = f"{spatial}IO" if kernel else f"N{spatial}C"
    if sorted(layout) != sorted(wanted):
        raise ArgumentError(name, f"a layout is made of the letters {wanted}", got=repr(layout))
    return tuple(layout.index(letter) for letter in wanted)


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
    feature_group_count: int = 1,
) -> Array:
    """Returns the convolution (cross-correlation) of arrays with any number of spatial axes.

    Args:
        lhs: the array, float.
        rhs: the kernel, of the same dtype after promotion.
        window_strides: one per spatial axis.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or ``(low, high)`` per axis, also negative.
        lhs_dilation: places between elements of ``lhs`` plus one, per spatial axis: a transposed convolution.
        rhs_dilation: the same for the kernel: an atrous convolution.
        dimension_numbers: the layouts of ``lhs``, ``rhs`` and the result. ``("NHWC", "HWIO", "NHWC")`` is
            the fastest; by default channels come first: ``("NCHW", "OIHW", "NCHW")``.
        feature_group_count: the number of groups that channels are split into.

    Raises:
        ShapeError: if channels, groups or ranks do not fit.

    Source: ``jax.lax.conv_general_dilated``.

    >>> x, w = tnp.ones((1, 4, 4, 1)), tnp.ones((3, 3, 1, 2))
    >>> conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 2, 2, 2)
    """
    name = "conv_general_dilated"
    lhs, rhs = (tnp.asarray(x) for x in operands(name, tnp.asarray(lhs), tnp.asarray(rhs), floating=True))
    rank = lhs.ndim - 2
    ones = (1,) * rank
    stride, dilation = tuple(window_strides), tuple(lhs_dilation or ones)
    kernel_dilation = tuple(rhs_dilation or ones)
    if rank < 1 or rhs.ndim != lhs.ndim or not rank == len(stride) == len(dilation) == len(kernel_dilation):
        raise ShapeError(
            name,
            "the array, the kernel, the strides and the dilations must have the same spatial axes",
            got=f"{lhs.aval}, {rhs.aval}, strides {stride}, dilations {dilation} and {kernel_dilation}",
        )
    if min(*stride, *dilation, *kernel_dilation) < 1:
        raise ArgumentError(name, "strides and dilations are positive", got=f"{stride}, {dilation}, {kernel_dilation}")
    letters = "DHW"[-rank:] if rank <= 3 else "".join(map(str, range(rank)))
    layouts = dimension_numbers or (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    spatial = "".join(letter for letter in layouts[0] if letter not in "NC")
    x = tnp.permute_dims(lhs, _order(name, layouts[0], kernel=False, spatial=spatial))
    w = tnp.permute_dims(rhs, _order(name, layouts[1], kernel=True, spatial=spatial))
    back = _order(name, layouts[2], kernel=False, spatial=spatial)
    sizes = [max(0, (n - 1) * d + 1) for n, d in zip(x.shape[1:-1], dilation, strict=True)]
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[:-2], kernel_dilation, strict=True)]
    result = conv_ops.conv(
        x,
        w,
        stride=stride,
        padding=_paddings(name, padding, sizes, spans, stride),
        dilation=dilation,
        kernel_dilation=kernel_dilation,
        groups=feature_group_count,
    )
    return tnp.permute_dims(result, tuple(back.index(axis) for axis in range(result.ndim)))


def _window(name: str, op: Op, x: Any, window: Sequence[int], strides: Sequence[int] | None, padding: Padding) -> Array:
    x = tnp.asarray(x)
    window = tuple(window)
    stride = tuple(strides or (1,) * len(window))
    if not len(window) == len(stride) == x.ndim:
        raise ShapeError(name, "there must be one size and stride per axis", got=f"{window}, {stride} for {x.aval}")
    pads = _paddings(name, padding, x.shape, window, stride)
    if any(max(pair) >= max(k, 1) for pair, k in zip(pads, window, strict=True) if any(pair)):
        raise ShapeError(name, "the padding must be smaller than the window", got=f"{pads} for {window}")
    return op(x, window=window, stride=stride, padding=pads)


def max_window(
    x: Any, window: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Returns the maximum of each window; its gradient goes to the first maximum of a window.

    Args:
        x: the array.
        window: the size of the windows along each axis of ``x``.
        strides: the distance between windows along each axis; by default 1.
        padding: ``"SAME"``, ``"VALID"``, or ``(low, high)`` per axis, less than a window; never the maximum.

    >>> max_window([1, 3, 2, 0], (2,), (2,))
    Array([3, 2], dtype=int32)
    """
    return _window("max_window", conv_ops.window_max, x, window, strides, padding)


def sum_window(
    x: Any, window: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Returns the sum of each window; the arguments are those of :func:`max_window`."""
    return _window("sum_window", conv_ops.window_sum, x, window, strides, padding)
