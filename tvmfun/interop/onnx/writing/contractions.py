"""Spellings of products of matrices, convolutions, windows and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.errors import ProgramError
from tvmfun.interop.onnx.writing.builder import Builder, Value, composed, spells
from tvmfun.interop.onnx.writing.shapes import Ints, padded

Pairs = tuple[tuple[int, int], ...]


@spells("dot_general")
def _dot_general(
    b: Builder, x: Value, y: Value, *, contract: tuple[Ints, Ints], batch: tuple[Ints, Ints], precision: Any = None
) -> str:
    """A product of matrices, with axes moved and joined where necessary."""
    dtype = x.dtype
    if dtype == dtypes.bool_:
        x, y = (Value(b.cast(z, np.int32), z.shape, dtypes.int32) for z in (x, y))
    free = [[i for i in range(z.ndim) if i not in (*batch[k], *contract[k])] for k, z in enumerate((x, y))]
    lead = [x.shape[i] for i in batch[0]]
    terms = math.prod(x.shape[i] for i in contract[0])
    rows, columns = ([z.shape[i] for i in free[k]] for k, z in enumerate((x, y)))
    left = _arranged(b, x, (*batch[0], *free[0], *contract[0]), (*lead, math.prod(rows), terms))
    right = _arranged(b, y, (*batch[1], *contract[1], *free[1]), (*lead, terms, math.prod(columns)))
    result = b("MatMul", left, right)
    shape = (*lead, *rows, *columns)
    result = result if len(rows) == len(columns) == 1 else b.reshape(result, shape)
    return b.cast(result, dtype) if dtype == dtypes.bool_ else result


def _arranged(b: Builder, x: Value, order: Ints, shape: Ints) -> str:
    name = x.name if order == tuple(range(x.ndim)) else b("Transpose", x, perm=list(order))
    moved = tuple(x.shape[i] for i in order)
    return name if moved == shape else b.reshape(name, shape)


@spells("conv")
def _conv(
    b: Builder,
    x: Value,
    w: Value,
    *,
    stride: Ints,
    padding: Pairs,
    dilation: Ints,
    kernel_dilation: Ints,
    groups: int,
    precision: str | None = None,
) -> str:
    """Channels last here, first there; what ONNX has no attribute for is padding before."""
    rank = x.ndim - 2
    if any(d > 1 for d in dilation) or any(side < 0 for pair in padding for side in pair):
        low, high = ((0, *(pair[k] for pair in padding), 0) for k in (0, 1))
        x = padded(b, x, b.constant(0, x.dtype), low, high, (0, *(d - 1 for d in dilation), 0))
        padding = ((0, 0),) * rank
    images = b("Transpose", x, perm=[0, rank + 1, *range(1, rank + 1)])
    kernel = b("Transpose", w, perm=[rank + 1, rank, *range(rank)])
    options = {
        "kernel_shape": list(w.shape[:rank]),
        "strides": list(stride),
        "dilations": list(kernel_dilation),
        "pads": [pair[0] for pair in padding] + [pair[1] for pair in padding],
        "group": groups,
    }
    return b("Transpose", b("Conv", images, kernel, **options), perm=[0, *range(2, rank + 2), 1])


def _pooled(b: Builder, operator: str, x: Value, window: Ints, stride: Ints, padding: Pairs, **options: Any) -> str:
    """Windows over at most three axes, which are moved to the end."""
    axes = [i for i in range(x.ndim) if (window[i], stride[i], padding[i]) != (1, 1, (0, 0))]
    if not axes:
        return x.name
    if len(axes) > 3:
        raise ProgramError("to_onnx", "windows must have at most three axes", got=str(window))
    others = [i for i in range(x.ndim) if i not in axes]
    order = (*others, *axes)
    moved = x.name if order == tuple(range(x.ndim)) else b("Transpose", x, perm=list(order))
    moved = b.reshape(moved, (math.prod(x.shape[i] for i in others), 1, *(x.shape[i] for i in axes)))
    pads = [padding[i][0] for i in axes] + [padding[i][1] for i in axes]
    sizes = {"kernel_shape": [window[i] for i in axes], "strides": [stride[i] for i in axes], "pads": pads}
    result = b(operator, moved, **sizes, **options)
    counts = [(x.shape[i] + sum(padding[i]) - window[i]) // stride[i] + 1 for i in axes]
    result = b.reshape(result, (*(x.shape[i] for i in others), *counts))
    inverse = [order.index(i) for i in range(x.ndim)]
    return result if inverse == sorted(inverse) else b("Transpose", result, perm=inverse)


def _as_float(b: Builder, x: Value) -> Value:
    return x if dtypes.is_float(x.dtype) else Value(b.cast(x, np.float64), x.shape, dtypes.float64)


@spells("window_max")
def _window_max(b: Builder, x: Value, *, window: Ints, stride: Ints, padding: Pairs) -> str:
    result = _pooled(b, "MaxPool", _as_float(b, x), window, stride, padding)
    return result if dtypes.is_float(x.dtype) else b.cast(result, x.dtype)


@spells("window_sum")
def _window_sum(b: Builder, x: Value, *, window: Ints, stride: Ints, padding: Pairs) -> str:
    wide = _as_float(b, x)
    mean = _pooled(b, "AveragePool", wide, window, stride, padding, count_include_pad=1)
    total = b("Mul", mean, b.constant(math.prod(window), wide.dtype))
    return total if dtypes.is_float(x.dtype) else b.cast(b("Round", total), x.dtype)


@composed("attention")
def _attention(
    query: Any,
    key: Any,
    value: Any,
    *others: Any,
    optional: tuple[str, ...],
    causal: bool,
    window: tuple[int, int] | None,
    rate: float,
    scale: float,
    precision: str | None,
) -> Any:
    """The formulas, with all scores: (batch, length, heads, width)."""
    if rate:
        raise ProgramError("to_onnx", "models for inference are written, which drop nothing", got=f"dropout of {rate}")
    given = dict(zip(optional, others, strict=True))
    shared = query.shape[2] // key.shape[2]
    key, value = (tnp.repeat(x, shared, axis=2) if shared > 1 else x for x in (key, value))
    scores = tnp.einsum("btnh,bsnh->bnts", query, key) * scale + given.get("bias", 0)
    t, s = np.arange(query.shape[1])[:, None], np.arange(key.shape[1])
    visible: Any = np.ones((query.shape[1], key.shape[1]), bool)
    if causal:
        visible = visible & (s <= t)
    if window is not None:
        visible = visible & (s >= t - window[0]) & (s <= t + window[1])
    for name, position in (("query_lengths", t), ("key_lengths", s)):
        if name in given:
            visible = visible & (tnp.asarray(position) < tnp.reshape(given[name], (-1, 1, 1, 1)))
    if "mask" in given:
        visible = visible & given["mask"]
    scores = tnp.where(visible, scores, -math.inf)
    largest = tnp.max(scores, axis=-1, keepdims=True)
    largest = tnp.where(largest == -math.inf, tnp.zeros_like(largest), largest)
    exponentials = tnp.exp(scores - largest)
    sums = tnp.sum(exponentials, axis=-1, keepdims=True)
    weights = exponentials / tnp.where(sums == 0, tnp.ones_like(sums), sums)
    logs = tnp.where(sums == 0, math.inf, largest + tnp.log(sums))[..., 0]
    return tnp.einsum("bnts,bsnh->btnh", weights, value), logs
