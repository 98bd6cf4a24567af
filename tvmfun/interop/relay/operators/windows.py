"""Pooling of windows, and its derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.layouts import channels_first
from tvmfun.interop.relay.operators.layouts import check_layout, laid_out, sides, stored
from tvmfun.interop.relay.operators.table import Family, Ints, check_sizes, refuse
from tvmfun.nn import functional as nnf
from tvmfun.transforms import vjp

relay = Family(__name__)


class _Windows(NamedTuple):
    """Windows of an array (batch, *spatial, channels), for each spatial axis.

    Args:
        size: of a window.
        stride: between windows.
        dilation: between the elements of a window.
        padding: before and after the axis.
        count: of windows.
    """

    size: Ints
    stride: Ints
    dilation: Ints
    padding: list[tuple[int, int]]
    count: tuple


def _windows(name: str, x: Any, size: Ints, stride: Ints, dilation: Ints, padding: Ints, ceil_mode: bool) -> _Windows:
    rank = x.ndim - 2
    size, stride, dilation = (v * rank if len(v) == 1 else v for v in (size, stride, dilation))
    for what, values in (("pool_size", size), ("strides", stride), ("dilation", dilation)):
        if len(values) != rank or any(value < 1 or value > 2**20 for value in values):
            raise refuse(name, f"{what} must be a positive integer for each of {rank} axes", values)
    pads = sides(name, padding, rank)
    if any(side < 0 for pair in pads for side in pair):
        raise refuse(name, "the padding must not be negative", padding)
    count = []
    for n, k, s, d, (low, high) in zip(x.shape[1:-1], size, stride, dilation, pads, strict=True):
        room = n + low + high - (k - 1) * d - 1
        count.append((room + (s - 1 if ceil_mode else 0)) // s + 1)
    check_sizes(name, tuple(count))
    return _Windows(size, stride, dilation, pads, tuple(count))


def _reduced(x: Any, start: Any, combine: Callable, windows: _Windows) -> Any:
    """The reduction of each window; the last one may reach further than the padding."""
    pads = [
        (low, max(high, (m - 1) * s + (k - 1) * d + 1 - n - low)) if isinstance(n, int) else (low, high)
        for n, k, s, d, (low, high), m in zip(x.shape[1:-1], *windows, strict=True)
    ]
    strides, dilations = (1, *windows.stride, 1), (1, *windows.dilation, 1)
    margins = [(0, 0), *pads, (0, 0)]
    start = np.asarray(start, x.dtype)
    y = lax.reduce_window(x, start, combine, (1, *windows.size, 1), strides, margins, window_dilation=dilations)
    return y[(slice(None), *(slice(0, m) for m in windows.count))]


def _maxima(x: Any, windows: _Windows) -> Any:
    lowest = -math.inf if dtypes.is_float(x.dtype) else tnp.iinfo(x.dtype).min
    return _reduced(x, lowest, lax.max, windows)


def _means(x: Any, windows: _Windows, count_include_pad: bool) -> Any:
    """The mean of each window, of all its elements or of those that are not padding."""
    total = _reduced(x, 0, lax.add, windows)
    for axis, (n, k, s, d, (low, high), m) in enumerate(zip(x.shape[1:-1], *windows, strict=True), 1):
        # Which elements of a window count is decided axis by axis.
        first, last = (-low, n + high) if count_include_pad else (0, n)
        indices = tnp.arange(m)[:, None] * s - low + tnp.arange(k)[None, :] * d
        counts = tnp.sum(((indices >= first) & (indices < last)).astype(x.dtype), axis=1)
        total = total / tnp.reshape(tnp.maximum(counts, 1), (-1, *(1,) * (x.ndim - axis - 1)))
    return total


def _pooled(name: str, rank: int, x: Any, layout: str, out_layout: str, pool: Callable) -> Any:
    """The array with a function applied to it as (batch, *spatial, channels)."""
    letters = f"NC{'DHW'[3 - rank :]}"
    check_layout(name, layout, letters, x)
    check_layout(name, out_layout or layout, letters, x)
    return laid_out(pool(stored(x, layout)), layout, out_layout or layout)


def _max_pool(rank: int) -> Callable:
    name, ones = f"nn.max_pool{rank}d", (1,) * rank

    def pool(
        x: Any,
        *,
        pool_size: Ints,
        strides: Ints = ones,
        dilation: Ints = ones,
        padding: Ints = (0,) * rank,
        layout: str = f"NC{'DHW'[3 - rank :]}",
        out_layout: str = "",
        ceil_mode: bool = False,
    ) -> Any:
        options = (pool_size, strides, dilation, padding, ceil_mode)
        maxima = lambda last: _maxima(last, _windows(name, last, *options))
        return _pooled(name, rank, x, layout, out_layout, maxima)

    return pool


def _avg_pool(rank: int) -> Callable:
    name, ones = f"nn.avg_pool{rank}d", (1,) * rank

    def pool(
        x: Any,
        *,
        pool_size: Ints,
        strides: Ints = ones,
        dilation: Ints = ones,
        padding: Ints = (0,) * rank,
        layout: str = f"NC{'DHW'[3 - rank :]}",
        out_layout: str = "",
        ceil_mode: bool = False,
        count_include_pad: bool = False,
    ) -> Any:
        options = (pool_size, strides, dilation, padding, ceil_mode)
        means = lambda last: _means(last, _windows(name, last, *options), count_include_pad)
        return _pooled(name, rank, x, layout, out_layout, means)

    return pool


def _global_pool(rank: int, name: str, function: Callable) -> Callable:
    def pool(x: Any, *, layout: str = f"NC{'DHW'[3 - rank :]}", out_layout: str = "") -> Any:
        whole = lambda last: function(last, axis=tuple(range(1, rank + 1)), keepdims=True)
        return _pooled(name, rank, x, layout, out_layout, whole)

    return pool


def _adaptive_pool(rank: int, name: str, function: Callable) -> Callable:
    def pool(x: Any, *, output_size: Ints = (), layout: str = f"NC{'DHW'[3 - rank :]}", out_layout: str = "") -> Any:
        sizes = output_size * rank if len(output_size) == 1 else output_size
        # Windows of sizes that do not divide are computed one by one.
        check_sizes(name, sizes, 4096)
        return _pooled(name, rank, x, layout, out_layout, lambda last: function(last, sizes or last.shape[1:-1]))

    return pool


for _rank in (1, 2, 3):
    relay.reads(f"nn.max_pool{_rank}d", layouts=True)(_max_pool(_rank))
    relay.reads(f"nn.avg_pool{_rank}d", layouts=True)(_avg_pool(_rank))
    for _kind, _whole, _parts in (
        ("max", tnp.max, nnf.adaptive_max_pool),
        ("avg", tnp.mean, nnf.adaptive_avg_pool),
    ):
        for _name, _pool in (
            (f"nn.global_{_kind}_pool{_rank}d", _global_pool(_rank, f"nn.global_{_kind}_pool{_rank}d", _whole)),
            (f"nn.adaptive_{_kind}_pool{_rank}d", _adaptive_pool(_rank, f"nn.adaptive_{_kind}_pool{_rank}d", _parts)),
        ):
            relay.reads(_name, layouts=True)(_pool)


# -- derivatives -------------------------------------------------------------------------------------------------------


def _derivative(pool: Callable, gradient: Any, x: Any, **options: Any) -> Any:
    """The gradient of a pool's argument from that of its result."""
    return vjp(lambda x: channels_first(pool(x, **options)), tnp.asarray(x))[1](gradient)[0]


@relay.reads("nn.max_pool2d_grad")
def _max_pool2d_grad(
    gradient: Any,
    x: Any,
    *,
    pool_size: Ints,
    strides: Ints = (1, 1),
    dilation: Ints = (1, 1),
    padding: Ints = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Any:
    windows = {"pool_size": pool_size, "strides": strides, "dilation": dilation, "padding": padding}
    layouts = {"layout": layout, "out_layout": out_layout}
    return _derivative(_max_pool(2), gradient, x, **windows, **layouts, ceil_mode=ceil_mode)


@relay.reads("nn.avg_pool2d_grad")
def _avg_pool2d_grad(
    gradient: Any,
    x: Any,
    *,
    pool_size: Ints,
    strides: Ints = (1, 1),
    dilation: Ints = (1, 1),
    padding: Ints = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Any:
    windows = {"pool_size": pool_size, "strides": strides, "dilation": dilation, "padding": padding}
    options = {"layout": layout, "out_layout": out_layout, "count_include_pad": count_include_pad}
    return _derivative(_avg_pool(2), gradient, x, **windows, **options, ceil_mode=ceil_mode)
