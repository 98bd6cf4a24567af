"""Convolutions and windows against JAX."""

from itertools import product

import numpy as np
import pytest
from support import derivatives
from support.agreement import agree, close_to_dtype

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("jax")


def operand(shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def test_the_layout_is_part_of_the_error():
    x, w = np.ones((1, 8, 8, 3), "float32"), np.ones((3, 3, 3, 4), "float32")
    message = r"layout NCHW must have 3 channels, got float32\[1,8,8,3\] and .*Try dimension_numbers="
    with pytest.raises(ShapeError, match=message):
        lax.conv_general_dilated(x, w, (1, 1), "SAME")
    with pytest.raises(ShapeError, match=r"layout NHWC must have 6 channels, got float32\[1,8,8,3\]"):
        lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=2)


# -- convolution -------------------------------------------------------------------------------------------

NHWC = ("NHWC", "HWIO", "NHWC")
CONVOLUTIONS = {
    "default layout": ((2, 3, 7, 6), (4, 3, 3, 3), (1, 1), "VALID", {}),
    "channels last": ((2, 7, 6, 3), (3, 3, 3, 4), (1, 1), "SAME", {"dimension_numbers": NHWC}),
    "mixed layouts": ((7, 2, 3, 6), (3, 3, 4, 3), (1, 1), "SAME", {"dimension_numbers": ("HNCW", "IHOW", "WCNH")}),
    "another order of axes": (
        (7, 2, 3, 6),
        (3, 2, 4, 3),
        (1, 2),
        ((0, 2), (1, 0)),
        {"dimension_numbers": ("HNCW", "IWOH", "WCNH"), "lhs_dilation": (1, 2), "rhs_dilation": (2, 1)},
    ),
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


@pytest.mark.quick("*-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution(case, dtype, jax):
    x_shape, w_shape, strides, padding, options = case
    x, w = operand(x_shape, dtype), operand(w_shape, dtype)
    expected = jax.lax.conv_general_dilated(x, w, strides, padding, **options)
    f = tvmfun.jit(lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **options))
    close_to_dtype(f(x, w), expected, dtype)


@pytest.mark.quick("strides-int8", "*-int32")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution_of_integers(case, dtype, jax):
    """Exact modulo a power of two, in their dtype or in a wider one that is asked for."""
    x_shape, w_shape, strides, padding, options = case
    info = np.iinfo(dtype)
    x, w = (RNG.integers(info.min, info.max, shape, dtype, endpoint=True) for shape in (x_shape, w_shape))
    for wide in (None, "int32"):
        kind = {"preferred_element_type": wide}
        expected = np.asarray(jax.lax.conv_general_dilated(x, w, strides, padding, **options, **kind))
        f = tvmfun.jit(lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **options, **kind))  # noqa: B023
        assert tnp.asarray(f(x, w)).dtype == expected.dtype
        np.testing.assert_array_equal(f(x, w), expected)


def test_many_integers_are_summed_exactly(jax):
    """The sum of 4,608 products, which float32 cannot hold; many sizes of a batch; and long kernels."""
    x, w = np.full((2, 4, 4, 512), 127, "int8"), np.full((3, 3, 512, 4), 127, "int8")
    x[0, 1, 1, 0], w[0, 0, 0, 0] = 125, 126
    options = {"dimension_numbers": NHWC, "preferred_element_type": "int32"}
    conv = lambda lax, x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", **options)
    expected = np.asarray(conv(jax.lax, x, w))
    np.testing.assert_array_equal(conv(lax, x, w) >> 3, expected >> 3)
    f = tvmfun.jit(lambda x, w: conv(lax, x, w), dynamic_shapes=({0: "n"}, None))
    np.testing.assert_array_equal(f(x[:1], w), expected[:1])
    np.testing.assert_array_equal(tvmfun.vmap(lambda x: conv(lax, x[None], w)[0])(x), expected)
    a, v = RNG.integers(-9, 9, 300), RNG.integers(-9, 9, 130)
    for mode in ("full", "same", "valid"):
        result = tnp.convolve(a, v, mode, preferred_element_type="int32")
        np.testing.assert_array_equal(result, np.convolve(a, v, mode))
        assert result.dtype == np.int32
        turned = tnp.correlate(v, a, mode, preferred_element_type="int32")
        np.testing.assert_array_equal(turned, np.correlate(v, a, mode))


