"""Lookahead, a learning rate that is learned by its own gradient, and hyperparameters in the state."""

import numpy as np
import pytest
from support.tutorials import compare


def program(jax, jnp, nn, optax):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype("float32")
    y = x @ np.array([1.0, -2.0, 0.5], "float32") + 1.0

    def loss_fn(params, x, y):
        return jnp.mean(optax.huber_loss(x @ params["w"] + params["b"], y))

    initial = {"w": jnp.zeros(3), "b": jnp.zeros(())}

    # Two sets of parameters, of which the slow ones follow the fast ones.
    fast = optax.lookahead(optax.adam(0.1), sync_period=5, slow_step_size=0.5)
    params = optax.LookaheadParams.init_synced(initial)

    @jax.jit
    def train_step(params, opt_state):
        loss, grads = jax.value_and_grad(loss_fn)(params.fast, x, y)
        updates, opt_state = fast.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state = fast.init(params)
    for _ in range(23):
        params, opt_state, loss = train_step(params, opt_state)

    # The loss after a step, as a function of the step's learning rate.
    opt = optax.inject_hyperparams(optax.rmsprop)(learning_rate=0.02, decay=0.9)
    meta_opt = optax.adam(0.1)

    @jax.jit
    def outer_loss(eta, params, state):
        state.hyperparams["learning_rate"] = nn.sigmoid(eta)
        grads = jax.grad(loss_fn)(params, x[:20], y[:20])
        updates, state = opt.update(grads, state)
        params = optax.apply_updates(params, updates)
        return loss_fn(params, x[20:], y[20:]), (params, state)

    eta, state, learned = -jnp.log(1.0 / 0.02 - 1), opt.init(initial), initial
    meta_state = meta_opt.init(eta)
    rates = []
    for _ in range(10):
        (_, (learned, state)), eta_grad = jax.value_and_grad(outer_loss, has_aux=True)(eta, learned, state)
        meta_updates, meta_state = meta_opt.update(eta_grad, meta_state)
        eta = optax.apply_updates(eta, meta_updates)
        rates.append(nn.sigmoid(eta))

    averaged = optax.incremental_update(learned, initial, step_size=0.1)
    return {
        "slow": params.slow,
        "fast": params.fast,
        "loss": loss,
        "rates": rates,
        "learned": learned,
        "averaged": averaged,
        "finite": optax.tree_utils.tree_sum(averaged),
    }


@pytest.mark.slow
def test_program():
    compare(program, rtol=1e-3, atol=1e-4)
