"""Positions of extrema by two reductions, on CPUs."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.lower.rewrite.arg_extrema import rewrite_arg_extrema

RNG = np.random.default_rng(0)


def numbers(shape, dtype):
    """Few different numbers, so that many are equal; floats have NaNs and infinities in some rows."""
    x = RNG.integers(-3 if np.dtype(dtype).kind != "u" else 0, 4, shape).astype(dtype)
    if np.dtype(dtype).kind not in "iu":
        x[1, ..., RNG.integers(0, shape[-1], 3)] = np.nan
        x[2] = -np.inf
        x[3, ..., RNG.integers(0, shape[-1], 4)] = np.inf
        x[4] = np.nan
    return x


SHAPES = ((6, 1000), (5, 33), (5, 32), (7, 3, 64), (5, 31), (300, 40))


@pytest.mark.quick("float32-argmax", "bfloat16-argmin")
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "int8", "uint8", "int64"])
def test_the_first_extremum_is_found(dtype, name):
    """In rows, in mapped rows and in columns."""
    find = getattr(tnp, name)
    arrays = [numbers(shape, dtype) for shape in SHAPES]
    forms = lambda x, moved: (find(x, -1), tvmfun.vmap(lambda row: find(row, -1))(x), find(moved, 0))
    every = tvmfun.jit(lambda pairs: [forms(*pair) for pair in pairs])
    results = every([(x, np.moveaxis(x, -1, 0)) for x in arrays])
    for x, found in zip(arrays, results, strict=True):
        wide = x if x.dtype.kind in "iu" else x.astype("float64")
        for result in found:
            assert str(result.dtype) == "int32"
            np.testing.assert_array_equal(np.asarray(result), getattr(np, name)(wide, -1))
    np.testing.assert_array_equal(np.asarray(find(x, -1)), np.asarray(found[0]))  # eagerly


def test_positions_in_loops_and_with_what_else_is_computed_of_rows():
    x = RNG.normal(size=(6, 50)).astype("float32")

    def greedy(x):
        def step(c, row):
            best = tnp.argmax(tnp.tanh(row) + c)
            return tnp.sin(c + row[best]), best

        return lax.scan(step, np.float32(0.5), x)

    c, chosen = 0.5, []
    for row in x:
        chosen.append(int(np.argmax(np.tanh(row) + np.float32(c))))
        c = np.sin(c + row[chosen[-1]])
    state, positions = tvmfun.jit(greedy)(x)
    assert np.asarray(positions).tolist() == chosen and float(state) == pytest.approx(float(c), abs=1e-5)

    both = lambda x: (tnp.max(x, 1), tnp.argmax(x, 1), tnp.argmin(x * 2, 1), tnp.sum(tnp.exp(x), 1))
    expected = x.max(1), x.argmax(1), x.argmin(1), np.exp(x).sum(1)
    for ours, theirs in zip(tvmfun.jit(both)(x), expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5)
    gradient = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(tnp.take_along_axis(x, tnp.argmax(x, 1)[:, None], 1))))(x)
    np.testing.assert_array_equal(np.asarray(gradient), np.arange(50) == x.argmax(1)[:, None])


def test_which_positions_are_found_like_that():
    ops = lambda f, *shape: {
        equation.op.name
        for equation in rewrite_arg_extrema(tvmfun.trace(f)(tvmfun.ShapeDtype(shape, "float32"))).equations
    }
    assert "argmax" not in ops(lambda x: tnp.argmax(x, 1), 4, 32)
    assert "argmax" in ops(lambda x: tnp.argmax(x, 1), 4, 31)
    assert "argmax" in ops(lambda x: tnp.argmax(x, 0), 64, 64)
