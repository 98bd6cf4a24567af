"""Operators that draw random numbers: each takes a key of its own, and draws other numbers than PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tvmfun.numpy as tnp
from tvmfun import random
from tvmfun.interop.layouts import ChannelsLast
from tvmfun.interop.torch.aten.table import Family

aten = Family(__name__)

#: A function that returns the key of the operator, or raises if there is none.
Draw: TypeAlias = Callable[[], Any]


@aten.reads("native_dropout", random=True, layouts=True)
def _native_dropout(draw: Draw, x: Any, p: float, train: bool | None) -> Any:
    """The array with elements zeroed with probability ``p``, the others scaled up, and the mask of what is kept."""
    stored = x.stored if isinstance(x, ChannelsLast) else x
    if train is False or p == 0:
        return x, tnp.ones(x.shape, "bool")
    keep = random.bernoulli(draw(), 1 - p, stored.shape)
    y = tnp.where(keep, stored * (1 / (1 - p) if p < 1 else 0.0), tnp.zeros_like(stored))
    return (ChannelsLast(y), ChannelsLast(keep)) if isinstance(x, ChannelsLast) else (y, keep)


@aten.reads("bernoulli", random=True)
def _bernoulli(draw: Draw, x: Any, p: float | None = None) -> Any:
    return random.bernoulli(draw(), x if p is None else p, x.shape).astype(x.dtype)


@aten.reads("rand", random=True)
def _rand(draw: Draw, size: Sequence[int], *, dtype: str | None = None) -> Any:
    return random.uniform(draw(), tuple(size), dtype or "float32")


@aten.reads("rand_like", random=True)
def _rand_like(draw: Draw, x: Any, *, dtype: str | None = None) -> Any:
    return random.uniform(draw(), x.shape, dtype or x.dtype)


@aten.reads("uniform", random=True)
def _uniform(draw: Draw, x: Any, low: float = 0.0, high: float = 1.0) -> Any:
    return random.uniform(draw(), x.shape, x.dtype, low, high)


@aten.reads("randn", random=True)
def _randn(draw: Draw, size: Sequence[int], *, dtype: str | None = None) -> Any:
    return random.normal(draw(), tuple(size), dtype or "float32")


@aten.reads("randn_like", random=True)
def _randn_like(draw: Draw, x: Any, *, dtype: str | None = None) -> Any:
    return random.normal(draw(), x.shape, dtype or x.dtype)


@aten.reads("normal_functional", random=True)
def _normal(draw: Draw, x: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    return mean + std * random.normal(draw(), x.shape, x.dtype)


@aten.reads("exponential", random=True)
def _exponential(draw: Draw, x: Any, rate: float = 1.0) -> Any:
    return random.exponential(draw(), x.shape, x.dtype) / rate


@aten.reads("randint", random=True)
def _randint(draw: Draw, high: int, size: Sequence[int], *, dtype: str | None = None) -> Any:
    return random.randint(draw(), tuple(size), 0, high).astype(dtype or "int64")


@aten.reads("randint.low", random=True)
def _randint_from(draw: Draw, low: int, high: int, size: Sequence[int], *, dtype: str | None = None) -> Any:
    return random.randint(draw(), tuple(size), low, high).astype(dtype or "int64")


@aten.reads("randperm", random=True)
def _randperm(draw: Draw, n: int, *, dtype: str | None = None) -> Any:
    return random.permutation(draw(), n).astype(dtype or "int64")