def test_eager_convolution_promotes(jax):
    x, w = RNG.integers(-3, 3, (1, 2, 5)), operand((3, 2, 2), "float64")
    close_to_dtype(
        lax.conv_general_dilated(x, w, (1,), "SAME"),
        jax.lax.conv_general_dilated(x.astype(float), w, (1,), "SAME"),
        "float64",
    )
    assert lax.conv_general_dilated(x, x[:, :, :2], (1,), "SAME").dtype == "int64"
    assert lax.conv_general_dilated(x > 0, x[:, :, :2] > 0, (1,), "SAME").dtype == "float32"


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


@pytest.mark.quick("too large-float32", "too large-int32", "overlapping-int32", "all axes-int32")
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


# -- derivatives, groups of the batch, transposed convolutions -------------------------------------------------


@pytest.mark.quick("everything")
@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name not in ("no batch", "kernel too large")])
def test_derivatives_of_convolutions(name):
    x_shape, w_shape, strides, padding, options = CONVOLUTIONS[name]
    x, w = operand(x_shape, "float64"), operand(w_shape, "float64")
    agree(lambda lax, x, w: lax.conv_general_dilated(x, w, strides, padding, **options), x, w)


@pytest.mark.quick("options1")
@pytest.mark.parametrize("options", [{}, {"rhs_dilation": (2, 1)}, {"lhs_dilation": (1, 2)}])
def test_groups_of_the_batch(options):
    x, w = operand((6, 2, 7, 6), "float64"), operand((9, 2, 3, 2), "float64")
    padding = ((1, 1), (0, 2))
    agree(lambda lax, x, w: lax.conv_general_dilated(x, w, (2, 1), padding, batch_group_count=3, **options), x, w)
    with pytest.raises(ShapeError, match="multiples of 4"):
        lax.conv_general_dilated(x, w, (1, 1), "VALID", batch_group_count=4)
    with pytest.raises(ArgumentError, match="one group count"):
        lax.conv_general_dilated(x, w, (1, 1), "VALID", batch_group_count=2, feature_group_count=2)


@pytest.mark.slow
def test_short_forms_of_convolution():
    x, w = operand((2, 3, 7, 6), "float64"), operand((4, 3, 3, 3), "float64")
    agree(lambda lax, x, w: lax.conv(x, w, (1, 2), "SAME"), x, w)
    padding = ((1, 2), (0, 1))
    agree(lambda lax, x, w: lax.conv_with_general_padding(x, w, (1, 1), padding, (2, 1), (1, 2)), x, w)


TRANSPOSED = {
    "same": ((2, 5, 6, 3), (3, 3, 3, 4), (2, 2), "SAME", {}),
    "valid": ((2, 5, 6, 3), (3, 2, 3, 4), (2, 3), "VALID", {}),
    "stride above the kernel": ((2, 5, 6, 3), (2, 2, 3, 4), (3, 4), "SAME", {}),
    "pairs": ((2, 5, 6, 3), (3, 3, 3, 4), (2, 1), ((1, 2), (0, 1)), {}),
    "transposed kernel": ((2, 5, 6, 4), (3, 3, 3, 4), (2, 2), "SAME", {"transpose_kernel": True}),
    "dilation": ((2, 5, 6, 3), (2, 3, 3, 4), (2, 2), "SAME", {"rhs_dilation": (2, 1)}),
    "channels first": (
        (2, 3, 5, 6),
        (3, 4, 3, 3),
        (2, 2),
        "VALID",
        {"dimension_numbers": ("NCHW", "IOHW", "NCHW")},
    ),
    "1d": ((2, 5, 3), (4, 3, 2), (3,), "SAME", {}),
    "3d": ((1, 3, 2, 3, 2), (2, 3, 2, 2, 3), (1, 2, 2), "VALID", {}),
}


@pytest.mark.quick("same")
@pytest.mark.parametrize("case", TRANSPOSED.values(), ids=TRANSPOSED)
def test_transposed_convolution(case):
    x_shape, w_shape, strides, padding, options = case
    x, w = operand(x_shape, "float64"), operand(w_shape, "float64")
    agree(lambda lax, x, w: lax.conv_transpose(x, w, strides, padding, **options), x, w)


def test_transposed_convolution_padding():
    with pytest.raises(ArgumentError, match=r"^\[conv_transpose\] "):
        lax.conv_transpose(np.ones((1, 3, 1)), np.ones((2, 1, 1)), (2,), "ALMOST")


