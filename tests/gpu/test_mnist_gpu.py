"""MNIST on a GPU, step by step beside the CPU. Run by ``nox -s gpu_library`` on a machine that has one."""

from functools import partial

import mnist
import mnist_data
import numpy as np
import pytest

import tvmfun
from tvmfun import random

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tvmfun.devices("cuda"), reason="there is no CUDA device"),
]


def trained(device: str, steps: int) -> tuple[mnist.State, list[float]]:
    """The state after some steps, and their losses."""
    optimizer = mnist.make_optimizer(1.0, 0.7, steps)
    state = tvmfun.device_put(tvmfun.jit(partial(mnist.start, optimizer))(random.key(1)), device)
    step = tvmfun.jit(partial(mnist.train_step, optimizer), donate_argnums=0)
    losses = []
    for _, batch in zip(range(steps), mnist.training_batches(mnist_data.load(), 1, 64), strict=False):
        state, loss = step(state, *tvmfun.device_put(batch, device))
        losses.append(float(loss))
    return state, losses


def test_losses_are_the_cpus():
    # The first steps agree to rounding; later ones drift apart, as they do between any two devices.
    np.testing.assert_allclose(trained("cuda", 5)[1], trained("cpu", 5)[1], rtol=1e-3)


def test_trains():
    state, losses = trained("cuda", 60)
    assert np.mean(losses[-10:]) < 0.5
    assert mnist.accuracy(state.model, mnist_data.load()) > 0.8


def test_arrays_of_numpy_go_to_where_ours_are():
    host = np.arange(3.0, dtype="float32")
    x = tvmfun.device_put(host, "cuda")
    for result in (
        x + host,
        x + 1.0,
        tvmfun.jit(lambda x, y: x + y)(x, host),
        tvmfun.grad(lambda x: (x * host).sum())(x),
    ):
        assert result.device == x.device
