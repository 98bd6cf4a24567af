"""3x3 convolutions with fewer multiplications: the same results, for the convolutions that gain by it."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import jit
from tvmfun.lower.tir.micro_kernels.products import TileProduct
from tvmfun.ops.conv import conv, conv_kernel_gradient

LAYOUT = ("NHWC", "HWIO", "NHWC")
ONE = (1, 1)
SAME = ((1, 1), (1, 1))


def convolve(x, w, padding=SAME, **params):
    return conv(
        x, w, **{"stride": ONE, "dilation": ONE, "kernel_dilation": ONE, "groups": 1, **params}, padding=padding
    )


def exact(x, w, padding=SAME):
    with jax.enable_x64(True):
        y = jax.lax.conv_general_dilated(
            x.astype("float64"), w.astype("float64"), ONE, padding, dimension_numbers=LAYOUT, precision="highest"
        )
        return np.asarray(y)


def rules(function, *arguments, target=None) -> set[str]:
    """The names of the rules by which the kernels are scheduled."""
    lowered = tvmfun.jit(function, target=target).lower(*arguments)
    text = lowered.compile().as_text()
    return {line.split('"tvmfun.rule": "')[1].split('"')[0] for line in text.splitlines() if "tvmfun.rule" in line}


def operands(images, rows, columns, channels, features, dtype="float32"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(images, rows, columns, channels)).astype(dtype)
    return x, rng.normal(size=(3, 3, channels, features)).astype(dtype)


def close(got, expected):
    # A result is a sum of terms of both signs: its error is to be compared with the largest.
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def for_any_size(test):
    margin = st.tuples(st.integers(-1, 2), st.integers(-1, 2))
    sizes = given(
        images=st.sampled_from([1, 2, 3, 8]),
        rows=st.integers(4, 9),
        columns=st.integers(4, 9),
        channels=st.sampled_from([32, 48, 64]),
        features=st.sampled_from([32, 64]),
        padding=st.tuples(margin, margin),
    )
    return settings(max_examples=15)(sizes(test))


@pytest.mark.slow
@for_any_size
def test_any_size(images, rows, columns, channels, features, padding):
    x, w = operands(images, 2 * rows, 2 * columns, channels, features)
    close(jit(lambda x, w: convolve(x, w, padding))(x, w), exact(x, w, padding))


@pytest.mark.quick("32-4-512-512-1", "32-8-256-256-1")
@pytest.mark.parametrize(
    ("images", "size", "channels", "features", "padding"),
    [
        (32, 32, 64, 64, 1),
        (32, 16, 128, 128, 1),
        (32, 8, 256, 256, 1),
        (32, 4, 512, 512, 1),
        (64, 26, 32, 64, 0),
        (64, 24, 64, 32, 2),
        (1, 56, 64, 64, 1),
    ],
)
def test_the_convolutions_of_networks_use_it(images, size, channels, features, padding):
    x = tvmfun.ShapeDtype((images, size, size, channels), "float32")
    w = tvmfun.ShapeDtype((3, 3, channels, features), "float32")
    assert rules(lambda x, w: convolve(x, w, ((padding, padding),) * 2), x, w) == {"winograd"}


OTHERS = {
    "odd sizes": (((8, 15, 15, 32), (3, 3, 32, 32)), {}, "float32"),
    "few channels": (((8, 16, 16, 3), (3, 3, 3, 32)), {}, "float32"),
    "few patches": (((1, 8, 8, 64), (3, 3, 64, 64)), {}, "float32"),
    "another kernel": (((8, 16, 16, 32), (5, 5, 32, 32)), {"padding": ((2, 2), (2, 2))}, "float32"),
    "groups": (((8, 16, 16, 64), (3, 3, 32, 64)), {"groups": 2}, "float32"),
    "strides": (((8, 32, 32, 32), (3, 3, 32, 32)), {"stride": (2, 2)}, "float32"),
    "holes in the kernel": (((8, 16, 16, 32), (3, 3, 32, 32)), {"kernel_dilation": (2, 2)}, "float32"),
    "double precision": (((8, 16, 16, 32), (3, 3, 32, 32)), {}, "float64"),
    "half precision": (((8, 16, 16, 32), (3, 3, 32, 32)), {}, "float16"),
    "one axis": (((8, 64, 32), (3, 32, 32)), {}, "float32"),
}


@pytest.mark.quick("few patches", "one axis", "half precision", "holes in the kernel")
@pytest.mark.parametrize("name", OTHERS)
def test_others_do_not(name):
    shapes, params, dtype = OTHERS[name]
    x, w = (tvmfun.ShapeDtype(shape, dtype) for shape in shapes)
    axes = len(shapes[0]) - 2
    defaults = {
        "stride": ONE[:axes],
        "dilation": ONE[:axes],
        "kernel_dilation": ONE[:axes],
        "padding": ((1, 1),) * axes,
    }
    assert "winograd" not in rules(lambda x, w: conv(x, w, **{**defaults, "groups": 1, **params}), x, w)


def test_what_follows_joins_it():
    """Bias, residual and relu are applied before the results are stored; the array before the bias may be kept, too."""
    x, w = operands(8, 16, 16, 32, 32)
    bias, residual = np.random.default_rng(1).normal(size=32).astype("float32"), 0.5 * x

    def layer(x, w, bias, residual):
        y = convolve(x, w)
        return tnp.maximum(y + bias + residual, 0)

    assert rules(layer, x, w, bias, residual) == {"winograd"}
    close(jit(layer)(x, w, bias, residual), np.maximum(exact(x, w) + bias + residual, 0))
    both = jit(lambda x, w: (lambda y: (y, y * 2))(convolve(x, w)))
    for got, factor in zip(both(x, w), (1, 2), strict=True):
        close(got, factor * exact(x, w))


def test_an_array_with_a_margin_that_others_read():
    x, w = operands(8, 16, 16, 32, 32)

    def function(x, w):
        padded = tnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return convolve(padded, w, ((0, 0), (0, 0))), tnp.sum(padded * padded)

    y, total = jit(function)(x, w)
    close(y, exact(x, w))
    np.testing.assert_allclose(total, np.sum(x.astype("float64") ** 2), rtol=1e-6)


@pytest.mark.parametrize("padding", [((1, 1), (0, 2)), ((0, 0), (1, 1)), ((-1, 1), (2, 0))], ids=str)
def test_margins_of_arrays_in_another_order(padding):
    """Neighbouring channels are not neighbours in memory, or an axis has no margin."""
    x, w = operands(8, 16, 16, 32, 32)
    expected = exact(x, w, padding)
    backwards = np.ascontiguousarray(x[:, ::-1])
    close(jit(lambda x, w: convolve(tnp.transpose(x, (0, 2, 3, 1)), w, padding))(x.transpose(0, 3, 1, 2), w), expected)
    close(jit(lambda x, w: convolve(x[:, ::-1], w, padding))(backwards, w), expected)
    batch = jit(tvmfun.vmap(lambda x, w: convolve(x, w, padding), in_axes=(0, None)))
    close(batch(np.stack([x, backwards]), w)[0], expected)


def exact_gradient(x, g, padding):
    with jax.enable_x64(True):
        w = np.zeros((3, 3, x.shape[-1], g.shape[-1]))
        y = lambda w: jax.lax.conv_general_dilated(
            x.astype("float64"), w, ONE, padding, dimension_numbers=LAYOUT, precision="highest"
        )
        return np.asarray(jax.vjp(y, w)[1](g.astype("float64"))[0])


def kernel_gradient(x, g, padding):
    params = {"stride": ONE, "dilation": ONE, "kernel_dilation": ONE, "groups": 1}
    return conv_kernel_gradient(x, g, kernel=(3, 3), padding=padding, **params)


@pytest.mark.slow
@for_any_size
def test_the_gradient_for_the_kernel(images, rows, columns, channels, features, padding):
    x, _ = operands(images, 2 * rows, 2 * columns, channels, features)
    sizes = [2 * n + sum(pair) - 2 for n, pair in zip((rows, columns), padding, strict=True)]
    g = np.random.default_rng(1).normal(size=(images, *sizes, features)).astype("float32")
    close(jit(lambda x, g: kernel_gradient(x, g, padding))(x, g), exact_gradient(x, g, padding))


@pytest.mark.quick("32-8-256-256", "32-16-128-128")
@pytest.mark.parametrize(
    ("images", "size", "channels", "features"),
    [(32, 32, 64, 64), (32, 16, 128, 128), (32, 8, 256, 256), (32, 4, 512, 512), (64, 24, 32, 64), (1, 56, 64, 64)],
)
def test_the_gradients_of_networks_use_it(images, size, channels, features):
    x, g = (tvmfun.ShapeDtype((images, size, size, n), "float32") for n in (channels, features))
    assert rules(lambda x, g: kernel_gradient(x, g, SAME), x, g) == {"winograd"}


# Sums in eight parts, of two blocks each or of several with a margin, and one sum: too few patches, too large sums.
PARTS = pytest.mark.parametrize(
    ("images", "size", "channels", "features"),
    [(16, 16, 32, 64), (16, 24, 48, 32), (8, 16, 32, 32), (16, 16, 128, 128)],
)


@pytest.mark.quick("16-16-32-64")
@PARTS
def test_a_gradient_in_parts_has_the_same_bits_with_any_number_of_cores(images, size, channels, features):
    x, _ = operands(images, size, size, channels, features)
    g = np.random.default_rng(1).normal(size=(images, size, size, features)).astype("float32")

    def gradient(cores):
        target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": cores})
        compute = lambda x, g: kernel_gradient(x, g, SAME)
        assert rules(compute, x, g, target=target) == {"winograd"}
        return np.asarray(jit(compute, target=target)(x, g))

    one = gradient(1)
    close(one, exact_gradient(x, g, SAME))
    for cores in (2, 4):
        np.testing.assert_array_equal(gradient(cores), one)
    close(gradient(3), one)


@pytest.mark.slow
@PARTS
def test_a_gradient_in_parts_in_a_loop(images, size, channels, features):
    x, w = operands(images, size, size, channels, features)
    g = np.random.default_rng(1).normal(size=(images, size, size, features)).astype("float32")
    step = lambda i, w: w - 0.1 * kernel_gradient(x, g, SAME)
    run = jit(lambda w: tvmfun.lax.fori_loop(0, 3, step, w), donate_argnums=0)
    close(run(tnp.asarray(w)), w - 0.3 * exact_gradient(x, g, SAME))


@pytest.mark.parametrize("images", [8, 16])  # in one part, in eight
def test_an_update_joins_the_gradient(images):
    x, w = operands(images, 16, 16, 32, 32)
    g = np.random.default_rng(1).normal(size=(images, 16, 16, 32)).astype("float32")
    step = lambda w, x, g: w - 0.1 * kernel_gradient(x, g, SAME)
    assert rules(step, w, x, g) == {"winograd"}
    close(jit(step, donate_argnums=0)(tnp.asarray(w), x, g), w - 0.1 * exact_gradient(x, g, SAME))


def test_the_gradient_for_the_images():
    x, w = operands(8, 16, 16, 32, 64)
    g = np.random.default_rng(1).normal(size=(8, 16, 16, 64)).astype("float32")
    gradient = lambda x, w, g: tvmfun.vjp(lambda x: convolve(x, w), x)[1](g)[0]
    assert "winograd" in rules(gradient, x, w, g)
    turned = np.flip(w, (0, 1)).transpose(0, 1, 3, 2)
    close(jit(gradient)(x, w, g), exact(g, turned))


@pytest.mark.quick("haswell")
@pytest.mark.parametrize("mcpu", ["x86-64", "haswell"])
def test_narrower_vectors(mcpu):
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})
    x, w = operands(8, 16, 16, 32, 32)
    assert rules(convolve, x, w, target=target) == {"winograd"}
    close(jit(convolve, target=target)(x, w), exact(x, w))
    gradient = jit(lambda x, g: kernel_gradient(x, g, SAME), target=target)
    close(gradient(x, x), exact_gradient(x, x, SAME))


def test_it_is_reproducible():
    x, w = operands(8, 16, 16, 64, 64)
    for function in (jit(convolve), jit(lambda x, w: tvmfun.grad(lambda w: tnp.sum(convolve(x, w) ** 2))(w))):
        np.testing.assert_array_equal(function(x, w), function(x, w))


@pytest.mark.quick("x86-64-v4")
@pytest.mark.parametrize("mcpu", ["x86-64-v4", "x86-64-v3"])
def test_a_block_of_a_gradient_fits_the_cache_of_an_unknown_processor(mcpu):
    """A longer one was stored in parts, in a buffer that did not exist."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})
    shapes = [tvmfun.ShapeDtype(shape, "float32") for shape in ((64, 26, 26, 32), (64, 24, 24, 64))]
    gradient = lambda x, g: kernel_gradient(x, g, ((0, 0), (0, 0)))
    assert rules(gradient, *shapes, target=target) == {"winograd"}


@pytest.mark.parametrize("channels,steps", [(64, 0), (512, 64)], ids=["in L2", "beyond L2"])
def test_large_kernels_are_fetched_before_they_are_read(channels, steps):
    """Panels of 64 x 64 x 16 elements stay in an L2 cache of 1 MiB, and those of 512 x 512 x 16 do not."""
    target = {"kind": "llvm", "mcpu": "znver5", "mtriple": "x86_64-linux-gnu", "num-cores": 2}
    x, w = (tvmfun.ShapeDtype(x.shape, "float32") for x in operands(32, 4, 4, channels, channels))
    text = tvmfun.jit(convolve, target=target).lower(x, w).compile().as_text()
    names = re.findall(r"tvmfun\.micro\.product\.([^\"]+)", text)
    assert {TileProduct.of_name(name.split(".")).ahead for name in names} == {steps}
