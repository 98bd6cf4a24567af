"""The matrices of a loop are brought into panels before it."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import jit, lax
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite.loop_panels import pack_loop_panels

STEPS, BATCH, WIDTH = 18, 8, 64


def example(dtype="float32", batch=BATCH, width=WIDTH):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, batch, width)).astype(dtype)
    return x, (rng.normal(size=(width, width)) / width**0.5).astype(dtype)


def recurrent(module, x, w, product=lambda h, w: h @ w):
    def cell(h, x):
        h = module.numpy.tanh(product(h, w) + x)
        return h, h

    return module.lax.scan(cell, module.numpy.zeros(x.shape[1:], x.dtype), x)[1]


def panels(function, *arguments) -> list[str]:
    """The products in the bodies of loops, and how many matrices are brought into panels."""
    program = pack_loop_panels(tvmfun.trace(function)(*arguments), targets.host())
    bodies = [equation.params["body"] for equation in program.equations if equation.op.name == "loop"]
    inside = [e.op.name for body in bodies for e in body.equations if e.op.kind == "contraction"]
    return [*inside, *(e.op.name for e in program.equations if e.op.name == "panels")]


PRODUCTS = {
    "matrix": lambda h, w: h @ w,
    "transposed": lambda h, w: h @ w.T,
    "both": lambda h, w: h @ w + h @ w.T,
    "twice": lambda h, w: (h @ w) @ w,
}


@pytest.mark.quick("both-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_values_and_gradients(name, dtype):
    x, w = example(dtype)
    ours = lambda x, w: tnp.sum(tnp.sin(recurrent(tvmfun, x, w, PRODUCTS[name])))
    theirs = lambda x, w: jax.numpy.sum(jax.numpy.sin(recurrent(jax, x, w, PRODUCTS[name])))
    found = panels(ours, x, w)
    assert found == ["panel_dot"] * (1 if name in ("matrix", "transposed") else 2) + ["panels"] * (1 + (name == "both"))
    got = jit(tvmfun.value_and_grad(ours, argnums=(0, 1)))(x, w)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        expected = jax.value_and_grad(theirs, argnums=(0, 1))(x, w)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for a, b in zip(tvmfun.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


def test_the_gradient_multiplies_by_panels_too():
    x, w = example()
    gradient = tvmfun.grad(lambda x: tnp.sum(recurrent(tvmfun, x, w)))
    assert panels(lambda x: gradient(x), x).count("panel_dot") == 2


def changing(x, w):
    def cell(carry, x):
        h, w = carry
        return (tnp.tanh(h @ w + x), w * 0.9), None

    return lax.scan(cell, (tnp.zeros(x.shape[1:], x.dtype), w), x)[0][0]


def until(x, w):
    return lax.while_loop(lambda h: tnp.sum(h) < 1.0, lambda h: tnp.tanh(h @ w) + 1.0, x[0])


STAY = {
    "a matrix that changes": (changing, example()),
    "a loop with a condition": (until, example()),
    "odd columns": (lambda x, w: recurrent(tvmfun, x, w), example(width=33)),
    "few rows": (lambda x, w: recurrent(tvmfun, x, w), example(batch=2)),
    "few steps": (lambda x, w: recurrent(tvmfun, x[:2], w), example()),
    "half precision": (lambda x, w: recurrent(tvmfun, x, w), example("float16")),
    "a matrix in front": (lambda x, w: recurrent(tvmfun, x, w, lambda h, w: w[:BATCH, :BATCH] @ h), example()),
}


@pytest.mark.parametrize("name", STAY)
def test_what_gains_nothing_stays(name):
    function, arguments = STAY[name]
    program = tvmfun.trace(function)(*arguments)
    assert pack_loop_panels(program, targets.host()) is program


def test_a_donated_matrix_is_still_updated_in_place():
    x, w = example()

    def step(w, x):
        return w - 0.1 * tvmfun.grad(lambda w: tnp.sum(recurrent(tvmfun, x, w) ** 2))(w)

    train, given = jit(step, donate_argnums=0), tnp.asarray(w)
    assert train.lower(given, x).compile().memory_analysis().aliased == w.nbytes
    np.testing.assert_allclose(train(given, x), jit(step)(w, x), rtol=1e-6)
