"""Sparse updates: the looked-up rows of a table are updated in place, and no others are touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import jit, lax, optim
from tvmfun.lower.rewrite.scatter_updates import fuse_scatter_updates

ROWS, WIDTH, BATCH = 50, 7, 12


def gradient(indices, updates, table):
    """The ops of an embedding's gradient."""
    return tnp.zeros_like(table).at[indices].add(updates)


def ops(function, *arguments) -> list[str]:
    program = fuse_scatter_updates(tvmfun.trace(function)(*arguments))
    return [equation.op.name for equation in program.equations if equation.outputs[0].aval.shape == (ROWS, WIDTH)]


def example(dtype="float64"):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(ROWS, WIDTH)).astype(dtype)
    indices = rng.integers(0, ROWS, BATCH).astype("int32")
    indices[3] = indices[1]  # twice, and one outside
    indices[5] = ROWS + 3
    return table, indices, rng.normal(size=(BATCH, WIDTH)).astype(dtype), np.array(rng.normal())


UPDATES = {
    "add": lambda t, g, c: t + g,
    "added to": lambda t, g, c: g + t,
    "subtract": lambda t, g, c: t - g,
    "literal": lambda t, g, c: t + -0.1 * g,
    "divided": lambda t, g, c: t - g / 3.0,
    "scalar": lambda t, g, c: t + g * c,
    "several": lambda t, g, c: t - (-(c * g)) / 7.0 * 2.0,
}


@pytest.mark.quick("divided-0", "added to-()", "divided-()", "literal-0")
@pytest.mark.parametrize("donate", [(), (0,)])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_touches_rows_only(name, donate):
    table, indices, updates, c = example()
    step = lambda t, i, u, c: UPDATES[name](t, gradient(i, u, t), c)
    assert ops(step, table, indices, updates, c) == ["scatter"]
    dense = np.zeros_like(table)
    kept = indices < ROWS
    np.add.at(dense, indices[kept], updates[kept])
    got = jit(step, donate_argnums=donate)(tnp.asarray(table), indices, updates, c)
    np.testing.assert_allclose(got, UPDATES[name](table, dense, c), rtol=1e-14, atol=1e-14)


OTHER_ARRAYS = {
    "a decayed table": lambda t, g, c: (t * 0.9 - g) * c,
    "another gradient": lambda t, g, c: (square(t) @ t + 0.5 * g) / c,
    "a result": lambda t, g, c: g + t * c,
}


def square(t):
    """A square matrix of as many rows, in either namespace."""
    return t @ t.T


@pytest.mark.parametrize("name", OTHER_ARRAYS)
def test_an_intermediate_is_updated_where_it_is(name):
    """As the gradient of a table that is looked up and multiplied by."""
    table, indices, updates, c = example()
    step = lambda t, i, u, c: OTHER_ARRAYS[name](t, gradient(i, u, t), c)
    program = fuse_scatter_updates(tvmfun.trace(step)(table, indices, updates, c))
    (scatter,) = [equation for equation in program.equations if equation.op.name == "scatter"]
    assert scatter.inputs[0] in {out for equation in program.equations for out in equation.outputs}
    dense = np.zeros_like(table)
    kept = indices < ROWS
    np.add.at(dense, indices[kept], updates[kept])
    got = jit(step)(table, indices, updates, c)
    np.testing.assert_allclose(got, OTHER_ARRAYS[name](table, dense, c), rtol=1e-13, atol=1e-13)


KEPT_DENSE = {
    "the gradient is returned": lambda t, g, c: (t - g, g),
    "its norm is needed": lambda t, g, c: t - g / tnp.sqrt(tnp.sum(g * g)),
    "an operand that is read again": lambda t, g, c: (lambda decayed: (decayed - g, decayed + 1.0))(t * 0.9),
    "a function of it": lambda t, g, c: t - tnp.tanh(g),
    "a row of factors": lambda t, g, c: t - g * tnp.arange(float(WIDTH)),
    "its inverse": lambda t, g, c: t + c / g,
    "subtracted from": lambda t, g, c: g - t,
    "twice": lambda t, g, c: t + g * g,
}


@pytest.mark.parametrize("name", KEPT_DENSE)
def test_what_is_not_an_update_stays(name):
    table, indices, updates, c = example()
    step = lambda t, i, u, c: KEPT_DENSE[name](t, gradient(i, u, t), c)
    program = tvmfun.trace(step)(table, indices, updates, c)
    assert fuse_scatter_updates(program) is program


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("array", ["an argument", "an intermediate"])
def test_many_small_updates_of_a_row_in_half_precision_count(array, dtype):
    """Each alone would vanish beside the sum of the row, so they are added up first."""
    table = tnp.full((ROWS, WIDTH), 16.0, dtype)
    updates = tnp.full((64, WIDTH), 2.0**-6 if dtype == "bfloat16" else 2.0**-9, dtype)
    scale = 1.0 if array == "an argument" else 2.0
    step = lambda t, i, u: (t if scale == 1.0 else t * scale) + gradient(i, u, t)
    got = jit(step)(table, np.zeros(64, "int32"), updates)
    expected = np.full((ROWS, WIDTH), 16 * scale)
    expected[0] += 64 * float(updates[0, 0])
    np.testing.assert_array_equal(np.asarray(got).astype("float64"), expected)


@pytest.mark.parametrize("mode", ["set", "multiply", "min", "max"])
def test_other_modes_stay(mode):
    table, indices, updates, _ = example()

    def step(t, i, u):
        return t + getattr(tnp.zeros_like(t).at[i], mode)(u)

    program = tvmfun.trace(step)(table, indices, updates)
    assert fuse_scatter_updates(program) is program


