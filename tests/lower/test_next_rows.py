"""Rows that loops fetch before they use them: which kernels do, and numbers in loops, batches and with donation."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tvm import te

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, lax, nn
from tvmfun.lower import machine, target
from tvmfun.lower.schedule.cpu.rules import schedule
from tvmfun.nn.functional import softmax

ROWS, COLUMNS = 70, 300


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    """Caches of which a few dozen rows fill L2."""
    tvmfun.clear_caches()
    sizes = {1: 4 << 10, 2: 32 << 10, 3: 64 << 10}
    monkeypatch.setattr(machine, "_machine", machine._machine.__wrapped__)
    monkeypatch.setattr(machine.Machine, "cache_bytes", lambda self, level: sizes[level])
    yield
    tvmfun.clear_caches()


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def kinds(function, *specs) -> list[int]:
    """Whether each prefetch of a function is to read (0) or to write (1)."""
    text = tvmfun.jit(function).lower(*specs).compile().as_text()
    return [int(kind) for kind in re.findall(r"llvm\.prefetch\", .*, (\d), 3, 1\)", text)]


def normalized(x, np_=tnp, sqrt=tnp.sqrt):
    centred = x - np_.mean(x, axis=-1, keepdims=True)
    return centred / sqrt(np_.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


F32 = ShapeDtype((ROWS, COLUMNS), "float32")


@pytest.mark.parametrize(
    "function,specs,expected",
    [
        (softmax, [F32], [0, 1]),  # the exponentials fetch the next row, and what the quotients write
        (normalized, [F32], [0]),
        (lambda x, y: softmax(x + y), [F32, F32], [0, 0, 1]),
        (lambda x: tnp.exp(x), [F32], []),  # no loop of rows
        (softmax, [ShapeDtype((20, COLUMNS), "float32")], []),  # L2 holds all
        (softmax, [ShapeDtype((700, 30), "float32")], []),  # short rows
        (softmax, [ShapeDtype((10, 5000), "float32")], []),  # L2 does not hold the next one
        (softmax, [ShapeDtype((Dim("b"), COLUMNS), "float32")], []),
    ],
    ids=["softmax", "norm", "two", "map", "small", "short", "long", "dynamic"],
)
def test_rows_that_are_fetched(function, specs, expected):
    assert kinds(function, *specs) == expected


@pytest.mark.parametrize("looks_up", [False, True])
def test_rows_that_are_looked_up_may_have_no_next_one(looks_up):
    x, i = te.placeholder((ROWS, COLUMNS), name="x"), te.placeholder((ROWS,), "int32", name="i")
    k = te.reduce_axis((0, COLUMNS), "k")
    row = (lambda r: i[r]) if looks_up else lambda r: r
    most = te.compute((ROWS,), lambda r: te.max(x[row(r), k], axis=[k]), "most")
    result = te.compute((ROWS, COLUMNS), lambda r, j: te.exp(x[row(r), j] - most[r]), "result")
    text = str(schedule(te.create_prim_func([x, i, most, result]), target.host()))
    assert ("llvm.prefetch" in text) == (not looks_up)


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (3, 41, 257), (67, 1021)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_softmax_and_its_derivatives(shape, dtype):
    x = draw(*shape).astype(dtype)
    wide = x.astype("float64")
    weights = np.exp(wide - wide.max(-1, keepdims=True))
    close(tvmfun.jit(softmax)(x), weights / weights.sum(-1, keepdims=True), 1e-3 if dtype == "float16" else 1e-5)
    if dtype == "float32":
        ours = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(softmax(x) * tnp.tanh(x))))
        theirs = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * jnp.tanh(x)))
        close(ours(x), theirs(x), 1e-4)
        tangent = draw(*shape, seed=1)
        close(
            tvmfun.jit(lambda x, t: tvmfun.jvp(ours, (x,), (t,))[1])(x, tangent),
            jax.jvp(theirs, (x,), (tangent,))[1],
            1e-4,
        )


def test_results_written_over_donated_rows():
    x = draw(ROWS, COLUMNS)
    step = tvmfun.jit(lambda x: softmax(x) - 0.5 * x, donate_argnums=0)
    expected = jax.nn.softmax(x) - 0.5 * x
    close(step(tnp.asarray(x)), expected)
    loop = tvmfun.jit(lambda x: lax.fori_loop(0, 3, lambda _, x: softmax(x) - 0.5 * x, x), donate_argnums=0)
    for _ in range(2):
        expected = jax.nn.softmax(expected) - 0.5 * expected
    close(loop(tnp.asarray(x)), expected)


def test_batches_and_branches():
    x, keep = draw(5, 40, COLUMNS), np.array([True, False, True, True, False])
    function = lambda x, keep: lax.cond(keep, softmax, lambda x: normalized(x), x)
    found = tvmfun.jit(tvmfun.vmap(function))(x, keep)
    expected = [jax.nn.softmax(a) if k else normalized(a, np, np.sqrt) for a, k in zip(x, keep, strict=True)]
    close(found, np.stack(expected), 1e-4)


def test_layers_of_a_network():
    """A normalization with gains, and a cross-entropy, whose kernels read several arrays by rows."""
    x, labels = draw(ROWS, COLUMNS), np.arange(ROWS) % COLUMNS
    layer = nn.LayerNorm(COLUMNS)

    def loss(layer, x):
        return tnp.mean(-tnp.take_along_axis(nn.functional.log_softmax(layer(x)), labels[:, None], -1))

    def theirs(x):
        return -jnp.mean(jax.nn.log_softmax(normalized(x, jnp, jnp.sqrt))[np.arange(ROWS), labels])

    value, slope = tvmfun.jit(tvmfun.value_and_grad(loss, argnums=1))(layer, x)
    close(value, theirs(x), 1e-4)
    close(slope, jax.grad(theirs)(x), 1e-4)
