"""Compiled arithmetic is that of floats and of integers that wrap, not that of numbers."""

import ml_dtypes
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import dtypes, lax, random
from tvmfun.reference import evaluate

SPECIAL = np.asarray([np.nan, np.inf, -np.inf, 0.0, 1.5], "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 0.0,
        lambda x: 0.0 / x,
        lambda x: x - x,
        lambda x: 2 * x - 2 * x,
        lambda x: x / 0.0,
        lambda x: (x + 1) - x,
        lambda x: x * (x * 0.0),
        lambda x: (x != x) * 1.0,
        lambda x: (x == x) * 1.0,
        lambda x: ~(x < 1) * 1.0,
        lambda x: x * 3 - x * 3,
        lambda x: x * x - x * x,
        lambda x: abs(x) - abs(x),
        lambda x: (x + x) - x,
    ],
)
def test_floats_at_special_values(function, dtype):
    x = SPECIAL.astype(dtypes.canonical(dtype))
    with np.errstate(all="ignore"):
        expected = function(x)
    result = np.asarray(tvmfun.jit(function)(x))
    np.testing.assert_array_equal(result.astype("float64"), np.asarray(expected, "float64"))


def test_zeros_that_are_arrays():
    x = tvmfun.jit(lambda x: x * tnp.zeros(5) + tnp.where(x > 0, 0.0, 0.0) * x)(SPECIAL)
    np.testing.assert_array_equal(x, [np.nan, np.nan, np.nan, 0, 0])