# -- reduce_window ---------------------------------------------------------------------------------------------

REDUCED = {
    "pool": ((2, 6, 8), (1, 2, 2), {"window_strides": (1, 2, 2)}),
    "same": ((7, 8), (3, 2), {"window_strides": (2, 1), "padding": "SAME"}),
    "padding of a window and more": ((5, 6), (2, 3), {"padding": ((3, 2), (0, 4))}),
    "holes between elements": ((4, 5), (3, 2), {"base_dilation": (2, 3), "padding": ((2, 1), (0, 2))}),
    "nothing": ((3,), (5,), {}),
}
HOLES = {
    "no axes": ((), (), {}),
    "negative padding": ((6, 7), (2, 2), {"padding": ((-1, 0), (2, -2))}),
    "holes in the window": ((7, 8), (3, 2), {"window_dilation": (2, 3), "window_strides": (1, 2)}),
    "all of it": (
        (5, 6),
        (2, 3),
        {"window_dilation": (2, 2), "base_dilation": (2, 1), "padding": ((1, 2), (3, 0)), "window_strides": (2, 1)},
    ),
}
NEUTRAL = {"add": 0.0, "max": -np.inf, "min": np.inf}


def reduced(name, window, options):
    """The reduction of windows as a function of the module and the array."""
    options = {"window_strides": None, "padding": "VALID", **options}
    start = {**NEUTRAL, "mul": 1.0}[name]
    return lambda lax, x: lax.reduce_window(x, start, getattr(lax, name), window, **options)


@pytest.mark.quick("holes between elements-add", "nothing-min", "nothing-max")
@pytest.mark.parametrize("name", ["add", "max", "min"])
@pytest.mark.parametrize("case", REDUCED.values(), ids=REDUCED)
def test_reduce_window(case, name):
    shape, window, options = case
    x = np.asarray(RNG.permutation(int(np.prod(shape))).reshape(shape) / 7)
    agree(reduced(name, window, options), x)


@pytest.mark.quick("negative padding-mul")
@pytest.mark.parametrize(("key", "name"), list(product(REDUCED | HOLES, ["add", "mul", "max", "min"])))
def test_reduce_window_that_only_we_differentiate(key, name):
    shape, window, options = (REDUCED | HOLES)[key]
    x = np.asarray((RNG.permutation(int(np.prod(shape))).reshape(shape) + 1) / 7)
    value = agree(reduced(name, window, options), x, derivatives=False)
    if np.isfinite(np.asarray(value)).all():
        derivatives.check(lambda x: reduced(name, window, options)(lax, x), [x / 2])


@pytest.mark.quick("float32")
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
def test_reduce_window_of_other_dtypes(dtype):
    x = RNG.integers(0, 99, (6, 7)).astype(dtype)
    info = np.iinfo(dtype) if dtype != "float32" else np.finfo(dtype)
    starts = {"add": 0, "mul": 1, "max": info.min, "min": info.max}
    for name, start in starts.items():
        start = np.asarray(start, dtype)
        agree(
            lambda lax, x, n=name, s=start: lax.reduce_window(x, s, getattr(lax, n), (2, 3), (1, 2), "SAME"),
            x,
            tolerance=1e-5,
        )


def test_reduce_window_of_trees():
    x, y = operand((5, 6), "float64"), operand((5, 6), "float64")

    def first_largest(a, b):
        keep = a[0] >= b[0]
        return [lax.select(keep, p, q) for p, q in zip(a, b, strict=True)]

    largest, companion = lax.reduce_window([x, y], [-np.inf, 0.0], first_largest, (2, 2))
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2)).reshape(4, 5, 4)
    others = np.lib.stride_tricks.sliding_window_view(y, (2, 2)).reshape(4, 5, 4)
    place = windows.argmax(-1)[..., None]
    np.testing.assert_array_equal(largest, windows.max(-1))
    np.testing.assert_array_equal(companion, np.take_along_axis(others, place, -1)[..., 0])


def test_reduce_window_errors():
    x = np.ones((4, 4))
    for arguments in [((2,),), ((2, 2), (1,))]:
        with pytest.raises(ShapeError, match=r"^\[reduce_window\] "):
            lax.reduce_window(x, 0.0, lax.add, *arguments)
    with pytest.raises(ArgumentError, match=r"^\[reduce_window\] "):
        lax.reduce_window(x, 0.0, lax.add, (2, 2), (0, 1))
