"""Pooling of windows, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax import windows
from tvmfun.interop.relay.operators.layouts import check_layout, sides
from tvmfun.interop.relay.operators.table import Family, Ints, check_sizes, refuse
from tvmfun.nn import functional as nnf
from tvmfun.transforms import vjp

relay = Family(__name__)


def _geometry(
    name: str,
    rank: int,
    x: Any,
    pool_size: Ints,
    strides: Ints,
    dilation: Ints,
    padding: Ints,
    layout: str,
    out_layout: str,
    ceil_mode: bool,
) -> dict[str, Any]:
    """The arguments of Relax's pooling, which is that of Relay, and the shape of the result."""
    spatial = "DHW"[3 - rank :]
    check_layout(name, layout, f"NC{spatial}", x)
    check_layout(name, out_layout or layout, f"NC{spatial}", x)
    pool_size, strides, dilation = (v * rank if len(v) == 1 else v for v in (pool_size, strides, dilation))
    for what, values in (("pool_size", pool_size), ("strides", strides), ("dilation", dilation)):
        if len(values) != rank or any(value < 1 or value > 2**20 for value in values):
            raise refuse(name, f"{what} must be a positive integer for each of {rank} axes", values)
    pads = sides(name, padding, rank)
    sizes = {"N": x.shape[layout.index("N")], "C": x.shape[layout.index("C")]}
    letters = [letter for letter in layout if letter in spatial]
    for letter, k, s, d, (low, high) in zip(letters, pool_size, strides, dilation, pads, strict=True):
        room = x.shape[layout.index(letter)] + low + high - (k - 1) * d - 1
        sizes[letter] = (room + (s - 1 if ceil_mode else 0)) // s + 1
    shape = tuple(sizes[letter] for letter in out_layout or layout)
    check_sizes(name, shape)
    return {
        "pool_size": pool_size,
        "strides": strides,
        "dilation": dilation,
        "padding": (*(low for low, _ in pads), *(high for _, high in pads)),
        "layout": layout,
        "out_layout": out_layout or layout,
        "result": ShapeDtype(shape, x.dtype),
    }


def _max_pool(rank: int) -> Callable:
    ones = (1,) * rank

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
        options = (pool_size, strides, dilation, padding, layout, out_layout, ceil_mode)
        return windows.max_pool(x, **_geometry(f"nn.max_pool{rank}d", rank, x, *options))

    return pool


def _avg_pool(rank: int) -> Callable:
    ones = (1,) * rank

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
        options = (pool_size, strides, dilation, padding, layout, out_layout, ceil_mode)
        geometry = _geometry(f"nn.avg_pool{rank}d", rank, x, *options)
        return windows.avg_pool(x, count_include_pad=count_include_pad, **geometry)

    return pool


def _global_pool(rank: int, name: str, function: Callable) -> Callable:
    spatial = "DHW"[3 - rank :]

    def pool(x: Any, *, layout: str = f"NC{spatial}", out_layout: str = "") -> Any:
        check_layout(name, layout, f"NC{spatial}", x)
        y = function(x, axis=tuple(layout.index(letter) for letter in spatial), keepdims=True)
        check_layout(name, out_layout or layout, f"NC{spatial}", x)
        return tnp.permute_dims(y, [layout.index(letter) for letter in out_layout or layout])

    return pool


def _adaptive_pool(rank: int, name: str, function: Callable) -> Callable:
    spatial = "DHW"[3 - rank :]

    def pool(x: Any, *, output_size: Ints = (), layout: str = f"NC{spatial}", out_layout: str = "") -> Any:
        check_layout(name, layout, f"NC{spatial}", x)
        check_layout(name, out_layout or layout, f"NC{spatial}", x)
        letters = [letter for letter in layout if letter in spatial]
        sizes = output_size * rank if len(output_size) == 1 else output_size
        sizes = sizes or tuple(x.shape[layout.index(letter)] for letter in letters)
        # Windows of sizes that do not divide are computed one by one.
        check_sizes(name, sizes, 4096)
        last = tnp.permute_dims(x, [layout.index(letter) for letter in ("N", *letters, "C")])
        stored = ["N", *letters, "C"]
        return tnp.permute_dims(function(last, sizes), [stored.index(letter) for letter in out_layout or layout])

    return pool


for _rank in (1, 2, 3):
    relay.reads(f"nn.max_pool{_rank}d")(_max_pool(_rank))
    relay.reads(f"nn.avg_pool{_rank}d")(_avg_pool(_rank))
    for _kind, _whole, _parts in (
        ("max", tnp.max, nnf.adaptive_max_pool),
        ("avg", tnp.mean, nnf.adaptive_avg_pool),
    ):
        for _name, _pool in (
            (f"nn.global_{_kind}_pool{_rank}d", _global_pool(_rank, f"nn.global_{_kind}_pool{_rank}d", _whole)),
            (f"nn.adaptive_{_kind}_pool{_rank}d", _adaptive_pool(_rank, f"nn.adaptive_{_kind}_pool{_rank}d", _parts)),
        ):
            relay.reads(_name)(_pool)


# -- derivatives -------------------------------------------------------------------------------------------------------


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
    options = (pool_size, strides, dilation, padding, layout, out_layout, ceil_mode)
    geometry = _geometry("nn.max_pool2d_grad", 2, x, *options)
    return vjp(lambda x: windows.max_pool(x, **geometry), tnp.asarray(x))[1](gradient)[0]


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
    options = (pool_size, strides, dilation, padding, layout, out_layout, ceil_mode)
    geometry = _geometry("nn.avg_pool2d_grad", 2, x, *options)
    pool = lambda x: windows.avg_pool(x, count_include_pad=count_include_pad, **geometry)
    return vjp(pool, tnp.asarray(x))[1](gradient)[0]
