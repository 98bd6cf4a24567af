"""One way to call an op, and data to call it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

RNG = np.random.default_rng(7)


def reals(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return RNG.uniform(low, high, shape)


def apart(*shape: int) -> np.ndarray:
    """Numbers that are all different and away from 0, so that maxima and kinks are not near."""
    count = int(np.prod(shape))
    return (RNG.permutation(count) - count / 2 + 0.3).reshape(shape) / 3


def ints(*shape: int, low: int = -5, high: int = 6) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


def bools(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2, shape).astype(bool)


@dataclass
class Case:
    """One way to call an op, and what NumPy says about it."""

    reference: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    params: dict[str, Any] = field(default_factory=dict)
    order: int = 2
    exact: bool = False
