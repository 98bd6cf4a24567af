"""Transposes of every dtype: tiles turned in registers, with what is fused to them, against NumPy to the bit."""

from contextlib import nullcontext

import ml_dtypes
import numpy as np
import pytest
from support.parallel import parallel_loops

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, dtypes
from tvmfun import ShapeDtype as S

# Whole tiles, tiles that overlap, less than a tile along either axis, one row, nothing; axes that stay.
SHAPES = [
    ((64, 48), (1, 0)),
    ((37, 53), (1, 0)),
    ((16, 16), (1, 0)),
    ((5, 70), (1, 0)),
    ((70, 5), (1, 0)),
    ((1, 40), (1, 0)),
    ((0, 40), (1, 0)),
    ((3, 40, 33), (0, 2, 1)),
    ((2, 20, 3, 24), (0, 2, 3, 1)),
    ((18, 2, 33), (2, 1, 0)),
    # Rows of several short axes, which are one axis of a tile.
    ((70, 4, 3, 5), (1, 2, 3, 0)),
    ((3, 65, 5, 7), (0, 2, 3, 1)),
    ((66, 2, 3, 2, 33), (4, 1, 2, 3, 0)),
]
V2, V3 = ({"kind": "llvm", "mcpu": f"x86-64-v{n}"} for n in (2, 3))
# Each processor, and for this one loops of either kind.
TARGETS = [(None, nullcontext), (None, parallel_loops), (V2, nullcontext), (V3, parallel_loops)]


def bits(array) -> np.ndarray:
    array = np.asarray(array)
    return array.view(f"uint{8 * array.dtype.itemsize}")


def drawn(shape: tuple[int, ...], dtype) -> np.ndarray:
    """Any bits, those of NaN too; a bool is 0 or 1."""
    rng = np.random.default_rng(sum(shape))
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) > 0.5
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)


@pytest.mark.quick("bfloat16", "int8", "bool", "float64")
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtypes.NAMES[np.dtype(dtype)])
def test_every_bit_is_moved(dtype):
    arrays = [drawn(shape, dtype) for shape, _ in SHAPES]
    orders = [order for _, order in SHAPES]
    move = lambda xs: [tnp.transpose(x, order) for x, order in zip(xs, orders, strict=True)]
    for target, loops in TARGETS:
        with loops():
            results = tvmfun.jit(move, target=target)(list(map(tnp.asarray, arrays)))
        for result, x, order in zip(results, arrays, orders, strict=True):
            np.testing.assert_array_equal(bits(result), bits(x).transpose(order))


@pytest.mark.parametrize("shape", [(48, 64), (37, 53), (40, 40)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool", "uint16"])
def test_with_what_is_fused_to_them(dtype, shape):
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 5, shape).astype(kind)
    y = np.random.default_rng(1).integers(0, 5, shape[::-1]).astype("float32")

    def results(n, x, y):
        wide = x.T.astype("float32")
        found = [wide, wide * y + 1, n.where(x.T > 0, y, -y), x.T == 1, n.sum(x.T.astype("float32"), 1)]
        # A tile of a square array may be its own transpose.
        return [*found, n.where(x == x.T, wide, 7)] if shape[0] == shape[1] else found

    computed = tvmfun.jit(lambda x, y: results(tnp, x, y))(tnp.asarray(x), y)
    for result, expected in zip(computed, results(np, x, y), strict=True):
        np.testing.assert_array_equal(np.asarray(result), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "bool"])
def test_over_a_donated_argument_and_in_a_loop(dtype):
    x = drawn((40, 40), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    with parallel_loops():
        over = tvmfun.jit(lambda x: x.T, donate_argnums=0)(tnp.asarray(x))
        three = tvmfun.jit(lambda x: tvmfun.lax.fori_loop(0, 3, lambda i, x: x.T, x))(tnp.asarray(x))
    np.testing.assert_array_equal(bits(over), bits(x).T)
    np.testing.assert_array_equal(bits(three), bits(x).T)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_of_dynamic_sizes(dtype):
    move = tvmfun.jit(lambda x: x.T, dynamic_shapes=({0: Dim("m", min=0), 1: "n"},))
    for shape in ((0, 5), (3, 40), (16, 16), (37, 53)):
        x = drawn(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        np.testing.assert_array_equal(bits(move(tnp.asarray(x))), bits(x).T)


def test_short_axes_are_one_axis_of_tiles():
    compiled = tvmfun.jit(lambda x: tnp.moveaxis(x, 0, -1)).lower(S((520, 4, 16, 12), "float32")).compile()
    assert "transpose" in compiled.as_text()
    dynamic = tvmfun.jit(lambda x: tnp.moveaxis(x, 0, -1) * 2).lower(S((70, Dim("n"), 3, 5), "float32")).compile()
    for n in (1, 4, 9):
        x = drawn((70, n, 3, 5), "int8").astype("float32")
        np.testing.assert_array_equal(dynamic(x), np.moveaxis(x, 0, -1) * 2)
