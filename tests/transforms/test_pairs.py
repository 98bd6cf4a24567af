"""Pairs and triples of features against JAX: loops, wrappers of their bodies, and transforms of the whole, also with
no row at all, one row, and a dynamic number of rows."""

from __future__ import annotations

import functools
from itertools import product

import numpy as np
import pytest
from support import derivatives, oracle

import tvmfun
from tvmfun import lax, tree
from tvmfun import numpy as tnp

jax = pytest.importorskip("jax")


class Ours:
    np, lax, ops = tnp, lax, tvmfun


class Theirs:
    np, lax, ops = jax.numpy, jax.lax, jax


def scanned(m, wrap, h, xs, **options):
    h, ys = m.lax.scan(wrap(m, lambda h, x: (m.np.tanh(h * x), m.np.sin(h) * x)), h, xs, **options)
    return m.np.sum(h * h) + m.np.sum(ys**2)


def repeated(m, wrap, h, xs):
    body = wrap(m, lambda h, x: (m.np.sin(h) * m.np.cos(x), h))
    h = m.lax.fori_loop(0, xs.shape[0], lambda i, h: body(h, xs[i])[0], h)
    return m.np.sum(h * h)


def mapped(m, wrap, h, xs):
    body = wrap(m, lambda h, x: (m.np.tanh(h * x), h * x))
    return m.np.sum(m.lax.map(lambda x: body(h, x)[0], xs) ** 3)


def branching(m, wrap, h, xs):
    body = wrap(m, lambda h, x: (m.np.tanh(h * x), m.np.sin(h)))
    step = lambda h, x: m.lax.cond(m.np.sum(x) > 0, body, lambda h, x: (h * 2, x), h, x)
    h, ys = m.lax.scan(step, h, xs)
    return m.np.sum(h) + m.np.sum(ys * ys)


def nested(m, wrap, h, xs):
    inner = wrap(m, lambda h, x: (m.np.tanh(h + x), h * x))
    h, ys = m.lax.scan(lambda h, x: m.lax.scan(inner, h * 0.5, m.np.stack([x, x * 2])), h, xs)
    return m.np.sum(h * h) + m.np.sum(ys**3)


LOOPS = {
    "scan": scanned,
    "reverse": lambda *a: scanned(*a, reverse=True),
    "unrolled": lambda *a: scanned(*a, unroll=True),
    "partly unrolled": lambda *a: scanned(*a, unroll=2),
    "fori": repeated,
    "map": mapped,
    "cond": branching,
    "nested": nested,
}
WRAPPERS = {
    "plain": lambda m, f: f,
    "checkpoint": lambda m, f: m.ops.checkpoint(f),
    "checkpoint twice": lambda m, f: m.ops.checkpoint(lambda h, x: m.ops.checkpoint(f)(m.np.sin(h), x)),
    "keeping products": lambda m, f: m.ops.checkpoint(f, policy=m.ops.checkpoint_policies.everything_saveable),
    "vmap": lambda m, f: m.ops.vmap(f),
    "checkpoint before": lambda m, f: lambda h, x: f(m.ops.checkpoint(m.np.sin)(h), x),
    "jit": lambda m, f: m.ops.jit(f),
}


def direction(f, m, *arguments):
    """The derivative of ``f`` along all ones."""
    return m.ops.jvp(f, arguments, tuple(m.np.ones_like(a) for a in arguments))[1]


def gradient(m, f):
    return m.ops.grad(f, argnums=(0, 1))


def length(m, f):
    """One number of the gradient."""
    return lambda h, xs: sum(m.np.sum(g * g) for g in gradient(m, f)(h, xs))


TRANSFORMS = {
    "gradient": gradient,
    "gradient of the gradient": lambda m, f: gradient(m, length(m, f)),
    "tangent of the gradient": lambda m, f: lambda *a: direction(gradient(m, f), m, *a),
    "gradient of the tangent": lambda m, f: gradient(m, lambda *a: direction(f, m, *a)),
    "batched second gradient": lambda m, f: (
        lambda h, xs: m.ops.vmap(gradient(m, length(m, f)), (0, None))(m.np.stack([h, h + 1]), xs)
    ),
    "second gradient, batched inside": lambda m, f: gradient(
        m, lambda h, xs: m.np.sum(m.ops.vmap(length(m, f), (None, 1))(h, m.np.stack([xs, -xs], 1)))
    ),
}


# In real numbers these compute the same, so one oracle serves them: JAX compiled during half of the time of a test.
SAME_LOOPS = {"unrolled": "scan", "partly unrolled": "scan"}
SAME_WRAPPERS = {
    "checkpoint": "plain",
    "checkpoint twice": "checkpoint before",
    "keeping products": "plain",
    "vmap": "plain",
    "jit": "plain",
}


