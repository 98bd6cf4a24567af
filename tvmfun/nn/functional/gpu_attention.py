"""Attention on GPUs by the ops that store no scores."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.nn.functional.direct_attention import AttentionInputs, AttentionSettings, direct_attention
from tvmfun.nn.functional.recomputing_attention import recomputing_attention
from tvmfun.ops.attention import OPTIONAL, WIDEST_HEAD, attention, attention_gradients
from tvmfun.transforms import vjp
from tvmfun.typing import ArrayLike

__all__ = ["gpu_attention", "has_gpu_kernel"]

# The fewest queries and keys that fill a tile well enough; for fewer, scores are few, too.
_LEAST_LENGTH = 32


def has_gpu_kernel(inputs: AttentionInputs) -> bool:
    """Whether :func:`gpu_attention` serves the arguments, and is faster than the direct formula."""
    query, key = inputs[:2]
    if dims.is_dynamic((*query.shape[1:], *key.shape[1:])) or query.dtype != dtypes.float32 or inputs.query.size == 0:
        return False
    return 0 < query.shape[3] <= WIDEST_HEAD and min(query.shape[1], key.shape[1]) >= _LEAST_LENGTH


def gpu_attention(settings: AttentionSettings, inputs: AttentionInputs, scale: ArrayLike) -> Array:
    """Computes :func:`direct_attention` without stored scores.

    The gradients recompute the scores. The exceptions are that of a bias, forward mode and second derivatives, which
    are those of the direct formula.
    """
    if isinstance(scale, Array):
        inputs, scale = inputs._replace(query=inputs.query * scale), 1.0
    scale = float(scale)

    def forward(inputs: AttentionInputs) -> tuple[Array, Array]:
        key, value = inputs.key, inputs.value
        options, params = _parameters(settings, inputs, scale)
        result, log_sums = attention(inputs.query, key, value, *options, **params)
        if settings.has_empty_rows(inputs):
            mean = tnp.repeat(tnp.mean(value, axis=1), result.shape[2] // key.shape[2], axis=1)
            result = tnp.where(_empty_rows(log_sums), mean[:, None], result)
        return result, log_sums

    def backward(inputs: AttentionInputs, result: Array, log_sums: Array, g: Array) -> tuple:
        query, key, value, bias = inputs[:4]
        options, params = _parameters(settings, inputs, scale)
        dots = tnp.sum(result * g, axis=-1)
        d_query, d_key, d_value = attention_gradients(query, key, value, g, log_sums, dots, *options, **params)
        if settings.has_empty_rows(inputs):
            # A query that sees no key has the mean of all values.
            of_empty = tnp.sum(tnp.where(_empty_rows(log_sums), g, tnp.zeros_like(g)), axis=1)
            batch, keys, groups, width = key.shape
            d_value = d_value + tnp.sum(of_empty.reshape(batch, groups, -1, width), axis=2)[:, None] * (1 / keys)
        d_bias = None
        if bias is not None:
            (d_bias,) = vjp(lambda bias: formula(inputs._replace(bias=bias)), bias)[1](g)
        return d_query, d_key, d_value, d_bias

    def formula(inputs: AttentionInputs) -> Array:
        return direct_attention(settings, inputs, inputs.query.dtype.type(scale))

    return recomputing_attention(inputs, forward, backward, formula)


def _parameters(
    settings: AttentionSettings, inputs: AttentionInputs, scale: float
) -> tuple[list[Array], dict[str, Any]]:
    """The optional arguments and the parameters of the ops."""
    key = inputs.dropout_key
    options = {**inputs._asdict(), "dropout_key": None if key is None else key.reshape(1, 2)}
    present = tuple(name for name in OPTIONAL if options.get(name) is not None)
    window = None if settings.window is None else tuple(map(int, settings.window))
    params = {"causal": settings.is_causal, "window": window, "rate": settings.rate, "scale": scale, "precision": None}
    return [options[name] for name in present], {"optional": present, **params}


def _empty_rows(log_sums: Array) -> Array:
    """Whether queries see no key, along the axes of the result."""
    return tnp.permute_dims(tnp.isinf(log_sums), (0, 2, 1))[..., None]
