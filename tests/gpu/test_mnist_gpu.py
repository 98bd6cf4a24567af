"""MNIST on a GPU, step by step beside the CPU. Run by ``nox -s gpu`` on a machine that has one."""

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


def losses(device: str, steps: int) -> list[float]:
    data = mnist_data.load()
    optimizer = mnist.make_optimizer(1.0, 0.7, steps)
    state = tvmfun.device_put(tvmfun.jit(partial(mnist.start, optimizer))(random.key(1)), device)
    step = tvmfun.jit(partial(mnist.train_step, optimizer), donate_argnums=0)
    result = []
    for _, batch in zip(range(steps), mnist.training_batches(data, 1, 64), strict=False):
        state, loss = step(state, *tvmfun.device_put(batch, device))
        result.append(float(loss))
    return result


def test_losses_are_the_cpus():
    # The first steps agree to rounding; later ones drift apart, as they do between any two devices.
    np.testing.assert_allclose(losses("cuda", 5), losses("cpu", 5), rtol=1e-3)


def test_trains():
    assert np.mean(losses("cuda", 60)[-10:]) < 0.5
