"""Products of matrices, convolutions, and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.errors import ProgramError
from tvmfun.interop.layouts import ChannelsLast, channels_first, channels_last
from tvmfun.interop.torch.aten.table import Family
from tvmfun.nn import functional as nnf
from tvmfun.transforms import vjp

aten = Family(__name__)

for _name in ("mm", "bmm", "mv"):
    aten.reads(_name)(tnp.matmul)


@aten.reads("dot", "vdot")
def _dot(x: Any, y: Any) -> Any:
    return tnp.sum(x * y)


@aten.reads("linear")
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = tnp.matmul(x, weight.T)
    return y if bias is None else y + bias


def _scaled(factor: Any, x: Any) -> Any:
    return x if isinstance(factor, int | float) and factor == 1 else factor * x


@aten.reads("addmm", "baddbmm", "addmv")
def _addmm(x: Any, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _scaled(alpha, tnp.matmul(left, right))
    # With beta = 0 not even a NaN of x counts.
    return product if isinstance(beta, int | float) and beta == 0 else _scaled(beta, x) + product


# -- convolutions ------------------------------------------------------------------------------------------------------


def _per_axis(values: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


@aten.reads("convolution", layouts=True)
def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """The array (batch, channels, *spatial) and the kernel (outputs, inputs / groups, *window), or transposed."""
    rank = weight.ndim - 2
    if x.ndim == rank + 1:  # without a batch
        image = tnp.expand_dims(channels_first(x), 0)
        options = (stride, padding, dilation, transposed, output_padding, groups)
        return tnp.squeeze(channels_first(_convolution(image, weight, bias, *options)), 0)
    image = channels_last(x)
    stride, dilation = _per_axis(stride, rank), _per_axis(dilation, rank)
    padding, more = _per_axis(padding, rank), _per_axis(output_padding, rank)
    kernel = tnp.permute_dims(channels_first(weight), (*range(2, rank + 2), 1, 0))
    letters = "DHW"[-rank:]
    layouts = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    if not transposed:
        pads = [(p, p) for p in padding]
        y = lax.conv_general_dilated(image, kernel, stride, pads, None, dilation, layouts, feature_group_count=groups)
    else:
        kernel = tnp.flip(_outputs_last(kernel, groups), tuple(range(rank)))
        spans = [(k - 1) * d for k, d in zip(kernel.shape, dilation, strict=False)]
        pads = [(span - p, span - p + extra) for span, p, extra in zip(spans, padding, more, strict=True)]
        ones = (1,) * rank
        y = lax.conv_general_dilated(image, kernel, ones, pads, stride, dilation, layouts, feature_group_count=groups)
    return ChannelsLast(y if bias is None else y + bias)


def _outputs_last(kernel: Any, groups: int) -> Any:
    """A transposed convolution's kernel (*window, outputs / groups, inputs) as (*window, inputs / groups, outputs)."""
    *window, outputs, inputs = kernel.shape
    parts = tnp.reshape(kernel, (*window, outputs, groups, inputs // groups))
    rank = len(window)
    parts = tnp.permute_dims(parts, (*range(rank), rank + 2, rank + 1, rank))
    return tnp.reshape(parts, (*window, inputs // groups, groups * outputs))


@aten.reads("convolution_backward", layouts=True)
def _convolution_backward(
    gradient: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    options = (stride, padding, dilation, transposed, output_padding, groups)
    forward = lambda x, weight: channels_first(_convolution(x, weight, None, *options))
    _, pull = vjp(forward, channels_first(x), channels_first(weight))
    gradient = channels_first(gradient)
    over = tuple(axis for axis in range(gradient.ndim) if axis != gradient.ndim - weight.ndim + 1)
    results = (*pull(gradient), tnp.sum(gradient, axis=over))
    return tuple(result if wanted else None for result, wanted in zip(results, output_mask, strict=True))


# -- attention ---------------------------------------------------------------------------------------------------------


@aten.reads("scaled_dot_product_attention", random=True)
def _attention(
    draw: Callable[[], Any],
    query: Any,
    keys: Any,
    values: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention of arrays (..., heads, length, width); a query without any key gets zeros."""
    shape = (*query.shape[:-1], values.shape[-1])
    bias = mask = None
    if attn_mask is not None:
        if query.ndim > 4:
            attn_mask = tnp.broadcast_to(attn_mask, (*query.shape[:-1], keys.shape[-2]))
        attn_mask = _four_axes(attn_mask)
        is_mask = attn_mask.dtype == dtypes.bool_
        mask = attn_mask if is_mask else attn_mask > -math.inf
        bias = None if is_mask else tnp.where(mask, attn_mask, 0.0)
    heads_last = [tnp.permute_dims(x, (0, 2, 1, 3)) for x in _of_one_width(map(_four_axes, (query, keys, values)))]
    y = nnf.dot_product_attention(
        *heads_last,
        bias=bias,
        mask=mask,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        is_causal=is_causal,
        dropout_rate=dropout_p,
        dropout_key=draw() if dropout_p else None,
    )
    y = tnp.permute_dims(y, (0, 2, 1, 3))[..., : values.shape[-1]]
    if mask is not None:
        y = tnp.where(tnp.any(mask, axis=-1, keepdims=True), y, tnp.zeros_like(y))
    return tnp.reshape(y, shape)


def _four_axes(x: Any) -> Any:
    """An array (..., heads, length, width) with one leading axis."""
    lead = (-1,) if x.ndim > 4 else (1,) * (4 - x.ndim) + x.shape[:-3]
    return tnp.reshape(x, (*lead, *x.shape[-3:]))


def _of_one_width(arrays: Iterable) -> list:
    """Queries, keys and values padded to one width with zeros, which add nothing to the products."""
    arrays = list(arrays)
    widest = max(x.shape[-1] for x in arrays)
    return [x if x.shape[-1] == widest else tnp.pad(x, [(0, 0)] * 3 + [(0, widest - x.shape[-1])]) for x in arrays]


@aten.reads("_scaled_dot_product_flash_attention_for_cpu")
def _flash_attention(
    query: Any,
    keys: Any,
    values: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """The attention, and the logarithm of the sum of exponentials of each query's scores."""
    if dropout_p:
        raise ProgramError("from_torch", "this attention has no dropout", got=f"{dropout_p=}")
    result = _attention(lambda: None, query, keys, values, attn_mask, 0.0, is_causal, scale=scale)
    scores = tnp.matmul(query, keys.mT) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        rows, columns = (tnp.arange(scores.shape[axis]) for axis in (-2, -1))
        scores = tnp.where(columns <= rows[:, None], scores, -math.inf)
    if attn_mask is not None:
        is_mask = attn_mask.dtype == dtypes.bool_
        scores = tnp.where(attn_mask, scores, -math.inf) if is_mask else scores + attn_mask
    return result, nnf.logsumexp(tnp.astype(scores, "float32") if scores.dtype.itemsize < 4 else scores, axis=-1)


@aten.reads("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_attention_backward(
    gradient: Any,
    query: Any,
    keys: Any,
    values: Any,
    result: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    forward = lambda *inputs: _flash_attention(*inputs, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    _, pull = vjp(forward, query, keys, values)
    return pull(gradient)
