"""Attention by its formula, with the scores of all pairs in memory: for short sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import random
from tvmfun.core.array import Array
from tvmfun.nn.functional.softmax import maxima, softmax_of_shifted
from tvmfun.typing import ArrayLike

__all__ = ["AttentionInputs", "AttentionSettings", "conjunction", "direct_attention", "lowest_score"]


class AttentionInputs(NamedTuple):
    """The array arguments of an attention, each with four axes, or None."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    mask: Array | None
    query_lengths: Array | None
    key_lengths: Array | None
    dropout_key: Array | None


@dataclass(frozen=True)
class AttentionSettings:
    """The static arguments of an attention."""

    is_causal: bool
    window: tuple[int, int] | None
    rate: float

    def visible(self, t: Array, s: Array, query_length: Array | None, key_length: Array | None) -> Array | None:
        """Whether queries at positions ``t`` attend to keys at positions ``s``; None if all do to all."""
        conditions = []
        if self.is_causal:
            conditions.append(t >= s)
        if self.window is not None:
            before, after = self.window
            conditions += [s >= t - before, s <= t + after]
        if query_length is not None:
            conditions.append(t < query_length)
        if key_length is not None:
            conditions.append(s < key_length)
        return conjunction(conditions)

    def has_empty_rows(self, inputs: AttentionInputs) -> bool:
        """Whether there may be queries that attend to no key."""
        optional = (inputs.bias, inputs.mask, inputs.query_lengths, inputs.key_lengths, self.window)
        return any(x is not None for x in optional)


def conjunction(conditions: Sequence[Array | None]) -> Array | None:
    """The logical and of all conditions that are not None; None if there are none."""
    result = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else tnp.logical_and(result, condition)
    return result


def direct_attention(settings: AttentionSettings, inputs: AttentionInputs, scale: ArrayLike | None = None) -> Array:
    """The softmax of all scores times the values; ``scale`` multiplies the products of queries and keys."""
    query, key, value, bias = inputs[:4]
    batch, length, heads, width = query.shape
    groups = key.shape[2]
    grouped = query if groups == heads else query.reshape(batch, length, groups, heads // groups, width)
    product = "btnh,bsnh->bnts" if groups == heads else "btkgh,bskh->bkgts"
    scores = tnp.einsum(product, grouped, key).reshape(batch, heads, length, key.shape[1])
    scores = scores if scale is None else scores * scale
    lowest = lowest_score(scores.dtype)
    if bias is not None:
        scores = tnp.maximum(scores + bias, lowest)  # the softmax of a row of -inf would be NaN
    t, s = tnp.arange(length)[:, None], tnp.arange(key.shape[1])
    lengths = (None if x is None else x.reshape(-1, 1, 1, 1) for x in (inputs.query_lengths, inputs.key_lengths))
    visible = conjunction([settings.visible(t, s, *lengths), inputs.mask])
    if visible is not None:
        scores = tnp.where(visible, scores, lowest)
    largest = maxima(scores, -1)
    weights = softmax_of_shifted(scores - largest, -1)
    if settings.rate:
        kept = random.bernoulli(cast(Array, inputs.dropout_key), 1 - settings.rate, weights.shape)
        dropped = tnp.where(kept, weights * (1 / (1 - settings.rate)), tnp.zeros_like(weights))
        weights = tnp.where(largest > lowest, dropped, weights) if settings.has_empty_rows(inputs) else dropped
    if groups == heads:
        return tnp.einsum("bnts,bsnh->btnh", weights, value)
    weights = weights.reshape(batch, groups, heads // groups, *weights.shape[2:])
    return tnp.einsum("bkgts,bskh->btkgh", weights, value).reshape(query.shape)


def lowest_score(dtype: np.dtype) -> np.generic:
    """The score of a masked pair: so low that its weight is 0, yet the difference of two such scores is finite."""
    return dtype.type(-0.7 * float(np.finfo(dtype).max))
