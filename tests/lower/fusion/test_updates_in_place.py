"""Updates of some elements of an intermediate: written over it, unless something else reads it afterwards."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.nn import functional

ROWS, WIDTH = 40_000, 8
NBYTES = ROWS * WIDTH * 4


def arguments():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(ROWS, WIDTH)).astype("float32")
    indices = rng.choice(ROWS, 6, replace=False).astype("int32")
    return table, indices, rng.normal(size=(6, WIDTH)).astype("float32")


def added(table, indices, rows):
    """NumPy's counterpart of ``table.at[indices].add(rows)``."""
    result = np.array(table)
    np.add.at(result, indices, rows)
    return result


def replaced(table, indices, rows):
    """NumPy's counterpart of ``table.at[indices].set(rows)``."""
    result = np.array(table)
    result[indices] = rows
    return result


# By name: the function, and the same in NumPy.
IN_PLACE = {
    "rows": (
        lambda t, i, u: tnp.sum((t * 2).at[i].add(u), 0),
        lambda t, i, u: added(t * 2, i, u).sum(0),
    ),
    "several updates": (
        lambda t, i, u: tnp.sum((t * 2).at[i].add(u).at[i + 1].set(u).at[0].multiply(3.0), 0),
        lambda t, i, u: (lambda x: x.sum(0) + 2 * x[0])(replaced(added(t * 2, i, u), i + 1, u)),
    ),
    "a slice": (
        lambda t, i, u: tnp.sum(lax.dynamic_update_slice(t * 2, u, (i[0] % 100, 0)), 0),
        lambda t, i, u: replaced(t * 2, i[0] % 100 + np.arange(6), u).sum(0),
    ),
}
COPIED = {
    "read later": (
        lambda t, i, u: (lambda x: tnp.sum(x.at[i].add(u) * x, 0))(t * 2),
        lambda t, i, u: (added(t * 2, i, u) * (t * 2)).sum(0),
    ),
    "read later in another shape": (
        lambda t, i, u: (lambda x: (tnp.sum(x.at[i].add(u), 0), tnp.sum(x.reshape(WIDTH, ROWS), 1)))(t * 2),
        lambda t, i, u: (added(t * 2, i, u).sum(0), (t * 2).reshape(WIDTH, ROWS).sum(1)),
    ),
    "its own rows": (
        lambda t, i, u: (lambda x: tnp.sum(x.at[i].add(x[i + 1] + u), 0))(t * 2),
        lambda t, i, u: added(t * 2, i, t[i + 1] * 2 + u).sum(0),
    ),
    "its own slice": (
        lambda t, i, u: (lambda x: tnp.sum(lax.dynamic_update_slice(x, x[3:9], (i[0] % 3, 0)), 0))(t * 2),
        lambda t, i, u: replaced(t * 2, i[0] % 3 + np.arange(6), t[3:9] * 2).sum(0),
    ),
    "returned": (
        lambda t, i, u: (lambda x: (x.at[i].add(u), x))(t * 2),
        lambda t, i, u: (added(t * 2, i, u), t * 2),
    ),
    "an argument": (
        lambda t, i, u: tnp.sum(t.at[i].add(u), 0) + tnp.sum(t, 0),
        lambda t, i, u: added(t, i, u).sum(0) + t.sum(0),
    ),
}
BOTH = {**IN_PLACE, **COPIED}


def part(values, k):
    """The ``k``-th of each leaf."""
    return tvmfun.tree.map(lambda x: x[k], values)


def agree(got, expected):
    for own, other in zip(*map(tvmfun.tree.leaves, (got, expected)), strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-4, atol=2e-2)


@pytest.mark.parametrize("name", BOTH)
def test_values(name):
    function, in_numpy = BOTH[name]
    values = arguments()
    agree(tvmfun.jit(function)(*values), in_numpy(*values))


@pytest.mark.parametrize("name", BOTH)
def test_batches(name):
    function, in_numpy = BOTH[name]
    table, indices, rows = arguments()
    batch = np.stack([table, table + 1]), np.stack([indices, indices[::-1] // 2]), np.stack([rows, -rows])
    got = tvmfun.jit(tvmfun.vmap(function))(*batch)
    for k in range(2):
        agree(part(got, k), in_numpy(*part(batch, k)))


@pytest.mark.parametrize("name", BOTH)
def test_steps_of_a_loop(name):
    """The memory of an intermediate serves again at each step."""
    function, in_numpy = BOTH[name]
    table, indices, rows = arguments()

    def step(total, k):
        return total + k, function(table + total, indices, rows * k)

    _, got = tvmfun.jit(lambda: lax.scan(step, np.float32(0), np.arange(3, dtype="float32")))()
    for k in range(3):
        expected = in_numpy(table + np.float32(k * (k - 1) / 2), indices, rows * np.float32(k))
        agree(part(got, k), expected)


@pytest.mark.parametrize("name", BOTH)
def test_dynamic_sizes(name):
    function, in_numpy = BOTH[name]
    table, indices, rows = arguments()
    if name == "read later in another shape":
        function = lambda t, i, u: (lambda x: (tnp.sum(x.at[i].add(u), 0), tnp.sum(x.reshape(-1, 1), 0)))(t * 2)
        in_numpy = lambda t, i, u: (added(t * 2, i, u).sum(0), (t * 2).reshape(-1, 1).sum(0))
    compiled = tvmfun.jit(function, dynamic_shapes=({0: tvmfun.Dim("n", min=10)}, None, None))
    for size in (ROWS, 3000):
        values = table[:size], indices % (size - 1), rows
        agree(compiled(*values), in_numpy(*values))


@pytest.mark.parametrize("name", BOTH)
def test_memory(name):
    values = arguments()
    plan = tvmfun.jit(BOTH[name][0]).lower(*values).compile().memory_analysis()
    tables = {"read later": 2, "read later in another shape": 2, "its own rows": 2, "its own slice": 2, "returned": 0}
    assert plan.temporaries <= tables.get(name, 1) * NBYTES + (64 << 10)


def test_the_gradient_of_a_table_that_is_looked_up_and_multiplied():
    """Of words that also give the logits: one gradient is added to the other row by row, without a third array."""
    rng = np.random.default_rng(1)
    table = rng.normal(size=(20_000, 32)).astype("float32")
    words = rng.integers(0, len(table), 12).astype("int32")

    def step(np, grad, log_softmax):
        loss = lambda t: -np.mean(log_softmax(np.tanh(t[words]) @ t.T)[:, 7])
        return lambda t: t * 0.99 - 0.1 * grad(loss)(t)

    own = tvmfun.jit(step(tnp, tvmfun.grad, functional.log_softmax))
    peer = jax.jit(step(jax.numpy, jax.grad, jax.nn.log_softmax))
    np.testing.assert_allclose(own(table), peer(table), rtol=2e-5, atol=1e-6)
    plan = own.lower(table).compile().memory_analysis()
    assert plan.temporaries < 1.5 * table.nbytes