def test_a_table_that_is_also_what_is_added():
    table, _, _, _ = example()
    step = lambda t: t + tnp.zeros_like(t).at[::-1].add(t)
    np.testing.assert_array_equal(jit(step, donate_argnums=0)(tnp.asarray(table)), table + table[::-1])
    rows = np.arange(ROWS)[::-1].copy()
    step = lambda t, i: t + tnp.zeros_like(t).at[i].add(t)
    np.testing.assert_array_equal(jit(step, donate_argnums=0)(tnp.asarray(table), rows), table + table[::-1])


def test_a_table_that_is_returned_as_well():
    table, indices, updates, _ = example()
    step = lambda t, i, u: (t + gradient(i, u, t), t, t * 2)
    after, before, twice = jit(step, donate_argnums=0)(tnp.asarray(table), indices, updates)
    np.testing.assert_array_equal(before, table)
    np.testing.assert_array_equal(twice, 2 * table)
    assert not np.array_equal(after, table)


@pytest.mark.slow
@settings(max_examples=30)
@given(
    rows=st.integers(0, 9),
    width=st.sampled_from([(), (1,), (5,), (64,), (70,), (3, 4), (0,)]),
    count=st.integers(0, 20),
    dtype=st.sampled_from(["float32", "float64", "int32"]),
    donate=st.booleans(),
)
def test_any_shape(rows, width, count, dtype, donate):
    rng = np.random.default_rng(rows + count)
    table = rng.integers(-9, 9, (rows, *width)).astype(dtype)
    indices = rng.integers(0, rows + 2, count).astype("int32")
    updates = rng.integers(-9, 9, (count, *width)).astype(dtype)
    step = jit(lambda t, i, u: t - 2 * gradient(i, u, t), donate_argnums=0 if donate else ())
    expected = table.copy()
    kept = indices < rows
    np.subtract.at(expected, indices[kept], 2 * updates[kept])
    np.testing.assert_array_equal(step(tnp.asarray(table), indices, updates), expected)


def test_an_embedding_trains_in_place():
    """SGD on a table: the step equals the dense one, and the table stays where it is."""
    table, indices, targets, _ = example("float32")
    table = np.repeat(table, 20, 0)

    def loss(t, i, y):
        return tnp.sum((t[i] - y) ** 2)

    optimizer = optim.sgd(0.1)

    def step(t, state, i, y):
        value, grads = tvmfun.value_and_grad(loss)(t, i, y)
        updates, state = optimizer.update(grads, state, t)
        return optim.apply_updates(t, updates), state, value

    t, state = tnp.asarray(table), optimizer.init(table)
    before = np.from_dlpack(t.tensor).ctypes.data
    train = jit(step, donate_argnums=(0, 1))
    memory = train.lower(t, state, indices, targets).compile().memory_analysis()
    assert memory.temporaries < t.nbytes / 10 and memory.outputs == 4
    expected = table.copy()
    for _ in range(5):
        t, state, _ = train(t, state, indices, targets)
        dense = np.zeros_like(expected)
        clipped = np.minimum(indices, len(table) - 1)  # reading clamps
        np.add.at(dense, clipped, 2 * (expected[clipped] - targets))
        expected -= np.float32(0.1) * dense
    assert np.from_dlpack(t.tensor).ctypes.data == before
    np.testing.assert_allclose(t, expected, rtol=1e-5, atol=1e-6)


def test_rows_of_several_axes_and_batches():
    rng = np.random.default_rng(1)
    table, updates = rng.normal(size=(4, 6, 3)), rng.normal(size=(4, 5, 3))
    indices = rng.integers(0, 6, (4, 5)).astype("int32")
    step = tvmfun.vmap(lambda t, i, u: t - 0.5 * tnp.zeros_like(t).at[i].add(u))
    expected = table.copy()
    np.subtract.at(expected, (np.arange(4)[:, None], indices), 0.5 * updates)
    np.testing.assert_allclose(jit(step, donate_argnums=0)(tnp.asarray(table), indices, updates), expected, rtol=1e-14)


def test_a_table_of_dynamic_size():
    table, indices, updates, c = example()
    step = lambda t, i, u: t - c * gradient(i, u, t)
    shapes = {"t": {0: "n"}, "i": {0: "b"}, "u": {0: "b"}}
    dynamic = jit(step, dynamic_shapes=shapes, donate_argnums=0)
    for rows in (ROWS, 9):
        got = dynamic(tnp.asarray(table[:rows]), indices, updates)
        np.testing.assert_allclose(got, jit(step)(table[:rows], indices, updates), rtol=1e-14)


def test_factors_that_are_not_numbers_stay_in_their_rows():
    """The one difference: a dense update would spread a NaN over the whole table."""
    table, indices, updates, _ = example()
    got = np.asarray(jit(lambda t, i, u, c: t + c * gradient(i, u, t))(table, indices, updates, np.nan))
    touched = np.isin(np.arange(ROWS), indices)
    assert np.isnan(got[touched]).all()
    np.testing.assert_array_equal(got[~touched], table[~touched])


def test_nothing_is_named():
    table = np.ones((3, 2), "float32")
    step = lambda t, u: (
        t
        + lax.scatter_add(
            tnp.zeros_like(t),
            np.zeros((0, 1), "int32"),
            u,
            lax.ScatterDimensionNumbers((1,), (0,), (0,)),
        )
    )
    np.testing.assert_array_equal(jit(step, donate_argnums=0)(tnp.asarray(table), np.zeros((0, 2), "float32")), table)
