"""Optimizers over 50 steps as one compiled program, for tvmfun and for optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from support.oracle import quick_jit

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, optim, tree

STEPS = 50


class Library(NamedTuple):
    optim: Any
    numpy: Any
    jit: Callable
    scan: Callable
    value_and_grad: Callable


TVMFUN = Library(optim, tnp, tvmfun.jit, lax.scan, tvmfun.value_and_grad)
# The oracle is compiled in the quickest way: that takes a quarter of the time, and its numbers are as written.
OPTAX = Library(optax, jnp, quick_jit, jax.lax.scan, jax.value_and_grad)


def random_tree(shapes: dict, rng: np.random.Generator, dtype: str, leading: tuple[int, ...] = ()) -> dict:
    return {
        k: random_tree(s, rng, dtype, leading)
        if isinstance(s, dict)
        else np.asarray(rng.normal(size=leading + s)).astype(dtype)
        for k, s in shapes.items()
    }


class Case(NamedTuple):
    """A trajectory to run: ``update(library, transform, inputs, state, params, value)``, and where it starts."""

    make: Callable[[Any], Any]
    shapes: dict[str, Any]
    update: Callable[..., tuple] | None = None


def trajectories(library: Library, cases: dict[str, Case], dtype: str) -> dict[str, list[np.ndarray]]:
    """For each case the leaves of params and state, stacked over the steps."""
    o = library.optim
    transforms = {name: case.make(o) for name, case in cases.items()}
    rng = np.random.default_rng(0)
    carry, grads = {}, {}
    for name, case in cases.items():
        rng = np.random.default_rng(0)
        params = random_tree(case.shapes, rng, dtype)
        carry[name] = params, transforms[name].init(params)
        grads[name] = random_tree(case.shapes, rng, dtype, (STEPS,))
    values = rng.normal(size=STEPS).astype(dtype)

    def one(name: str, params: Any, state: Any, grads: Any, value: Any) -> tuple:
        transform, special = transforms[name], cases[name].update
        if special is not None:
            return special(library, transform, grads, state, params, value)
        updates, state = o.with_extra_args_support(transform).update(grads, state, params, value=value)
        return o.apply_updates(params, updates), state

    def step(carry: dict, inputs: tuple) -> tuple[dict, dict]:
        grads, value = inputs
        new = {name: one(name, *carry[name], grads[name], value) for name in carry}
        return new, new

    visited = library.jit(lambda carry, inputs: library.scan(step, carry, inputs)[1])(carry, (grads, values))
    return {name: [as_numpy(leaf) for leaf in jax.tree.leaves((p, tree.leaves(s)))] for name, (p, s) in visited.items()}


def as_numpy(leaf: Any) -> np.ndarray:
    # The key of optax has a dtype of its own.
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def structure(state: Any) -> str:
    """Names and shapes of a state, as text that is the same for both libraries."""
    shape = lambda x: (2,) if is_key(x) else np.shape(x)
    return repr(jax.tree.map(shape, state, is_leaf=lambda x: hasattr(x, "dtype")))


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest error beside the largest element; a single element may pass close to zero."""
    assert actual.shape == expected.shape
    actual, expected = actual.astype("float64"), expected.astype("float64")
    # Equal values may be infinite.
    other = actual != expected
    if not other.any():
        return 0.0
    assert np.isfinite(expected[other]).all()
    return float(np.abs(actual - expected)[other].max() / np.abs(expected[np.isfinite(expected)]).max())
