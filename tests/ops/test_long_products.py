"""Derivatives of products of many elements: products of all others, in pieces instead of a table of all pairs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp

RNG = np.random.default_rng(0)


def others(x):
    """The product of all other elements of a row for each."""
    before = np.cumprod(np.concatenate([np.ones_like(x[..., :1]), x[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([np.ones_like(x[..., :1]), x[..., :0:-1]], -1), -1)[..., ::-1]
    return before * after


@pytest.mark.quick("33", "1025", "70001")
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 37, 100, 1023, 1024, 1025, 4760, 70_001], ids=str)
def test_gradient_of_a_long_product(count):
    x = 1 + 0.01 * RNG.standard_normal((2, count))
    zeros = RNG.choice(count, min(count, 2), replace=False)
    x = np.stack([x, x, x])
    x[1, 0, zeros[0]] = 0
    x[2, :, zeros] = 0
    gradient = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(tnp.prod(x, -1))))(x)
    np.testing.assert_allclose(np.asarray(gradient), others(x), rtol=1e-11)


@pytest.mark.parametrize("axis", [None, 0, (0, 2), (1, 2)], ids=str)
def test_second_derivatives_along_any_axes(axis):
    x, v = 1 + 0.01 * RNG.standard_normal((7, 5, 11)), RNG.standard_normal((7, 5, 11))
    x[2, 3, 4] = x[0, 0, 0] = 0

    def second(lib, ns):
        loss = lambda x: ns.sum(ns.prod(x, axis) ** 2 + ns.prod(x, axis))
        gradient = lambda x: lib.jvp(lib.grad(loss), (x,), (ns.asarray(v),))
        return lib.jit(gradient)(ns.asarray(x)), lib.vmap(lib.grad(loss))(ns.stack([ns.asarray(x)] * 2))

    ours = tvmfun.tree.leaves(second(tvmfun, tnp))
    with x64():
        theirs = jax.tree.leaves(second(jax, jnp))
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(own), np.asarray(other), rtol=1e-9, atol=1e-12)


def test_memory_grows_with_the_number_of_elements():
    gradient = tvmfun.jit(tvmfun.grad(lambda x: tnp.prod(x)))
    compiled = gradient.lower(tvmfun.ShapeDtype((1 << 20,), "float32")).compile()
    assert compiled.memory_analysis().temporaries <= 4 * (4 << 20)
    assert compiled.cost_analysis().flops <= 100 << 20
