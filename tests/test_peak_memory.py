"""The exact peak memory of training steps: state is updated in place."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn, optim, random, tree

WIDTH, LAYERS, BATCH = 128, 4, 8
PARAMETERS = 4 * LAYERS * WIDTH * (WIDTH + 1)
X = np.linspace(-1, 1, BATCH * WIDTH, dtype=np.float32).reshape(BATCH, WIDTH)


def model():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, key=random.key(i)) for i in range(LAYERS)])


def loss(module, x):
    return tnp.sum(tnp.tanh(module(x)) ** 2)


def per_layer(module, x):
    for layer in module.layers:
        x = tvmfun.checkpoint(lambda layer, x: layer(x))(layer, x)
    return tnp.sum(tnp.tanh(x) ** 2)


def training_step(gradient, optimizer):
    def step(module, state, x):
        updates, state = optimizer.update(gradient(module, x), state, module)
        return optim.apply_updates(module, updates), state

    return step


def analysis(gradient, optimizer):
    module = model()
    step = training_step(gradient, optimizer)
    lowered = tvmfun.jit(step, donate_argnums=(0, 1)).lower(module, optimizer.init(module), X)
    return lowered.compile().memory_analysis()


LOSSES = {"plain": loss, "checkpoint": tvmfun.checkpoint(loss), "per layer": per_layer}


@pytest.mark.quick("checkpoint")
@pytest.mark.parametrize("name", ["checkpoint", "per layer"])
def test_rematerialization_updates_parameters_in_place(name):
    found = analysis(tvmfun.grad(LOSSES[name]), optim.sgd(0.1))
    assert found.outputs == 0 and found.aliased == PARAMETERS
    assert found.peak <= analysis(tvmfun.grad(loss), optim.sgd(0.1)).peak


@pytest.mark.slow
def test_checkpoints_of_a_transformer():
    layers = [nn.TransformerEncoderLayer(64, 2, 256, dropout=0.0, key=random.key(i)) for i in range(3)]
    x = np.linspace(-1, 1, 8 * 64 * 64, dtype=np.float32).reshape(8, 64, 64)

    def loss(layers, x, wrap=lambda layer: layer):
        for layer in layers:
            x = wrap(lambda layer, x: layer(x))(layer, x)
        return tnp.sum(x**2)

    def peak(loss):
        step = training_step(tvmfun.grad(loss), optimizer := optim.adamw(1e-3))
        lowered = tvmfun.jit(step, donate_argnums=(0, 1)).lower(layers, optimizer.init(layers), x)
        return lowered.compile().memory_analysis().temporaries

    plain, whole = peak(loss), peak(tvmfun.checkpoint(loss))
    per_layer = peak(lambda layers, x: loss(layers, x, tvmfun.checkpoint))
    assert whole <= plain * 1.01
    # Of three layers what the gradient of one needs, and the inputs of all.
    assert per_layer <= plain / 2


@pytest.mark.slow
def test_accumulated_gradients_and_the_optimizers_state_are_updated_in_place():
    found = analysis(tvmfun.grad(loss), optim.MultiSteps(optim.adam(0.1), 4))
    counters = 3 * 4
    assert found.outputs == 0 and found.aliased == 4 * PARAMETERS + counters
    # Neither the gradient nor the updates: less than one step of the optimizer alone.
    single = analysis(tvmfun.grad(loss), optim.adam(0.1))
    assert found.temporaries + found.workspaces <= single.temporaries + single.workspaces
    # The sizes of packed panels depend on the caches of the machine.
    assert single.temporaries < PARAMETERS / 2


def test_microbatches_keep_one_gradient():
    gradient = optim.microbatch(tvmfun.grad(loss), 1, 2)
    found = analysis(gradient, optim.sgd(0.1))
    assert found.temporaries <= PARAMETERS * 1.4


@pytest.mark.slow
@pytest.mark.parametrize("emitted", [0, 1])
def test_a_branch_that_updates_in_place_computes_the_same(emitted):
    optimizer = optim.MultiSteps(optim.adam(0.1), 2)
    step = training_step(tvmfun.grad(loss), optimizer)
    donating = tvmfun.jit(step, donate_argnums=(0, 1))
    module = model()
    expected = module, optimizer.init(module)
    got = tree.map(tnp.array, expected)
    for _ in range(2 + emitted):
        expected, got = tvmfun.jit(step)(*expected, X), donating(*got, X)
    for a, b in zip(tree.leaves(expected), tree.leaves(got), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    tvmfun.check(step, donate_argnums=(0, 1))(*tree.map(tnp.array, expected), X)


SWAPS = {
    "exchanged": lambda a, b: (b, a),
    "one from the other": lambda a, b: (b + 1, a * 2),
    "both from both": lambda a, b: (a + b, a - b),
    "turned": lambda a, b: (a[::-1], b.T),
    "products": lambda a, b: (a @ b, b @ a),
    "sums": lambda a, b: (a - a.sum(), b - b.sum(axis=0)),
}


@pytest.mark.quick("branch in a loop-turned")
@pytest.mark.parametrize("name", SWAPS)
@pytest.mark.parametrize("where", ["branch", "loop", "branch in a loop", "loop in a branch", "intermediates"])
def test_control_flow_over_donated_state(name, where):
    change = SWAPS[name]
    flag = np.bool_(True)

    def branch(flag, a, b):
        return lax.cond(flag, change, lambda a, b: (a, b * 3), a, b)

    def loop(flag, a, b):
        return lax.fori_loop(0, 3, lambda i, state: change(*state), (a, b))

    forms = {
        "branch": branch,
        "loop": loop,
        "branch in a loop": lambda flag, a, b: lax.fori_loop(0, 3, lambda i, s: branch(flag, *s), (a, b)),
        "loop in a branch": lambda flag, a, b: lax.cond(flag, lambda: loop(flag, a, b), lambda: (b, a)),
        "intermediates": lambda flag, a, b: tree.map(tnp.sin, loop(flag, *branch(flag, tnp.cos(a), tnp.exp(b)))),
    }
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(19, 19)).astype(np.float32) / 4 for _ in range(2))
    expected = forms[where](flag, a, b)  # op by op, where nothing is donated
    got = tvmfun.jit(forms[where], donate_argnums=(1, 2))(flag, tnp.array(a), tnp.array(b))
    for x, y in zip(expected, got, strict=True):
        np.testing.assert_allclose(np.asarray(y), np.asarray(x), rtol=2e-5, atol=2e-5)
    tvmfun.check(forms[where], donate_argnums=(1, 2))(flag, a, b)


def test_views_of_donated_arrays():
    def step(p, q):
        flat = p.reshape(-1)
        return p - 0.1 * tnp.sum(flat * 2), q.reshape(4, -1) * 2, tnp.sum(q)

    p, q = np.arange(12.0).reshape(3, 4), np.arange(8.0)
    for x, y in zip(tvmfun.jit(step, donate_argnums=(0, 1))(tnp.array(p), tnp.array(q)), step(p, q), strict=True):
        np.testing.assert_allclose(np.asarray(x), y)
    compiled = tvmfun.jit(step, donate_argnums=(0, 1)).lower(p, q).compile()
    assert compiled.memory_analysis().aliased >= p.nbytes
