"""lax against JAX: convolution, windows, products, and the elementwise functions NumPy has no word for."""

import numpy as np
import pytest

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, ShapeError

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def jax():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield jax


def operand(shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def close(actual, expected, dtype="float32"):
    assert (actual.dtype, actual.shape) == (np.dtype(dtype), expected.shape)
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


# -- convolution -------------------------------------------------------------------------------------------

NHWC = ("NHWC", "HWIO", "NHWC")
CONVOLUTIONS = {
    "default layout": ((2, 3, 7, 6), (4, 3, 3, 3), (1, 1), "VALID", {}),
    "channels last": ((2, 7, 6, 3), (3, 3, 3, 4), (1, 1), "SAME", {"dimension_numbers": NHWC}),
    "mixed layouts": ((7, 2, 3, 6), (3, 3, 4, 3), (1, 1), "SAME", {"dimension_numbers": ("HNCW", "IHOW", "WCNH")}),
    "strides": ((2, 3, 9, 8), (4, 3, 3, 2), (2, 3), "SAME", {}),
    "same, lower": ((2, 3, 8, 8), (4, 3, 2, 4), (1, 1), "SAME_LOWER", {}),
    "padding": ((2, 3, 7, 6), (4, 3, 3, 3), (2, 1), ((0, 2), (3, 1)), {}),
    "negative padding": ((2, 3, 9, 8), (4, 3, 3, 3), (1, 1), ((-1, 2), (-2, -1)), {}),
    "kernel dilation": ((2, 3, 9, 9), (4, 3, 3, 3), (1, 1), "SAME", {"rhs_dilation": (2, 3)}),
    "dilation": ((2, 3, 4, 5), (4, 3, 3, 3), (1, 1), ((2, 2), (1, 2)), {"lhs_dilation": (2, 3)}),
    "everything": (
        (2, 4, 5, 6),
        (6, 2, 2, 3),
        (2, 1),
        ((1, 2), (2, 0)),
        {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "feature_group_count": 2},
    ),
    "groups": ((2, 7, 6, 4), (3, 3, 2, 6), (1, 1), "SAME", {"dimension_numbers": NHWC, "feature_group_count": 2}),
    "depthwise": ((2, 7, 6, 4), (3, 3, 1, 8), (1, 1), "SAME", {"dimension_numbers": NHWC, "feature_group_count": 4}),
    "1x1": ((2, 5, 5, 3), (1, 1, 3, 4), (1, 1), "VALID", {"dimension_numbers": NHWC}),
    "1d": ((2, 3, 9), (4, 3, 4), (2,), "SAME", {}),
    "1d, channels last": ((2, 9, 3), (4, 3, 4), (1,), "VALID", {"dimension_numbers": ("NWC", "WIO", "NWC")}),
    "3d": ((2, 3, 5, 6, 4), (4, 3, 3, 2, 3), (1, 2, 1), "SAME", {}),
    "3d, channels last": (
        (1, 4, 5, 4, 2),
        (2, 3, 2, 2, 3),
        (1, 1, 2),
        ((1, 0), (0, 0), (1, 1)),
        {"dimension_numbers": ("NDHWC", "DHWIO", "NDHWC"), "rhs_dilation": (2, 1, 1)},
    ),
    "no batch": ((0, 3, 7, 6), (4, 3, 3, 3), (1, 1), "VALID", {}),
    "kernel too large": ((1, 3, 2, 6), (4, 3, 3, 3), (1, 1), "VALID", {}),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution(case, dtype, jax):
    x_shape, w_shape, strides, padding, options = case
    x, w = operand(x_shape, dtype), operand(w_shape, dtype)
    expected = jax.lax.conv_general_dilated(x, w, strides, padding, **options)
    f = tvmfun.jit(lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **options))
    close(f(x, w), expected, dtype)


def test_eager_convolution_promotes(jax):
    x, w = RNG.integers(-3, 3, (1, 2, 5)), operand((3, 2, 2), "float64")
    close(
        lax.conv_general_dilated(x, w, (1,), "SAME"),
        jax.lax.conv_general_dilated(x.astype(float), w, (1,), "SAME"),
        "float64",
    )
    assert lax.conv_general_dilated(x, x[:, :, :2], (1,), "SAME").dtype == "float32"


@pytest.mark.parametrize(
    ("error", "x_shape", "w_shape", "strides", "padding", "options"),
    [
        (ShapeError, (2, 3, 7, 6), (4, 3, 3), (1, 1), "SAME", {}),
        (ShapeError, (2, 3, 7, 6), (4, 3, 3, 3), (1,), "SAME", {}),
        (ShapeError, (2, 3, 7, 6), (4, 3, 3, 3), (1, 1), "SAME", {"rhs_dilation": (1,)}),
        (ShapeError, (2, 3), (4, 3), (), "SAME", {}),
        (ShapeError, (2, 3, 7, 6), (4, 3, 3, 3), (1, 1), ((1, 1),), {}),
        (ArgumentError, (2, 3, 7, 6), (4, 3, 3, 3), (1, 1), "ALMOST", {}),
        (ArgumentError, (2, 3, 7, 6), (4, 3, 3, 3), (0, 1), "SAME", {}),
        (ArgumentError, (2, 3, 7, 6), (4, 3, 3, 3), (1, 1), "SAME", {"dimension_numbers": ("NCHW", "OIHX", "NCHW")}),
        (ArgumentError, (2, 3, 7, 6), (4, 3, 3, 3), (1, 1), "SAME", {"dimension_numbers": ("NCHW", "OIHW", "NCH")}),
    ],
)
def test_convolution_errors(error, x_shape, w_shape, strides, padding, options):
    with pytest.raises(error, match=r"^\[conv_general_dilated\] "):
        lax.conv_general_dilated(np.ones(x_shape), np.ones(w_shape), strides, padding, **options)


def test_channels_must_fit():
    with pytest.raises(ShapeError, match=r"channels"):
        lax.conv_general_dilated(np.ones((1, 3, 5)), np.ones((4, 2, 3)), (1,), "SAME")


# -- windows -----------------------------------------------------------------------------------------------

WINDOWS = {
    "pool": ((2, 6, 8, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "overlapping": ((2, 7, 8, 3), (1, 3, 2, 1), (1, 2, 1, 1), "SAME"),
    "padded": ((1, 5, 6, 2), (1, 3, 3, 1), (1, 1, 2, 1), ((0, 0), (1, 2), (2, 0), (0, 0))),
    "all axes": ((3, 4), (2, 3), None, "VALID"),
    "one element": ((3, 4), (1, 1), (2, 2), "VALID"),
    "1d": ((9,), (4,), (3,), "SAME"),
    "too large": ((3,), (5,), None, "VALID"),
}


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("case", WINDOWS.values(), ids=WINDOWS)
def test_windows(case, dtype, jax):
    shape, window, strides, padding = case
    x = operand(shape) if dtype == "float32" else RNG.integers(-9, 9, shape).astype(dtype)
    least = -np.inf if dtype == "float32" else np.iinfo(dtype).min
    ours = tvmfun.jit(
        lambda x: (lax.max_window(x, window, strides, padding), lax.sum_window(x, window, strides, padding))
    )
    largest, total = ours(x)
    steps = strides or (1,) * x.ndim
    expected = jax.lax.reduce_window(x, np.array(least, dtype), jax.lax.max, window, steps, padding)
    np.testing.assert_array_equal(largest, expected)
    assert largest.dtype == total.dtype == dtype
    expected = jax.lax.reduce_window(x, np.array(0, dtype), jax.lax.add, window, steps, padding)
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [lax.max_window, lax.sum_window])
def test_window_errors(function):
    x = np.ones((4, 4))
    for arguments in [((2,),), ((2, 2), (1,)), ((2, 2), None, ((2, 0), (0, 0))), ((2, 2), None, ((0, 0),))]:
        with pytest.raises(ShapeError, match=rf"^\[{function.__name__}\] "):
            function(x, *arguments)
    with pytest.raises(ArgumentError, match=rf"^\[{function.__name__}\] "):
        function(x, (2, 2), None, "ALMOST")


def test_a_nan_is_the_largest_of_its_window():
    assert np.isnan(np.asarray(lax.max_window(np.array([1, np.nan, 3, 4]), (2,), (2,)))).tolist() == [True, False]


# -- dot_general -------------------------------------------------------------------------------------------

PRODUCTS = [
    ((2, 3), (3, 4), (((1,), (0,)), ((), ()))),
    ((5, 2, 3), (5, 3, 4), (((2,), (1,)), ((0,), (0,)))),
    ((2, 5, 3), (3, 4, 5), (((2,), (0,)), ((1,), (2,)))),
    ((2, 3, 4), (4, 3, 5), (((1, 2), (1, 0)), ((), ()))),
    ((2, 3), (4,), (((), ()), ((), ()))),
    ((2, 3), (2, 3), (((), ()), ((0, 1), (0, 1)))),
    ((2, 3), (2, 3), (((0, 1), (0, 1)), ((), ()))),
    ((2, 0), (0, 3), (((1,), (0,)), ((), ()))),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_dot_general(dtype, jax):
    pairs = [(operand(a, dtype), operand(b, dtype)) for a, b, _ in PRODUCTS]
    if dtype == "int32":
        pairs = [tuple(RNG.integers(-9, 9, v.shape).astype(dtype) for v in pair) for pair in pairs]
    together = tvmfun.jit(
        lambda pairs: [lax.dot_general(*pair, case[2]) for pair, case in zip(pairs, PRODUCTS, strict=True)]
    )
    for pair, (_, _, numbers), actual in zip(pairs, PRODUCTS, together(pairs), strict=True):
        close(actual, jax.lax.dot_general(*pair, numbers), dtype)


def test_dot_general_counts_axes_from_the_end_too():
    x, y = operand((2, 3)), operand((4, 3))
    np.testing.assert_allclose(lax.dot_general(x, y, (((-1,), (-1,)), ((), ()))), x @ y.T, rtol=1e-5, atol=1e-6)


def test_dot_general_errors():
    x = np.ones((2, 3))
    for numbers in [(((0,), (1,)), ((), ())), (((2,), (0,)), ((), ())), (((0,), ()), ((), ()))]:
        with pytest.raises((ShapeError, ArgumentError), match=r"^\[dot_general\] "):
            lax.dot_general(x, x, numbers)


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
        lax.bitcast_convert_type(x, "int64")


def test_stop_gradient():
    tree = {"x": tnp.ones(2), "n": tnp.ones(2, "int32"), "s": 1.5}
    stopped = lax.stop_gradient(tree)
    assert stopped["s"] == 1.5
    assert stopped["n"] is tree["n"]
    np.testing.assert_array_equal(stopped["x"], tree["x"])
    assert float(tvmfun.grad(lambda x: x * lax.stop_gradient(x) ** 2)(3.0)) == 9
    assert float(tvmfun.grad(lambda x: lax.stop_gradient({"a": x})["a"])(3.0)) == 0
