"""Reference implementations of gathers, scatters, dynamic slices, sorting and searching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.reference.meaning import enter
from tvmfun.reference.movement import Ints

_COMBINE: dict[str, Callable[..., Any]] = {
    "set": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _each(function: Callable[..., np.ndarray], batch: int, *arrays: np.ndarray) -> np.ndarray:
    """Applies ``function`` to the parts of arrays along their ``batch`` common leading axes."""
    lead = arrays[0].shape[:batch]
    parts = [function(*(array[at] for array in arrays)) for at in np.ndindex(*lead)]
    return np.stack(parts).reshape((*lead, *parts[0].shape)) if parts else None  # type: ignore[return-value]


def _gather(x: np.ndarray, indices: np.ndarray, mode: str, batch: int = 0) -> np.ndarray:
    def one(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        at = indices.astype(object) if indices.dtype == np.uint64 else indices.astype(np.int64)
        sizes = np.asarray(x.shape[: indices.shape[-1]], np.int64)
        inside = ((at >= 0) & (at < sizes)).all(axis=-1).astype(bool)
        if 0 in sizes:
            return np.zeros((*indices.shape[:-1], *x.shape[len(sizes) :]), x.dtype)
        held = np.minimum(np.maximum(at, 0), sizes - 1).astype(np.int64)
        # Indices without components read the whole array.
        found = x[tuple(np.moveaxis(held, -1, 0))] if len(sizes) else np.broadcast_to(x, (*at.shape[:-1], *x.shape))
        if mode != "fill":
            return found
        rest = (1,) * (found.ndim - inside.ndim)
        return np.where(inside.reshape((*inside.shape, *rest)), found, np.zeros((), x.dtype))

    result = _each(one, batch, x, indices)
    return np.zeros((*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :])) if result is None else result


def _scatter(
    x: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    mode: str,
    batch: int = 0,
    unique: bool = False,
    size: Ints | None = None,
) -> np.ndarray:
    array = x if size is None else np.full(size, x)

    def one(x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        out = x.copy()
        for point in np.ndindex(*indices.shape[:-1]):
            at = tuple(int(i) for i in indices[point])
            if all(0 <= i < n for i, n in zip(at, x.shape, strict=False)):
                out[at] = _COMBINE[mode](out[at], updates[point])
        return out

    result = _each(one, batch, array, indices, updates)
    return array if result is None else result


def _ordered(x: np.ndarray) -> np.ndarray:
    """Values that NumPy sorts with NaN last, which it does not for bfloat16."""
    return x.astype(np.float32) if x.dtype == dtypes.bfloat16 else x


def _begins(starts: Any, shape: Ints, sizes: Ints) -> list[int]:
    return [max(0, min(int(start), n - size)) for start, n, size in zip(starts, shape, sizes, strict=True)]


def _dynamic_slice(x: np.ndarray, *starts: np.ndarray, sizes: Ints) -> np.ndarray:
    if starts and starts[0].ndim:
        rows = [_dynamic_slice(row, *at, sizes=sizes) for row, *at in zip(x, *starts, strict=True)]
        return np.stack(rows) if rows else np.zeros((0, *sizes), x.dtype)
    begins = _begins(starts, x.shape, sizes)
    return x[tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))]


def _dynamic_update_slice(x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    if starts and starts[0].ndim:
        rows = [_dynamic_update_slice(row, new, *at) for row, new, *at in zip(x, update, *starts, strict=True)]
        return np.stack(rows) if rows else x
    out = x.copy()
    begins = _begins(starts, x.shape, update.shape)
    out[tuple(slice(begin, begin + size) for begin, size in zip(begins, update.shape, strict=True))] = update
    return out


def _searchsorted(x: np.ndarray, values: np.ndarray, side: Any, batch: int = 0) -> np.ndarray:
    x, values = _ordered(x), _ordered(values)
    result = _each(lambda row, wanted: np.asarray(np.searchsorted(row, wanted, side)), batch, x, values)
    return np.zeros(values.shape, np.int32) if result is None else result


def _top_k_indices(x: np.ndarray, *, k: int) -> np.ndarray:
    backwards = np.argsort(_ordered(x)[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return (x.shape[-1] - 1 - backwards)[..., :k]


def enter_all() -> None:
    """Adds the reference implementations of this module to the table."""
    moved: dict[str, Callable[..., Any]] = {
        "gather": _gather,
        "dynamic_slice": _dynamic_slice,
        "dynamic_update_slice": _dynamic_update_slice,
        "argsort": lambda x: np.argsort(_ordered(x), axis=-1, kind="stable"),
        "top_k_indices": _top_k_indices,
        "searchsorted": _searchsorted,
    }
    enter(moved, exact=True, raw=True)
    enter({"scatter": _scatter}, partial="sums")
