"""Rows that loops and tiles fetch before they use them: which kernels do, and numbers in loops, batches, donated."""

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


def gated(x, w, h, np_=tnp):
    return np_.tanh(x @ w) * h


def tile_operands(rows=ROWS, terms=40, columns=COLUMNS):
    return draw(rows, terms), draw(terms, columns, seed=1), draw(rows, columns, seed=2)


@pytest.mark.parametrize(
    "function,shape,expected",
    [
        (gated, (ROWS, COLUMNS), True),
        (lambda x, w, h: gated(x, w, h) + h * h, (ROWS, COLUMNS), True),
        (gated, (Dim("b"), COLUMNS), True),
        (lambda x, w, h: gated(x, w, h[3]), (ROWS, COLUMNS), False),  # the same row for all
        (lambda x, w, h: gated(x, w, h.T), (COLUMNS, ROWS), False),  # neighbours are not along the columns
        (lambda x, w, h: gated(x, w, h[:, :1]), (ROWS, COLUMNS), False),
        (lambda x, w, h: x @ w, (ROWS, COLUMNS), False),
    ],
    ids=["one", "one of several uses", "dynamic", "row", "transposed", "column", "none"],
)
def test_inputs_that_tiles_fetch(function, shape, expected):
    rows = next((size for size in shape if not isinstance(size, int)), ROWS)
    specs = [ShapeDtype(shape, "float32") for shape in ((rows, 40), (40, COLUMNS), shape)]
    assert set(kinds(function, *specs)) == ({0} if expected else set())


def test_tiles_do_not_fetch_what_l2_holds():
    x, w, h = tile_operands(rows=20)
    assert not kinds(gated, *(ShapeDtype(array.shape, "float32") for array in (x, w, h)))


@pytest.mark.parametrize("rows,terms,columns", [(ROWS, 40, COLUMNS), (61, 300, 257), (1, 7, 9001)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_that_fetch(rows, terms, columns, dtype):
    x, w, h = (array.astype(dtype) for array in tile_operands(rows, terms, columns))
    close(tvmfun.jit(gated)(x, w, h), gated(x, w, h, np), 1e-4)
    if dtype == "float32":
        ours = tvmfun.jit(tvmfun.grad(lambda *args: tnp.sum(gated(*args) ** 2), argnums=(0, 1, 2)))
        theirs = jax.grad(lambda *args: jnp.sum(gated(*args, jnp) ** 2), argnums=(0, 1, 2))
        for found, expected in zip(ours(x, w, h), theirs(x, w, h), strict=True):
            close(found, expected, 1e-3)


def test_tiles_that_fetch_what_they_write_over():
    """An input that the result takes the memory of, in a call, a loop and a batch."""
    x, w, h = tile_operands()
    expected = gated(x, w, h, np)
    donated = tvmfun.jit(gated, donate_argnums=2)
    close(donated(x, w, tnp.asarray(h)), expected, 1e-4)
    loop = tvmfun.jit(lambda x, w, h: lax.fori_loop(0, 3, lambda _, h: gated(x, w, h), h), donate_argnums=2)
    close(loop(x, w, tnp.asarray(h)), np.tanh(x @ w) ** 2 * expected, 1e-4)
    batch = np.stack([h, -h, 2 * h])
    found = tvmfun.jit(tvmfun.vmap(gated, in_axes=(None, None, 0)))(x, w, batch)
    close(found, np.stack([expected, -expected, 2 * expected]), 1e-4)
    found = tvmfun.jit(tvmfun.vmap(gated, in_axes=(0, None, 0)))(np.stack([x, -x, x]), w, batch)
    close(found, np.stack([expected, expected, 2 * expected]), 1e-4)


@pytest.mark.parametrize(
    "function,shape,expected",
    [
        (lambda x: x[::-1], (ROWS, COLUMNS), [0]),
        (lambda x: x[:, ::-1], (ROWS, COLUMNS), [0]),
        (lambda x: x[::-1, ::-1] + x, (ROWS, COLUMNS), [0]),  # the plain operand ascends
        (lambda x: x[::-1], (ROWS, 10, 30), [0]),
        (lambda x: x[:, ::-1], (7, ROWS, COLUMNS), [0]),
        (lambda x: x[::-1], (20, COLUMNS), []),  # L2 holds all
        (lambda x: x[::-1], (700, 30), []),  # short rows
        (lambda x: x[::-1], (10, 5000), []),  # long ones
        (lambda x: tnp.roll(x, 3, 0), (ROWS, COLUMNS), []),  # ascends
        (lambda x: x[::-1].T, (ROWS, COLUMNS), []),
        (lambda x: x[::-1], (Dim("b"), COLUMNS), []),
    ],
    ids=["rows", "columns", "both", "cubes", "inner", "small", "short", "long", "rolled", "transposed", "dynamic"],
)
def test_descending_rows_that_are_fetched(function, shape, expected):
    assert kinds(function, ShapeDtype(shape, "float32")) == expected


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool", "bfloat16"])
@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (3, 41, 1029), (5, 67, 33, 31)], ids=str)
def test_flips(shape, dtype):
    x = np.asarray(tnp.asarray(np.random.default_rng(0).integers(0, 100, shape)).astype(dtype))
    for axis in (0, 1, -1, (0, 1), None):
        found = tvmfun.jit(lambda x, axis=axis: tnp.flip(x, axis))(x)
        np.testing.assert_array_equal(np.asarray(found), np.flip(x, axis))


def test_flips_in_gradients_loops_batches_and_donating_calls():
    x, y = draw(ROWS, COLUMNS), draw(ROWS, COLUMNS, seed=1)
    mirrored = lambda x, y, np_=tnp: np_.tanh(x[::-1, ::-1]) * y + x[::-1]
    close(tvmfun.jit(mirrored, donate_argnums=0)(tnp.asarray(x), y), mirrored(x, y, np))
    ours = tvmfun.jit(tvmfun.grad(lambda x, y: tnp.sum(mirrored(x, y) ** 2), argnums=(0, 1)))
    theirs = jax.grad(lambda x, y: jnp.sum(mirrored(x, y, jnp) ** 2), argnums=(0, 1))
    for found, expected in zip(ours(x, y), theirs(x, y), strict=True):
        close(found, expected, 1e-4)
    expected = x
    for _ in range(3):
        expected = mirrored(expected, y, np)
    loop = tvmfun.jit(lambda x, y: lax.fori_loop(0, 3, lambda _, x: mirrored(x, y), x), donate_argnums=0)
    close(loop(tnp.asarray(x), y), expected, 1e-4)
    batch = np.stack([x, -x, 2 * x])
    found = tvmfun.jit(tvmfun.vmap(mirrored, in_axes=(0, None)))(batch, y)
    close(found, np.stack([mirrored(own, y, np) for own in batch]))


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
