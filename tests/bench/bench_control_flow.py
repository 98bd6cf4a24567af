"""Loops beside JAX's: a recurrent network over 1000 steps, and a loop that does next to nothing a million times.

Run with ``nox -s bench -- -k control_flow``.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

STEPS = 1000


def best(*calls, repeats: int = 15) -> list[float]:
    """The shortest time of each call in milliseconds, the calls taking turns."""
    times = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats):
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return [min(own) * 1e3 for own in times]


def gemm_peak() -> float:
    """FLOPs per second of NumPy's matrix product in this run."""
    a = np.ones((1024, 1024), np.float32)
    (milliseconds,) = best(lambda: a @ a)
    return 2 * 1024**3 / milliseconds * 1e3


@pytest.mark.parametrize(("batch", "width"), [(4, 64), (32, 128)])
def test_recurrent_network(batch, width):
    rng = np.random.default_rng(0)
    w = (rng.normal(size=(width, width)) / np.sqrt(width)).astype("float32")
    xs = rng.normal(size=(STEPS, batch, width)).astype("float32")
    h = np.zeros((batch, width), "float32")

    def loss(np_, lax_):
        def run(w, h, xs):
            step = lambda h, x: (lambda new: (new, new))(np_.tanh(h @ w + x))
            return np_.sum(lax_.scan(step, h, xs)[1] ** 2)

        return run

    ours, theirs = loss(tnp, lax), loss(jnp, jax.lax)
    given, peers = tvmfun.device_put((w, h, xs)), jax.device_put((w, h, xs))
    flops = 2 * STEPS * batch * width * width
    peak = gemm_peak()
    for name, factor, wrap in (("forward", 1, lambda m, f: f), ("gradient", 3, lambda m, f: m.grad(f, (0, 1, 2)))):
        f, g = tvmfun.jit(wrap(tvmfun, ours)), jax.jit(wrap(jax, theirs))
        for a, b in zip(tvmfun.tree.leaves(f(*given)), jax.tree_util.tree_leaves(g(*peers)), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-3, atol=1e-3)
        a, b = best(
            lambda f=f: np.asarray(tvmfun.tree.leaves(f(*given))[0]), lambda g=g: jax.block_until_ready(g(*peers))
        )
        floor = factor * flops / peak * 1e3
        print(f"\n{name} {STEPS} x ({batch}, {width}): tvmfun {a:.2f} ms, JAX {b:.2f} ms, floor {floor:.2f} ms", end="")


def test_a_million_small_steps():
    def run(lax_):
        return lambda n: lax_.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 0.5 + 1.0), (0, 0.0))[1]

    n = np.int32(1_000_000)
    f, g = tvmfun.jit(run(lax)), jax.jit(run(jax.lax))
    assert float(f(n)) == float(g(n)) == 2.0
    a, b = best(lambda: float(f(n)), lambda: float(g(n)), repeats=5)
    print(f"\na million steps: tvmfun {a:.1f} ms, JAX {b:.1f} ms", end="")
