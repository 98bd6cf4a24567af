"""Elementwise functions against NumPy and JAX, for all dtypes and special values."""

import itertools
import pickle

import numpy as np
import pytest
from support.oracle import x64

import tvmfun
from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, ShapeError

SPECIAL = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3.5, -2.5, 1e-7, -1e-7, 1e-30, 30, -30, 1e5, -1e5]
INFINITE = [np.inf, -np.inf, np.nan]
# Units in the last place that float32 and float64 may be off.
TOLERANCE = {"float32": 6, "float64": 12}

UNARY = {
    "negative": np.negative,
    "positive": np.positive,
    "abs": np.abs,
    "sign": np.sign,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "logical_not": np.logical_not,
}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logaddexp": np.logaddexp,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
INTEGER = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def close(name, actual, expected, *inputs, ulps):
    """All elements are within ``ulps`` of the correctly rounded ones, with the same NaNs and infinities."""
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    if expected.dtype == bool:
        np.testing.assert_array_equal(actual, expected, name)
        return
    rounded = expected.astype(actual.dtype)
    finite = np.isfinite(rounded)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(actual[~finite], rounded[~finite], name)
        error = np.abs(actual[finite] - expected[finite]) / np.spacing(np.abs(rounded[finite]))
    if error.size and not error.max() <= ulps:
        worst = np.argmax(error)
        where = [x[finite][worst] for x in inputs]
        pytest.fail(f"{name}{where}: {actual[finite][worst]!r} is {error[worst]:.0f} ulp off")


