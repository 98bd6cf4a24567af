"""Ways to call attention and its gradients, and what the formulas say in NumPy."""

from __future__ import annotations

import numpy as np

from op_cases.case import Case, bools, reals
from tvmfun import random

B, T, S, N, K, H = 2, 5, 7, 4, 2, 3
KEYS = np.asarray([[3, 5]], np.uint32)
LENGTHS = np.asarray([4, 5], np.int32), np.asarray([7, 3], np.int32)
WINDOW = (3, 2)


def scores(query, key, bias, visible, scale):
    """The scores of all pairs; ``visible`` says which count."""
    products = np.einsum("btnh,bsnh->bnts", query, np.repeat(key, N // K, axis=2))
    return np.where(visible, products * scale + bias, -np.inf)


def everything(mask=True, queries=None, keys=None, causal=False, window=None):
    t, s = np.arange(T)[:, None], np.arange(S)
    visible = np.broadcast_to(mask, (B, N, T, S)) & (not causal or s <= t)
    if window:
        visible = visible & (s >= t - window[0]) & (s <= t + window[1])
    for lengths, position in ((queries, t), (keys, s)):
        visible = visible if lengths is None else visible & (position < lengths.reshape(-1, 1, 1, 1))
    return visible


def log_sums(of_scores):
    """The logarithms of the sums of exponentials; infinity where there are none."""
    with np.errstate(divide="ignore"):
        sums = np.log(np.exp(of_scores).sum(-1))
    return np.where(np.isneginf(sums), np.inf, sums)


def split(options, optional):
    by_name = dict(zip(optional, options, strict=True))
    names = {"query_lengths": "queries", "key_lengths": "keys", "mask": "mask"}
    return by_name.get("bias", 0), {names[name]: x for name, x in by_name.items() if name in names}


def factors(options, optional, rate):
    """The factors of dropout, from words of bits."""
    if not rate:
        return 1.0
    words = dict(zip(optional, options, strict=True))["kept"]
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")[..., :S] / (1 - rate)


def attention(query, key, value, *options, optional, causal, window, rate, scale, precision):
    bias, limits = split(options, optional)
    of_scores = scores(query, key, bias, everything(**limits, causal=causal, window=window), scale)
    sums = log_sums(of_scores)
    weights = np.exp(of_scores - sums[..., None]) * factors(options, optional, rate)
    return np.einsum("bnts,bsnh->btnh", weights, np.repeat(value, N // K, axis=2)), sums


def gradients(query, key, value, g, sums, dots, *options, optional, causal, window, rate, scale, precision):
    bias, limits = split(options, optional)
    of_scores = scores(query, key, bias, everything(**limits, causal=causal, window=window), scale)
    weights = np.exp(of_scores - sums[..., None])
    dropped = factors(options, optional, rate)
    slopes = np.einsum("btnh,bsnh->bnts", g, np.repeat(value, N // K, axis=2)) * dropped
    slopes = slopes - dots.transpose(0, 2, 1)[..., None]
    grouped = lambda x: x.reshape(B, S, K, N // K, H).sum(3)
    return (
        np.einsum("bnts,bsnh->btnh", weights * slopes, np.repeat(key, N // K, axis=2)) * scale,
        grouped(np.einsum("bnts,btnh->bsnh", weights * slopes, query)) * scale,
        grouped(np.einsum("bnts,btnh->bsnh", weights * dropped, g)),
    )


FACTORS = reals(B, T, N, H), reals(B, S, K, H), reals(B, S, K, H)
OPTIONS = {"bias": reals(1, N, T, 1), "mask": bools(B, 1, T, S), "query_lengths": LENGTHS[0], "key_lengths": LENGTHS[1]}
OPTIONS["kept"] = np.random.default_rng(2).integers(0, 1 << 32, (B, N, T, 1), np.uint32)
PLAIN = {"optional": (), "causal": False, "window": None, "rate": 0.0, "scale": 1.0, "precision": None}
VARIANTS = {
    (): {"scale": 0.5},
    ("bias", "mask"): {"causal": True},
    ("query_lengths", "key_lengths"): {"window": WINDOW},
    ("mask", "kept"): {"rate": 0.25},
}


def cases():
    """Calls of the op and of its gradients."""
    for optional, params in VARIANTS.items():
        options = tuple(OPTIONS[name] for name in optional)
        params = {**PLAIN, **params, "optional": optional}
        result, sums = attention(*FACTORS, *options, **params)
        g = reals(B, T, N, H)
        yield (
            Case(attention, (*FACTORS, *options), params, order=0),
            Case(gradients, (*FACTORS, g, sums, (result * g).sum(-1), *options), params, order=0),
        )


def bits(keys, *, shape, rate, causal):
    """The words of draws of ``random.bernoulli``; the arrays of each key are one draw."""
    one_key = (shape[0] // len(keys), *shape[1:])
    kept = np.concatenate([np.asarray(random.bernoulli(key, 1 - rate, one_key)) for key in keys])
    t, s = np.arange(shape[2])[:, None], np.arange(shape[3])
    kept = kept & (not causal or s // 32 * 32 <= t)
    kept = np.pad(kept, [(0, 0)] * 3 + [(0, -shape[3] % 32)])
    return np.packbits(kept, axis=-1, bitorder="little").view(np.uint32)


BITS = [
    Case(bits, (KEYS,), {"shape": (2, 3, 5, 70), "rate": 0.3, "causal": False}, exact=True),
    Case(bits, (np.concatenate([KEYS, KEYS + 1]),), {"shape": (4, 2, 40, 64), "rate": 0.5, "causal": True}, exact=True),
]

CASES = dict(zip(("attention", "attention_gradients"), map(list, zip(*cases(), strict=True)), strict=True))
CASES["dropout_bits"] = BITS
