"""A network with two kinds of parameters, weight decay on one of them, and a learning rate that is a schedule."""

import numpy as np
import pytest
from support.tutorials import compare


def program(jax, jnp, nn, optax):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(96, 12)).astype("float32")
    labels = (images[:, 0] + images[:, 1] * images[:, 2] > 0).astype("int32") + 2 * (images[:, 3] > 0)
    params = [
        {"w": (rng.normal(size=shape) / 4).astype("float32"), "b": np.zeros(shape[1], "float32")}
        for shape in ((12, 32), (32, 4))
    ]

    def net(params, x):
        hidden = nn.gelu(x @ params[0]["w"] + params[0]["b"])
        return hidden @ params[1]["w"] + params[1]["b"]

    def loss(params, x, y):
        one_hot = nn.one_hot(y, 4)
        return optax.softmax_cross_entropy(net(params, x), optax.smooth_labels(one_hot, 0.1)).mean()

    mask = jax.tree.map(lambda p: p.ndim > 1, params)
    schedule = optax.join_schedules(
        [optax.linear_schedule(0.0, 0.02, 10), optax.exponential_decay(0.02, 10, 0.5)], boundaries=[10]
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b1=0.95, weight_decay=1e-2, mask=mask)
    )
    by_layer = optax.multi_transform(
        {"first": optax.sgd(0.1, momentum=0.9), "last": optax.lion(1e-3)}, ["first", "last"]
    )

    def fit(optimizer, params, steps):
        @jax.jit
        def step(params, opt_state, batch, labels):
            value, grads = jax.value_and_grad(loss)(params, batch, labels)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, value

        opt_state = optimizer.init(params)
        values = []
        for i in range(steps):
            part = slice(32 * (i % 3), 32 * (i % 3) + 32)
            params, opt_state, value = step(params, opt_state, images[part], labels[part])
            values.append(value)
        return params, values

    trained, values = fit(optimizer, params, 30)
    return {
        "losses": values,
        "norm": optax.global_norm(trained),
        "accuracy": jnp.mean(jnp.argmax(net(trained, images), axis=-1) == labels),
        "by layer": fit(by_layer, params, 10),
        "integer labels": optax.softmax_cross_entropy_with_integer_labels(net(trained, images), labels).mean(),
    }


@pytest.mark.slow
def test_program():
    compare(program, rtol=1e-3, atol=1e-4)
