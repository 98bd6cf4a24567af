"""Convolutions with groups: products of matrices for each group, with the same results."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets

LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolution(module, stride, groups):
    same = [(1, 1), (1, 1)]
    options = {"dimension_numbers": LAYOUT, "feature_group_count": groups, "precision": "highest"}
    return lambda x, w: module.lax.conv_general_dilated(x, w, (stride, stride), same, **options)


def loss(module, stride, groups):
    """Values that epilogues compute from the sums, and that their derivatives need."""
    own = convolution(module, stride, groups)
    return lambda x, w, b: module.numpy.sum(module.numpy.tanh(own(x, w) + b) ** 2)


def operands(images, size, channels, columns, groups, dtype="float64"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(images, size, size, channels * groups)).astype(dtype)
    w = rng.normal(size=(3, 3, channels, columns * groups)).astype(dtype) / 3
    return x, w, rng.normal(size=columns * groups).astype(dtype)


def rules(function, *arguments):
    """The names of the rules by which the kernels are scheduled."""
    program = inlined(tvmfun.trace(function)(*arguments), "cpu")
    kernels = pipeline.scheduled_kernels(program, targets.host())
    return {str(kernel.function.attrs["tvmfun.rule"]) for kernel in kernels}


@pytest.mark.slow
@settings(max_examples=20)
@given(
    images=st.integers(1, 3),
    size=st.sampled_from([1, 2, 5, 9, 12]),
    channels=st.sampled_from([1, 2, 3, 8, 12]),
    columns=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 17]),
    groups=st.sampled_from([2, 3, 4]),
    stride=st.sampled_from([1, 2]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_any_groups(images, size, channels, columns, groups, stride, dtype):
    arguments = operands(images, size, channels, columns, groups, dtype)
    got = tvmfun.jit(tvmfun.value_and_grad(loss(tvmfun, stride, groups), argnums=(0, 1, 2)))(*arguments)
    with jax.enable_x64(True):
        wide = [argument.astype("float64") for argument in arguments]
        expected = jax.value_and_grad(loss(jax, stride, groups), argnums=(0, 1, 2))(*wide)
    tolerance = {"float32": 2e-4, "float64": 1e-11}[dtype]
    for one, other in zip(tvmfun.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize(("channels", "columns"), [(8, 8), (12, 12), (5, 24)])
def test_forward_and_backward_are_products_of_matrices(channels, columns):
    x, w, _ = operands(4, 12, channels, columns, 3, "float32")
    own = convolution(tvmfun, 1, 3)
    gradients = lambda x, w: tvmfun.grad(lambda x, w: tnp.sum(own(x, w) ** 2), argnums=(0, 1))(x, w)
    assert "contraction" in rules(own, x, w) and "window" not in rules(own, x, w)
    assert channels < 8 or "window" not in rules(gradients, x, w)


def test_groups_of_few_columns_are_sums():
    """A tile of them would leave most of a vector, or its sums would wait for one another."""
    x, w, _ = operands(4, 12, 1, 1, 8, "float32")
    assert "contraction" not in rules(convolution(tvmfun, 1, 8), x, w)


def test_second_derivatives():
    x, w, b = operands(2, 6, 8, 8, 2)
    second = lambda module: module.grad(
        lambda x, w, b: module.numpy.sum(module.grad(loss(module, 1, 2), argnums=1)(x, w, b) ** 2), argnums=(0, 1)
    )
    got = tvmfun.jit(second(tvmfun))(x, w, b)
    with jax.enable_x64(True):
        expected = second(jax)(x, w, b)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * np.abs(other).max())


def test_kernels_of_a_batch():
    """A kernel for each example makes examples the groups."""
    x, w, b = operands(2, 6, 8, 16, 1)
    xs, ws = np.stack([x, 2 * x, x - 1]), np.stack([w, w + 1, -w])
    own = tvmfun.jit(tvmfun.vmap(tvmfun.grad(loss(tvmfun, 1, 1), argnums=(0, 1)), in_axes=(0, 0, None)))
    for got, expected in zip(own(xs, ws, b), zip(*map(jax_gradients(b), xs, ws), strict=True), strict=True):
        np.testing.assert_allclose(got, np.stack(expected), rtol=1e-10, atol=1e-10)


def jax_gradients(b):
    def of_example(x, w):
        with jax.enable_x64(True):
            return jax.grad(loss(jax, 1, 1), argnums=(0, 1))(x, w, b)

    return of_example


def test_a_dynamic_number_of_images():
    own = convolution(tvmfun, 1, 2)
    dynamic = tvmfun.jit(lambda x, w: tnp.tanh(own(x, w)), dynamic_shapes={"x": {0: "n"}})
    for images in (1, 3, 4):
        x, w, _ = operands(images, 7, 8, 16, 2)
        np.testing.assert_allclose(dynamic(x, w), np.tanh(np.asarray(tvmfun.jit(own)(x, w))), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    x, w, _ = (tnp.asarray(one).astype(dtype) for one in operands(2, 9, 8, 16, 2, "float32"))
    got = tvmfun.jit(convolution(tvmfun, 1, 2))(x, w)
    exact = tvmfun.jit(convolution(tvmfun, 1, 2))(x.astype("float32"), w.astype("float32"))
    np.testing.assert_array_equal(got, exact.astype(dtype))


def test_several_results_read_the_sums():
    x, w, b = operands(3, 8, 8, 8, 2)
    both = tvmfun.jit(lambda x, w, b: ((y := lax.mul(convolution(tvmfun, 1, 2)(x, w), 2.0)), tnp.maximum(y + b, 0)))
    y, positive = both(x, w, b)
    with jax.enable_x64(True):
        expected = 2 * np.asarray(convolution(jax, 1, 2)(x, w))
    np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(positive, np.maximum(expected + b, 0), rtol=1e-11, atol=1e-11)
