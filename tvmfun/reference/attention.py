"""Reference implementations of attention and its gradients: by the formulas, with all scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun.reference.meaning import enter
from tvmfun.reference.movement import Ints
from tvmfun.reference.products import threefry


class _Scores:
    """The scores of all pairs, minus infinity where they are masked, and the factors of dropout."""

    def __init__(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        others: Sequence[np.ndarray],
        *,
        optional: tuple[str, ...],
        causal: bool,
        window: tuple[int, int] | None,
        rate: float,
        scale: float,
        precision: str | None,
        narrow: bool = False,
    ) -> None:
        options = dict(zip(optional, others, strict=True))
        (batch, length, heads, _), keys = query.shape, key.shape[1]
        self.shared, self.scale = heads // key.shape[2], scale
        self.query, self.key, self.value = query, self.per_head(key), self.per_head(value)
        t, s = np.arange(length)[:, None], np.arange(keys)
        visible = np.ones((batch, heads, length, keys), bool)
        if causal:
            visible &= s <= t
        if window is not None:
            visible &= (s >= t - window[0]) & (s <= t + window[1])
        for name, position in (("query_lengths", t), ("key_lengths", s)):
            if name in options:
                visible &= position < options[name].reshape(-1, 1, 1, 1)
        if "mask" in options:
            visible &= options["mask"]
        scores = np.einsum("btnh,bsnh->bnts", query, self.key) * scale + options.get("bias", 0)
        self.scores = np.where(visible, scores, -np.inf)
        self.factors = np.ones(visible.shape)
        if rate:
            words = options.get("kept")
            if words is None:
                words = dropout_bits(options["dropout_key"], shape=visible.shape, rate=rate, causal=False)
            kept = words[..., np.arange(keys) // 32] >> (np.arange(keys) % 32).astype(np.uint32) & np.uint32(1)
            self.factors = kept / (1 - rate)

    def per_head(self, x: np.ndarray) -> np.ndarray:
        """Keys or values, repeated for the heads that share them."""
        return np.repeat(x, self.shared, axis=2)

    def per_group(self, x: np.ndarray) -> np.ndarray:
        """The transpose of :meth:`per_head`."""
        return x.reshape(*x.shape[:2], x.shape[2] // self.shared, self.shared, x.shape[3]).sum(3)


def _attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *others: np.ndarray, **params: Any
) -> tuple[np.ndarray, np.ndarray]:
    own = _Scores(query, key, value, others, **params)
    largest = own.scores.max(-1, initial=-np.inf)
    largest = np.where(np.isneginf(largest), 0, largest)
    exponentials = np.exp(own.scores - largest[..., None])
    sums = exponentials.sum(-1)
    log_sums = np.where(sums == 0, np.inf, largest + np.log(sums))
    weights = np.exp(own.scores - log_sums[..., None]) * own.factors
    return np.einsum("bnts,bsnh->btnh", weights, own.value), log_sums


def _gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    g: np.ndarray,
    log_sums: np.ndarray,
    dots: np.ndarray,
    *others: np.ndarray,
    **params: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    own = _Scores(query, key, value, others, **params)
    weights = np.exp(own.scores - log_sums[..., None])
    slopes = np.einsum("btnh,bsnh->bnts", g, own.value) * own.factors - dots.transpose(0, 2, 1)[..., None]
    slopes = weights * slopes
    d_query = np.einsum("bnts,bsnh->btnh", slopes, own.key) * own.scale
    d_key = own.per_group(np.einsum("bnts,btnh->bsnh", slopes, own.query)) * own.scale
    return d_query, d_key, own.per_group(np.einsum("bnts,btnh->bsnh", weights * own.factors, g))


def dropout_bits(keys: np.ndarray, *, shape: Ints, rate: float, causal: bool) -> np.ndarray:
    """Words of 32 bits that say which weights of scores of this shape dropout keeps."""
    batch, heads, length, width = shape
    one_key = (batch // max(1, len(keys)), heads, length, width)
    draws = [threefry(words, np.zeros(2, np.uint32), one_key, "xor") for words in keys]
    none = np.zeros((0, heads, length, width), np.uint32)
    kept = np.concatenate([none, *draws]) >> np.uint32(9) < np.ceil(float(np.float32(1 - rate)) * 2**23)
    if causal:
        kept &= np.arange(width) // 32 * 32 <= np.arange(length)[:, None]
    kept = np.pad(kept, [(0, 0)] * 3 + [(0, -width % 32)]).reshape(*kept.shape[:3], -(-width // 32), 32)
    return (kept.astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(-1, dtype=np.uint32)


def enter_all() -> None:
    """Adds the reference implementations of this module to the table."""
    enter({"attention": _attention, "attention_gradients": _gradients}, partial="several")
    enter({"dropout_bits": dropout_bits}, exact=True)
