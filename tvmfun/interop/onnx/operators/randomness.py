"""Random numbers, drawn from parts of the function's key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import random
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.tensors import dtype_of
from tvmfun.typing import Key

onnx = Family(__name__)


def _as(values: Any, dtype: int | None, like: Any = None) -> Any:
    kind = dtype_of(dtype, "random numbers") if dtype is not None else like.dtype
    return tnp.astype(values, kind)


@onnx.reads("Bernoulli", random=True)
def _bernoulli(key: Key, x: Any, *, dtype: int | None = None, seed: float | None = None) -> Any:
    return _as(random.uniform(key, x.shape) < x, dtype, x)


@onnx.reads("Multinomial", random=True)
def _multinomial(key: Key, x: Any, *, sample_size: int = 1, dtype: int = 6, seed: float | None = None) -> Any:
    """Classes drawn for each row of the logarithms of probabilities."""
    draws = random.categorical(key, x[:, None, :], axis=-1, shape=(x.shape[0], sample_size))
    return _as(draws, dtype)


def _normal(key: Key, shape: Sequence[int], mean: float, scale: float) -> Any:
    return mean + scale * random.normal(key, tuple(shape))


def _uniform(key: Key, shape: Sequence[int], low: float, high: float) -> Any:
    return low + (high - low) * random.uniform(key, tuple(shape))


@onnx.reads("RandomNormal", random=True)
def _random_normal(
    key: Key,
    *,
    shape: Sequence[int],
    mean: float = 0.0,
    scale: float = 1.0,
    dtype: int = 1,
    seed: float | None = None,
) -> Any:
    return _as(_normal(key, shape, mean, scale), dtype)


@onnx.reads("RandomNormalLike", random=True)
def _random_normal_like(
    key: Key, x: Any, *, mean: float = 0.0, scale: float = 1.0, dtype: int | None = None, seed: float | None = None
) -> Any:
    return _as(_normal(key, x.shape, mean, scale), dtype, x)


@onnx.reads("RandomUniform", random=True)
def _random_uniform(
    key: Key, *, shape: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: int = 1, seed: float | None = None
) -> Any:
    return _as(_uniform(key, shape, low, high), dtype)


@onnx.reads("RandomUniformLike", random=True)
def _random_uniform_like(
    key: Key, x: Any, *, low: float = 0.0, high: float = 1.0, dtype: int | None = None, seed: float | None = None
) -> Any:
    return _as(_uniform(key, x.shape, low, high), dtype, x)
