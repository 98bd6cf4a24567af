"""Gradients added up over small batches give the step of the large one."""

import numpy as np
import pytest
from support.tutorials import compare


def program(jax, jnp, optax):
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(8, 1)).astype("float32"), "b": np.zeros(1, "float32")}
    x = rng.normal(size=(32, 8)).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True))

    def loss_fun(params, batch, targets):
        return optax.squared_error(batch @ params["w"] + params["b"], targets).mean()

    def build_train_step(optimizer):
        @jax.jit
        def train_step(params, optimizer_state, inputs, targets):
            loss, grads = jax.value_and_grad(loss_fun)(params, inputs, targets)
            updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
            return optax.apply_updates(params, updates), optimizer_state, loss

        return train_step

    def fit(optimizer, batch_size):
        step, state, own = build_train_step(optimizer), optimizer.init(params), params
        for _ in range(3):
            for i in range(0, 32, batch_size):
                own, state, loss = step(own, state, x[i : i + batch_size], y[i : i + batch_size])
        return own, loss

    full = fit(optax.adam(0.1), 32)
    k = 4
    opt = optax.MultiSteps(optax.adam(0.1), every_k_schedule=k)
    accumulated = fit(opt, 8)
    by_schedule = fit(optax.MultiSteps(optax.sgd(0.1), lambda step: jnp.where(step < 1, 2, 4)), 4)
    difference = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)) < 1e-5, full[0], accumulated[0])
    return {"full": full, "accumulated": accumulated, "schedule": by_schedule, "same": difference}


@pytest.mark.slow
def test_program():
    compare(program, rtol=1e-4)
