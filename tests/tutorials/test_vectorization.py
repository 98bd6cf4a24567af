"""A convolution of two vectors becomes one of two batches."""

import pytest
from support.tutorials import compare


def program(jax, jnp):
    x, w = jnp.arange(5), jnp.array([2.0, 3.0, 4.0])

    def convolve(x, w):
        output = []
        for i in range(1, len(x) - 1):
            output.append(jnp.dot(x[i - 1 : i + 2], w))
        return jnp.array(output)

    def manually_vectorized_convolve(xs, ws):
        output = []
        for i in range(1, xs.shape[-1] - 1):
            output.append(jnp.sum(xs[:, i - 1 : i + 2] * ws, axis=1))
        return jnp.stack(output, axis=1)

    xs, ws = jnp.stack([x, x]), jnp.stack([w, w])
    auto_batch_convolve = jax.vmap(convolve)
    auto_batch_convolve_v2 = jax.vmap(convolve, in_axes=1, out_axes=1)
    batch_convolve_v3 = jax.vmap(convolve, in_axes=[0, None])
    return {
        "one": convolve(x, w),
        "by hand": manually_vectorized_convolve(xs, ws),
        "vmap": auto_batch_convolve(xs, ws),
        "columns": auto_batch_convolve_v2(jnp.transpose(xs), jnp.transpose(ws)),
        "one kernel": batch_convolve_v3(xs, w),
        "compiled": jax.jit(auto_batch_convolve)(xs, ws),
        "outer": jax.vmap(jax.vmap(lambda a, b: a * b, (None, 0)), (0, None))(w, w),
    }


@pytest.mark.slow
def test_program():
    compare(program)
