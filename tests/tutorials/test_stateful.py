"""State as an argument and a result: a counter, and a linear regression."""

from typing import NamedTuple

import pytest
from support.tutorials import compare


def program(jax, jnp, random):
    class CounterV2:
        def count(self, n: int) -> tuple[int, int]:
            return n + 1, n + 1

        def reset(self) -> int:
            return 0

    counter = CounterV2()
    state = counter.reset()
    fast_count = jax.jit(counter.count)
    counts = []
    for _ in range(3):
        value, state = fast_count(state)
        counts.append(value)

    class Params(NamedTuple):
        weight: object
        bias: object

    def init(rng) -> Params:
        weights_key, bias_key = random.split(rng)
        return Params(random.normal(weights_key, ()), random.normal(bias_key, ()))

    def loss(params: Params, x, y):
        pred = params.weight * x + params.bias
        return jnp.mean((pred - y) ** 2)

    @jax.jit
    def update(params: Params, x, y) -> Params:
        grad = jax.grad(loss)(params, x, y)
        return jax.tree.map(lambda param, g: param - g * 0.005, params, grad)

    rng = random.key(42)
    w, b = 3.0, -1.0
    x_rng, noise_rng = random.split(rng)
    xs = random.normal(x_rng, (128, 1))
    ys = xs * w + b + random.normal(noise_rng, (128, 1)) * 0.5
    params = init(rng)
    for _ in range(500):
        params = update(params, xs, ys)
    return {"counts": counts, "start": init(rng), "params": params, "loss": loss(params, xs, ys)}


@pytest.mark.slow
def test_program():
    compare(program, rtol=1e-4)
