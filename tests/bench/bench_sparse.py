"""Tables of embeddings: what a step of a DLRM costs with ten thousand rows per table, and with ten million.

Run with ``nox -s bench -- -k sparse``; it takes 9 GB.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import jit, nn, optim, random, sparse

ROWS = (10_000, 10_000_000)
TABLES, WIDTH, BATCH, BATCHES, ROUNDS = 4, 16, 1024, 16, 12
OPTIMIZERS = {
    "sgd": lambda: optim.sgd(0.01),
    "momentum": lambda: optim.sgd(0.01, momentum=0.9),
    "adagrad": lambda: optim.adagrad(0.01),
    "rowwise adagrad": lambda: optim.rowwise_adagrad(0.01),
    "adam": lambda: optim.adam(0.001),
}


def make(rows: int) -> dict[str, Any]:
    """The parameters; tables begin with zeros, which are quick to make."""
    keys = random.split(random.key(0), 6)
    layers = [nn.Linear(a, b, key=key) for (a, b), key in zip(pairwise((13, 512, 256, WIDTH)), keys[:3], strict=True)]
    top = [nn.Linear(a, b, key=key) for (a, b), key in zip(pairwise((WIDTH + 10, 512, 256, 1)), keys[3:], strict=True)]
    tables = [sparse.RowTable(tnp.zeros((rows, WIDTH))) for _ in range(TABLES)]
    return {"tables": tables, "bottom": layers, "top": top}


def loss(params: dict[str, Any], numbers: Any, rows: Any, clicks: Any) -> Any:
    """Binary cross-entropy of the clicks, from products of all pairs of vectors."""
    x = numbers
    for layer in params["bottom"]:
        x = nn.functional.relu(layer(x))
    vectors = tnp.stack([x, *(table[rows[:, i]] for i, table in enumerate(params["tables"]))], axis=1)
    products = tnp.matmul(vectors, tnp.permute_dims(vectors, (0, 2, 1)))
    i, j = np.tril_indices(TABLES + 1, -1)
    y = tnp.concat([x, products[:, i, j]], axis=1)
    for layer in params["top"][:-1]:
        y = nn.functional.relu(layer(y))
    return tnp.mean(nn.losses.sigmoid_binary_cross_entropy(params["top"][-1](y)[:, 0], clicks))


class Run:
    """A training run, and the least time of a step."""

    def __init__(self, optimizer: optim.GradientTransformation, rows: int) -> None:
        def step(params, state, *batch):
            value, grads = tvmfun.value_and_grad(loss)(params, *batch)
            updates, state = optimizer.update(grads, state, params)
            return optim.apply_updates(params, updates), state, value

        rng = np.random.default_rng(0)
        self.batches = [
            tvmfun.device_put(
                (
                    rng.standard_normal((BATCH, 13)).astype("float32"),
                    rng.integers(0, rows, (BATCH, TABLES)).astype("int32"),
                    rng.integers(0, 2, BATCH).astype("float32"),
                )
            )
            for _ in range(BATCHES)
        ]
        params = make(rows)
        state = jit(optimizer.init)(params)
        self.state = params, state
        self.step = jit(step, donate_argnums=(0, 1))
        self.plan = self.step.lower(*self.state, *self.batches[0]).compile().memory_analysis()
        self.seconds: list[float] = []

    def round(self) -> None:
        """One step per batch; no batch looks up the rows of the one before."""
        started = time.perf_counter()
        for batch in self.batches:
            *self.state, value = self.step(*self.state, *batch)
        float(value)
        self.seconds.append((time.perf_counter() - started) / BATCHES)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_large_tables_cost_what_small_ones_do(name: str):
    small, large = (Run(optim.lazy(OPTIMIZERS[name]()), rows) for rows in ROWS)
    for _ in range(ROUNDS):
        small.round()
        large.round()
    ratio = np.median(np.divide(large.seconds, small.seconds)[2:])
    assert small.plan.temporaries == large.plan.temporaries and small.plan.workspaces == large.plan.workspaces
    print(
        f"\n{name:16s} {min(small.seconds) * 1e3:6.2f} ms a step with {ROWS[0]:,} rows per table, "
        f"{min(large.seconds) * 1e3:6.2f} ms with {ROWS[1]:,}: {ratio:.2f} times; "
        f"beside parameters and state {large.plan.temporaries / 2**20:.1f} MiB in both"
    )
