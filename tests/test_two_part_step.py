"""The step as one module and as two, with the gradients on the device between them: the same bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, optim, random, tree

RNG = np.random.default_rng(0)
STEPS = 6


class State(NamedTuple):
    model: Any
    statistics: Any
    opt_state: Any
    key: Any


def mlp(key):
    first, second = random.split(key)
    return nn.Sequential(
        nn.Linear(13, 37, key=first), nn.functional.gelu, nn.Dropout(0.25), nn.Linear(37, 5, key=second)
    )


def conv(key):
    first, second = random.split(key)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False, key=first),
        nn.BatchNorm(8),
        nn.functional.relu,
        nn.Dropout(0.25),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5, key=second),
    )


def normalized(key):
    first, second = random.split(key)
    return nn.Sequential(
        nn.Linear(13, 128, key=first), nn.LayerNorm(128), nn.functional.relu, nn.Linear(128, 5, key=second)
    )


def loss_fn(model, statistics, key, x, labels):
    logits, statistics = model(x, statistics, key=key, train=True)
    return nn.losses.cross_entropy(logits, labels), statistics


def gradients(model, statistics, key, x, labels):
    dropout_key, key = random.split(key)
    (loss, statistics), grads = tvmfun.value_and_grad(loss_fn, has_aux=True)(model, statistics, dropout_key, x, labels)
    return grads, statistics, key, loss


def steps(optimizer):
    """The step inlined, and in two parts."""

    def update(grads, opt_state, model):
        updates, opt_state = optimizer.update(grads, opt_state, model)
        return optim.apply_updates(model, updates), opt_state

    @tvmfun.jit
    def inlined(state, x, labels):
        grads, statistics, key, loss = gradients(state.model, state.statistics, state.key, x, labels)
        model, opt_state = update(grads, state.opt_state, state.model)
        return State(model, statistics, opt_state, key), loss

    grad_fn, update_fn = tvmfun.jit(gradients), tvmfun.jit(update, donate_argnums=(0, 1))

    def in_parts(state, x, labels):
        grads, statistics, key, loss = grad_fn(state.model, state.statistics, state.key, x, labels)
        model, opt_state = update_fn(grads, state.opt_state, state.model)
        return State(model, statistics, opt_state, key), loss

    return inlined, in_parts


@pytest.mark.quick("mlp-adamw")
@pytest.mark.parametrize(
    ("make", "shape", "optimizer"),
    [
        pytest.param(mlp, (16, 13), optim.adamw(1e-2), id="mlp-adamw"),
        pytest.param(
            mlp, (16, 13), optim.chain(optim.clip_by_global_norm(0.1), optim.adamw(1e-2)), id="mlp-clipped-adamw"
        ),
        pytest.param(mlp, (7, 13), optim.MultiSteps(optim.adam(1e-2), 2), id="mlp-two-batches-adam"),
        pytest.param(conv, (8, 6, 6, 3), optim.sgd(0.1, momentum=0.9), id="conv-momentum"),
        pytest.param(
            conv,
            (8, 6, 6, 3),
            optim.chain(optim.add_decayed_weights(1e-2), optim.sgd(0.1, momentum=0.9, nesterov=True)),
            id="conv-decay-nesterov",
        ),
        pytest.param(normalized, (16, 13), optim.lamb(1e-2), id="layer-norm-lamb"),
    ],
)
def test_both_ways_give_the_same_bits(make, shape, optimizer):
    model = make(random.key(0))
    inlined, in_parts = steps(optimizer)
    one = two = State(model, nn.init_state(model), optimizer.init(model), random.key(1))
    # The second way donates the state of the optimizer.
    two = two._replace(opt_state=optimizer.init(model))
    for _ in range(STEPS):
        x, labels = RNG.normal(size=shape).astype("float32"), RNG.integers(0, 5, shape[0])
        one, loss = inlined(one, x, labels)
        two, other_loss = in_parts(two, x, labels)
        np.testing.assert_array_equal(other_loss, loss)
        tree.map(np.testing.assert_array_equal, two, one)
    moved = tree.map(lambda a, b: not np.array_equal(a, b), one.model, model)
    assert all(tree.leaves(moved))


def test_a_constant_gradient_may_differ_by_rounding():
    optimizer = optim.chain(optim.clip_by_global_norm(0.5), optim.sgd(0.3))
    update = lambda grads, params: optimizer.update(grads, optimizer.init(params), params)[0]
    gradient = tvmfun.grad(lambda params: 0.3 * tnp.sum(params))
    params = tnp.zeros(1003)
    grads = tvmfun.jit(gradient)(params)
    in_parts = tvmfun.jit(update)(grads, params)
    inlined = tvmfun.jit(lambda params: update(gradient(params), params))(params)
    np.testing.assert_allclose(in_parts, inlined, rtol=1e-5)
    np.testing.assert_allclose(inlined, np.full(1003, -0.3 * 0.5 / np.sqrt(1003)), rtol=1e-6)
