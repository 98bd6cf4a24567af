"""Reference implementations of cumulative reductions and linear recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun.reference.meaning import enter


def _along(accumulate: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def meaning(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        if x.shape[axis] == 0:
            return x
        return np.flip(accumulate(np.flip(x, axis), axis), axis) if reverse else accumulate(x, axis)

    return meaning


def _recurrence(a: np.ndarray, b: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    """``y[i] = a[i] * y[i - 1] + b[i]``."""
    factors, terms = (np.moveaxis(x, axis, 0)[:: -1 if reverse else 1] for x in (a, b))
    y = terms.copy()
    for i in range(1, len(y)):
        y[i] = factors[i] * y[i - 1] + terms[i]
    return np.moveaxis(y[:: -1 if reverse else 1], 0, axis)


def _position(x: np.ndarray, axis: int, reverse: bool, largest: bool) -> np.ndarray:
    """The running index of the first extremum, in the order of accumulation."""
    rows = np.moveaxis(x, axis, 0)[:: -1 if reverse else 1]
    find = np.argmax if largest else np.argmin
    found = [find(rows[: i + 1], axis=0) for i in range(len(rows))]
    positions = np.stack(found) if found else np.zeros(rows.shape, np.int64)
    positions = len(rows) - 1 - positions[::-1] if reverse else positions
    return np.moveaxis(positions, 0, axis)


def enter_all() -> None:
    """Adds the reference implementations of this module to the table."""
    sums: dict[str, Callable[..., Any]] = {
        "cumsum": _along(lambda x, axis: np.cumsum(x, axis, dtype=x.dtype)),
        "linear_recurrence": _recurrence,
    }
    exact: dict[str, Callable[..., Any]] = {
        "cummax": _along(np.maximum.accumulate),
        "cummin": _along(np.minimum.accumulate),
        "cum_arg_extremum": _position,
    }
    enter(sums, partial="sums")
    enter({"cumprod": _along(lambda x, axis: np.cumprod(x, axis, dtype=x.dtype))}, partial="products")
    enter({"cumlogsumexp": _along(np.logaddexp.accumulate)}, partial="several")
    enter(exact, exact=True)
