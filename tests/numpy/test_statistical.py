"""Reductions against NumPy over axes, dtypes and special values, at once and traced."""

import itertools

import numpy as np
import pytest

import tvmfun
from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, ShapeError

RNG = np.random.default_rng(0)
FUNCTIONS = {
    n: getattr(np, n) for n in ("sum", "prod", "mean", "var", "std", "max", "min", "any", "all", "count_nonzero")
}
AXES = [None, 0, -1, (0, 2), (-1, 1), (), (0, 1, 2)]
CASES = [*((axis, False) for axis in AXES), (None, True), ((-1, 1), True)]


def numbers(dtype):
    if dtype == "bool":
        return RNG.random((2, 3, 4)) < 0.5
    return (RNG.normal(size=(2, 3, 4)) * 2).astype(dtypes.canonical(dtype))


@pytest.mark.quick("bool")
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int32", "int64", "int8", "uint8", "bool", "float16", "bfloat16"]
)
def test_reductions_over_axes(dtype):
    x = np.abs(numbers(dtype)) if dtype == "uint8" else numbers(dtype)
    wide = x.astype("float64") if dtypes.is_float(x.dtype) else x

    def everything(x):
        return [[getattr(tnp, name)(x, axis, keepdims=keepdims) for axis, keepdims in CASES] for name in FUNCTIONS]

    results = tvmfun.jit(everything)(x)
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12}.get(dtype, 2e-6)
    for (name, function), row in zip(FUNCTIONS.items(), results, strict=True):
        for (axis, keepdims), actual in zip(CASES, row, strict=True):
            expected = np.asarray(function(wide, axis=axis, keepdims=keepdims))
            assert actual.shape == expected.shape, (name, axis)
            assert actual.dtype == result_dtype(name, x.dtype), name
            np.testing.assert_allclose(
                np.asarray(actual).astype("float64"), expected, rtol=tolerance, atol=tolerance, err_msg=f"{name} {axis}"
            )


def result_dtype(name, dtype):
    if name in ("any", "all"):
        return dtypes.bool_
    if name == "count_nonzero":
        return dtypes.int32
    if name in ("max", "min") or dtypes.is_float(dtype):
        return dtype
    if name in ("mean", "var", "std"):
        return dtypes.float32
    if dtype.itemsize >= 4:
        return dtype
    return dtypes.uint32 if dtype == dtypes.uint8 else dtypes.int32


@pytest.mark.quick("prod", "count_nonzero", "sum", "mean")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_eager_reductions_take_arguments_as_numpy_does(name):
    x = numbers("float32")
    function, reference = getattr(tnp, name), FUNCTIONS[name]
    for arguments, options in [((), {}), ((0,), {}), ((), {"axis": (0, 1), "keepdims": True})]:
        np.testing.assert_allclose(function(x, *arguments, **options), reference(x, *arguments, **options), rtol=2e-6)
    assert function(x.tolist(), 0).shape == (3, 4)
    assert function(np.float32(2)).shape == ()
    for axis in (3, (0, 0), 0.5):
        with pytest.raises((ShapeError, ArgumentError), match=rf"^\[{name}\]"):
            function(x, axis)


@pytest.mark.quick("sum", "count_nonzero", "all", "max")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore")
def test_reductions_of_nothing(name):
    for shape, axis in [((0,), None), ((2, 0, 3), 1), ((2, 0, 3), (0, 1)), ((2, 0), 0)]:
        x = np.zeros(shape, "float32")
        if name in ("max", "min") and not (shape == (2, 0) and axis == 0):
            with pytest.raises(ShapeError, match=rf"^\[{name}\]"):
                getattr(tnp, name)(x, axis)
        else:
            expected = np.asarray(FUNCTIONS[name](x, axis=axis))
            actual = np.asarray(getattr(tnp, name)(x, axis))
            assert actual.shape == expected.shape
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values():
    x = np.array([[1, np.nan, 3], [np.inf, -np.inf, 0], [-0.0, 0.0, 1], [np.nan, np.inf, -np.inf]], "float32")
    for name in ("sum", "prod", "max", "min", "mean", "any", "all"):
        for axis in (0, 1):
            np.testing.assert_array_equal(getattr(tnp, name)(x, axis), FUNCTIONS[name](x, axis=axis), f"{name} {axis}")
    for name in ("argmax", "argmin"):
        for axis in (0, 1):
            np.testing.assert_array_equal(getattr(tnp, name)(x, axis), getattr(np, name)(x, axis), f"{name} {axis}")
    for dtype in ("bfloat16", "float16", "float64"):
        values = np.array([1, np.nan, 3]).astype(dtypes.canonical(dtype))
        assert np.isnan(float(tnp.max(values))) and np.isnan(float(tnp.min(values[::-1])))


