"""Indices that are read from an array and are the same along a row are read once."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.te_kernels import check, placeholder, random
from tvm import te, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, reference
from tvmfun.lower.schedule.cpu.rules import schedule
from tvmfun.lower.target import host

_RNG = np.random.default_rng(0)
TABLE = _RNG.normal(size=(50, 40)).astype("float32")
ROWS = _RNG.integers(-50, 50, 30).astype("int32")


def kernel(columns, value):
    """A table of 50 rows, 30 numbers of rows, and the map of ``value(table, rows, i, j)``."""
    table, rows = placeholder((50, columns), name="table"), placeholder((30,), dtype="int32", name="rows")
    return table, rows, te.compute((30, columns), lambda i, j: value(table, rows, i, j), "result")


def lookups(tensors):
    """The indices that the scheduled kernel binds before each row, and how often it reads a number of a row."""
    text = str(schedule(te.create_prim_func(list(tensors)), host()))
    return re.findall(r"row\w*: T\.let\[T\.int32\] = (.*)", text), text.count("rows[")


@pytest.mark.parametrize("columns", [1, 16, 37, 2000])
def test_an_index_is_read_once_for_each_row(columns):
    """Less than a vector, whole vectors, a remainder, and several tasks per row."""
    tensors = kernel(columns, lambda table, rows, i, j: table[tirx.max(rows[i], 0), j] * 2)
    found, reads = lookups(tensors)
    assert (len(found), reads) == ((0, 2) if columns == 1 else (1, 1))
    x, y = random((50, columns)), np.abs(ROWS) % 50
    check(tensors, (x, y.astype("int32")), [2 * x[y]], "elementwise")


def test_equal_indices_are_one_and_others_their_own():
    def value(table, rows, i, j):
        return table[rows[i], j] + table[rows[i] // 2, j] * table[rows[i], 39 - j]

    tensors = kernel(40, value)
    assert len(lookups(tensors)[0]) == 2
    y = np.abs(ROWS) % 50
    expected = TABLE[y] + TABLE[y // 2] * TABLE[y][:, ::-1]
    check(tensors, (TABLE, y.astype("int32")), [expected], "elementwise")


def test_what_a_condition_guards_is_not_read_without_it():
    """The numbers of rows end where the condition begins to fail."""

    def value(table, rows, i, j):
        return tirx.if_then_else(i < 20, table[rows[i], j], tirx.const(0.0, "float32"))

    tensors = kernel(40, value)
    assert lookups(tensors)[0] == []
    y = np.abs(ROWS) % 50
    check(tensors, (TABLE, y.astype("int32")), [TABLE[y] * (np.arange(30) < 20)[:, None]], "elementwise")


def test_an_index_for_each_element_is_read_where_it_is_used():
    tensors = kernel(40, lambda table, rows, i, j: table[i, rows[j % 30] % 40])
    assert lookups(tensors)[0] == []


FUNCTIONS = {
    "rows": lambda table, rows: table[rows],
    "several tables": lambda table, rows: table[rows] * tnp.exp(table)[rows] - table[::-1][rows],
    "rows of blocks": lambda table, rows: table.reshape(50, 5, 8)[rows],
    "two maps": lambda table, rows: (table[rows] + 1, tnp.tanh(table[rows])),
    "rows of computed numbers": lambda table, rows: table[(rows * 7) % 50],
    "of no rows": lambda table, rows: table[rows[:0]],
    "beside a concatenation": lambda table, rows: tnp.concatenate([table[rows], table], 0),
    "in a batch": lambda table, rows: tvmfun.vmap(lambda r: table[r])(rows.reshape(5, 6)),
    "of each batch": lambda table, rows: tvmfun.vmap(lambda t, r: t[r % 10])(
        table.reshape(5, 10, 40), rows.reshape(5, 6)
    ),
    "filled": lambda table, rows: tnp.take(table, rows * 3, axis=0, mode="fill", fill_value=7.0),
    "in a loop": lambda table, rows: lax.fori_loop(0, 3, lambda i, t: t[rows[:1] % (i + 2)] + t, table),
    "numbers of numbers": lambda table, rows: rows[rows % 30][rows % 7],
    "whose numbers change": lambda table, rows: lax.scan(
        lambda r, _: ((r * 3 + 1) % 50, table[r]), rows % 50, None, length=4
    )[1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_the_reference(name):
    function = FUNCTIONS[name]
    program = tvmfun.trace(function)(TABLE, ROWS)
    expected = reference.evaluate(program, [*program.captured, TABLE, ROWS])
    results = tvmfun.jit(function)(TABLE, ROWS)
    for result, value in zip(tvmfun.tree.leaves(results), expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-6, atol=1e-6)


def test_numbers_of_rows_that_the_result_replaces():
    """Each row is read before its number may be overwritten."""
    numbers = np.abs(ROWS)[:, None] % 30
    replace = tvmfun.jit(lambda n: n[n[:, 0]], donate_argnums=0)
    np.testing.assert_array_equal(replace(tvmfun.device_put(numbers)), numbers[numbers[:, 0]])


def test_rows_of_an_array_of_dynamic_size():
    n = tvmfun.Dim("n", min=0)
    compiled = tvmfun.jit(lambda table, rows: table[rows]).lower(TABLE, tvmfun.ShapeDtype((n,), "int32")).compile()
    for size in (0, 1, 17, 30):
        np.testing.assert_array_equal(compiled(TABLE, ROWS[:size]), TABLE[ROWS[:size]])
