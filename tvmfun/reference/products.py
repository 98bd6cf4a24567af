"""Reference implementations of contractions and of the random number generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun.reference.meaning import enter
from tvmfun.reference.movement import Ints, pad
from tvmfun.reference.reductions import Padding

Axes = tuple[Ints, Ints]


def dot_general(x: np.ndarray, y: np.ndarray, contract: Axes, batch: Axes, precision: str | None = None) -> np.ndarray:
    """Products summed over ``contract``, for each index of ``batch``; free axes of ``x``, then of ``y``, follow."""

    def matrices(z: np.ndarray, side: int) -> tuple[np.ndarray, Ints]:
        fixed = (*batch[side], *contract[side])
        free = [axis for axis in range(z.ndim) if axis not in fixed]
        order = (*batch[side], *free, *contract[side])
        sizes = [z.shape[axis] for axis in free]
        lead = [z.shape[axis] for axis in batch[side]]
        terms = int(np.prod([z.shape[axis] for axis in contract[side]]))
        return z.transpose(order).reshape(*lead, int(np.prod(sizes)), terms), (*lead, *sizes)

    (left, rows), (right, columns) = matrices(x, 0), matrices(y, 1)
    if x.dtype == np.bool_:
        left, right = left.astype(np.int64), right.astype(np.int64)
    result = left @ np.swapaxes(right, -1, -2)
    return result.reshape((*rows, *columns[len(batch[1]) :]))


def _spread_out(x: np.ndarray, padding: Padding, dilation: Ints) -> np.ndarray:
    around = ((0, 0), *padding, (0, 0))
    between = (0, *(d - 1 for d in dilation), 0)
    return pad(x, 0, tuple(p[0] for p in around), tuple(p[1] for p in around), between)


def _patches(
    x: np.ndarray,
    kernel: Ints,
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    kernel_dilation: Ints,
    precision: str | None = None,
) -> Any:
    """The elements that each point of a kernel is multiplied by: ``[examples, *positions, *kernel, channels]``."""
    source = _spread_out(x, padding, dilation)
    spans = [max(0, (k - 1) * d + 1) for k, d in zip(kernel, kernel_dilation, strict=True)]
    axes = tuple(range(1, x.ndim - 1))
    if not all(0 < span <= n for n, span in zip(source.shape[1:-1], spans, strict=True)):
        sizes = [max(0, (n - k) // s + 1) for n, k, s in zip(source.shape[1:-1], spans, stride, strict=True)]
        return np.zeros((x.shape[0], *sizes, *kernel, x.shape[-1]), x.dtype)
    views = np.lib.stride_tricks.sliding_window_view(source, spans, axes)
    views = np.moveaxis(views, len(axes) + 1, -1)
    positions = tuple(slice(None, None, s) for s in stride)
    points = tuple(slice(None, None, d) for d in kernel_dilation)
    return views[(slice(None), *positions, *points, slice(None))]


def conv(x: np.ndarray, w: np.ndarray, groups: int, **params: Any) -> np.ndarray:
    """A convolution of ``[examples, *spatial, channels]`` with ``[*kernel, channels / groups, features]``."""
    patches = _patches(x, w.shape[:-2], **params)
    spatial, parts = x.ndim - 2, []
    for part, kernel in zip(np.split(patches, groups, -1), np.split(w, groups, -1), strict=True):
        parts.append(np.tensordot(part, kernel, spatial + 1))
    return np.concatenate(parts, -1)


def _kernel_gradient(x: np.ndarray, g: np.ndarray, kernel: Ints, groups: int, **params: Any) -> np.ndarray:
    patches = _patches(x, kernel, **params)
    axes = list(range(x.ndim - 1))
    pairs = zip(np.split(patches, groups, -1), np.split(g, groups, -1), strict=True)
    return np.concatenate([np.tensordot(patch, part, (axes, axes)) for patch, part in pairs], -1)


def threefry(key: np.ndarray, base: np.ndarray, shape: Ints, word: str) -> np.ndarray:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011) of consecutive counters from ``base`` on."""
    spread = (..., *(None,) * len(shape))
    k0, k1 = (key[..., i].astype(np.uint32)[spread] for i in (0, 1))
    start = (base[..., 0].astype(np.uint64) << np.uint64(32)) + base[..., 1].astype(np.uint64)
    counter = start[spread] + np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    schedule = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = (counter >> np.uint64(32)).astype(np.uint32) + k0, counter.astype(np.uint32) + k1
    for i in range(5):
        for by in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(by)) | (x1 >> np.uint32(32 - by))) ^ x0
        x0, x1 = x0 + schedule[(i + 1) % 3], x1 + schedule[(i + 2) % 3] + np.uint32(i + 1)
    return {"first": x0, "second": x1, "xor": x0 ^ x1}[word]


def enter_all() -> None:
    """Adds the reference implementations of this module to the table."""
    enter({"dot_general": dot_general, "conv": conv, "conv_kernel_gradient": _kernel_gradient}, partial="sums")
    enter({"threefry2x32": threefry}, exact=True)
