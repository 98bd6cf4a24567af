"""Arguments and results of programs on two devices."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvmfun


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_agree(left: Any, right: Any, **options: Any) -> None:
    """Compares two trees: shapes, dtypes, and elements with the tolerances in ``options``."""
    for one, other in zip(tvmfun.tree.leaves(left), tvmfun.tree.leaves(right), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, **options)
