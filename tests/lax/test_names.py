"""The functions of ``jax.lax`` about bits, Bessel functions, solvers and layouts, against JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.errors import ShapeError

KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def test_bits_of_integers():
    def all_of(lib: Any) -> Any:
        return lambda *xs: [f(x) for x in xs for f in (lib.population_count, lib.clz, lambda x: lib.mulhi(x, x))]

    values = [np.iinfo(kind) for kind in KINDS]
    xs = [np.array([0, 1, 5, 100, v.max, v.min, v.max // 3], v.dtype) for v in values]
    with x64():
        expected = jax.jit(all_of(jax.lax))(*[jnp.asarray(x) for x in xs])
    for ours, theirs in zip(tvmfun.jit(all_of(lax))(*xs), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), theirs)


@pytest.mark.slow
def test_reduce_precision():
    x = np.array([0.0, -0.0, 1.2345, -3.9999, 1e30, 65504, 65520, 6e-8, 1e-40, np.inf, -np.inf, np.nan])
    with x64():
        for dtype in ("float32", "float64"):
            for bits in ((8, 7), (5, 10), (4, 3), (8, 23), (11, 52), (2, 1)):
                expected = jax.lax.reduce_precision(jnp.asarray(x, dtype), *bits)
                np.testing.assert_array_equal(np.asarray(lax.reduce_precision(x.astype(dtype), *bits)), expected)
    assert float(tvmfun.grad(lambda x: lax.reduce_precision(x, 5, 2) * 3)(1.3)) == 3.0


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tol"), [("float32", 2e-6), ("float64", 1e-13)])
def test_bessel_functions(dtype, tol):
    special = pytest.importorskip("scipy.special")
    x = np.concatenate([np.linspace(-60, 60, 301), [0.0, 18.0, 1e4, -1e30]]).astype(dtype)
    functions = {lax.bessel_i0e: special.i0e, lax.bessel_i1e: special.i1e}
    got = tvmfun.jit(lambda x: [f(x) for f in functions])(x)
    for ours, theirs in zip(got, functions.values(), strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs(x.astype(float)), rtol=tol, atol=tol / 100)
    assert np.isnan(float(lax.bessel_i0e(np.nan)))
    x = x[:301]
    first = tvmfun.jit(tvmfun.grad(lambda x: tnp.sum(lax.bessel_i0e(x))))(x)
    np.testing.assert_allclose(
        np.asarray(first), special.i1e(x) - np.sign(x) * special.i0e(x), rtol=30 * tol, atol=30 * tol
    )


def implicit(lib: Any, xp: Any, lx: Any) -> Any:
    def newton(f: Any, x: Any) -> Any:
        return lx.fori_loop(0, 30, lambda _, x: x - f(x) / lib.grad(f)(x), x)

    return lambda a: lx.custom_root(lambda x: x**3 + a * x - 2.0, xp.ones_like(a), newton, lambda g, y: y / g(1.0))


def linear(lib: Any, xp: Any, lx: Any) -> Any:
    def solve(matvec: Any, b: Any) -> Any:
        return xp.linalg.solve(lib.jacfwd(matvec)(b), b)

    def function(a: Any) -> Any:
        matrix = xp.stack([xp.stack([a + 2, a * a]), xp.stack([xp.sin(a), 3 + a])])
        x = lx.custom_linear_solve(lambda x: matrix @ x, xp.stack([a, a + 1]), solve, solve)
        return x[0] * x[1]

    return function


def closing_root(lib: Any, xp: Any, lx: Any) -> Any:
    """Both solvers use the value that is differentiated."""

    def function(a: Any) -> Any:
        newton = lambda f, x: lx.fori_loop(0, 30, lambda _, x: x - (x * x - a) / (2 * x), x)
        return lx.custom_root(lambda x: x * x - a, xp.ones_like(a), newton, lambda g, y: y / (2 * xp.sqrt(a)))

    return function


def closing_linear(lib: Any, xp: Any, lx: Any) -> Any:
    """The solvers use factors that are computed before."""

    def function(a: Any) -> Any:
        matrix = xp.stack([xp.stack([a + 2, a * a]), xp.stack([xp.sin(a), 3 + a])])
        inverse, symmetric = xp.linalg.inv(matrix), matrix @ matrix.T
        root = xp.linalg.cholesky(symmetric)
        solve = lambda _, b: xp.linalg.solve(root.T, xp.linalg.solve(root, b))
        x = lx.custom_linear_solve(
            lambda x: matrix @ x, xp.stack([a, a + 1]), lambda _, b: inverse @ b, lambda _, b: inverse.T @ b
        )
        y = lx.custom_linear_solve(lambda x: symmetric @ x, x, solve, symmetric=True)
        return y[0] * x[1]

    return function


@pytest.mark.quick("linear", "closing*")
@pytest.mark.parametrize("made", [implicit, linear, closing_root, closing_linear])
def test_implicit_derivatives(made):
    def derivatives(lib: Any, xp: Any, lx: Any) -> Any:
        f = made(lib, xp, lx)
        return lambda a: (f(a), lib.grad(f)(a), lib.jvp(f, (a,), (a,))[1], lib.grad(lib.grad(f))(a))

    with x64():
        expected = jax.jit(derivatives(jax, jnp, jax.lax))(1.7)
    got = tvmfun.jit(derivatives(tvmfun, tnp, lax))(np.asarray(1.7))
    np.testing.assert_allclose([float(x) for x in got], [float(x) for x in expected], rtol=1e-9)


LAYOUTS = [None, ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NHWC"), ("NCHW", "WOHI", "HNWC")]


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_layouts_and_patches(layouts):
    rng = np.random.default_rng(0)
    shape = (2, 6, 5, 3) if layouts and layouts[0] == "NHWC" else (2, 3, 6, 5)
    x = rng.normal(size=shape).astype("float32")
    numbers = lax.conv_dimension_numbers(shape, (4, 3, 2, 3), layouts)
    assert tuple(numbers) == tuple(jax.lax.conv_dimension_numbers(shape, (4, 3, 2, 3), layouts))
    for lib_numbers in (layouts, numbers):
        ours = lax.conv_general_dilated_patches(x, (2, 3), (1, 2), "SAME", dimension_numbers=lib_numbers)
        theirs = jax.lax.conv_general_dilated_patches(x, (2, 3), (1, 2), "SAME", dimension_numbers=layouts)
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-6)
    assert lax.padtype_to_pads((6, 5), (2, 3), (1, 2), "SAME") == jax.lax.padtype_to_pads(
        (6, 5), (2, 3), (1, 2), "SAME"
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_a_kernel_for_each_window(layouts, padding):
    rng = np.random.default_rng(1)
    shape = (2, 6, 5, 3) if layouts and layouts[0] == "NHWC" else (2, 3, 6, 5)
    x = rng.normal(size=shape)
    numbers = lax.conv_dimension_numbers(shape, (4, 3, 2, 3), layouts)
    patches = lax.conv_general_dilated_patches(x, (2, 3), (1, 2), padding, dimension_numbers=layouts)
    _, elements, *space = (patches.shape[i] for i in numbers.out_spec)
    kernels = rng.normal(size=(4, elements, *space)).transpose(np.argsort(numbers.rhs_spec))
    both = lambda m: lambda x, k: m.conv_general_dilated_local(x, k, (1, 2), padding, (2, 3), None, None, layouts)
    loss = lambda m, np: lambda x, k: np.sum(np.sin(both(m)(x, k)))
    with x64():
        expected = [both(jax.lax)(x, kernels), *jax.grad(loss(jax.lax, jnp), (0, 1))(x, kernels)]
    got = [both(lax)(x, kernels), *tvmfun.grad(loss(lax, tnp), (0, 1))(x, kernels)]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    with pytest.raises(ShapeError, match="kernels of 18 elements for windows"):
        both(lax)(x, kernels.take([0], numbers.rhs_spec[1]))


def test_shapes_and_searches():
    x = np.array([[3.0, 1.0, 2.0], [0.5, 9.0, -1.0]], "float32")
    for ours, theirs in zip(lax.approx_min_k(x, 2), jax.lax.approx_min_k(x, 2), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)
    np.testing.assert_array_equal(np.asarray(lax.approx_max_k(x, 1)[0]), x.max(1, keepdims=True))
    assert lax.broadcast_to_rank(x, 4).shape == (1, 1, 2, 3) and lax.broadcast_like(x[0], x).shape == (2, 3)
    assert lax.dtype(x) == "float32" and lax.stack([x, x], 1).shape == (2, 2, 3) and len(lax.unstack(x)) == 2


def test_precision_is_accepted():
    x = np.eye(2, dtype="float32")
    for precision in (None, "highest", lax.Precision.HIGHEST, ("high", None), "tensorfloat32"):
        np.testing.assert_array_equal(np.asarray(lax.dot(x, x, precision=precision)), x)
        np.testing.assert_array_equal(np.asarray(tnp.einsum("ij,jk", x, x, precision=precision)), x)
    with pytest.raises(tvmfun.errors.ArgumentError, match="the precision is one of"):
        tnp.matmul(x, x, precision="exact")
    narrow = np.full((2, 3), 100, "int8")
    assert tnp.matmul(narrow, narrow.T, preferred_element_type="int32").dtype == "int32"
