"""Maps of bfloat16 by vectors: the same bits as element by element, at each length and tail."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from lower.schedule.test_hot_kernels import basic_blocks, modules

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine

RNG = np.random.default_rng(0)
BFLOAT16 = ml_dtypes.bfloat16
HOST = Machine.of(targets.host())


def numbers(*shape):
    """Numbers of all magnitudes, infinities and NaNs among them, and ties of rounding."""
    bits = RNG.integers(0, 2**32, shape, dtype="uint32")
    ties = RNG.random(shape) < 0.3
    return np.where(ties, bits & 0xFFFF0000 | 0x8000, bits).astype("uint32").view("float32")


def assert_equal(got, expected):
    got, expected = np.asarray(got), np.asarray(expected, BFLOAT16)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    kept = ~np.isnan(expected)
    np.testing.assert_array_equal(got[kept].view("uint16"), expected[kept].view("uint16"))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 1000, 4099])
def test_rounding(length):
    x = numbers(3, length)
    assert_equal(tvmfun.jit(lambda x: x.astype("bfloat16"))(x), x.astype(BFLOAT16))
    y = x.astype(BFLOAT16)
    assert_equal(tvmfun.jit(lambda y: -y)(y), -y)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (y.astype("float32") * y[:, ::-1].astype("float32")).astype(BFLOAT16)
    assert_equal(tvmfun.jit(lambda y: y * y[:, ::-1])(y), expected)


@pytest.mark.parametrize("length", [1, 15, 16, 33, 1000])
@pytest.mark.parametrize("name", ["abs", "negative", "both", "maximum", "clip", "where", "relu", "rounded", "of a sum"])
def test_numbers_that_are_chosen_need_no_rounding(name, length):
    """Chosen numbers keep their bits, and those of a branch that computes are rounded."""
    x, y = (numbers(3, length).astype(BFLOAT16) for _ in range(2))
    at = RNG.random((3, length)) < 0.5
    function = {
        "abs": lambda ns, x, y: ns.abs(x),
        "negative": lambda ns, x, y: -x,
        "both": lambda ns, x, y: -ns.abs(-x),
        "maximum": lambda ns, x, y: ns.maximum(x, -y),
        "clip": lambda ns, x, y: ns.minimum(ns.maximum(x, ns.asarray(-1, BFLOAT16)), ns.asarray(0.1, BFLOAT16)),
        "where": lambda ns, x, y: ns.where(at, x, ns.asarray(0.3, BFLOAT16)),
        "relu": lambda ns, x, y: ns.where(x > 0, x, ns.asarray(0, BFLOAT16)),
        "rounded": lambda ns, x, y: ns.where(at, x, x * y),
        "of a sum": lambda ns, x, y: ns.where(x > 0, ns.abs(x + y), -y),
    }[name]
    with np.errstate(over="ignore", invalid="ignore"):
        assert_equal(tvmfun.jit(lambda x, y: function(tnp, x, y))(x, y), function(np, x, y))


def test_maxima_and_sums_of_chosen_numbers():
    """A maximum is one of the numbers; a sum of them is rounded, in the kernel that chooses them as well."""
    x, y = (RNG.standard_normal((6, 45)).astype(BFLOAT16) for _ in range(2))
    f = tvmfun.jit(lambda x, y: (x.max(0), x.max(1), lax.cummax(x, 1), abs(x).max(), (tnp.maximum(x, -y) + y) * x))
    assert_equal(f(x, y)[0], x.max(0))
    assert_equal(f(x, y)[1], x.max(1))
    assert_equal(f(x, y)[2], np.maximum.accumulate(x, 1))
    assert_equal(f(x, y)[3], abs(x).max())
    wide = (np.maximum(x, -y).astype("float32") + y.astype("float32")) * x.astype("float32")
    assert (abs(np.asarray(f(x, y)[4], "float32") - wide) <= 2.0**-7 * (abs(wide) + abs(x.astype("float32")))).all()
    assert_equal(lax.fori_loop(0, 3, lambda i, c: -abs(c + x), y), -abs(-abs(-abs(y + x) + x) + x))


def test_repeated_numbers():
    y, rows, at = numbers().astype(BFLOAT16), numbers(5).astype(BFLOAT16), RNG.random((5, 37)) < 0.5
    z = numbers(5, 37).astype(BFLOAT16)
    assert_equal(tvmfun.jit(lambda y: tnp.full((3, 21), y))(y), np.full((3, 21), y))
    assert_equal(tvmfun.jit(lambda: tnp.full((3, 21), 2.5, "bfloat16"))(), np.full((3, 21), 2.5))
    assert_equal(tvmfun.jit(lambda r: tnp.broadcast_to(r[:, None], (5, 37)))(rows), np.repeat(rows[:, None], 37, 1))
    assert_equal(tvmfun.jit(tnp.where)(at, rows[:, None], z), np.where(at, rows[:, None], z))
    assert_equal(tvmfun.jit(lambda c, y, z: tnp.where(c, z, y))(at, y, z), np.where(at, z, y))
    assert_equal(tvmfun.jit(lambda z: tnp.pad(z, ((0, 0), (3, 2))))(z), np.pad(z, ((0, 0), (3, 2))))


def test_several_results_and_donation():
    x = numbers(7, 45).astype(BFLOAT16)
    f = tvmfun.jit(lambda x: (x + x, -x, x.astype("float32") * 2), donate_argnums=0)
    double, negative, wide = f(tvmfun.device_put(x))
    assert_equal(double, x + x)
    assert_equal(negative, -x)
    np.testing.assert_array_equal(np.asarray(wide), x.astype("float32") * 2)


def test_moves_and_loops():
    x = numbers(40, 48).astype(BFLOAT16)
    assert_equal(tvmfun.jit(lambda x: x.T)(x), x.T)
    assert_equal(tvmfun.jit(lambda x: tnp.concatenate([x[:, 5:], x[:, :5]], 1))(x), np.roll(x, -5, 1))
    got = tvmfun.jit(lambda x: lax.scan(lambda c, row: (c, tnp.where(row > c, row, c)), x[0], x)[1])(x)
    assert_equal(got, np.where(x > x[0], x, x[0]))
    dynamic = tvmfun.jit(lambda x: (x * 2).astype("bfloat16"), dynamic_shapes=({0: "n", 1: "m"},))
    assert_equal(dynamic(x), x * BFLOAT16(2))


@pytest.mark.skipif(HOST.lanes("float32") != 16, reason="reads code of AVX-512")
@pytest.mark.own_vectors
def test_choices_are_vectors():
    def mask(index, value, x):
        return (tnp.where(tnp.arange(4096)[None] == index, value, 0.0) + x).astype("bfloat16")

    column = lambda dtype: ShapeDtype((512, 1), dtype)
    compiled = tvmfun.jit(mask).lower(column("int32"), column("float32"), ShapeDtype((512, 4096), "float32")).compile()
    text = "\n".join(module.inspect_source("asm") for module in modules(compiled.executable.module))
    stores = [line for block in basic_blocks(text) for line in block if line.split()[0] == "movw" and "(" in line]
    assert "vpmovdw" in text
    assert not stores
