"""Functions written once, for our modules and for JAX's: values, dtypes and derivatives must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tvmfun
from support.oracle import x64
from tvmfun import lax, tree


def agree(function: Callable, *arguments: Any, tolerance: float = 1e-11, derivatives: bool = True) -> Any:
    """Compares ``function(lax, *arguments)``, compiled, with JAX's result, and the cotangents of the float64 arguments.

    Returns our result.
    """
    ours = lambda *args: function(lax, *args)
    theirs = lambda *args: function(jax.lax, *args)
    floats = [i for i, x in enumerate(arguments) if getattr(x, "dtype", None) == np.float64] if derivatives else []

    def with_floats(of: Callable) -> Callable:
        def call(*values: Any) -> Any:
            full = list(arguments)
            for i, value in zip(floats, values, strict=True):
                full[i] = value
            return of(*full)

        return call

    def ours_of(arguments: list, values: list, seeds: list) -> Any:
        if not floats:
            return ours(*arguments), ()
        result, pull = tvmfun.vjp(with_floats(ours), *values)
        return ours(*arguments), pull(tree.unflatten(tree.structure(result), seeds))

    def theirs_of(arguments: list, values: list, seeds: list) -> Any:
        # One program: outside of jit, JAX compiles every op.
        if not floats:
            return theirs(*arguments), ()
        result, pull = jax.vjp(with_floats(theirs), *values)
        zeros = lambda x, seed: seed if np.dtype(x.dtype).kind == "f" else np.zeros(x.shape, jax.dtypes.float0)
        seeds = jax.tree.unflatten(jax.tree.structure(result), seeds)
        return theirs(*arguments), pull(jax.tree.map(zeros, result, seeds))

    with x64():
        rng = np.random.default_rng(0)
        # Results that are not floats have no cotangents.
        seed = lambda x: (
            rng.normal(size=x.shape).astype(x.dtype) if np.dtype(x.dtype).kind == "f" else np.zeros(x.shape)
        )
        values, arrays = [arguments[i] for i in floats], list(map(jnp.asarray, arguments))
        seeds = list(map(seed, jax.tree.leaves(jax.eval_shape(theirs, *arrays))))
        value, cotangents = tvmfun.jit(ours_of)(list(arguments), values, seeds)
        expected, expected_cotangents = jax.jit(theirs_of)(arrays, values, seeds)
        close(value, expected, tolerance)
        close(cotangents, expected_cotangents, tolerance)
    return value


def close(got: Any, expected: Any, tolerance: float) -> None:
    """Compares trees; JAX's integers may be wider than ours."""
    ours, theirs = tree.leaves(got), jax.tree.leaves(expected)
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype or (np.dtype(x.dtype).kind, np.dtype(y.dtype).kind) == ("i", "i")
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


def close_to_dtype(actual: Any, expected: Any, dtype: str = "float32") -> None:
    """Compares arrays within the precision of a dtype, which must be that of the first."""
    assert (actual.dtype, actual.shape) == (np.dtype(dtype), expected.shape)
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def same_bits(got: Any, expected: Any) -> None:
    """Compares arrays bit by bit, but for those of NaN."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(got, expected)
    if got.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(expected)[numbers])
