"""Relax operators that Relax's gradient pass emits: derivatives of the operators they are named after."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax import layers, windows
from tvmfun.interop.relax.table import reads
from tvmfun.transforms import vjp


@reads("relax.grad.nll_loss_backward")
def _nll_loss_backward(
    gradient: Any, predictions: Any, targets: Any, weights: Any = None, *, reduction: str, ignore_index: int
) -> Any:
    loss = lambda p: layers.nll_loss(p, targets, weights, reduction=reduction, ignore_index=ignore_index)
    return vjp(loss, predictions)[1](gradient)[0]


def _pool_backward(pool: Any, gradient: Any, x: Any, **attributes: Any) -> Any:
    result = ShapeDtype(gradient.shape, gradient.dtype)
    return vjp(lambda x: pool(x, result=result, **attributes), x)[1](gradient)[0]


@reads("relax.grad.max_pool2d_backward")
def _max_pool2d_backward(
    gradient: Any,
    x: Any,
    *,
    pool_size: tuple,
    strides: tuple,
    padding: tuple,
    dilation: tuple,
    layout: str,
    out_layout: str,
) -> Any:
    attributes = {"pool_size": pool_size, "strides": strides, "padding": padding, "dilation": dilation}
    return _pool_backward(windows.max_pool, gradient, x, layout=layout, out_layout=out_layout, **attributes)


@reads("relax.grad.avg_pool2d_backward")
def _avg_pool2d_backward(
    gradient: Any,
    x: Any,
    *,
    pool_size: tuple,
    strides: tuple,
    padding: tuple,
    dilation: tuple,
    layout: str,
    out_layout: str,
    count_include_pad: bool,
) -> Any:
    attributes = {"pool_size": pool_size, "strides": strides, "padding": padding, "dilation": dilation}
    return _pool_backward(
        windows.avg_pool,
        gradient,
        x,
        layout=layout,
        out_layout=out_layout,
        count_include_pad=count_include_pad,
        **attributes,
    )


@reads("relax.grad.take_backward")
def _take_backward(gradient: Any, x: Any, indices: Any, *, axis: int | None) -> Any:
    take = lambda x: tnp.take(x, indices, axis=axis or 0)
    return vjp(take, x)[1](gradient)[0]
