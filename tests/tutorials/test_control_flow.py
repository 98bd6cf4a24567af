"""Branches and loops within compiled functions."""

from functools import partial

import pytest
from support.tutorials import compare


def program(jax, jnp, lax):
    @jax.jit
    def unrolled(x):
        for _ in range(3):
            x = 2 * x
        return x

    @jax.jit
    def over_elements(x):
        y = 0.0
        for i in range(x.shape[0]):
            y = y + x[i]
        return y

    def f(x):
        return jnp.where(x < 3, 3.0 * x**2, -4 * x)

    @partial(jax.jit, static_argnames=["n"])
    def with_static(x, n):
        y = 0.0
        for i in range(n):
            y = y + x[i]
        return y

    def example_fun(length, val):
        return jnp.ones((length,)) * val

    good_example_jit = jax.jit(example_fun, static_argnums=(0,))
    operand = jnp.array([0.0])
    init_val = jnp.array(0)

    def cumsum(res, el):
        res = res + el
        return res, res

    def newton(a):
        def cond_fun(state):
            x, i = state
            return (jnp.abs(x * x - a) > 1e-6) & (i < 50)

        return lax.while_loop(cond_fun, lambda s: ((s[0] + a / s[0]) / 2, s[1] + 1), (a, 0))[0]

    def power(x, n):
        return lax.fori_loop(0, n, lambda i, y: y * x, 1.0)

    @jax.jit
    def clipped_log(x):
        return jnp.where(x > 0.0, jnp.log(jnp.where(x > 0.0, x, 1.0)), 0.0)

    return {
        "unrolled": unrolled(3),
        "elements": over_elements(jnp.array([1.0, 2.0, 3.0])),
        "where": [jax.jit(f)(2.0), jax.grad(f)(2.0), jax.grad(f)(4.0)],
        "static": with_static(jnp.array([2.0, 3.0, 4.0]), 2),
        "shape": good_example_jit(10, 4),
        "cond": [lax.cond(p, lambda x: x + 1, lambda x: x - 1, operand) for p in (True, False)],
        "switch": [lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], 0.5) for i in (-1, 1, 7)],
        "select": lax.select(jnp.array([True, False]), jnp.array([1, 2]), jnp.array([3, 4])),
        "while": lax.while_loop(lambda x: x < 10, lambda x: x + 1, init_val),
        "fori": lax.fori_loop(0, 10, lambda i, x: x + i, 0),
        "newton": [jax.jit(newton)(2.0), jax.vmap(newton)(jnp.array([1.0, 4.0, 9.0]))],
        "power": [power(2.0, 5), jax.grad(power)(2.0, 5)],
        "scan": lax.scan(cumsum, 0.0, jnp.array([1.0, 2.0, 3.0])),
        "associative": lax.associative_scan(jnp.add, jnp.arange(5)),
        "map": lax.map(lambda x: x**2, jnp.arange(4.0)),
        "grad of scan": jax.grad(lambda xs: lax.scan(lambda c, x: (c * x, c), 1.0, xs)[0])(jnp.array([1.0, 2.0, 3.0])),
        "log": [clipped_log(-1.0), jax.grad(clipped_log)(-1.0), jax.grad(clipped_log)(2.0)],
    }


@pytest.mark.slow
def test_program():
    compare(program)