@pytest.mark.quick("<lambda>4-uint16", "<lambda>3-int8", "<lambda>0-int16", "<lambda>0-uint32")
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2) // 2,
        lambda x: (x + 1) > x,
        lambda x: (x - 1) < x,
        lambda x: -x,
        lambda x: (x * 4 + x * 4) // 4,
        lambda x: np.dtype(x.dtype).type(1) - x,
    ],
)
def test_integers_wrap_around(function, dtype):
    limits = np.iinfo(dtype)
    x = np.asarray([limits.min, limits.min + 1, 0, 1, limits.max // 2 + 1, limits.max], dtype)
    with np.errstate(over="ignore"):
        expected = function(x)
    np.testing.assert_array_equal(tvmfun.jit(function)(x), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_a_difference_below_zero_of_unsigned_integers(dtype):
    x = np.asarray([0, 1, 2, np.iinfo(dtype).max], dtype)
    with np.errstate(over="ignore"):
        for function in (lambda x: 0 - x, lambda x: x * 0 - x, lambda x: (0 - x) & x, lambda x: 1 - x, lambda x: x - 3):
            np.testing.assert_array_equal(tvmfun.jit(function)(x), function(x))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_magnitude_of_the_smallest_integer(dtype):
    x = np.asarray([np.iinfo(dtype).min] * 9, dtype)
    for function in (lambda abs, x: 2 // abs(x), lambda abs, x: abs(x) < 3, lambda abs, x: abs(x) >= 0):
        np.testing.assert_array_equal(tvmfun.jit(lambda x, f=function: f(tnp.abs, x))(x), function(np.abs, x))


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int8", "int64"])
def test_divisors_known_not_to_be_negative(dtype, name):
    # The compiler dropped the guard of the division where it knew the sign, and the processor trapped.
    x, y = np.full(70, 7, "int64"), np.arange(70).astype(dtype) % 4
    got = tvmfun.jit(lambda x, y: getattr(tnp, name)(x, y & y.dtype.type(3)))(x, y)
    wide = y.astype("int64")
    np.testing.assert_array_equal(got, np.where(wide, getattr(np, name)(x, np.maximum(wide, 1)), 0))


@pytest.mark.quick("<lambda>-<lambda>1", "<lambda>-<lambda>3")
@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (lambda x: tnp.logaddexp(x, 0.5), lambda x: np.logaddexp(x, 0.5)),
        (lambda x: tnp.log1p(tnp.exp(-tnp.abs(x))), lambda x: np.log1p(np.exp(-np.abs(x)))),
        (lambda x: tnp.tanh(tnp.exp(tnp.tanh(x))), lambda x: np.tanh(np.exp(np.tanh(x)))),
        (lambda x: tnp.expm1(x) * tnp.exp(x), lambda x: np.expm1(x) * np.exp(x)),
        (lambda x: lax.erf(lax.erf_inv(x / 4)), lambda x: x / 4),
    ],
)
def test_nested_transcendentals_compile_and_are_right(function, reference):
    x = np.linspace(-3, 3, 1003).astype("float32")
    np.testing.assert_allclose(tvmfun.jit(function)(x), reference(x.astype("float64")), rtol=3e-6, atol=1e-6)


def test_bfloat16_functions():
    x = tnp.asarray(np.linspace(-2, 2, 67), dtype="bfloat16")
    for ours, theirs in ((tnp.exp, np.exp), (tnp.tanh, np.tanh), (lax.erf, None), (tnp.sin, np.sin)):
        got = np.asarray(ours(x).astype("float32"))
        if theirs is not None:
            np.testing.assert_allclose(got, theirs(np.asarray(x, "float32")), rtol=1e-2, atol=1e-2)
        assert np.isfinite(got).all()


@pytest.mark.quick("1-<lambda>2")
@pytest.mark.parametrize("before", [lambda x: x, tnp.abs, lambda x: x * x, lambda x: x.T.reshape(x.shape)])
@pytest.mark.parametrize("axis", [0, 1])
def test_places_of_extrema_in_bfloat16_intermediates(before, axis):
    """TVM forgets intermediates of bfloat16 in the statement that computes the index."""
    x = np.random.default_rng(0).normal(size=(40, 33)).astype(ml_dtypes.bfloat16)
    x.reshape(-1)[::91] = np.nan
    x.reshape(-1)[::7] = -0.0
    for function, reference in ((tnp.argmin, np.argmin), (tnp.argmax, np.argmax)):
        wanted = reference(np.asarray(before(tnp.asarray(x))).astype("float32"), axis=axis)
        np.testing.assert_array_equal(tvmfun.jit(lambda x, f=function: f(before(x), axis=axis))(x), wanted)
        batched = tvmfun.vmap(lambda x, f=function: f(before(x), axis=axis), in_axes=-1, out_axes=-1)
        stacked = np.stack([x, x], -1)
        np.testing.assert_array_equal(tvmfun.jit(batched)(stacked)[:, 1], wanted)


def test_the_same_bits_whatever_they_are_fused_with():
    key = random.key(3)
    alone = np.asarray(tvmfun.jit(lambda key: random.bits(key, (1000,)))(key))
    mask = np.asarray(tvmfun.jit(lambda key: random.bits(key, (1000,)) < 2**31)(key))
    np.testing.assert_array_equal(mask, alone < 2**31)


BFLOAT16_ROUNDED = {
    "there and back": lambda x: x.astype("bfloat16").astype("float32"),
    "what is lost": lambda x: x - x.astype("bfloat16").astype("float32"),
    "moved in between": lambda x: x.astype("bfloat16")[::-1].reshape(3, -1).astype("float32"),
    "in a loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c.astype("bfloat16").astype("float32") * 1.5, x),
    "of each example": tvmfun.vmap(lambda x: x.astype("bfloat16").astype("float32") + 1),
}


@pytest.mark.parametrize("name", BFLOAT16_ROUNDED)
def test_conversions_to_bfloat16_round_also_within_a_kernel(name):
    x = np.linspace(0.1, 3.7, 63, dtype=np.float32)
    x[:7] = np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, 1e-40
    (expected,) = evaluate(tvmfun.trace(BFLOAT16_ROUNDED[name])(x), [x])
    np.testing.assert_array_equal(np.asarray(tvmfun.jit(BFLOAT16_ROUNDED[name])(x)), expected)


def test_nan_of_any_bits_stays_nan_as_bfloat16():
    bits = np.asarray([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800001, 0xFFBFFFFF] * 9, np.uint32)
    for function in (lambda x: x.astype("bfloat16"), lambda x: x.astype("bfloat16") + 1):
        assert np.isnan(np.asarray(tvmfun.jit(function)(bits.view(np.float32))).astype(np.float32)).all()


INTEGERS_ROUNDED = {
    "counted": lambda x: tnp.sin(tnp.arange(600, dtype="bfloat16").astype("float32")) + x[0],
    "few": lambda x: tnp.sin(tnp.arange(9, dtype="bfloat16").reshape(3, 3).astype("float32")) + x[:3],
    "an identity": lambda x: (tnp.eye(3, dtype="bfloat16") * x[:3].astype("bfloat16")).astype("float32"),
    "converted": lambda x: tnp.sin((x[:20] * 100).astype("int32").astype("bfloat16").astype("float32")),
}


@pytest.mark.parametrize("name", INTEGERS_ROUNDED)
def test_integers_that_become_bfloat16_are_rounded_within_a_kernel(name):
    x = np.linspace(3.1, 9.7, 63, dtype=np.float32)
    (expected,) = evaluate(tvmfun.trace(INTEGERS_ROUNDED[name])(x), [x])
    np.testing.assert_allclose(np.asarray(tvmfun.jit(INTEGERS_ROUNDED[name])(x)), expected, rtol=1e-5, atol=1e-5)


def test_sums_of_rounded_numbers():
    x = np.linspace(0.1, 1.9, 64, dtype=np.float32)
    rounded = x.astype(tvmfun.dtypes.bfloat16).astype(np.float64)
    total = tvmfun.jit(lambda x: tnp.sum(x.astype("bfloat16").astype("float32")))(x)
    np.testing.assert_allclose(float(total), rounded.sum(), rtol=1e-6)
