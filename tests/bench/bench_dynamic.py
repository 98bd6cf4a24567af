"""The MNIST step with a dynamic batch size beside the static one, and what a call with a dynamic size costs in Python.

Run with ``nox -s bench -- -k dynamic``. Calls are interleaved, so that a busy machine slows both alike.
"""

from __future__ import annotations

import time
from functools import partial

import mnist
import numpy as np
import pytest

import tvmfun
from tvmfun import random

ROUNDS = 30


def timed(call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@pytest.mark.parametrize("batch", [1, 7, 64, 100])
def test_mnist_step(batch):
    optimizer = mnist.make_optimizer(1.0, 1.0, 1)
    state = tvmfun.jit(partial(mnist.start, optimizer))(random.key(0))
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(batch, 28, 28, 1)).astype("float32"), rng.integers(0, 10, batch).astype("int32")
    arguments = tvmfun.device_put((state, images, labels))
    step = partial(mnist.train_step, optimizer)
    static, dynamic = tvmfun.jit(step), tvmfun.jit(step, dynamic_shapes={"images": {0: "b"}, "labels": {0: "b"}})
    calls = [lambda run=run: float(run(*arguments)[1]) for run in (static, dynamic)]
    first = [timed(call) for call in calls]
    times = np.asarray([[timed(call) for call in calls] for _ in range(ROUNDS)])
    ratio = np.median(times[:, 1] / times[:, 0])
    medians = np.median(times, axis=0) * 1e3
    print(
        f"\nbatch {batch:3d}: static {medians[0]:6.2f} ms, dynamic {medians[1]:6.2f} ms, ratio {ratio:.2f};"
        f" first calls {first[0]:.1f} s and {first[1]:.1f} s"
    )
    assert ratio < 1.3


def test_dispatch():
    add = lambda x: x + 1
    static, dynamic = tvmfun.jit(add), tvmfun.jit(add, dynamic_shapes=({0: "b"},))
    x = tvmfun.device_put(np.ones(8, np.float32))
    static(x), dynamic(x)
    times = np.asarray([[timed(lambda run=run: run(x)) for run in (static, dynamic)] for _ in range(3000)])
    new = [timed(lambda n=n: dynamic(np.ones(n, np.float32))) for n in range(9, 60)]
    medians = np.median(times, axis=0) * 1e6
    print(f"\nstatic {medians[0]:.1f} us, dynamic {medians[1]:.1f} us, a new size {np.median(new) * 1e6:.0f} us")
