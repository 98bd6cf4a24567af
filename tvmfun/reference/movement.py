"""Reference implementations of ops that move elements: shapes, slices, padding, joining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.reference.meaning import enter

Ints = tuple[int, ...]


def pad(x: np.ndarray, value: Any, low: Ints, high: Ints, interior: Ints) -> np.ndarray:
    """``x`` with ``interior`` copies of ``value`` between elements and ``low`` and ``high`` around; negative crops."""
    sizes = [max(0, n + (n - 1) * i) for n, i in zip(x.shape, interior, strict=True)]
    full = np.full([n + max(a, 0) + max(b, 0) for n, a, b in zip(sizes, low, high, strict=True)], value, x.dtype)
    inside = zip(sizes, low, interior, strict=True)
    full[tuple(slice(max(a, 0), max(a, 0) + n, i + 1) for n, a, i in inside)] = x
    crop = zip(full.shape, low, high, strict=True)
    return full[tuple(slice(min(n, max(-a, 0)), max(0, n - max(-b, 0))) for n, a, b in crop)]


def _iota(shape: Ints, axis: int, dtype: str) -> np.ndarray:
    steps = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(steps, shape).astype(dtypes.canonical(dtype))


_MEANINGS: dict[str, Callable[..., Any]] = {
    "reshape": lambda x, shape: np.reshape(x, shape),
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape),
    "permute_dims": lambda x, axes: np.transpose(x, axes),
    "slice": lambda x, start, stop, step: x[tuple(map(slice, start, stop, step))],
    "pad": pad,
    "flip": lambda x, axes: np.flip(x, axes),
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "iota": _iota,
    "dim_size": lambda size, dtype: np.asarray(size, dtypes.canonical(dtype)),
}


def enter_all() -> None:
    """Adds the reference implementations of this module to the table."""
    enter(_MEANINGS, exact=True, raw=True)
