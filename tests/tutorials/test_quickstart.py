"""The first steps with JAX: arrays, `jit`, `grad`, `vmap`."""

import pytest
from support.tutorials import compare


def program(jax, jnp, random):
    def selu(x, alpha=1.67, lmbda=1.05):
        return lmbda * jnp.where(x > 0, x, alpha * jnp.exp(x) - alpha)

    x = jnp.arange(5.0)
    key = random.key(1701)
    large = random.normal(key, (1000,))
    selu_jit = jax.jit(selu)

    def sum_logistic(x):
        return jnp.sum(1.0 / (1.0 + jnp.exp(-x)))

    x_small = jnp.arange(3.0)

    def first_finite_differences(f, x, eps=1e-3):
        return jnp.array([(f(x + eps * v) - f(x - eps * v)) / (2 * eps) for v in jnp.eye(len(x))])

    def hessian(fun):
        return jax.jit(jax.jacfwd(jax.jacrev(fun)))

    first, second = random.split(key)
    mat, batched_x = random.normal(first, (15, 10)), random.normal(second, (5, 10))

    def apply_matrix(x):
        return jnp.dot(mat, x)

    @jax.jit
    def vmap_batched_apply_matrix(batched_x):
        return jax.vmap(apply_matrix)(batched_x)

    naive = jnp.stack([apply_matrix(v) for v in batched_x])
    return {
        "selu": selu(x),
        "selu_jit": selu_jit(large).block_until_ready(),
        "grad": jax.grad(sum_logistic)(x_small),
        "differences": jnp.round(first_finite_differences(sum_logistic, x_small), 2),
        "third": jax.grad(jax.jit(jax.grad(jax.jit(jax.grad(sum_logistic)))))(1.0),
        "hessian": hessian(sum_logistic)(x_small),
        "batched": vmap_batched_apply_matrix(batched_x),
        "naive": naive,
        "ready": jax.block_until_ready(jnp.dot(large, large)),
    }


@pytest.mark.slow
def test_program():
    compare(program)
