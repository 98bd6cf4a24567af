"""Dynamic sizes as numbers: counts, shifts, lengths, and beside numbers of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from support.dynamic_sizes import agrees, floats

import tvmfun.numpy as tnp
from tvmfun import Dim, errors, jit, lax, random

COUNTS = {
    "linspace": lambda x: (tnp.linspace(0, 1, x.shape[0]), tnp.linspace(x[0], 2, x.shape[0] + 1, endpoint=False)),
    "step of linspace": lambda x: tnp.linspace(0, 3, x.shape[0], retstep=True)[1],
    "repeat": lambda x: (tnp.repeat(x[:1], x.shape[0]), tnp.repeat(x, x.shape[0]), tnp.repeat(x[None], x.shape[0], 0)),
    "roll": lambda x: (tnp.roll(x, x.shape[0] // 2), tnp.roll(x, -x.shape[0] - 1), tnp.roll(x[:, None], x.shape[0], 0)),
    "segments": lambda x: lax.segment_sum(x, tnp.arange(x.shape[0]) // 2, num_segments=x.shape[0]),
    "largest of segments": lambda x: lax.segment_max(x, tnp.arange(x.shape[0]) % 3, num_segments=x.shape[0] + 1),
    "all of the largest": lambda x: lax.top_k(x, x.shape[0]),
    "half of the largest": lambda x: lax.top_k(x, x.shape[0] // 2),
}


@pytest.mark.quick("segments", "roll")
@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_a_dynamic_size(name):
    x = lambda n: (np.random.default_rng(n).permutation(n).astype("float32"),)
    agrees(COUNTS[name], x, ({0: Dim("n", min=2)},), sizes=(2, 3, 7, 100))


def test_products_of_a_transposed_factor_and_dynamic_columns_have_a_schedule():
    """Without one there is a warning, and here an error."""
    w = floats(511, 130)
    for least in (0, 1):
        sizes = ({0: Dim("b", min=least)},)
        agrees(lambda x: (w.T @ x.T).T / 511, lambda n: (floats(n, 511),), sizes, sizes=(1, 3, 300))


@pytest.mark.parametrize("least", [0, 1, 2000])
def test_random_orders_are_those_of_static_sizes(least):
    """The number of sorts depends on the size."""

    def draw(x):
        key = random.key(3)
        orders = random.permutation(key, x), random.permutation(key, x.shape[0])
        return *orders, random.permutation(key, x, independent=True)

    dynamic = jit(draw, dynamic_shapes=({0: Dim("n", min=least)},))
    for size in (0, 1, 2, 3, 50, 1625, 1626, 5000):
        if size >= least:
            x = np.arange(size, dtype="float32")
            for got, expected in zip(dynamic(x), jit(draw)(x), strict=True):
                np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("shape", "least", "offset"),
    [((4, None), 3, -3), ((4, None), 5, 0), ((None, 4), 5, 0), ((4, None), 5, 1), ((None, None), 2, -1)],
)
def test_diagonals_of_matrices_with_a_dynamic_size(shape, least, offset):
    n = Dim("n", min=least)
    sizes = ({axis: n for axis, size in enumerate(shape) if size is None},)
    x = lambda n: (floats(*(n if size is None else size for size in shape)),)
    agrees(lambda x: tnp.diagonal(x, offset), x, sizes, sizes=(5, 6, 9))


def test_numbers_of_numpy_beside_sizes():
    n = Dim("n", min=4)
    assert (np.int64(3) + n, np.int64(12) // n, np.int32(2) * n) == (n + 3, 12 // n, 2 * n)
    assert np.int64(3) < n and np.int32(3) != n and not np.int64(4) > n
    with pytest.raises(errors.DimensionError, match=r"numpy\.sqrt needs a number.* Try tvmfun\.numpy\.sqrt"):
        np.sqrt(n)
    halves = jit(lambda x: x * (np.float32(2) * x.shape[0] / np.float64(4)), dynamic_shapes=({0: n},))
    np.testing.assert_array_equal(halves(np.ones(6, "float32")), np.full(6, 3, "float32"))
    with pytest.raises(errors.DimensionError, match=r"len\(\) returns a Python integer.* Try x\.shape\[0\]"):
        jit(lambda x: x / len(x), dynamic_shapes=({0: n},))(np.ones(6, "float32"))


def test_sizes_equal_no_other_numbers_of_numpy():
    n = Dim("n")
    assert (n == np.float64(2.5), n != np.float32(2), n in [np.float64(1)], np.float64(3) == n) == (
        False,
        True,
        False,
        False,
    )
    assert np.True_ + n == n + 1
