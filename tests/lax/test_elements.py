"""Elementwise functions against JAX."""

import numpy as np
import pytest
from support import oracle
from support.agreement import agree

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, ShapeError

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def jax():
    jax = pytest.importorskip("jax")
    with oracle.x64():
        yield jax


# -- elementwise -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_rsqrt_and_logistic(dtype, jax):
    x = np.concatenate([np.linspace(-5, 5, 201), [0.0, -0.0, 1e-10, 30, -30, 90, -90, np.inf, -np.inf, np.nan]]).astype(
        dtype
    )
    ours = tvmfun.jit(lambda x: (lax.erf(x), lax.logistic(x), lax.rsqrt(abs(x))))(x)
    theirs = (
        jax.lax.erf(x.astype("float64")),
        jax.lax.logistic(x.astype("float64")),
        jax.lax.rsqrt(abs(x).astype("float64")),
    )
    for name, actual, expected in zip(("erf", "logistic", "rsqrt"), ours, theirs, strict=True):
        assert actual.dtype == dtype
        tolerance = 1e-6 if dtype == "float32" else 2e-14
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=1e-37, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_inv(dtype, jax):
    x = np.concatenate([np.linspace(-1, 1, 501), [1e-10, -1e-10, 1 - 1e-6, 1e-6 - 1, 0.0, -0.0]]).astype(dtype)
    expected = jax.lax.erf_inv(x.astype("float64"))
    tolerance = 1e-6 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(lax.erf_inv(x), expected, rtol=tolerance, atol=1e-30)
    assert np.isnan(np.asarray(lax.erf_inv(np.array([1.5, -2, np.nan], dtype)))).all()


def test_integers_become_floats():
    for function in (lax.erf, lax.rsqrt, lax.logistic, lax.erf_inv):
        assert function(1).dtype == function(np.array([1], "int8")).dtype == "float32"
        with pytest.raises(DtypeError, match=rf"^\[{function.__name__}\] "):
            function([1.0])


def test_bitcast():
    x = np.array([0.0, -0.0, 1.5, np.inf, np.nan], "float32")
    for dtype in ("uint32", "int32"):
        np.testing.assert_array_equal(lax.bitcast_convert_type(x, dtype), x.view(dtype))
        np.testing.assert_array_equal(lax.bitcast_convert_type(x.view(dtype), "float32"), x)
    np.testing.assert_array_equal(lax.bitcast_convert_type(np.array([1.5]), "int64"), np.array([1.5]).view("int64"))
    half = np.array([1.5], "float16")
    assert lax.bitcast_convert_type(lax.bitcast_convert_type(half, "uint16"), "bfloat16").dtype == tnp.bfloat16
    assert lax.bitcast_convert_type(np.uint8([255]), "int8").tolist() == [-1]
    with pytest.raises(DtypeError, match="number of bits"):
        lax.bitcast_convert_type(x > 0, "int32")


