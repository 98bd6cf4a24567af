"""The first steps with optax: a linear model, a loss by itself, and the loop around an optimizer."""

import pytest
from support.tutorials import compare


def program(jax, jnp, random, optax):
    @jax.jit
    @jax.vmap
    def network(params, x):
        return jnp.dot(params, x)

    def compute_loss(params, x, y):
        y_pred = jax.vmap(jnp.dot, in_axes=(None, 0))(params, x)
        return jnp.mean(optax.l2_loss(y_pred, y))

    key = random.key(42)
    target_params = 0.5
    xs = random.normal(key, (16, 2))
    ys = jnp.sum(xs * target_params, axis=-1)

    start_learning_rate = 1e-1
    optimizer = optax.adam(start_learning_rate)
    params = jnp.array([0.0, 0.0])
    opt_state = optimizer.init(params)
    losses = []
    for _ in range(100):
        loss, grads = jax.value_and_grad(compute_loss)(params, xs, ys)
        updates, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        losses.append(loss)

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=50, decay_steps=1_000, end_value=0.0)
    chained = optax.chain(optax.clip(1.0), optax.scale_by_adam(), optax.scale_by_schedule(schedule), optax.scale(-1.0))
    other, chained_state = jnp.array([0.0, 0.0]), chained.init(params)
    for _ in range(20):
        updates, chained_state = chained.update(jax.grad(compute_loss)(other, xs, ys), chained_state)
        other = optax.apply_updates(other, updates)
    return {
        "network": network(jnp.ones((3, 2)), xs[:3]),
        "params": params,
        "losses": losses,
        "moments": opt_state[0].mu,
        "count": opt_state[0].count,
        "schedule": [schedule(i) for i in (0, 25, 500)],
        "chained": other,
    }


@pytest.mark.slow
def test_program():
    compare(program, rtol=1e-4)
