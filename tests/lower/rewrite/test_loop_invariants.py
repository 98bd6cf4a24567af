"""Loop-invariant code motion: the same numbers, and not in every step."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax
from tvmfun.core.inline import inlined
from tvmfun.lower.rewrite.loop_invariants import hoist_invariants
from tvmfun.ops.control import loop

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(3, 24)).astype("float32"), RNG.normal(size=(24, 24)).astype("float32") / 5
Q, S = np.round(W * 100).astype("int8"), np.full(24, 0.01, "float32")
A, B = W[:, :4].copy(), W[:4].copy()


def scan(np, lax, body, x):
    return lax.scan(lambda h, _: (np.tanh(body(h)), h[0, 0]), x, None, length=5)


def nested(np, lax, x, w):
    inner = lambda h: lax.fori_loop(0, 3, lambda i, h: h @ (w * 2.0 + h[0, 0]), h)
    return lax.scan(lambda h, _: (np.tanh(inner(h @ np.exp(w))), None), x, None, length=2)[0]


def switched(np, lax, x, w):
    body = lambda i, h: lax.cond(i % 2 == 0, lambda h: h @ (w + w.T), lambda h: np.tanh(h) - np.sum(w * w), h)
    return lax.fori_loop(0, 4, body, x)


PROGRAMS = {
    "cast": (lambda np, lax, x, w: scan(np, lax, lambda h: h @ w.astype("bfloat16").astype("float32"), x), X, W),
    "dequantized": (lambda np, lax, x, q, s: scan(np, lax, lambda h: h @ (q.astype("float32") * s), x), X, Q, S),
    "merged": (lambda np, lax, x, w, a, b: scan(np, lax, lambda h: h @ (w + a @ b), x), X, W, A, B),
    "softmax": (
        lambda np, lax, x, w: lax.fori_loop(0, 4, lambda i, h: h @ (np.exp(w) / np.sum(np.exp(w), 1)[:, None]), x),
        X,
        W,
    ),
    "counted": (lambda np, lax, x, w, n: lax.fori_loop(0, n, lambda i, h: h @ (w * 2), x), X, W, np.int32(3)),
    "while": (
        lambda np, lax, x, w, n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ (w * 2).T), (0, x)),
        X,
        W,
        np.int32(3),
    ),
    "no step": (
        lambda np, lax, x, w, n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ np.exp(w)), (0, x)),
        X,
        W,
        np.int32(0),
    ),
    "rows": (
        lambda np, lax, x, w: lax.scan(lambda h, r: (h @ (w * 2) + r, r @ np.exp(w)), x[0], x, reverse=True),
        X,
        W,
    ),
    "nested": (nested, X, W),
    "switched": (switched, X, W),
    "sorted": (lambda np, lax, x, w: scan(np, lax, lambda h: h @ np.sort(w, 1), x), X, W),
    "all constant": (lambda np, lax, x, w: scan(np, lax, lambda h: np.sin(x) @ (w * 2), x), X, W),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers(name):
    function, *arguments = PROGRAMS[name]
    ours = tvmfun.jit(lambda *a: function(tnp, lax, *a))(*arguments)
    theirs = jax.jit(lambda *a: function(jax.numpy, jax.lax, *a))(*arguments)
    for own, other in zip(tvmfun.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["dequantized", "merged", "softmax", "rows", "nested"])
@pytest.mark.parametrize("way", ["gradient", "second order", "vmap"])
def test_derivatives_and_batches(name, way):
    function, x, *rest = PROGRAMS[name]

    def total(np, lax, x):
        leaves = (tvmfun.tree if np is tnp else jax.tree).leaves(function(np, lax, x, *rest))
        return sum(np.sum(leaf * leaf) for leaf in leaves)

    def changed(lib, np, lax):
        f = lambda x: total(np, lax, x)
        if way == "vmap":
            return lib.vmap(f)(np.stack([x, 2 * x]))
        if way == "second order":
            return lib.grad(lambda x: np.sum(lib.grad(f)(x) * x))(np.asarray(x))
        return lib.grad(f)(np.asarray(x))

    ours = tvmfun.jit(lambda: changed(tvmfun, tnp, lax))()
    theirs = np.asarray(jax.jit(lambda: changed(jax, jax.numpy, jax.lax))())
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4 * abs(theirs).max())


def _steps(function, *specs):
    """The names of the ops in the bodies of the loops of a Program without invariants, the outer ones first."""
    program = hoist_invariants(inlined(tvmfun.trace(function)(*specs)))
    bodies = [equation.params["body"] for equation in program.equations if equation.op is loop]
    found = []
    while bodies:
        body = bodies.pop(0)
        found.append([equation.op.name for equation in body.equations])
        bodies += [equation.params["body"] for equation in body.equations if equation.op is loop]
    return found


F32 = lambda *shape: ShapeDtype(shape, "float32")


def test_what_moves():
    run = lambda body: lambda *a: lax.scan(lambda h, _: (body(h, *a[1:]), None), a[0], None, length=9)[0]
    assert _steps(run(lambda h, w: h @ w.astype("bfloat16").astype("float32")), F32(3, 24), F32(24, 24)) == [
        ["dot_general"]
    ]
    assert _steps(run(lambda h, w, a, b: h @ (w + a @ b)), F32(3, 24), F32(24, 24), F32(24, 4), F32(4, 24)) == [
        ["dot_general"]
    ]
    # Maps of maps are computed on the way, but not expensive ones.
    assert _steps(run(lambda h, w: h * (w + 1)), F32(24), F32(24)) == [["add", "multiply"]]
    assert _steps(run(lambda h, w: h * tnp.exp(w)), F32(24), F32(24)) == [["multiply"]]
    # A view of a constant costs nothing where it is.
    assert _steps(run(lambda h, w: h @ w.T), F32(3, 24), F32(24, 24))[0][-1] == "dot_general"


def test_what_stays():
    run = lambda body: lambda *a: lax.scan(lambda h, _: (body(h, *a[1:]), None), a[0], None, length=9)[0]
    # A product converts large weights while it reads them.
    weights = ShapeDtype((1024, 1024), "int8")
    assert "astype" in _steps(run(lambda h, w: h @ w.astype("float32")), F32(3, 1024), weights)[0]
    # A value that is much larger than the constants stays.
    outer = run(lambda h, a, b: h + tnp.exp(a[:, None] * b))
    assert "exp" in _steps(outer, F32(2048, 1024), F32(2048), F32(1024))[0]


def test_an_inner_loop_gives_to_the_outer_one():
    inner = lambda h, w: lax.fori_loop(0, 3, lambda i, h: h @ (w * 2.0), h)
    function = lambda x, w: lax.scan(lambda h, _: (inner(h, w), None), x, None, length=2)[0]
    outer, within = _steps(function, F32(3, 24), F32(24, 24))
    assert "multiply" not in outer and within == ["dot_general"]


@pytest.mark.parametrize("rows", [1, 4])
def test_dynamic_sizes_and_donation(rows):
    function = lambda x, w: lax.scan(lambda h, _: (tnp.tanh(h @ (w * 2)), None), x, None, length=4)[0]
    f = tvmfun.jit(function, dynamic_shapes=({0: "n"}, None), donate_argnums=(0, 1))
    x = X[:1].repeat(rows, 0)
    expected = np.asarray(jax.lax.scan(lambda h, _: (jax.numpy.tanh(h @ (W * 2)), None), x, None, length=4)[0])
    np.testing.assert_allclose(f(tvmfun.device_put(x), tvmfun.device_put(W)), expected, rtol=2e-5, atol=1e-6)


def test_mixed_precision_rounds_weights_once():
    function = lambda x, w: lax.scan(lambda h, _: (tnp.tanh(h @ w), None), x, None, length=9)[0]
    steps = _steps(tvmfun.amp(function), F32(3, 24), F32(24, 24))
    assert steps[0].count("astype") == 4  # of the carry and of the result, there and back
