"""Runs a program twice: with the modules of JAX and optax, and with ours under their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import numpy as np
import optax

import tvmfun
import tvmfun.nn
import tvmfun.optim

THEIRS: dict[str, Any] = {
    "jax": jax,
    "jnp": jax.numpy,
    "lax": jax.lax,
    "nn": jax.nn,
    "optax": optax,
    "random": jax.random,
}
#: What the imports of a program become.
OURS: dict[str, Any] = {
    "jax": tvmfun,
    "jnp": tvmfun.numpy,
    "lax": tvmfun.lax,
    "nn": tvmfun.nn,
    "optax": tvmfun.optim,
    "random": tvmfun.random,
}


def compare(program: Callable[..., dict[str, Any]], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Checks that a program of modules, which it takes by their usual names, returns the same numbers with either."""
    names = list(inspect.signature(program).parameters)
    expected, found = (program(*(modules[name] for name in names)) for modules in (THEIRS, OURS))
    assert expected.keys() == found.keys()
    for key in expected:
        theirs, ours = jax.tree.leaves(expected[key]), tvmfun.tree.leaves(found[key])
        assert len(theirs) == len(ours), key
        for a, b in zip(ours, theirs, strict=True):
            a, b = np.asarray(a), np.asarray(b)
            assert a.shape == b.shape and a.dtype == b.dtype, f"{key}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol * max(1.0, np.abs(b).max(initial=0)), err_msg=key)
