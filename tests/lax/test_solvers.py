"""Linear solvers on tangents: in rules of ``custom_jvp``, in the tangent solver of a root, and transposed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as jlax

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp

B = np.arange(4, dtype="float32")
W = np.array([1.0, -2.0, 3.0, 0.5], "float32")
A = np.random.default_rng(0).normal(size=(4, 4)).astype("float32") + 4 * np.eye(4, dtype="float32")
S = A @ A.T


def functions(jax, np, lax):
    """Solutions as functions of a matrix and a right side, in one library."""

    def general(a, b):
        solve = lambda _, y: np.linalg.solve(a, y)
        return lax.custom_linear_solve(lambda x: a @ x, b, solve, lambda _, y: np.linalg.solve(a.T, y))

    def symmetric(a, b):
        solve = lambda _, y: {"x": np.linalg.solve(a, y["x"])}
        return lax.custom_linear_solve(lambda y: {"x": a @ y["x"]}, {"x": b}, solve, symmetric=True)["x"]

    def with_a_rule(solution):
        @jax.custom_jvp
        def f(a, b):
            return np.sin(solution(a, b))

        @f.defjvp
        def _(primals, tangents):
            (a, b), (da, db) = primals, tangents
            x = solution(a, b)
            return np.sin(x), np.cos(x) * solution(a, db - da @ x)

        return f

    def root(a, b):
        def newton(f, x):
            for _ in range(6):
                x = x - np.linalg.solve(jax.jacfwd(f)(x), f(x))
            return x

        def tangent(g, y):
            matrix = jax.jacfwd(g)(y)
            solve = lambda _, y: np.linalg.solve(matrix, y)
            return lax.custom_linear_solve(g, y, solve, lambda _, y: np.linalg.solve(matrix.T, y))

        return lax.custom_root(lambda x: a @ x + x**3 - b, np.zeros_like(b), newton, tangent)

    return {
        "general": general,
        "symmetric": symmetric,
        "rule, general": with_a_rule(general),
        "rule, symmetric": with_a_rule(symmetric),
        "root": root,
    }


ORDERS = {
    "right side": lambda lib, f, lax: lib.grad(lambda b: (W * f(S, b)).sum())(B),
    "matrix": lambda lib, f, lax: lib.grad(lambda a: (W * f(a, B)).sum())(S),
    "jit": lambda lib, f, lax: lib.jit(lib.grad(lambda b: (W * f(S, b)).sum()))(B),
    "vmap": lambda lib, f, lax: lib.vmap(lib.grad(lambda b: (W * f(S, b)).sum()))(np.stack([B, B + 1])),
    "vmap of matrices": lambda lib, f, lax: lib.vmap(lib.grad(lambda a: (W * f(a, B)).sum()))(np.stack([S, S + 1])),
    "forward": lambda lib, f, lax: lib.jacfwd(lambda b: f(S, b))(B),
    "reverse": lambda lib, f, lax: lib.jacrev(lambda b: f(S, b))(B),
    "forward of reverse": lambda lib, f, lax: lib.hessian(lambda b: (W * f(S, b)).sum())(B),
    "reverse of reverse": lambda lib, f, lax: lib.jacrev(lib.grad(lambda b: (W * f(S, b) ** 2).sum()))(B),
    "loop": lambda lib, f, lax: lib.grad(
        lambda b: lax.scan(lambda c, _: (f(S, c) + b, None), b, None, length=3)[0].sum()
    )(B),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", functions(tvmfun, tnp, lax))
def test_derivatives(name, order):
    found = ORDERS[order](tvmfun, functions(tvmfun, tnp, lax)[name], lax)
    expected = ORDERS[order](jax, functions(jax, jnp, jlax)[name], jlax)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["general", "symmetric"])
def test_transposes(name):
    def transposes(lib, np, lax):
        f = functions(lib, np, lax)[name]
        matrix = A if name == "general" else S
        once = lambda b: f(matrix, b)
        for function in (once, lib.jit(once), lambda b: once(2 * once(b))):
            yield lib.linear_transpose(function, B)(W)[0]
        yield lib.linear_transpose(lib.vmap(once), np.stack([B, B]))(np.stack([W, W + 1]))[0]

    for found, expected in zip(transposes(tvmfun, tnp, lax), transposes(jax, jnp, jlax), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
