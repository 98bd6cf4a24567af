"""Loops beside JAX's: a recurrent network over 1000 steps, a table of which each step writes a row, a loop that does
next to nothing a million times, and molecular dynamics.

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
import tvmfun.scipy.special
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


@pytest.mark.parametrize("rows", [1 << 10, 1 << 14])
def test_a_table_of_which_each_step_writes_a_row(rows):
    def run(lax_, np_):
        step = lambda t, x: (lax_.dynamic_update_slice(t, x[1][None], (x[0], 0)), None)
        return lambda t, xs: lax_.scan(step, t, (np_.arange(STEPS, dtype="int32") * 7, xs))[0]

    table, xs = np.zeros((rows, 256), np.float32), np.ones((STEPS, 256), np.float32)
    f, g = tvmfun.jit(run(lax, tnp)), jax.jit(run(jax.lax, jnp))
    given, peers = tvmfun.device_put((table, xs)), jax.device_put((table, xs))
    np.testing.assert_array_equal(np.asarray(f(*given)), g(*peers))
    a, b = best(lambda: f(*given).block_until_ready(), lambda: g(*peers).block_until_ready())
    copied = best(lambda: table + 1)[0]
    print(f"\n{STEPS} rows of {rows:,}: tvmfun {a:.2f} ms, JAX {b:.2f} ms; the table once {copied:.2f} ms", end="")


def test_a_million_small_steps():
    def run(lax_):
        return lambda n: lax_.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 0.5 + 1.0), (0, 0.0))[1]

    n = np.int32(1_000_000)
    f, g = tvmfun.jit(run(lax)), jax.jit(run(jax.lax))
    assert float(f(n)) == float(g(n)) == 2.0
    a, b = best(lambda: float(f(n)), lambda: float(g(n)), repeats=5)
    print(f"\na million steps: tvmfun {a:.1f} ms, JAX {b:.1f} ms", end="")


@pytest.mark.parametrize("image", ["remainder", "round"])
def test_molecular_dynamics(image):
    """Lennard-Jones forces between all pairs of 1000 particles, each with the nearest image of the other."""
    count, box, steps = 1000, 12.0, 4

    def run(np_, lax_, grad):
        def energy(x):
            d = x[:, None, :] - x[None, :, :]
            d = (d + box / 2) % box - box / 2 if image == "remainder" else d - box * np_.round(d / box)
            r2 = np_.sum(d * d, -1) + np_.eye(count, dtype="float32") * 1e6
            r6 = (1 / r2) ** 3
            return 0.5 * np_.sum(np_.where(r2 < 9.0, 4 * (r6 * r6 - r6), 0))

        def step(state, _):
            x, v = state
            v = v - 1e-5 * grad(energy)(x)
            return (x + 1e-5 * v, v), None

        return lambda x, v: lax_.scan(step, (x, v), None, length=steps)[0]

    rng = np.random.default_rng(0)
    lattice = np.stack(np.meshgrid(*[np.arange(10)] * 3), -1).reshape(-1, 3) * 1.2
    x = (lattice + rng.normal(size=lattice.shape) * 0.05).astype("float32")
    state = x, np.zeros_like(x)
    f, g = tvmfun.jit(run(tnp, lax, tvmfun.grad)), jax.jit(run(jnp, jax.lax, jax.grad))
    ours, theirs = tvmfun.device_put(state), jax.device_put(state)
    np.testing.assert_allclose(np.asarray(f(*ours)[0]), g(*theirs)[0], rtol=1e-5, atol=1e-5)
    a, b = best(lambda: np.asarray(f(*ours)[0]), lambda: jax.block_until_ready(g(*theirs)))
    print(f"\nmolecular dynamics, {image}: tvmfun {a / steps:.2f} ms, JAX {b / steps:.2f} ms a step", end="")


@pytest.mark.parametrize("size", [256, 1000])
def test_sinkhorn(size):
    """Twenty iterations of optimal transport in the domain of logarithms."""

    def run(np_, lax_, logsumexp):
        def step(_, potentials, cost, a, b):
            f, _ = potentials
            g = 0.05 * (np_.log(b) - logsumexp((f[:, None] - cost) / 0.05, axis=0))
            return 0.05 * (np_.log(a) - logsumexp((g[None, :] - cost) / 0.05, axis=1)), g

        return lambda cost, a, b: lax_.fori_loop(0, 20, lambda i, s: step(i, s, cost, a, b), (a * 0, b * 0))

    cost = np.random.default_rng(0).random((size, size)).astype("float32")
    given = cost, *[np.full(size, 1 / size, "float32")] * 2
    f = tvmfun.jit(run(tnp, lax, tvmfun.scipy.special.logsumexp))
    g = jax.jit(run(jnp, jax.lax, jax.scipy.special.logsumexp))
    ours, theirs = tvmfun.device_put(given), jax.device_put(given)
    np.testing.assert_allclose(np.asarray(f(*ours)[0]), g(*theirs)[0], rtol=1e-4, atol=1e-5)
    a, b = best(lambda: np.asarray(f(*ours)[0]), lambda: jax.block_until_ready(g(*theirs)))
    print(f"\nSinkhorn {size}: tvmfun {a:.2f} ms, JAX {b:.2f} ms", end="")


@pytest.mark.parametrize(("batch", "width"), [(32, 128), (64, 512)])
def test_deep_equilibrium(batch, width):
    """The gradient through a fixed point, by an implicit rule whose linear system is solved by iteration, too."""

    def run(module, np_, lax_):
        def solve(step, z):
            going = lambda s: (s[2] < 50) & (np_.max(np_.abs(s[0] - s[1])) > 1e-6)
            return lax_.while_loop(going, lambda s: (step(s[0]), s[0], s[2] + 1), (step(z), z, 0))[0]

        layer = lambda p, x, z: np_.tanh(z @ p[0].T + x @ p[1].T + p[2])
        equilibrium = module.custom_vjp(lambda p, x: solve(lambda z: layer(p, x, z), np_.zeros_like(x)))

        def forward(p, x):
            z = equilibrium(p, x)
            return z, (p, x, z)

        def backward(kept, g):
            p, x, z = kept
            pull = module.vjp(lambda z: layer(p, x, z), z)[1]
            return module.vjp(lambda p, x: layer(p, x, z), p, x)[1](solve(lambda u: g + pull(u)[0], g))

        equilibrium.defvjp(forward, backward)
        return module.grad(lambda p, x: np_.sum(equilibrium(p, x) ** 2))

    rng = np.random.default_rng(0)
    w, u = (rng.normal(size=(2, width, width)) * 0.5 / np.sqrt(width)).astype("float32")
    given = (w, u, np.zeros(width, "float32")), rng.normal(size=(batch, width)).astype("float32")
    f, g = tvmfun.jit(run(tvmfun, tnp, lax)), jax.jit(run(jax, jnp, jax.lax))
    ours, theirs = tvmfun.device_put(given), jax.device_put(given)
    np.testing.assert_allclose(np.asarray(f(*ours)[0]), g(*theirs)[0], rtol=1e-3, atol=1e-3)
    a, b = best(lambda: np.asarray(f(*ours)[0]), lambda: jax.block_until_ready(g(*theirs)))
    print(f"\ndeep equilibrium ({batch}, {width}): tvmfun {a:.2f} ms, JAX {b:.2f} ms", end="")
