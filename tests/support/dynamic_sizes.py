"""Functions of dynamic sizes, compiled once and compared with NumPy for each of several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.derivatives import in_numpy
from tvmfun import jit, tree
from tvmfun.counters import counted

SIZES = (1, 2, 3, 7, 64, 100)
RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def same(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Compares two trees; sums may be in another order."""
    for a, b in zip(tree.leaves(got), tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def agrees(function, arguments, dynamic_shapes, sizes=SIZES, tolerance: float = 2e-5) -> None:
    """One compile serves all sizes, with the results that NumPy computes for each."""
    dynamic = jit(function, dynamic_shapes=dynamic_shapes)
    calls = [arguments(n) for n in sizes]
    with counted() as events:
        results = [dynamic(*call) for call in calls]
    assert events.compiles + events.loads <= 1
    for call, result in zip(calls, results, strict=True):
        same(result, in_numpy(function, *call)(*call), tolerance)
