"""Surprises for newcomers: immutable arrays, indices out of bounds, weak types, NaNs behind `where`."""

import numpy as np
import pytest
from support.tutorials import compare


def program(jax, jnp, lax):
    jax_array = jnp.zeros((3, 3), dtype=jnp.float32)
    try:
        jax_array[1, :] = 1.0
        refused = 0
    except TypeError:
        refused = 1
    updated = jax_array.at[1, :].set(1.0)
    new = jnp.ones((5, 6)).at[::2, 3:].add(7.0)
    ten = jnp.arange(10)

    def iterate(n):
        return lax.fori_loop(0, n, lambda i, x: x + ten[i], 0)

    @jax.jit
    def weak(x):
        return x + 1, x * 2.5, x / 3

    def unsafe_sqrt(x):
        return jnp.where(x < 0, 0.0, jnp.sqrt(x))

    def safe_sqrt(x):
        return jnp.where(x < 0, 0.0, jnp.sqrt(jnp.where(x < 0, 1.0, x)))

    try:
        jax.jit(lambda x: x if x > 0 else -x)(1.0)
        branched = 0
    except TypeError:
        branched = 1
    return {
        "refused": [refused, branched],
        "updated": updated,
        "add": new,
        "read out of bounds": jax.jit(lambda i: ten[i])(11),
        "write out of bounds": jax.jit(lambda i: ten.at[i].set(5))(11),
        "filled": jax.jit(lambda i: ten.at[i].get(mode="fill", fill_value=-1))(11),
        "sum of list": jnp.sum(jnp.array([1, 2])),
        "iterate": iterate(10),
        "int": weak(jnp.arange(3)),
        "bfloat16": weak(jnp.ones(2, jnp.bfloat16)),
        "dtypes": [jnp.zeros(2).dtype == np.float32, jnp.arange(2).dtype == np.int32],
        "mixed": jnp.ones(2, "int8") + jnp.ones(2, "float16"),
        "overflow": jnp.array([255], dtype="uint8") + jnp.array([1], dtype="uint8"),
        "sqrt": [jax.grad(unsafe_sqrt)(-1.0), jax.grad(safe_sqrt)(-1.0), jax.grad(safe_sqrt)(4.0)],
        "sorted": jnp.sort(jnp.array([3.0, jnp.nan, 1.0])),
        "dynamic": lax.dynamic_slice(ten, (8,), (4,)),
    }


@pytest.mark.slow
def test_program():
    compare(program)
