"""Combinations of elements along an axis: by lookups or by products, the same numbers and derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import image, lax
from tvmfun.core.inline import inlined
from tvmfun.nn import functional as F
from tvmfun.resampling import combined

RNG = np.random.default_rng(0)


def matrix(elements, combinations, taps):
    """Weights of which each column has ``taps`` that are not 0."""
    weights = np.zeros((elements, combinations))
    for column in weights.T:
        column[RNG.choice(elements, taps, replace=False)] = RNG.normal(size=taps)
    return weights


@pytest.mark.parametrize(
    ("shape", "axis", "weights"),
    [
        ((2, 5, 9), 1, matrix(5, 7, 2)),
        ((5, 3), 0, matrix(5, 8, 4)),
        ((3, 70), 1, matrix(70, 9, 2)),
        ((40, 16), 0, matrix(40, 4, 17)),  # more than are looked up
        ((4, 16), 0, np.zeros((4, 3))),
        ((3, 16), 0, np.zeros((3, 0))),
        ((1,), 0, np.ones((1, 4))),
    ],
)
def test_values_and_derivatives(shape, axis, weights):
    x, g = RNG.normal(size=shape), RNG.normal(size=(*shape[:axis], weights.shape[1], *shape[axis + 1 :]))
    by = lambda x, w: np.moveaxis(np.moveaxis(x, axis, -1) @ w, -1, axis)
    own = lambda x: combined(x, weights, axis)
    y, pullback = tvmfun.vjp(own, x)
    np.testing.assert_allclose(y, by(x, weights), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(pullback(g)[0], by(g, weights.T), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(tvmfun.jvp(own, (x,), (x,))[1], y, rtol=1e-12, atol=1e-12)
    square = lambda x: (own(x) ** 2).sum() / 2
    second = tvmfun.jit(tvmfun.jvp, static_argnums=0)(tvmfun.grad(square), (x,), (x,))[1]
    np.testing.assert_allclose(second, by(by(x, weights), weights.T), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(tvmfun.vmap(own)(np.stack([x, -x])), np.stack([y, -y]), rtol=1e-12, atol=1e-12)


def test_elements_of_weight_0_count_for_nothing():
    """A pixel that is not a number spoils its neighbours only."""
    x = np.ones((1, 8, 8, 16), "float32")
    x[0, 4, 4] = np.nan
    for y in (F.interpolate(x, scale_factor=2, mode="bilinear"), image.resize(x, (1, 16, 16, 16), "linear")):
        assert np.isnan(y).sum() == 4 * 4 * 16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_rounded_once(dtype):
    x = tnp.asarray(RNG.normal(size=(2, 6, 9))).astype(dtype)
    weights = matrix(6, 4, 3)
    wide = combined(x.astype("float32"), weights, 1)
    np.testing.assert_array_equal(combined(x, weights, 1), wide.astype(dtype))


def test_inside_of_loops_and_with_dynamic_sizes():
    x = RNG.normal(size=(3, 4, 16))
    weights = matrix(4, 4, 2)
    step = lambda x, _: (combined(x, weights, 1), None)
    looped = tvmfun.jit(lambda x: lax.scan(step, x, None, length=3)[0], dynamic_shapes={"x": {0: "n"}})
    power = np.linalg.matrix_power(weights, 3)
    for count in (3, 1):
        np.testing.assert_allclose(looped(x[:count]), np.einsum("nic,ij->njc", x[:count], power), rtol=1e-12)


def test_few_numbers_that_lie_together_are_multiplied():
    """Lookups of single numbers are no vectors, unless most of the weights are 0."""

    def names(elements, axis):
        weights = np.eye(elements) + np.eye(elements, k=1)
        program = tvmfun.trace(lambda x: combined(x, weights, axis))(np.ones((elements, elements)))
        return {equation.op.name for equation in inlined(program).equations}

    assert "dot_general" in names(16, 1) and "gather" not in names(16, 1)
    assert "gather" in names(16, 0) and "gather" in names(64, 1)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("factor", [(1.1, 2.0), (1.1, 1.1), (0.95, 1.0), (3.0, 0.4)])
def test_sizes_that_stay(mode, factor):
    """Cubic interpolation is the only one that changes an axis whose size stays, as in PyTorch with channels last."""
    torch = pytest.importorskip("torch")
    x = RNG.normal(size=(2, 7, 5, 3)).astype("float32")
    expected = torch.nn.functional.interpolate(torch.tensor(x.transpose(0, 3, 1, 2)), scale_factor=factor, mode=mode)
    ours = F.interpolate(x, scale_factor=factor, mode=mode)
    np.testing.assert_allclose(ours, expected.numpy().transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)
