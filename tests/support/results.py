"""Arguments and results of programs on two devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import reference


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_agree(left: Any, right: Any, **options: Any) -> None:
    """Compares two trees: shapes, dtypes, and elements with the tolerances in ``options``."""
    for one, other in zip(tvmfun.tree.leaves(left), tvmfun.tree.leaves(right), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, **options)


def assert_evaluated(f: Callable[[Any], Any], arrays: Sequence[np.ndarray], rounding: float | None) -> None:
    """Compares a function of each array with what the reference computes.

    Args:
        f: the function; its results have the dtype of the argument if that is a float.
        arrays: of one dtype.
        rounding: the relative tolerance of floats, whose gradients are compared as well; None for other numbers, which
            have to be equal.
    """

    def weighted(x: Any) -> Any:
        results = tvmfun.tree.leaves(f(x))
        weights = [(tnp.arange(y.size) * 37 % 11 - 5).reshape(y.shape) for y in results]
        return sum(tnp.sum(y * w.astype(arrays[0].dtype)) for y, w in zip(results, weights, strict=True))

    def function(*xs: Any) -> Any:
        return [(f(x), () if rounding is None else tvmfun.grad(weighted)(x)) for x in xs]

    program = tvmfun.trace(function)(*arrays)
    expected = reference.evaluate(program, [*program.captured, *arrays])
    digits = rounding or 0
    for got, want in zip(tvmfun.tree.leaves(tvmfun.jit(function)(*arrays)), expected, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        got, want = np.asarray(got, "float64"), np.asarray(want, "float64")
        np.testing.assert_allclose(got, want, rtol=digits, atol=30 * digits)