def arguments_of(rows):
    rng = np.random.default_rng(rows)
    return rng.normal(size=2), rng.normal(size=(rows, 2))


def made(m, loop, wrapper, transforms=tuple(TRANSFORMS)):
    """The function of all results of some transforms, by name; in one Program they share what they have in common."""
    function = lambda h, xs: LOOPS[loop](m, WRAPPERS[wrapper], h, xs)
    return lambda h, xs: {name: TRANSFORMS[name](m, function)(h, xs) for name in transforms}


@functools.cache
def expected(loop, wrapper, transforms, rows):
    """JAX's results."""
    with oracle.x64():
        results = jax.jit(made(Theirs, loop, wrapper, transforms))(*arguments_of(rows))
        return jax.tree.map(np.asarray, results)


def check(results, loop, wrapper, rows):
    """Compares results by the names of their transforms with JAX's."""
    theirs = expected(SAME_LOOPS.get(loop, loop), SAME_WRAPPERS.get(wrapper, wrapper), tuple(results), rows)
    for name, result in results.items():
        for got, want in zip(tree.leaves(result), jax.tree.leaves(theirs[name]), strict=True):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    ("loop", "wrapper", "transform", "rows"),
    [
        ("scan", "plain", "gradient", 3),
        ("scan", "checkpoint", "gradient of the gradient", 3),
        ("reverse", "checkpoint", "tangent of the gradient", 3),
        ("unrolled", "checkpoint twice", "gradient", 3),
        ("unrolled", "jit", "gradient", 1),
        ("partly unrolled", "keeping products", "gradient of the tangent", 3),
        ("partly unrolled", "checkpoint", "gradient", 0),
        ("fori", "vmap", "batched second gradient", 3),
        ("fori", "checkpoint", "gradient", 3),
        ("map", "checkpoint before", "second gradient, batched inside", 3),
        ("map", "jit", "gradient of the gradient", 3),
        ("map", "checkpoint twice", "gradient of the tangent", 1),
        ("cond", "jit", "gradient", 3),
        ("cond", "checkpoint", "gradient of the gradient", 3),
        ("cond", "checkpoint", "batched second gradient", 3),
        ("nested", "plain", "gradient of the gradient", 3),
        ("nested", "keeping products", "gradient", 3),
    ],
)
def test_one_transform(loop, wrapper, transform, rows):
    check(tvmfun.jit(made(Ours, loop, wrapper, [transform]))(*arguments_of(rows)), loop, wrapper, rows)


# Lowering sees loops with and without recomputation; the other wrappers change what is traced.
COMPILED = {"plain", "checkpoint"}
# Each loop is compiled for no row and for one row, and each wrapper for one of them; a dynamic number may be both.
COMPILED_FOR = {("plain", 0), ("checkpoint", 1)}


def evaluated(loop, wrapper, rows, is_compiled):
    """The results of all transforms, in machine code or in NumPy."""
    function, arguments = made(Ours, loop, wrapper), arguments_of(rows)
    run = tvmfun.jit(function) if is_compiled else derivatives.in_numpy(function, *arguments)
    return run(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("loop", LOOPS)
def test_loops(loop, wrapper):
    is_compiled = wrapper in COMPILED or loop == "scan"
    check(evaluated(loop, wrapper, 3, is_compiled), loop, wrapper, rows=3)


# No row can be taken from none, in JAX as here.
SCANS = [loop for loop in LOOPS if loop != "fori"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("loop", SCANS)
def test_few_rows(loop, wrapper, rows):
    check(evaluated(loop, wrapper, rows, (wrapper, rows) in COMPILED_FOR), loop, wrapper, rows)


@pytest.mark.parametrize(
    ("loop", "wrapper", "transforms"),
    [
        ("map", "checkpoint", ["tangent of the gradient"]),
        *(
            pytest.param(loop, wrapper, [*TRANSFORMS], marks=pytest.mark.slow, id=f"{loop}-{wrapper}")
            for loop, wrapper in product(SCANS, ("plain", "checkpoint"))
        ),
    ],
)
def test_rows_of_a_dynamic_number(loop, wrapper, transforms):
    function = made(Ours, loop, wrapper, transforms)
    dynamic = tvmfun.jit(function, dynamic_shapes=(None, {0: tvmfun.Dim("n", min=0)}))
    for rows in (0, 1, 3):
        check(dynamic(*arguments_of(rows)), loop, wrapper, rows)
