"""What a call costs in Python: a step that does next to nothing, with many leaves, beside JAX's.

Run with ``nox -s bench -- -k dispatch``.
"""

from __future__ import annotations

import timeit

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp


def microseconds(call, number: int = 300) -> float:
    return min(timeit.repeat(call, number=number, repeat=7)) / number * 1e6


@pytest.mark.parametrize("leaves", [1, 10, 100, 400])
def test_dispatch(leaves):
    params = {f"w{i}": np.ones(4, "float32") for i in range(leaves)}
    ours, theirs = tvmfun.device_put(params), {name: jnp.asarray(value) for name, value in params.items()}
    step = tvmfun.jit(lambda p: {name: value + 1 for name, value in p.items()})
    peer = jax.jit(lambda p: {name: value + 1 for name, value in p.items()})
    np.testing.assert_array_equal(step(ours)["w0"], peer(theirs)["w0"])
    tree_only = microseconds(lambda: tvmfun.tree.flatten(((ours,), {})))
    a, b = microseconds(lambda: step(ours)), microseconds(lambda: jax.block_until_ready(peer(theirs)))
    print(f"\n{leaves:4d} leaves: tvmfun {a:7.1f} us (of which flattening {tree_only:5.1f}), JAX {b:7.1f} us")


def test_eager_op():
    ours, theirs = tnp.ones(4), jnp.ones(4)
    a, b = microseconds(lambda: ours + ours), microseconds(lambda: (theirs + theirs).block_until_ready())
    print(f"\none eager addition: tvmfun {a:.1f} us, JAX {b:.1f} us")
