"""Convolutions over arrays with holes: as several without, which give the same."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import jit
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite.dilated_convolutions import split_dilated_convolutions
from tvmfun.ops.conv import conv

LAYOUT = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def theirs(x, w, padding, dilation, groups, kernel_dilation=None):
    """The same in JAX."""
    ones = (1,) * len(dilation)
    return jax.lax.conv_general_dilated(
        x,
        w,
        ones,
        padding,
        lhs_dilation=dilation,
        rhs_dilation=kernel_dilation,
        dimension_numbers=LAYOUT[len(dilation)],
        feature_group_count=groups,
        precision="highest",
    )


@pytest.mark.slow
@settings(max_examples=12)
@given(data=st.data())
def test_any_convolution_with_holes(data):
    rank = data.draw(st.integers(1, 3))
    each = lambda strategy: tuple(data.draw(strategy) for _ in range(rank))
    sizes, kernel, dilation = each(st.integers(1, 5)), each(st.integers(1, 4)), each(st.integers(1, 3))
    padding = tuple((data.draw(st.integers(-2, 4)), data.draw(st.integers(-2, 4))) for _ in range(rank))
    groups, batch = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(1, 3))
    spans = [(n - 1) * d + 1 + low + high for n, d, (low, high) in zip(sizes, dilation, padding, strict=True)]
    assume(all(span >= k for span, k in zip(spans, kernel, strict=True)))
    assume(all((n - 1) * d + 1 + min(p) > 0 for n, d, p in zip(sizes, dilation, padding, strict=True)))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, *sizes, 2 * groups))
    w = rng.normal(size=(*kernel, 2, 3 * groups))
    ones = (1,) * rank
    ours = jit(
        lambda x, w: conv(x, w, stride=ones, padding=padding, dilation=dilation, kernel_dilation=ones, groups=groups)
    )
    with jax.enable_x64(True):
        expected = theirs(x, w, padding, dilation, groups)
    np.testing.assert_allclose(ours(x, w), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=16)
@given(data=st.data())
def test_any_kernel_gradient_of_a_convolution_with_holes(data):
    rank = data.draw(st.integers(1, 2))
    each = lambda strategy: tuple(data.draw(strategy) for _ in range(rank))
    sizes, kernel, dilation = each(st.integers(1, 6)), each(st.integers(1, 4)), each(st.integers(1, 3))
    kernel_dilation = each(st.integers(1, 2))
    padding = tuple((data.draw(st.integers(-2, 5)), data.draw(st.integers(-2, 5))) for _ in range(rank))
    groups, batch = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    spans = [(n - 1) * d + 1 + low + high for n, d, (low, high) in zip(sizes, dilation, padding, strict=True)]
    windows = [(k - 1) * kd + 1 for k, kd in zip(kernel, kernel_dilation, strict=True)]
    assume(all(span >= window for span, window in zip(spans, windows, strict=True)))
    assume(all((n - 1) * d + 1 + min(p) > 0 for n, d, p in zip(sizes, dilation, padding, strict=True)))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, *sizes, 2 * groups))
    w = rng.normal(size=(*kernel, 2, 3 * groups))
    ones = (1,) * rank
    params = {"stride": ones, "padding": padding, "dilation": dilation, "kernel_dilation": kernel_dilation}
    ours = jit(tvmfun.grad(lambda w, x: tnp.sum(tnp.sin(conv(x, w, groups=groups, **params)))))
    sine = lambda w, x: jax.numpy.sum(jax.numpy.sin(theirs(x, w, padding, dilation, groups, kernel_dilation)))
    with jax.enable_x64(True):
        expected = jax.grad(sine)(w, x)
    np.testing.assert_allclose(ours(w, x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("groups", [1, 2])
def test_no_kernel_gradient_multiplies_by_holes(groups):
    """It is one of a convolution with strides, with the array and the cotangent exchanged."""
    x, w = tvmfun.ShapeDtype((2, 5, 5, 4), "float32"), tvmfun.ShapeDtype((4, 4, 4 // groups, 6), "float32")
    params = {"stride": (1, 1), "padding": ((2, 2), (2, 2)), "kernel_dilation": (1, 1), "groups": groups}
    program = tvmfun.trace(tvmfun.grad(lambda w, x: conv(x, w, dilation=(2, 2), **params).sum()))(w, x)
    (gradient,) = (e for e in split_dilated_convolutions(program).equations if e.op.name == "conv_kernel_gradient")
    assert gradient.params["stride"] == (2, 2) and gradient.params["dilation"] == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "stride", "size"),
    [(1, 2, 8), (2, 2, 7), (3, 2, 7), (3, 2, 8), (3, 3, 8), (5, 2, 8), (5, 3, 7), (2, 3, 8)],
)
def test_gradient_of_a_strided_convolution(kernel, stride, size):
    """No kernel multiplies with the zeros of a dilation, and second derivatives equal JAX's."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, size, size, 3)), rng.normal(size=(kernel, kernel, 3, 4))
    low = kernel // 2
    padding = ((low, low), (low, low))
    strides = (stride, stride)

    def ours(x, w):
        y = conv(x, w, stride=strides, padding=padding, dilation=(1, 1), kernel_dilation=(1, 1), groups=1)
        return tnp.sum(tnp.sin(y))

    def expected(x, w):
        y = jax.lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=LAYOUT[2], precision="highest")
        return jax.numpy.sum(jax.numpy.sin(y))

    program = tvmfun.trace(tvmfun.grad(ours))(x, w)
    for before, count in ((program, 1), (split_dilated_convolutions(program), 0)):
        holes = [e for e in before.equations if e.op.name == "conv" and max(e.params["dilation"]) > 1]
        assert len(holes) == count
    second = lambda module, f: module.grad(lambda x, w: module.numpy.sum(module.grad(f)(x, w) ** 2), argnums=(0, 1))
    with jax.enable_x64(True):
        for got, want in zip(jit(second(tvmfun, ours))(x, w), second(jax, expected)(x, w), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_phases_read_their_part_of_the_kernel_where_it_is(dtype):
    """The kernel is turned once; neither its parts nor their products with zeros are stored."""
    rng = np.random.default_rng(0)
    y, w = rng.normal(size=(4, 8, 8, 32)).astype(dtype), rng.normal(size=(3, 3, 16, 32)).astype(dtype)
    params = {"stride": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "kernel_dilation": (1, 1), "groups": 1}
    x = tvmfun.ShapeDtype((4, 16, 16, 16), dtype)
    gradient = lambda y, w: tvmfun.vjp(lambda x: conv(x, w, **params), tnp.zeros(x.shape, x.dtype))[1](y)[0]
    kernels = pipeline.scheduled_kernels(inlined(tvmfun.trace(gradient)(y, w), "cpu"), targets.host())
    rules = sorted(str(kernel.function.attrs["tvmfun.rule"]) for kernel in kernels)
    assert rules == 4 * ["contraction"] + 2 * ["elementwise"]
    with jax.enable_x64(True):
        whole = theirs(y, np.flip(w, (0, 1)).swapaxes(2, 3), ((1, 2), (1, 2)), (2, 2), 1)
    np.testing.assert_allclose(jit(gradient)(y, w), whole, rtol=1e-4, atol=1e-4)


def test_dynamic_sizes_stay():
    n = tvmfun.Dim("n", min=2)
    x, w = tvmfun.ShapeDtype((1, n, n, 2), "float32"), tvmfun.ShapeDtype((3, 3, 2, 2), "float32")
    params = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "kernel_dilation": (1, 1), "groups": 1}
    program = tvmfun.trace(lambda x, w: conv(x, w, dilation=(2, 2), **params))(x, w)
    assert split_dilated_convolutions(program) is program
