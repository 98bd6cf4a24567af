"""The MNIST training step beside JAX's and PyTorch's: the same network, batch and optimizer in one run.

Run with ``nox -s bench -- -k mnist``. Calls are interleaved, so that a busy machine slows all three alike; the
figure that counts is the median of the ratios within a round.
"""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import mnist
import numpy as np
import optax
import pytest

import tvmfun
from tvmfun import random, tree

torch = pytest.importorskip("torch")

BATCH = 64
ROUNDS = 30
# Multiplications and additions of the two convolutions and two linear layers: forward, and twice that backward
# but for the gradient of the images.
FORWARD = 2 * BATCH * (26 * 26 * 9 * 32 + 24 * 24 * 9 * 32 * 64 + 9216 * 128 + 128 * 10)
FLOP = 3 * FORWARD - 2 * BATCH * 26 * 26 * 9 * 32


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(BATCH, 28, 28, 1)).astype("float32"), rng.integers(0, 10, BATCH).astype("int32")


class Ours:
    """The step of the example."""

    name = "tvmfun"

    def __init__(self) -> None:
        optimizer = mnist.make_optimizer(1.0, 1.0, 1)
        self.state = tvmfun.jit(partial(mnist.start, optimizer))(random.key(0))
        self.run = tvmfun.jit(partial(mnist.train_step, optimizer), donate_argnums=0)
        self.batch = tvmfun.device_put(data())

    def step(self) -> float:
        self.state, loss = self.run(self.state, *self.batch)
        return float(loss)

    def loss(self) -> float:
        model = self.state.model
        picked = np.asarray(model(self.batch[0]))[np.arange(BATCH), np.asarray(self.batch[1])]
        return float(-picked.mean())


class Jax:
    """The same in JAX and optax, jitted, with donated state."""

    name = "JAX"

    def __init__(self, model: mnist.MnistCnn) -> None:
        self.params = [jnp.asarray(np.asarray(leaf)) for leaf in tree.leaves(model)]
        optimizer = optax.adadelta(1.0)
        self.opt_state = optimizer.init(self.params)
        self.key = jax.random.key(0)
        self.batch = tuple(map(jnp.asarray, data()))

        def network(params, x, key):
            w1, b1, w2, b2, w3, b3, w4, b4 = params
            layout = ("NHWC", "HWIO", "NHWC")
            conv = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=layout)
            x = jax.nn.relu(conv(x, w1) + b1)
            x = jax.nn.relu(conv(x, w2) + b2)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            if key is not None:
                first, key = jax.random.split(key)
                x = jnp.where(jax.random.bernoulli(first, 0.75, x.shape), x / 0.75, 0.0)
            x = jax.nn.relu(x.reshape(BATCH, -1) @ w3 + b3)
            if key is not None:
                x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0.0)
            return jax.nn.log_softmax(x @ w4 + b4)

        def loss(params, x, y, key):
            return -jnp.mean(jnp.take_along_axis(network(params, x, key), y[:, None], axis=1))

        def step(params, opt_state, key, x, y):
            dropout, key = jax.random.split(key)
            value, grads = jax.value_and_grad(loss)(params, x, y, dropout)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, key, value

        self.run = jax.jit(step, donate_argnums=(0, 1, 2))
        self.value = jax.jit(loss)

    def step(self) -> float:
        self.params, self.opt_state, self.key, loss = self.run(self.params, self.opt_state, self.key, *self.batch)
        return float(loss)

    def loss(self) -> float:
        return float(self.value(self.params, *self.batch, None))


class Torch:
    """The same in PyTorch, eager: its compiled form needs a C++ compiler and is no faster here."""

    name = "PyTorch"

    def __init__(self, model: mnist.MnistCnn) -> None:
        nn = torch.nn
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(-1),
        )  # fmt: skip
        w1, b1, w2, b2, w3, b3, w4, b4 = (np.asarray(leaf) for leaf in tree.leaves(model))
        # Channels last there, channels first here, also in the flattened features.
        w3 = w3.reshape(12, 12, 64, 128).transpose(2, 0, 1, 3).reshape(9216, 128)
        values = [w1.transpose(3, 2, 0, 1), b1, w2.transpose(3, 2, 0, 1), b2, w3.T, b3, w4.T, b4]
        with torch.no_grad():
            for parameter, value in zip(self.body.parameters(), values, strict=True):
                parameter.copy_(torch.tensor(value))
        self.optimizer = torch.optim.Adadelta(self.body.parameters(), lr=1.0)
        images, labels = data()
        self.batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels).long()

    def step(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.nll_loss(self.body(self.batch[0]), self.batch[1])
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def loss(self) -> float:
        self.body.eval()
        with torch.no_grad():
            value = float(torch.nn.functional.nll_loss(self.body(self.batch[0]), self.batch[1]))
        self.body.train()
        return value


def timed(call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def gemm_peak() -> float:
    """The speed of a large matrix product, the most this machine can do, in FLOP per second."""
    x = np.random.default_rng(0).normal(size=(1024, 1024)).astype("float32")
    product = jax.jit(lambda x: x @ x)
    product(x).block_until_ready()
    return 2 * 1024**3 / min(timed(lambda: product(x).block_until_ready()) for _ in range(20))


def test_mnist_step():
    ours = Ours()
    runners = [ours, Jax(ours.state.model), Torch(ours.state.model)]
    losses = [runner.loss() for runner in runners]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)  # the same network, before anything is timed
    first = [timed(runner.step) for runner in runners]
    for runner in runners:
        runner.step()
    times = np.asarray([[timed(runner.step) for runner in runners] for _ in range(ROUNDS)])
    peak = gemm_peak()
    floor = FLOP / peak
    print(f"\nGEMM peak {peak / 1e9:.0f} GFLOP/s; the step is {FLOP / 1e9:.2f} GFLOP, {floor * 1e3:.1f} ms at peak")
    for i, runner in enumerate(runners):
        ratio = np.median(times[:, i] / times[:, 0])
        median = np.median(times[:, i])
        print(
            f"{runner.name:8s} step {median * 1e3:7.2f} ms  {ratio:5.2f} x tvmfun  {floor / median:4.0%} of peak"
            f"  first step {first[i]:5.2f} s"
        )
    best_peer = times[:, 1:].min(axis=1)
    assert np.median(times[:, 0] / best_peer) < 3
