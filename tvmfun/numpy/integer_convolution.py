"""Convolutions of integers, exact modulo a power of two: the windows are looked up, and a product sums them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.numpy.creation import zeros
from tvmfun.numpy.elementwise import add, clip, logical_and, multiply
from tvmfun.numpy.indexing import take
from tvmfun.numpy.products import einsum
from tvmfun.numpy.ranges import arange
from tvmfun.numpy.selection import where
from tvmfun.numpy.shapes import permute_dims, reshape
from tvmfun.ops.parameters import Size

# Longer kernels are cut along their first axis: their windows would take too much memory.
_LONGEST = 64


def integer_conv(
    x: Array,
    w: Array,
    *,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    kernel_dilation: Sequence[int],
    groups: int,
) -> Array:
    """Returns the convolution of integers, in their dtype, with the layouts and parameters of the op ``conv``.

    Args:
        x: ``(batch, *space, channels)``.
        w: ``(*kernel, channels // groups, features)``, of the same dtype.
        stride: by axis of space, as the others.
        padding: zeros before and after, also negative.
        dilation: the distance between elements of ``x``.
        kernel_dilation: the distance between elements of ``w``.
        groups: of channels.
    """
    kernel = w.shape[:-2]
    sizes = zip(x.shape[1:-1], padding, dilation, stride, kernel, kernel_dilation, strict=True)
    counts = []
    for size, around, d, s, k, kd in sizes:
        extent = dims.maximum(0, (size - 1) * d + 1) + sum(around)
        counts.append(dims.maximum(0, (extent - (k - 1) * kd - 1) // s + 1))
    length = max(_LONGEST, -(-kernel[0] // _LONGEST))
    total: Array | None = None
    for first in range(0, max(1, kernel[0]), length):
        part, windows = w[first : first + length], x
        for i, count in enumerate(counts):
            before = (first * kernel_dilation[i] if i == 0 else 0) - padding[i][0]
            taken = _Windows(count, part.shape[i], stride[i], kernel_dilation[i], before)
            windows = taken.along(windows, 1 + 2 * i, dilation[i])
        product = _product(windows, part, groups)
        total = product if total is None else add(total, product)
    assert total is not None
    return total


class _Windows(NamedTuple):
    """The windows along an axis: their number and size, the elements between both, and where the first begins."""

    count: Size
    size: int
    stride: int
    dilation: int
    first: int

    def along(self, x: Array, axis: int, dilation: int) -> Array:
        """The windows of an array with zeros around it and between its elements; the axis becomes two."""
        length = x.shape[axis]
        if length == 0:
            return zeros((*x.shape[:axis], self.count, self.size, *x.shape[axis + 1 :]), x.dtype)
        begins = multiply(arange(self.count, dtype="int32"), self.stride)[:, None]
        at = add(add(begins, multiply(arange(self.size, dtype="int32"), self.dilation)), self.first)
        is_inside = logical_and(logical_and(at >= 0, at <= (length - 1) * dilation), at % dilation == 0)
        found = take(x, clip(at // dilation, 0, length - 1), axis=axis, mode="promise_in_bounds")
        shape = (self.count, self.size, *(1,) * (x.ndim - axis - 1))
        return where(reshape(is_inside, shape), found, zeros((), x.dtype))


def _product(windows: Array, w: Array, groups: int) -> Array:
    """The sums over windows of ``(batch, *(count, size), channels)``: ``(batch, *count, features)``."""
    rank = w.ndim - 2
    axes = range(1, 2 * rank + 1)
    windows = permute_dims(windows, (0, *axes[::2], *axes[1::2], 2 * rank + 1))
    outer, size = windows.shape[: rank + 1], math.prod(w.shape[:rank])
    channels, features = w.shape[-2:]
    left = reshape(windows, (*outer, size, groups, channels))
    right = reshape(w, (size, channels, groups, features // groups))
    return reshape(einsum("...pgc,pcgo->...go", left, right), (*outer, features))
