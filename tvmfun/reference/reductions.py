"""Reference implementations of reductions and of reductions over windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun.reference.meaning import enter
from tvmfun.reference.movement import Ints, pad

Padding = tuple[tuple[int, int], ...]


def _lowest(dtype: np.dtype) -> Any:
    return -math.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _extremum(function: Callable, start: Callable[[np.dtype], Any]) -> Callable:
    def meaning(x: np.ndarray, axis: Ints) -> np.ndarray:
        return function(x, axis=axis) if x.dtype == np.bool_ else function(x, axis=axis, initial=start(x.dtype))

    return meaning


def _highest(dtype: np.dtype) -> Any:
    return math.inf if dtype.kind == "f" else np.iinfo(dtype).max


def windows(x: np.ndarray, fill: Any, window: Ints, stride: Ints, padding: Padding) -> np.ndarray:
    """The elements of each window along a trailing axis, with ``fill`` outside of the array."""
    source = pad(x, fill, tuple(p[0] for p in padding), tuple(p[1] for p in padding), (0,) * x.ndim)
    if any(n < size for n, size in zip(source.shape, window, strict=True)):
        sizes = [max(0, (n - k) // s + 1) for n, k, s in zip(source.shape, window, stride, strict=True)]
        return np.zeros((*sizes, int(np.prod(window))), x.dtype)
    views = np.lib.stride_tricks.sliding_window_view(source, window)
    chosen = views[tuple(slice(None, None, step) for step in stride)]
    return chosen.reshape(*chosen.shape[: x.ndim], -1)


def _window_argmax(x: np.ndarray, out: np.ndarray, **params: Any) -> np.ndarray:
    # The extremum is found by comparing with the result, rounded as that was.
    return np.argmax(windows(x, _lowest(x.dtype), **params), axis=-1)


def _positions(offset: np.ndarray, window: Ints, stride: Ints, padding: Padding) -> tuple[np.ndarray, ...]:
    """The indices of the element with the given offset in each window."""
    corners = np.indices(offset.shape)
    inner = np.unravel_index(offset, window)
    pairs = zip(corners, inner, stride, padding, strict=True)
    return tuple(corner * step + own - before for corner, own, step, (before, _) in pairs)


def _window_put(g: np.ndarray, offset: np.ndarray, size: Ints, **params: Any) -> np.ndarray:
    out = np.zeros(size, g.dtype)
    np.add.at(out, _positions(offset, **params), g)
    return out


_EXACT: dict[str, Callable[..., Any]] = {
    "max": _extremum(np.max, _lowest),
    "min": _extremum(np.min, _highest),
    "argmax": lambda x, axis: np.argmax(x, axis),
    "argmin": lambda x, axis: np.argmin(x, axis),
    "window_max": lambda x, **params: windows(x, _lowest(x.dtype), **params).max(axis=-1),
    "window_argmax": _window_argmax,
    "window_take": lambda x, offset, **params: x[_positions(offset, **params)],
}

_SUMS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, axis: np.sum(x, axis=axis, dtype=x.dtype),
    "window_sum": lambda x, **params: windows(x, 0, **params).sum(axis=-1, dtype=x.dtype),
    "window_put": _window_put,
}


def enter_all() -> None:
    """Adds the reference implementations of this module to the table."""
    enter(_EXACT, exact=True)
    enter(_SUMS, partial="sums")
    enter({"prod": lambda x, axis: np.prod(x, axis=axis, dtype=x.dtype)}, partial="products")