@pytest.mark.quick("uint8", "int64", "bool")
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int64", "bool", "bfloat16"])
def test_argmax_and_argmin(dtype):
    x = np.abs(numbers(dtype)) if dtype == "uint8" else numbers(dtype)

    def everything(x):
        return [
            getattr(tnp, name)(x, axis, keepdims=keepdims)
            for name in ("argmax", "argmin")
            for axis in (None, 0, 1, -1)
            for keepdims in (False, True)
        ]

    cases = itertools.product(("argmax", "argmin"), (None, 0, 1, -1), (False, True))
    for (name, axis, keepdims), actual in zip(cases, tvmfun.jit(everything)(x), strict=True):
        expected = getattr(np, name)(x, axis, keepdims=keepdims)
        assert (actual.dtype, actual.shape) == (np.int32, np.shape(expected))
        np.testing.assert_array_equal(actual, expected)


def test_argmax_takes_the_first_and_needs_elements():
    assert tnp.argmax([1, 3, 3]).item() == 1
    assert tnp.argmin(np.array([[2, 0, 0]]), 1).tolist() == [1]
    assert tnp.argmax(np.full(5, -np.inf)).item() == tnp.argmin(np.full(5, np.inf)).item() == 0
    assert tnp.argmax(np.full(5, np.iinfo("int32").min)).item() == 0
    assert tnp.argmax(np.zeros((2, 0)), 0).shape == (0,)
    for arguments in ((np.zeros(0),), (np.zeros((2, 0)), 1), (np.float32(1), 0)):
        with pytest.raises(ShapeError, match=r"^\[argmax\]"):
            tnp.argmax(*arguments)


def test_dtype_and_correction():
    x = numbers("float32")
    assert tnp.sum(x, 0, "float64").dtype == tnp.prod(x, dtype="float64").dtype == "float64"
    assert tnp.mean(np.arange(4), dtype="float64").dtype == "float64"
    assert tnp.sum(np.ones(300, "int8"), dtype="int8").item() == np.ones(300, "int8").sum(dtype="int8")
    for name in ("var", "std"):
        np.testing.assert_allclose(getattr(tnp, name)(x, 1, ddof=1), getattr(np, name)(x, 1, ddof=1), rtol=1e-5)
        np.testing.assert_allclose(getattr(tnp, name)(x, correction=1), getattr(np, name)(x, ddof=1), rtol=1e-5)
    assert np.isnan(float(tnp.var(np.ones(1), correction=1)))
    with pytest.raises(DtypeError, match=r"\[mean\] the dtype must be a float"):
        tnp.mean(x, dtype="int32")


def test_averages_of_half_precision_do_not_overflow():
    x = np.full(50_000, 60, "float16")
    assert float(tnp.mean(x)) == 60
    assert float(tnp.std(np.array([-300, 300] * 100, "float16"))) == 300
    assert float(tnp.sum(np.ones(4096, tnp.bfloat16))) == 4096


def test_large_reductions_are_accurate():
    x = RNG.random((300, 1001)).astype("float32")
    np.testing.assert_allclose(tnp.sum(x), x.sum(dtype="float64"), rtol=2e-6)
    np.testing.assert_allclose(tnp.sum(x, 0), x.sum(0, dtype="float64"), rtol=2e-6)
    np.testing.assert_allclose(tnp.sum(x, 1), x.sum(1, dtype="float64"), rtol=2e-6)
    np.testing.assert_array_equal(tnp.max(x, 1), x.max(1))
    np.testing.assert_array_equal(tnp.argmax(x, 0), x.argmax(0))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5 * 10**6,), None),
        ((10**5, 65), None),
        ((10**6, 3), None),
        ((10**6, 3), 0),
        ((10**5, 31), None),
        ((3, 10**6 + 5), 1),
    ],
)
def test_long_sums_of_one_number_keep_their_digits(shape, axis):
    """Added up one by one they would lose half of them: every rounding errs to the same side."""
    x = np.full(shape, 0.1, "float32")
    np.testing.assert_allclose(tnp.sum(x, axis=axis), x.astype(np.float64).sum(axis), rtol=2e-6)


def test_medians_of_infinities():
    x = np.array([[-np.inf, 1], [np.inf, 1], [np.inf, -np.inf], [1, 3], [-np.inf, -np.inf], [np.nan, 1]], "float32")
    expected = [-np.inf, np.inf, np.nan, 2, -np.inf, np.nan]
    np.testing.assert_array_equal(tnp.median(x, axis=1), expected)
    np.testing.assert_array_equal(tnp.quantile(x, 0.25, axis=1), [-np.inf, np.inf, np.nan, 1.5, -np.inf, np.nan])
    slopes = tvmfun.grad(lambda x: tnp.sum(tnp.median(x, axis=1)))(x[3:4])
    np.testing.assert_array_equal(slopes, [[0.5, 0.5]])
