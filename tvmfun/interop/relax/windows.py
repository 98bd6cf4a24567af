"""Relax's pooling operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax.table import TRANSLATIONS, Translation


def channels_first(x: Any, layout: str) -> Any:
    """The array with the axes in the order N, C and the others."""
    return tnp.permute_dims(x, [layout.index(letter) for letter in _order(layout)])


def from_channels_first(x: Any, layout: str) -> Any:
    """The inverse of :func:`channels_first`."""
    return tnp.permute_dims(x, [_order(layout).index(letter) for letter in layout])


def _order(layout: str) -> str:
    return "NC" + "".join(letter for letter in layout if letter not in "NC")


def pads_by_axis(padding: tuple) -> list[tuple[int, int]]:
    """Pairs (before, after) of Relax's padding, which lists all leading pads and then all trailing ones."""
    half = len(padding) // 2
    return list(zip(padding[:half], padding[half:], strict=True))


def _reach(sizes: tuple, out: tuple, pool_size: tuple, strides: tuple, padding: list, dilation: tuple) -> list:
    """The padding after each axis that windows reach into: more than was asked for, if sizes are rounded up."""
    return [
        (low, max(high, (m - 1) * s + (k - 1) * d + 1 - n - low))
        for n, m, k, s, (low, high), d in zip(sizes, out, pool_size, strides, padding, dilation, strict=True)
    ]


def _windows(
    x: Any, start: Any, combine: Callable, pool_size: tuple, strides: tuple, pads: list, dilation: tuple
) -> Any:
    lead = (1,) * (x.ndim - len(pool_size))
    return lax.reduce_window(
        x,
        np.asarray(start, x.dtype),
        combine,
        (*lead, *pool_size),
        (*lead, *strides),
        [(0, 0)] * len(lead) + pads,
        window_dilation=(*lead, *dilation),
    )


def max_pool(
    x: Any,
    *,
    pool_size: tuple,
    strides: tuple,
    padding: tuple,
    dilation: tuple,
    layout: str,
    out_layout: str,
    result: ShapeDtype,
) -> Any:
    """The largest element of each window."""
    x = channels_first(x, layout)
    out = [result.shape[out_layout.index(letter)] for letter in _order(layout)[2:]]
    pads = _reach(x.shape[2:], tuple(out), pool_size, strides, pads_by_axis(padding), dilation)
    lowest = -math.inf if dtypes.is_float(x.dtype) else tnp.iinfo(x.dtype).min
    found = _windows(x, lowest, lax.max, pool_size, strides, pads, dilation)
    return from_channels_first(_cropped(found, out), out_layout)


def avg_pool(
    x: Any,
    *,
    pool_size: tuple,
    strides: tuple,
    padding: tuple,
    dilation: tuple,
    layout: str,
    out_layout: str,
    count_include_pad: bool,
    result: ShapeDtype,
) -> Any:
    """The mean of each window, of all its elements or of those that are not padding."""
    x = channels_first(x, layout)
    out = [result.shape[out_layout.index(letter)] for letter in _order(layout)[2:]]
    asked = pads_by_axis(padding)
    pads = _reach(x.shape[2:], tuple(out), pool_size, strides, asked, dilation)
    total = _cropped(_windows(x, 0, lax.add, pool_size, strides, pads, dilation), out)
    for axis, (n, m, k, s, (low, high), d) in enumerate(
        zip(x.shape[2:], out, pool_size, strides, asked, dilation, strict=True), 2
    ):
        # Which elements of a window count is decided axis by axis.
        first, last = (-low, n + high) if count_include_pad else (0, n)
        indices = tnp.arange(m)[:, None] * s - low + tnp.arange(k)[None, :] * d
        counts = tnp.sum(((indices >= first) & (indices < last)).astype(x.dtype), axis=1)
        total = total / tnp.reshape(tnp.maximum(counts, 1), (-1, *(1,) * (total.ndim - axis - 1)))
    return from_channels_first(total, out_layout)


def _cropped(x: Any, sizes: list) -> Any:
    return x[(..., *(slice(0, size) for size in sizes))]


def adaptive_avg_pool(x: Any, *, layout: str, out_layout: str, result: ShapeDtype) -> Any:
    """The means of as many windows, of nearly equal sizes, as the result has elements."""
    x = channels_first(x, layout)
    for axis, letter in enumerate(_order(layout)[2:], 2):
        n, m = x.shape[axis], result.shape[out_layout.index(letter)]
        windows = tnp.arange(m)[:, None]
        begin, end = windows * n // m, -(-(windows + 1) * n // m)
        indices = tnp.arange(n)[None, :]
        weights = ((indices >= begin) & (indices < end)).astype(x.dtype) / (end - begin).astype(x.dtype)
        x = tnp.moveaxis(tnp.tensordot(x, weights, axes=((axis,), (1,))), -1, axis)
    return from_channels_first(x, out_layout)


for _rank in (1, 2, 3):
    for _name, _function in (
        (f"max_pool{_rank}d", max_pool),
        (f"avg_pool{_rank}d", avg_pool),
        (f"adaptive_avg_pool{_rank}d", adaptive_avg_pool),
    ):
        TRANSLATIONS[f"relax.nn.{_name}"] = Translation(f"relax.nn.{_name}", _function)