@pytest.mark.quick("reciprocal-float64", "positive-float64", "square-float64", "round-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unary_functions_at_special_values(name, dtype):
    x = np.array(SPECIAL + INFINITE, dtype)
    if name in ("sin", "cos", "tan"):
        x = x[np.abs(x) < 100]
    precise = x.astype(np.longdouble) if dtype == "float64" else x.astype(np.float64)
    expected = UNARY[name](precise)
    close(name, getattr(tnp, name)(x), expected, x, ulps=TOLERANCE[dtype])


@pytest.mark.quick("less_equal-float64", "logical_xor-float64", "minimum-float32", "divide-float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_binary_functions_at_special_values(name, dtype):
    values = SPECIAL if name in ("floor_divide", "remainder") else SPECIAL + INFINITE
    x, y = (np.ravel(v) for v in np.meshgrid(np.array(values, dtype), np.array(values, dtype)))
    if name in ("floor_divide", "remainder"):  # an exact result in floats of the same size
        keep = (y != 0) & (np.abs(x) < 1e6 * np.abs(y))
        x, y = x[keep], y[keep]
        expected = BINARY[name](x, y)
    else:
        wide = np.longdouble if dtype == "float64" else np.float64
        expected = BINARY[name](x.astype(wide), y.astype(wide))
        limits = np.finfo(dtype)
        tiny = (np.abs(expected) < limits.tiny) & (expected != 0) if expected.dtype != bool else expected & False
        x, y, expected = x[~tiny], y[~tiny], expected[~tiny]
    close(name, getattr(tnp, name)(x, y), expected, x, y, ulps=TOLERANCE[dtype])


@pytest.mark.quick("float32-tanh", "float64-log", "float32-log", "float64-log1p")
@pytest.mark.parametrize("name", ["expm1", "log1p", "tanh", "exp", "log"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementary_functions_are_accurate_over_their_range(name, dtype):
    exponents = np.linspace(-20, 4, 4000)
    x = (10**exponents).astype(dtype)
    x = x if name == "log" else np.concatenate([x, -x[x < 0.9]])
    wide = np.longdouble if dtype == "float64" else np.float64
    with np.errstate(all="ignore"):
        expected = UNARY[name](x.astype(wide))
    close(name, getattr(tnp, name)(x), expected, x, ulps=TOLERANCE[dtype])


def test_zero_keeps_its_sign():
    zeros = np.array([0.0, -0.0], "float32")
    for name in ("sin", "tan", "tanh", "expm1", "log1p", "sqrt", "floor", "ceil", "trunc", "round"):
        np.testing.assert_array_equal(np.signbit(getattr(tnp, name)(zeros)), [False, True], name)
    np.testing.assert_array_equal(np.signbit(tnp.negative(zeros)), [True, False])
    np.testing.assert_array_equal(np.signbit(tnp.abs(zeros)), [False, False])
    np.testing.assert_array_equal(1 / np.asarray(tnp.multiply(zeros, 1)), [np.inf, -np.inf])


def test_powers():
    base = np.array([0, -0.0, 2, -2, -8, 1, np.nan, np.inf, -np.inf], "float32")
    for exponent in (0, 1, 2, 3, -1, -2, 5):
        with np.errstate(divide="ignore"):
            expected = np.power(base, np.float32(exponent))
        np.testing.assert_allclose(tnp.power(base, exponent), expected, rtol=1e-6)
        np.testing.assert_allclose(tnp.power(base, np.float32(exponent)), expected, rtol=1e-6)
    quarter = np.full_like(base, 0.25)  # as an array, because NumPy takes the square root for one number 0.5
    np.testing.assert_allclose(tnp.power(base, 0.25), np.power(base, quarter), rtol=1e-6)
    np.testing.assert_array_equal(2.0 ** tnp.asarray([-1, 0, 3]), np.array([0.5, 1, 8], "float32"))


INTEGERS = [str(d) for d in dtypes.INTEGERS]


def corners(dtype):
    info = np.iinfo(dtype)
    values = {info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 50, -1 % 256 if info.min == 0 else -1}
    values |= set() if info.min == 0 else {-2, -3, -7, -50}
    pairs = list(itertools.product(sorted(values), repeat=2))
    return tuple(np.array(side, dtype) for side in zip(*pairs, strict=True))


@pytest.mark.quick("uint64")
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_integer_arithmetic_at_corners(dtype):
    x, y = corners(dtype)
    names = [n for n in BINARY if n not in ("divide", "power", "logaddexp")] + list(INTEGER)
    results = tvmfun.jit(lambda x, y: {name: getattr(tnp, name)(x, y) for name in names})(x, y)
    for name in names:
        expected = (BINARY | INTEGER)[name](x, y)  # NumPy too gives 0 for division by 0, and wraps
        actual = np.asarray(results[name])
        assert actual.dtype == expected.dtype, name
        np.testing.assert_array_equal(actual, expected, name)
    unary = ("negative", "positive", "abs", "sign", "square", "floor", "round", "isnan", "isinf", "isfinite")
    results = tvmfun.jit(lambda x: {name: getattr(tnp, name)(x) for name in unary})(x)
    for name in unary:
        np.testing.assert_array_equal(results[name], UNARY[name](x), name)
    np.testing.assert_array_equal(tnp.bitwise_invert(x), ~x)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_division_by_zero_and_overflow_do_not_crash(name, dtype):
    x, y = corners(dtype)
    with np.errstate(all="ignore"):
        expected = BINARY[name](x, y)
    np.testing.assert_array_equal(getattr(tnp, name)(x, y), expected)


def test_sums_with_constants_wrap_when_compiled():
    x = np.array([2**31 + 5], "uint32")
    assert tvmfun.jit(lambda x: x + 2**31)(x).tolist() == [5]


@pytest.mark.quick("int16", "uint8", "int32", "uint64")
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_by_any_count(dtype):
    jax = pytest.importorskip("jax")
    info = np.iinfo(dtype)
    counts = np.array([0, 1, info.bits - 1, info.bits, info.bits + 1, 100], dtype)
    x, n = (np.ravel(v) for v in np.meshgrid(np.array([info.min, info.max, 1, 5, 0], dtype), counts))
    with x64(True):
        np.testing.assert_array_equal(tnp.bitwise_left_shift(x, n), jax.numpy.left_shift(x, n))
        np.testing.assert_array_equal(tnp.bitwise_right_shift(x, n), jax.numpy.right_shift(x, n))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integer_powers(dtype):
    info = np.iinfo(dtype)
    base, exponent = (np.ravel(v) for v in np.meshgrid([0, 1, 2, 3, -1, -2, -3, info.max], [0, 1, 2, 5, 63, 100]))
    base, exponent = base.astype(dtype), exponent.astype(dtype)
    with np.errstate(over="ignore"):
        expected = np.power(base, exponent)
    np.testing.assert_array_equal(tnp.power(base, exponent), expected)
    if dtype != "int64":
        np.testing.assert_array_equal(tvmfun.jit(tnp.power)(base, exponent), expected)
    if info.min:
        low = np.array([-1, -2, -3], dtype)
        np.testing.assert_array_equal(tnp.power(np.array([1, -1, -1], dtype), low), [1, 1, -1])
        np.testing.assert_array_equal(tnp.power(np.array([2, 0, -7], dtype), low), [0, 0, 0])
    assert (2 ** tnp.asarray([0, 3])).tolist() == [1, 8]
    with pytest.raises(DtypeError, match=r"\[power\] an integer to a negative power"):
        tnp.power(base, -1)
    assert tnp.power(np.array([True]), np.array([True])).dtype == "int32"


@pytest.mark.quick("bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_half_precision_is_rounded_once(dtype):
    x = np.array([0.01, 0.1, 0.27, 0.5, 0.99, 1, 2.5, 7, 100, np.inf, np.nan]).astype(dtypes.canonical(dtype))
    y = x[::-1].copy()
    skip = ("floor_divide", "remainder", "round")
    functions = {n: (f, 1) for n, f in UNARY.items() if n not in skip} | {
        n: (f, 2) for n, f in BINARY.items() if n not in skip
    }

    def everything(x, y):
        return {n: getattr(tnp, n)(*(x, y)[:count]) for n, (_, count) in functions.items()}

    results = tvmfun.jit(everything)(x, y)
    for name, (function, count) in functions.items():
        wide = function(*(v.astype("float32") for v in (x, y)[:count]))
        actual = np.asarray(results[name])
        if wide.dtype == bool:
            np.testing.assert_array_equal(actual, wide, name)
            continue
        assert actual.dtype == x.dtype, name
        # logaddexp, log2, log10 and tan are made of several operations, each of which is rounded.
        steps = 8 if name in ("logaddexp", "log2", "log10", "tan") else 1
        epsilon = 2.0 ** -(7 if dtype == "bfloat16" else 10)
        np.testing.assert_allclose(
            actual.astype(float), wide.astype(x.dtype).astype(float), rtol=steps * epsilon, atol=1e-4, err_msg=name
        )


def test_bools():
    x, y = (np.ravel(v) for v in np.meshgrid([True, False], [True, False]))
    for name in (
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "equal",
        "less",
    ):
        np.testing.assert_array_equal(getattr(tnp, name)(x, y), getattr(np, name)(x, y), name)
    assert tnp.bitwise_invert(x).tolist() == tnp.logical_not(x).tolist() == (~x).tolist()
    assert tnp.exp(x).dtype == "float32"
    for name in ("subtract", "negative", "sign"):
        with pytest.raises(DtypeError, match="bool"):
            getattr(tnp, name)(*(x, y)[: 1 if name in ("negative", "sign") else 2])


def test_integers_become_floats_where_the_result_is_none():
    for name in ("exp", "log", "sqrt", "sin", "tanh", "divide", "reciprocal", "log2", "logaddexp"):
        arguments = [np.array([1, 2], "int8")] * (2 if name in BINARY else 1)
        assert getattr(tnp, name)(*arguments).dtype == "float32"
    assert tnp.sqrt(np.array([1.0])).dtype == "float64"


@pytest.mark.parametrize("shapes", [((), ()), ((0,), ()), ((2, 0), (1, 1)), ((3, 1), (2,)), ((1,), (2, 3))], ids=str)
def test_broadcasting(shapes):
    x, y = (np.ones(shape, "float32") for shape in shapes)
    for f in (tnp.add, tvmfun.jit(tnp.add)):
        assert f(x, y).shape == (x + y).shape
    assert tnp.where(x > 0, x, y).shape == (x + y).shape


def test_numbers_alone_stay_weak_and_numpy_numbers_do_not():
    assert tnp.exp(1.0).weak_type
    assert tnp.add(1, 2.5).dtype == "float32"
    assert not tnp.add(np.float32(1), np.float32(2)).weak_type
    assert tnp.add(np.float64(1), 2).dtype == "float64"
    assert tvmfun.jit(lambda: (tnp.exp(1.0), tnp.floor(2.5), tnp.add(np.float64(1), 1)))()[2].dtype == "float64"
    assert (tnp.floor(2.5).item(), tnp.isnan(2.0).item(), tnp.positive(3).item()) == (2.0, False, 3)


def test_round_to_decimals():
    x = np.array([0.125, 2.675, -1.5, 1234.5678], "float64")
    for decimals in (0, 1, 2, -2):
        np.testing.assert_allclose(tnp.round(x, decimals), np.round(x, decimals), rtol=1e-12)
    assert tnp.round(np.array([17]), 2).tolist() == [17]
    with pytest.raises(ArgumentError, match=r"\[round\]"):
        tnp.round(np.array([17]), -1)


def test_clip():
    x = np.array([-5, 0, 5, 100], "int8")
    np.testing.assert_array_equal(tnp.clip(x, -1, 7), np.clip(x, -1, 7))
    np.testing.assert_array_equal(tnp.clip(x, min=0), np.clip(x, 0, None))
    np.testing.assert_array_equal(tnp.clip(x, max=1000), x)
    np.testing.assert_array_equal(tnp.clip(x, -1000, 1000), x)
    assert tnp.clip(x, 0, 1.5).dtype == "float32"
    np.testing.assert_array_equal(tnp.clip(np.array([np.nan, 2.0]), 0, 1), [np.nan, 1])
    np.testing.assert_array_equal(tnp.clip(x), x)


def test_where():
    condition = np.array([1, 0, 2])
    np.testing.assert_array_equal(tnp.where(condition, 1, np.arange(3)), [1, 1, 1])
    assert tnp.where(True, np.float16(1), 2).dtype == "float16"
    assert tnp.where(condition, np.nan, 0.0).dtype == "float32"


def test_astype():
    x = np.array([-1.7, 0, 1.7, 300])
    np.testing.assert_array_equal(tnp.astype(x, "int32"), [-1, 0, 1, 300])
    np.testing.assert_array_equal(tnp.astype(x, bool), [True, False, True, True])
    np.testing.assert_array_equal(tnp.astype(np.array([np.nan, -0.0]), "bool"), [True, False])
    array = tnp.ones(2)
    assert tnp.astype(array, "float32") is array
    assert not tnp.astype(tnp.asarray(1.0), "float32").weak_type
    np.testing.assert_array_equal(tnp.astype(np.array([-1, 256]), "uint8"), [255, 0])
    chain = tvmfun.jit(lambda x: [x := x.astype(d) for d in dtypes.NAMES.values()])(np.array([0, 1, 0], "int8"))
    assert [v.dtype for v in chain] == list(dtypes.ALL)
    assert all(np.asarray(v).astype(int).tolist() == [0, 1, 0] for v in chain)
    with pytest.raises(DtypeError):
        tnp.astype(x, "complex64")


@pytest.mark.slow
def test_jitted_functions_give_the_results_of_eager_ones():
    x = np.linspace(-3, 3, 7, dtype="float32")
    names = [n for n in UNARY if n not in ("log", "log2", "log10", "sqrt", "log1p")]
    together = tvmfun.jit(lambda x: {name: getattr(tnp, name)(x) for name in names})(x)
    for name in names:
        np.testing.assert_allclose(together[name], getattr(tnp, name)(x), rtol=3e-7, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("name", [*UNARY, *BINARY, *INTEGER, "clip", "astype"])
def test_errors_name_the_function(name):
    arguments = {"astype": ([1], "int32"), "clip": ([1], 0)}.get(name, ([1],) * (1 if name in UNARY else 2))
    with pytest.raises(DtypeError, match=rf"\[{name}\] an argument is neither an array nor a number, got list\. Try"):
        getattr(tnp, name)(*arguments)


def test_shapes_that_do_not_fit_are_explained():
    with pytest.raises(ShapeError, match=r"\[add\] the shapes do not broadcast, got \(2,\) and \(3,\)"):
        tnp.add(np.ones(2), np.ones(3))
    with pytest.raises(DtypeError, match=r"bitwise_and"):
        tnp.bitwise_and(np.ones(2), np.ones(2))


def test_public_functions_have_their_names_and_sentences():
    for name in tnp.__all__:
        function = getattr(tnp, name)
        if callable(function) and not isinstance(function, type):
            assert function.__name__ == name
            assert function.__doc__ and function.__doc__.startswith(("Returns", "Sets", "Writes"))
            assert pickle.loads(pickle.dumps(function)) is function


def test_logaddexp2_of_half_precision_is_rounded_once():
    """Near a result of 0 the scaled terms cancel."""
    x, y = (np.ravel(v) for v in np.meshgrid(*[np.linspace(-12, 12, 97).astype("float16")] * 2))
    expected = np.logaddexp2(x.astype("float64"), y.astype("float64"))
    result = np.asarray(tnp.logaddexp2(x, y))
    assert result.dtype == "float16"
    np.testing.assert_allclose(result.astype("float64"), expected, 2.0**-11, 1e-6)
