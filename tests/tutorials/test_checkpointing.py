"""Less memory for the backward pass: the same derivatives with any policy."""

from functools import partial

import pytest
from support.tutorials import compare


def program(jax, jnp, lax):
    def g(W, x):
        return jnp.sin(jnp.dot(W, x))

    def f(W1, W2, W3, x):
        return g(W3, g(W2, g(W1, x)))

    W1, W2, W3 = jnp.ones((5, 4)), jnp.ones((6, 5)) / 3, jnp.ones((7, 6)) / 5
    x = jnp.arange(4.0) / 4
    argnums = (0, 1, 2, 3)

    def f2(W1, W2, W3, x):
        x = jax.checkpoint(g)(W1, x)
        x = jax.checkpoint(g)(W2, x)
        return jax.checkpoint(g)(W3, x)

    policies = {
        "nothing": jax.checkpoint_policies.nothing_saveable,
        "everything": jax.checkpoint_policies.everything_saveable,
        "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    }
    of = lambda f: jax.jit(jax.grad(lambda *args: f(*args).sum(), argnums))(W1, W2, W3, x)

    @partial(jax.remat, static_argnums=(1,))
    def powers(x, is_training):
        return x**3 if is_training else x

    def recursive_checkpoint(funs):
        if len(funs) == 1:
            return funs[0]
        if len(funs) == 2:
            return lambda x: funs[1](funs[0](x))
        half = len(funs) // 2
        first, second = map(recursive_checkpoint, (funs[:half], funs[half:]))
        return lambda x: jax.checkpoint(second)(first(x))

    @partial(jax.checkpoint, prevent_cse=False)
    def layer(x, w):
        return jnp.tanh(w @ x), None

    weights = jnp.stack([jnp.eye(4) * 0.5 + 0.1] * 6)
    return {
        "plain": of(f),
        "checkpointed": of(f2),
        "whole": of(jax.checkpoint(f)),
        **{name: of(jax.checkpoint(f, policy=policy)) for name, policy in policies.items()},
        "static": [jax.grad(powers)(2.0, True), jax.grad(powers)(2.0, False)],
        "recursive": jax.grad(recursive_checkpoint([jnp.sin] * 8))(3.0),
        "scan": jax.grad(lambda ws: lax.scan(layer, x, ws)[0].sum())(weights),
    }


@pytest.mark.slow
def test_program():
    compare(program)
