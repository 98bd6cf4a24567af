"""NumPy's functions that are made of several ops, with their derivatives, at special points: compared with JAX."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import oracle
from support.derivatives import check, orders

import tvmfun
from tvmfun import numpy as tnp

ENDS = np.finfo(np.float32).max
POINTS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -2.5, 3e-3, 1e-12, 1e3, -1e4, ENDS, -ENDS, np.inf, -np.inf, np.nan]

#: By the name of a test: the function in both modules, and to which order.
FUNCTIONS: dict[str, tuple[Callable, int]] = {
    **{f"x**{n}": (lambda np, x, n=n: x**n, 3) for n in (-9, -8, -7, -3, -2, -1, 0, 1, 2, 3, 5, 8, 0.5, -0.5, 1.5)},
    "sinc": (lambda np, x: np.sinc(np.where(np.abs(x) < 0.1, 1, x)), 1),  # near 0, JAX's derivative cancels
    "clip": (lambda np, x: np.clip(x, -1, 1), 2),
    "modf": (lambda np, x: np.modf(np.where(np.isinf(x), 0.5, x))[0], 2),
    "nan_to_num": (lambda np, x: np.nan_to_num(x), 2),
    "square": (lambda np, x: np.square(x), 3),
    "reciprocal": (lambda np, x: np.reciprocal(x), 3),
    "absolute square": (lambda np, x: np.abs(x) ** 2, 2),
    "maximum": (lambda np, x: np.maximum(x, 1), 2),
    "fmax": (lambda np, x: np.fmax(x, 1), 2),
    "fmin": (lambda np, x: np.fmin(x, 1), 2),
    "heaviside": (lambda np, x: np.heaviside(x, 0.5), 2),
    "copysign": (lambda np, x: np.copysign(x, -0.0), 2),
    "copysign to": (lambda np, x: np.copysign(3.0, x), 2),
    "fmod": (lambda np, x: np.fmod(x, 3.0), 2),
    "fmod of": (lambda np, x: np.fmod(-7.0, x), 2),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_at_special_points_are_those_of_jax(name: str, dtype: str):
    function, order = FUNCTIONS[name]
    x = np.asarray(POINTS, dtype)
    with oracle.x64():
        expected = orders(jax, jnp, lambda x: function(jnp, x), order)(jnp.asarray(x))
    got = orders(tvmfun, tnp, lambda x: function(tnp, x), order)(x)
    value = np.asarray(expected[0])
    for i, (ours, theirs) in enumerate(zip(map(np.asarray, got), map(np.asarray, expected), strict=True)):
        # Where there is no value, or JAX comes to an infinity times 0, there is no derivative to compare.
        known = ~(np.isnan(value) | np.isnan(theirs)) if i else np.full(value.shape, True)
        tolerance = 2e-5 if dtype == "float32" else 1e-9
        np.testing.assert_allclose(ours[known], theirs[known], tolerance, 1e-37, err_msg=f"order {i}")


def test_negative_powers_keep_their_derivatives_in_range():
    x = np.asarray([3e-3, 1000], "float32")
    np.testing.assert_allclose(tvmfun.grad(lambda x: tnp.sum(x**-8))(x), -8 * x.astype(float) ** -9, 1e-5)
    x = np.asarray([0, np.inf], "float32")
    np.testing.assert_array_equal(tvmfun.grad(lambda x: tnp.sum(x**-2))(x), [-np.inf, 0])


@pytest.mark.slow
def test_sinc_has_derivatives_everywhere():
    at = lambda x, order: float(orders(tvmfun, tnp, tnp.sinc, order)(np.asarray([x]))[-1][0])
    assert [at(0.0, order) for order in range(4)] == pytest.approx([1, 0, -(np.pi**2) / 3, 0])
    assert at(1e4, 1) == pytest.approx(1e-4)
    assert [at(0.1, order) for order in (1, 2)] == pytest.approx([-0.32575126788, -3.1930298359])


def test_logaddexp_has_derivatives_at_ties_of_any_size():
    x = np.asarray([0.0, -1.0, 1e10, -np.inf, np.inf])
    value, pull = tvmfun.vjp(tnp.logaddexp, x, x)
    np.testing.assert_array_equal(value, np.logaddexp(x, x))
    np.testing.assert_array_equal(pull(np.ones(5)), np.full((2, 5), 0.5))
    second = tvmfun.grad(lambda x, y: tnp.sum(tvmfun.vjp(tnp.logaddexp, x, y)[1](np.ones(5))[0]), (0, 1))(x, x)
    # Between infinities nothing changes.
    np.testing.assert_array_equal(second, [[0.25, 0.25, 0.25, 0, 0], [-0.25, -0.25, -0.25, 0, 0]])


@pytest.mark.slow
def test_quantiles_share_their_derivative_between_equal_elements():
    x = np.asarray([2.0, 1.0, 2.0, 2.0, np.inf, np.inf])
    for q in (0.3, 0.5, 0.65, 0.9):
        with oracle.x64():
            expected = jax.grad(lambda x: jnp.quantile(x, q))(jnp.asarray(x))  # noqa: B023
        got = np.asarray(tvmfun.grad(lambda x: tnp.quantile(x, q))(x))  # noqa: B023
        np.testing.assert_allclose(got[np.isfinite(x)], expected[np.isfinite(x)])
    assert float(tnp.quantile(x, 0.9)) == np.inf


SQUARE, TALL = np.eye(3), np.linalg.qr(np.random.default_rng(0).normal(size=(4, 2)))[0]
SIDES = np.asarray([1.0, -2.0, 0.5, 3.0])


@pytest.mark.slow
@pytest.mark.parametrize("x", [SQUARE, np.diag([1.0, 1.0, 2.0]), TALL, TALL.T], ids=["eye", "pair", "tall", "wide"])
def test_pseudoinverses_have_derivatives_where_singular_values_are_equal(x: np.ndarray):
    check(tnp.linalg.pinv, [x], tolerance=1e-5)
    check(lambda x: tnp.linalg.lstsq(x, SIDES[: x.shape[0]])[0], [x], tolerance=1e-5)
    inverses = tvmfun.vmap(tnp.linalg.pinv)(np.stack([x, 2 * x]))
    np.testing.assert_allclose(inverses, np.linalg.pinv(np.stack([x, 2 * x])), atol=1e-12)
    slope = tvmfun.grad(lambda x, cutoff: tnp.linalg.pinv(x, cutoff).sum())
    expected = tvmfun.grad(lambda x: tnp.linalg.pinv(x).sum())(x)
    np.testing.assert_allclose(slope(x, np.float64(1e-9)), expected, atol=1e-12)


VALUES = (
    *(0.0, -0.5, 0.9, -1.0, 127.0, 128.0, -128.9, -129.0, 255.9, 256.0, -300.0, 7e4, 3e9, -3e9, 5e9),
    *(2.0**63, 2.0**64, -(2.0**63), 1e30, -1e30, np.inf, -np.inf, np.nan),
)


@pytest.mark.quick("float32")
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_floats_that_do_not_fit_become_the_nearest_integer(source):
    # More elements than one vector has, so that some are in its tail: all must be alike.
    x = np.repeat(np.asarray(VALUES)[:, None], 37, axis=1).astype(tvmfun.dtypes.canonical(source))
    targets = [d for d in tvmfun.dtypes.NAMES.values() if "int" in d]
    results = tvmfun.jit(lambda x: [x.astype(target) for target in targets])(x)
    with jax.enable_x64(True):
        expected = [np.asarray(jnp.asarray(x).astype(target)) for target in targets]
    for target, result, want in zip(targets, results, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result), want, target)
        np.testing.assert_array_equal(np.asarray(tnp.asarray(x).astype(target)), want, target)
