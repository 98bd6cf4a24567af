"""Functions written once, for our modules and for JAX's: values, dtypes and derivatives must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from oracle import x64

import tvmfun
from tvmfun import lax, tree


def agree(function: Callable, *arguments: Any, tolerance: float = 1e-11, derivatives: bool = True) -> Any:
    """Compares ``function(lax, *arguments)``, compiled, with JAX's result, and the cotangents of the float64 arguments.

    Returns our result.
    """
    ours = lambda *args: function(lax, *args)
    theirs = lambda *args: function(jax.lax, *args)
    with x64():
        value = tvmfun.jit(ours)(*arguments)
        expected = theirs(*map(jnp.asarray, arguments))
        close(value, expected, tolerance)
        floats = [i for i, x in enumerate(arguments) if getattr(x, "dtype", None) == np.float64]
        if not derivatives or not floats:
            return value
        rng = np.random.default_rng(0)
        seeds = [
            rng.normal(size=x.shape).astype(x.dtype)
            if np.dtype(x.dtype).kind == "f"
            else np.zeros(x.shape, jax.dtypes.float0)
            for x in jax.tree.leaves(expected)
        ]
        own_seeds = [np.zeros(x.shape) if x.dtype == jax.dtypes.float0 else x for x in seeds]

        def with_floats(of: Callable) -> Callable:
            def call(*values: Any) -> Any:
                full = list(arguments)
                for i, value in zip(floats, values, strict=True):
                    full[i] = value
                return of(*full)

            return call

        def pulled(values: list, seeds: list) -> Any:
            result, pull = tvmfun.vjp(with_floats(ours), *values)
            return pull(tree.unflatten(tree.structure(result), seeds))

        values = [arguments[i] for i in floats]
        found = tvmfun.jit(pulled)(values, own_seeds)
        result, pull = jax.vjp(with_floats(theirs), *values)
        close(found, pull(jax.tree.unflatten(jax.tree.structure(result), seeds)), tolerance)
    return value


def close(got: Any, expected: Any, tolerance: float) -> None:
    """Compares trees; JAX's integers may be wider than ours."""
    ours, theirs = tree.leaves(got), jax.tree.leaves(expected)
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype or (np.dtype(x.dtype).kind, np.dtype(y.dtype).kind) == ("i", "i")
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)
