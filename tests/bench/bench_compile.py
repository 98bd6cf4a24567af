"""How long tracing and compiling takes: by the number of layers and of loop steps, and for programs in array code.

Run with ``nox -s bench -- -k compile``.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bench.models import resnet
from bench.written_programs import PROGRAMS

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn, random, tree
from tvmfun.execute import clear_caches

WIDTH = 32


def network(m, layers):
    """A deep network with a residual connection and a norm in each layer."""

    def loss(params, x):
        for w, b in params:
            y = m.tanh(x @ w + b)
            x = x + (y - m.mean(y, axis=-1, keepdims=True))
        return m.mean(x**2)

    rng = np.random.default_rng(0)
    one = lambda: (rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 6, np.zeros(WIDTH, "float32"))
    return loss, [one() for _ in range(layers)], np.ones((16, WIDTH), "float32")


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.parametrize("layers", [8, 16, 32, 64])
def test_layers(layers, monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    clear_caches()
    loss, params, x = network(tnp, layers)
    ours = seconds(lambda: tvmfun.jit(tvmfun.grad(loss)).lower(params, x).compile())
    peer, _, _ = network(jnp, layers)
    theirs = seconds(lambda: jax.jit(jax.grad(peer)).lower(params, x).compile())
    print(
        f"\n{layers:3d} layers: tvmfun {ours:.2f} s ({ours / layers * 1e3:.0f} ms a layer), JAX {theirs:.2f} s", end=""
    )


@pytest.mark.parametrize("steps", [10, 1000, 100_000])
def test_steps(steps, monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    clear_caches()
    xs = np.ones((steps, 4), "float32")
    loss = lambda w, xs: tnp.sum(lax.scan(lambda h, x: (tnp.tanh(w @ h + x),) * 2, tnp.zeros(4), xs)[1])
    taken = seconds(lambda: tvmfun.jit(tvmfun.grad(loss)).lower(np.eye(4, dtype="float32"), xs).compile())
    print(f"\n{steps:6d} steps: {taken:.2f} s", end="")


OURS = SimpleNamespace(
    np=tnp, lax=lax, random=random, nn=nn.functional, map=tree.map, jit=tvmfun.jit, grad=tvmfun.grad,
    value_and_grad=tvmfun.value_and_grad, hessian=tvmfun.hessian,
)  # fmt: skip
THEIRS = SimpleNamespace(
    np=jnp, lax=jax.lax, random=jax.random, nn=jax.nn, map=jax.tree.map, jit=jax.jit, grad=jax.grad,
    value_and_grad=jax.value_and_grad, hessian=jax.hessian,
)  # fmt: skip


def _resnet(ns):
    rng = np.random.default_rng(0)
    arguments = resnet.params(rng), resnet.state(), resnet.batch(32)(rng)
    step = ns.value_and_grad(lambda params, state, batch: resnet.loss(ns, params, state, batch, None), has_aux=True)
    return step, arguments


def _compiled(ns, name):
    """CPU seconds of the whole process, so that other processes matter less, and seconds."""
    function, arguments = PROGRAMS.get(name, _resnet)(ns)
    # What a process does once.
    ns.jit(lambda x: ns.np.tanh(x @ x))(np.eye(3, dtype="float32"))
    clear_caches()
    before = time.process_time()
    taken = seconds(lambda: ns.jit(function).lower(*arguments).compile())
    return time.process_time() - before, taken


@pytest.mark.parametrize("name", [*PROGRAMS, "ResNet-18"])
def test_programs(name, monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    (ours, wall), (theirs, their_wall) = (_compiled(ns, name) for ns in (OURS, THEIRS))
    print(
        f"\n{name}: CPU {ours:.2f} s, JAX {theirs:.2f} ({ours / theirs:.2f}); {wall:.2f} s, JAX {their_wall:.2f}",
        end="",
    )
