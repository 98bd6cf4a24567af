"""Functions of integers whose sums, differences or products do not fit their dtype, against exact arithmetic."""

import math

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp

ARRAYS = {
    "uint8": np.array([200, 100, 90, 255], "uint8"),
    "int8": np.array([-128, 127, -100, 5], "int8"),
    "int32": np.array([2**31 - 1, -(2**31), 5, 2**31 - 3], "int32"),
}
VALUES = np.array([1.0, 2.0, 4.0, 3.0], "float32")


@pytest.fixture(params=ARRAYS)
def x(request):
    return ARRAYS[request.param]


def close(result, expected):
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5)


def test_coordinates(x):
    close(tnp.trapezoid(VALUES, x), np.trapezoid(VALUES.astype("float64"), x.astype("float64")))
    close(tnp.gradient(VALUES, x), np.gradient(VALUES.astype("float64"), x.astype("float64")))


def test_angles():
    for name in ("uint8", "int8"):
        x = ARRAYS[name]
        close(tnp.unwrap(x), np.unwrap(x.astype("float64")))
        close(tnp.unwrap(x, period=360), np.unwrap(x.astype("float64"), period=360))


def test_coefficients():
    for name in ("uint8", "int8"):
        x = ARRAYS[name]
        result = tnp.polyder(x, 2)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(np.asarray(result), np.polyder(x.astype("int64"), 2))


def test_coefficients_of_wide_integers_stay_integers():
    for dtype in ("uint32", "int64", "uint64"):
        x = np.array([2**31 + 1, 5, 7], dtype)
        result = tnp.polyder(x[1:])
        assert result.dtype == x.dtype and np.asarray(result) == [5]


def test_divisors():
    least = -(2**31)
    pairs = [(5, least), (least, 5), (least, 6), (least, 0), (0, least), (12, least), (-12, 18), (2**31 - 1, least)]
    a, b = np.array(pairs, "int32").T
    expected = [math.gcd(*map(int, pair)) for pair in pairs]
    # 2**31 does not fit.
    expected = np.where(np.array(expected) == 2**31, least, expected)
    np.testing.assert_array_equal(np.asarray(tnp.gcd(a, b)), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_comparisons_of_unsigned_numbers_inside_of_one_another(dtype):
    """TVM divided one number by two limits, and failed when it compared these quotients."""
    limit = np.dtype(dtype).type(32)

    def functions(np):
        inner = lambda x: np.where(x < limit, x, limit - limit)
        return [
            lambda x: np.where(x < limit, np.where(inner(x) < 0, x, x + 1), x),
            lambda x: np.where(x < 5, inner(x) % (limit - 29), x),
            lambda x: np.where(x >= 5, x, x // (inner(x) + 1)),
            lambda x: np.where(limit > x, (limit - 31) << inner(x), x),
            lambda x: np.where(x < limit, (limit * 3) >> inner(x), x),
            lambda x: np.where(inner(x) >= 0, np.clip(inner(x), 1, 7), x),
        ]

    x = np.array([3, 40, 5, 0, 4, 31, 32, 33, 100], dtype)
    with np.errstate(over="ignore"):
        for ours, theirs in zip(functions(tnp), functions(np), strict=True):
            for values in (x, x[:1], x[0], x[1], x[5]):
                found, expected = tvmfun.jit(ours)(values), theirs(values)
                assert found.dtype == dtype
                np.testing.assert_array_equal(found, expected)
