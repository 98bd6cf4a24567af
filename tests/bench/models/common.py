"""Parts that several models share: initial values, losses, normalizations."""

from __future__ import annotations

import numpy as np


def normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Normal numbers in float32."""
    values = rng.standard_normal(shape, dtype="float32")
    values *= np.float32(scale)
    return values


def zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros in float32."""
    return np.zeros(shape, "float32")


def ones(shape: tuple[int, ...]) -> np.ndarray:
    """Ones in float32."""
    return np.ones(shape, "float32")


def cross_entropy(ns, logits, labels, weights=None):
    """The mean, or weighted mean, of the negative log-likelihood of the labels."""
    logp = ns.nn.log_softmax(logits)
    picked = -ns.np.take_along_axis(logp, labels[..., None], axis=-1)[..., 0]
    return ns.np.mean(picked) if weights is None else ns.np.sum(picked * weights) / ns.np.sum(weights)


def dropout(ns, key, x, rate):
    """Inverted dropout; none without a key."""
    if key is None:
        return x
    return ns.np.where(ns.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0.0)


def layer_norm(ns, x, scale, bias):
    """Normalization over the last axis."""
    mean = ns.np.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = ns.np.mean(centred * centred, axis=-1, keepdims=True)
    return centred * ns.lax.rsqrt(variance + 1e-5) * scale + bias
