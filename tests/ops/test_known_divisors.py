"""Remainders of floats by known powers of two: exact, with NumPy's signs."""

import ml_dtypes
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp

DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def numbers(dtype):
    kind = DTYPES[dtype]
    smallest, largest = float(ml_dtypes.finfo(kind).smallest_subnormal), float(ml_dtypes.finfo(kind).max)
    rng = np.random.default_rng(0)
    random = rng.normal(size=500) * 2.0 ** rng.integers(-10, 14, 500)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, smallest, -smallest, largest, -largest, -1e-7, 1, -1, 2, -2, 0.5, 3]
    return np.concatenate([random, special]).astype(kind)


def check(x, divisor):
    with np.errstate(all="ignore"):
        # fmod is exact, and the sum with the divisor is rounded once.
        rest = np.fmod(x.astype("float64"), divisor)
        exact = np.where((rest != 0) & (rest < 0), rest + divisor, np.where(rest == 0, 0.0, rest))
    expected = exact.astype(x.dtype)
    found = np.asarray(tvmfun.jit(lambda x: x % divisor)(tnp.asarray(x)))
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype("float64"), expected.astype("float64"))
    zeros = found == 0
    assert not np.signbit(found[zeros].astype("float64")).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("divisor", [1.0, 2.0, 0.5, 2.0**-20, 1024.0, 3.0, 0.3])
def test_remainders(dtype, divisor):
    check(numbers(dtype), float(np.asarray(divisor, DTYPES[dtype])))


def test_other_divisors_stay():
    x = numbers("float32")
    for divisor in (-2.0, 0.0, np.inf, np.nan, -0.5, 2.0**40, 2.0**-40):
        known = tvmfun.jit(lambda x, divisor=divisor: x % divisor)(x)
        np.testing.assert_array_equal(known, tvmfun.jit(lambda x, y: x % y)(x, np.float32(divisor)))


def test_derivatives_and_loops():
    f = lambda x: tnp.sum((x * 3 % 2.0) ** 2)
    x = tnp.asarray([0.3, -0.3, 1.7, 100.1])
    np.testing.assert_allclose(tvmfun.grad(f)(x), 6 * (np.asarray(x) * np.float32(3) % 2.0), rtol=1e-5)
    wrapped = tvmfun.lax.fori_loop(0, 10, lambda i, x: (x + 0.7) % 1.0, x)
    np.testing.assert_allclose(wrapped, (np.asarray(x) + 7) % 1, atol=1e-5)