@pytest.mark.quick("float32-uint8", "uint8-float64", "bfloat16-int32", "int64-int16")
@pytest.mark.parametrize("new", ["uint8", "int16", "bfloat16", "int32", "float64"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "bfloat16", "uint32", "float32", "int64"])
def test_bits_of_other_widths(dtype, new, jax):
    """Parts of wider elements, and elements made of parts, also one by one, batched and as views."""
    old, result = tnp.dtype(dtype), tnp.dtype(new)
    count = max(1, result.itemsize // old.itemsize)
    bits = RNG.integers(0, 256, (3, 2, count * old.itemsize), dtype="uint8").view(old)
    x = bits.reshape(3, 2, count) if count > 1 else bits.reshape(3, 2)
    expected = np.asarray(jax.lax.bitcast_convert_type(x, result)).view("uint8")
    f = lambda x: lax.bitcast_convert_type(x, new)
    for function in (f, tvmfun.jit(f), tvmfun.vmap(f)):
        np.testing.assert_array_equal(np.asarray(function(x)).view("uint8"), expected)
    rows = RNG.integers(0, 256, (3, 16), dtype="uint8").view(old)
    np.testing.assert_array_equal(
        np.asarray(tnp.asarray(rows).view(new)).view("uint8"), rows.view(result).view("uint8")
    )


def test_bits_that_do_not_fit():
    x = tnp.asarray(np.zeros((2, 3), "uint8"))
    message = r"\[bitcast_convert_type\] 4 elements of uint8 are one of int32, got uint8\[2,3\]. Try arrays"
    with pytest.raises(ShapeError, match=message):
        lax.bitcast_convert_type(x, "int32")
    with pytest.raises(ShapeError, match=r"\[view\] the last axis must have a multiple of 2 elements"):
        x.view("int16")
    with pytest.raises(ShapeError):
        tnp.asarray(1.0).view("uint8")


def test_stop_gradient():
    tree = {"x": tnp.ones(2), "n": tnp.ones(2, "int32"), "s": 1.5}
    stopped = lax.stop_gradient(tree)
    assert stopped["s"] == 1.5
    assert stopped["n"] is tree["n"]
    np.testing.assert_array_equal(stopped["x"], tree["x"])
    assert float(tvmfun.grad(lambda x: x * lax.stop_gradient(x) ** 2)(3.0)) == 9
    assert float(tvmfun.grad(lambda x: lax.stop_gradient({"a": x})["a"])(3.0)) == 0


UNARY = {
    **dict.fromkeys(
        ("abs", "atan", "asinh", "cbrt", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1"), (-3, 3)
    ),
    **dict.fromkeys(("floor", "is_finite", "logistic", "neg", "reciprocal", "sign", "sin", "sinh", "square"), (-3, 3)),
    **dict.fromkeys(("tan", "tanh"), (-1.2, 1.2)),
    **dict.fromkeys(("acos", "asin", "atanh", "erf_inv"), (-0.9, 0.9)),
    **dict.fromkeys(("log", "rsqrt", "sqrt", "lgamma", "digamma"), (0.2, 5)),
    "acosh": (1.2, 4),
    "log1p": (-0.8, 4),
}
BINARY = ("add", "atan2", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "rem", "sub")


@pytest.mark.slow
def test_unary_functions():
    x = {name: RNG.uniform(low, high, 17) for name, (low, high) in UNARY.items()}
    for names in (list(x)[i::3] for i in range(3)):
        agree(
            lambda lax, *xs, names=names: [getattr(lax, n)(x) for n, x in zip(names, xs, strict=True)],
            *map(x.get, names),
        )


def test_binary_functions():
    x, y = RNG.uniform(-3, 3, 17), RNG.uniform(-3, 3, 17)
    agree(lambda lax, x, y: [getattr(lax, name)(x, y) for name in BINARY], x, y)
    agree(lambda lax, x, y: lax.pow(x, y), np.abs(x), y)
    agree(lambda lax, x: [lax.integer_pow(x, n) for n in (0, 1, 3, -2)] + [lax.pow(x, 3)], x)


@pytest.mark.quick("int8")
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
def test_integer_functions(dtype):
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 7, 7, 100, info.min + 1, 5], dtype)
    y = np.array([info.max, 2, 3, 0, info.max - 3, 2, 7, info.max, 0], dtype)
    small = np.array([0, 1, 3, 7, 2, 5, 6, 4, 1], dtype)
    names = [*BINARY[2:], "add", "bitwise_and", "bitwise_or", "bitwise_xor"]
    agree(lambda lax, x, y: [getattr(lax, name)(x, y) for name in names], x, y)
    names = ["shift_left", "shift_right_logical", "shift_right_arithmetic"]
    agree(lambda lax, x, y: [getattr(lax, name)(x, y) for name in names], x, small)
    agree(lambda lax, x: [lax.bitwise_not(x), lax.sign(x), lax.neg(x)], x)


def test_division_of_the_smallest_integer():
    x, y = np.int32([-(2**31), -(2**31), -7, 7]), np.int32([-1, 1, 2, -2])
    agree(lambda lax, x, y: (lax.div(x, y), lax.rem(x, y)), x, y)


def test_rounding():
    x = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 0.49999999999999994, 2.4, 2.6, np.inf, -np.inf, np.nan, 1e300])
    agree(lambda lax, x: (lax.round(x), lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)), x, derivatives=False)


@pytest.mark.slow
def test_selection():
    x, y, z = RNG.normal(size=(3, 4, 5))
    mask = RNG.integers(0, 2, (4, 5)).astype(bool)
    which = RNG.integers(0, 3, (4, 5)).astype("int32")
    agree(lambda lax, m, x, y: (lax.select(m, x, y), lax.select_n(m, x, y)), mask, x, y)
    agree(lambda lax, w, x, y, z: lax.select_n(w, x, y, z), which, x, y, z)
    agree(lambda lax, x, y, z: lax.clamp(x, y, z), np.minimum(x, z), y, np.maximum(x, z))
    agree(lambda lax, y: lax.clamp(-0.5, y, 0.5), y)
    with pytest.raises(ArgumentError, match=r"^\[select_n\] "):
        lax.select_n(mask, x, y, z)
    with pytest.raises(ArgumentError, match=r"^\[select_n\] "):
        lax.select_n(mask)
    with pytest.raises(DtypeError, match=r"^\[select_n\] "):
        lax.select_n(x, x, y)


def test_convert_element_type():
    x = np.array([1.7, -1.7, 0.0, 200.0])
    for dtype in ("int32", "float32", "bool", "float64"):
        agree(lambda lax, x, dtype=dtype: lax.convert_element_type(x, dtype), x, derivatives=dtype == "float64")


def test_the_ends_of_a_clamp_have_no_derivative():
    x = np.array([-2.0, -1.0, -0.0, 0.5, 1.0, 3.0, np.nan, np.inf, -np.inf])
    agree(lambda lax, x: lax.clamp(-1.0, x, 1.0), x)
    low, high = np.array([1.0, 0.0, 2.0]), np.array([2.0, 1.0, 3.0])
    agree(lambda lax, low, x, high: lax.clamp(low, x, high), low, np.ones(3), high)
    agree(lambda lax, x: lax.clamp(np.int32(3), x, np.int32(1)), np.arange(5, dtype=np.int32))
