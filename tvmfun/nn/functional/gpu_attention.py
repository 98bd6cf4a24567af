"""Attention to long sequences on GPUs: the ops that store no scores, or the direct formula where they do not apply."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.nn.functional.direct_attention import AttentionInputs, AttentionSettings, direct_attention
from tvmfun.ops.attention import OPTIONAL, WIDEST_HEAD, attention, attention_gradients
from tvmfun.transforms import vjp

__all__ = ["gpu_attention", "gpu_attention_gradients"]


def gpu_attention(settings: AttentionSettings, inputs: AttentionInputs) -> tuple[Array, Array]:
    """The result, and the logarithms of the sums of exponentiated scores, of shape (batch, heads, length)."""
    query, key, value = inputs[:3]
    batch, length, heads, _ = query.shape
    if not _stores_no_scores(inputs):
        # The direct formula does not need the log-sums for its gradient.
        return direct_attention(settings, inputs), tnp.zeros((batch, heads, length), query.dtype)
    options, params = _parameters(settings, inputs)
    result, log_sums = attention(query, key, value, *options, **params)
    if settings.has_empty_rows(inputs):
        mean = tnp.repeat(tnp.mean(value, axis=1), heads // key.shape[2], axis=1)
        result = tnp.where(_empty_rows(log_sums), mean[:, None], result)
    return result, log_sums


def gpu_attention_gradients(
    settings: AttentionSettings, inputs: AttentionInputs, result: Array, log_sums: Array, g: Array
) -> tuple:
    """The cotangents of query, key, value and bias, from the results of :func:`gpu_attention`."""
    if not _stores_no_scores(inputs):
        of_floats = lambda query, key, value, bias: direct_attention(
            settings, inputs._replace(query=query, key=key, value=value, bias=bias)
        )
        return vjp(of_floats, *inputs[:4])[1](g)
    query, key, value, bias = inputs[:4]
    options, params = _parameters(settings, inputs)
    dots = tnp.sum(result * g, axis=-1)
    d_query, d_key, d_value = attention_gradients(query, key, value, g, log_sums, dots, *options, **params)
    if settings.has_empty_rows(inputs):
        # A query that sees no key has the mean of all values.
        of_empty = tnp.sum(tnp.where(_empty_rows(log_sums), g, tnp.zeros_like(g)), axis=1)
        batch, keys, groups, width = key.shape
        d_value = d_value + tnp.sum(of_empty.reshape(batch, groups, -1, width), axis=2)[:, None] * (1 / keys)
    d_bias = None
    if bias is not None:
        of_bias = lambda bias: direct_attention(settings, inputs._replace(bias=bias))
        (d_bias,) = vjp(of_bias, bias)[1](g)
    return d_query, d_key, d_value, d_bias


def _stores_no_scores(inputs: AttentionInputs) -> bool:
    query, key = inputs[:2]
    is_dynamic = dims.is_dynamic((*query.shape, *key.shape))
    return query.dtype == dtypes.float32 and not is_dynamic and query.shape[3] <= WIDEST_HEAD


def _parameters(settings: AttentionSettings, inputs: AttentionInputs) -> tuple[list[Array], dict[str, Any]]:
    """The optional arguments and the parameters of the ops; queries are scaled already."""
    key = inputs.dropout_key
    options = {**inputs._asdict(), "dropout_key": None if key is None else key.reshape(1, 2)}
    present = tuple(name for name in OPTIONAL if options[name] is not None)
    window = None if settings.window is None else tuple(map(int, settings.window))
    params = {"causal": settings.is_causal, "window": window, "rate": settings.rate, "scale": 1.0, "precision": None}
    return [options[name] for name in present], {"optional": present, **params}


def _empty_rows(log_sums: Array) -> Array:
    """Whether queries see no key, along the axes of the result."""
    return tnp.permute_dims(tnp.isinf(log_sums), (0, 2, 1))[..., None]
