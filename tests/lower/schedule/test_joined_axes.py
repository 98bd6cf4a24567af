"""Blocks whose last axes are walked as one: rows of several axes that are gathered, or added up by index."""

from __future__ import annotations

import numpy as np
import pytest
from support.results import draw

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

AT = np.array([3, 0, 3, -1, 7, 2, 0, 11, 3], "int32")  # 7 and 11 are outside of an array of 5 rows


def rows_of(shape, dtype):
    return (4 * draw(len(AT), *shape)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize("shape", [(3, 5), (8, 8, 3), (1, 70), (2, 3, 1, 19)], ids=str)
def test_rows_of_several_axes(shape, dtype):
    x, rows = (4 * draw(5, *shape, seed=1)).astype(dtype), rows_of(shape, dtype)
    inside = [(int(at), row) for at, row in zip(AT, rows, strict=True) if at < 5]
    added, set_, largest = x.copy(), x.copy(), x.copy()
    for at, row in inside:
        added[at] += row
        set_[at] = row
        largest[at] = np.maximum(largest[at], row)
    f = lambda x, at, rows: (x.at[at].add(rows), x.at[at].set(rows), x.at[at].max(rows), x[at])
    for got, want in zip(tvmfun.jit(f)(x, AT, rows), (added, set_, largest), strict=False):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_gradients_loops_and_any_number_of_rows():
    x, rows = draw(5, 4, 6, seed=1).astype("float64"), rows_of((4, 6), "float64")

    def f(x, rows):
        step = lambda carry, _: (carry.at[AT].add(rows * carry[1]), None)
        return tnp.sum(tnp.sin(lax.scan(step, x, None, length=3)[0]))

    def expected(x, rows):
        for _ in range(3):
            own, x = x[1], x.copy()
            np.add.at(x, AT[AT < 5], (rows * own)[AT < 5])
        return np.sin(x).sum()

    value, gradients = tvmfun.jit(tvmfun.value_and_grad(f, (0, 1)))(x, rows)
    np.testing.assert_allclose(value, expected(x, rows), rtol=1e-12)
    direction = draw(5, 4, 6, seed=2), draw(len(AT), 4, 6, seed=3)
    ahead, behind = (expected(x + h * direction[0], rows + h * direction[1]) for h in (1e-6, -1e-6))
    along = sum(np.sum(np.asarray(g) * d) for g, d in zip(gradients, direction, strict=True))
    np.testing.assert_allclose(along, (ahead - behind) / 2e-6, rtol=1e-6)
    dynamic = tvmfun.jit(lambda x, at: x[at] * 2, dynamic_shapes={"x": {1: "n"}})
    for columns in (1, 4, 33):
        x = draw(5, columns, 6)
        np.testing.assert_array_equal(dynamic(x, AT % 5), x[AT % 5] * 2)
