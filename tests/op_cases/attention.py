"""Ways to call attention and its gradients, and what the formulas say in NumPy."""

from __future__ import annotations

import numpy as np

from op_cases.case import Case, bools, reals

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


def attention(query, key, value, *options, optional, causal, window, rate, scale, precision):
    bias, limits = split(options, optional)
    of_scores = scores(query, key, bias, everything(**limits, causal=causal, window=window), scale)
    sums = log_sums(of_scores)
    weights = np.exp(of_scores - sums[..., None])
    return np.einsum("bnts,bsnh->btnh", weights, np.repeat(value, N // K, axis=2)), sums


def gradients(query, key, value, g, sums, dots, *options, optional, causal, window, rate, scale, precision):
    bias, limits = split(options, optional)
    of_scores = scores(query, key, bias, everything(**limits, causal=causal, window=window), scale)
    weights = np.exp(of_scores - sums[..., None])
    slopes = np.einsum("btnh,bsnh->bnts", g, np.repeat(value, N // K, axis=2)) - dots.transpose(0, 2, 1)[..., None]
    grouped = lambda x: x.reshape(B, S, K, N // K, H).sum(3)
    return (
        np.einsum("bnts,bsnh->btnh", weights * slopes, np.repeat(key, N // K, axis=2)),
        grouped(np.einsum("bnts,btnh->bsnh", weights * slopes, query)) * scale,
        grouped(np.einsum("bnts,btnh->bsnh", weights, g)),
    )


FACTORS = reals(B, T, N, H), reals(B, S, K, H), reals(B, S, K, H)
OPTIONS = {"bias": reals(1, N, T, 1), "mask": bools(B, 1, T, S), "query_lengths": LENGTHS[0], "key_lengths": LENGTHS[1]}
PLAIN = {"optional": (), "causal": False, "window": None, "rate": 0.0, "scale": 1.0, "precision": None}
VARIANTS = {
    (): {"scale": 0.5},
    ("bias", "mask"): {"causal": True},
    ("query_lengths", "key_lengths"): {"window": WINDOW},
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


CASES = dict(zip(("attention", "attention_gradients"), map(list, zip(*cases(), strict=True)), strict=True))
