"""Interpolation on grids against JAX and SciPy."""

import jax
import jax.scipy.interpolate
import numpy as np
import pytest
import scipy.interpolate
from support import derivatives, oracle

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.scipy.interpolate import RegularGridInterpolator

RNG = np.random.default_rng(0)
X, Y, Z = np.array([-1.0, 0.0, 0.5, 2.0]), np.array([0.0, 1.0, 4.0]), np.array([2.0, 3.0])
GRIDS = {
    "one axis": ((X,), RNG.normal(size=4)),
    "one axis of vectors": ((X,), RNG.normal(size=(4, 2))),
    "two axes": ((X, Y), RNG.normal(size=(4, 3))),
    "two axes of matrices": ((X, Y), RNG.normal(size=(4, 3, 2, 2))),
    "three axes": ((X, Y, Z), RNG.normal(size=(4, 3, 2))),
}


def places(count: int, *lead: int) -> np.ndarray:
    inside = RNG.uniform(-1.5, 4.5, size=(*lead, count))
    inside[..., 0].flat[:4] = [-1.0, 2.0, 0.25, 0.5][: inside[..., 0].size]  # lines, and halfway between two
    return inside


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values(grid, dtype):
    points, values = GRIDS[grid]
    points, values = tuple(p.astype(dtype) for p in points), values.astype(dtype)
    xi = places(len(points), 5, 6).astype(dtype)
    options = [{"method": m, "fill_value": f} for m in ("linear", "nearest") for f in (np.nan, None, 7.0)]

    def all_of(module, points, values, xi):
        made = [module(points, values, **each) for each in options]
        single = tuple(xi[..., i] for i in range(len(points)))
        single = single if len(points) > 1 else (xi,)
        return [of(xi) for of in made] + [made[0](single), made[0](xi[0], "nearest"), made[0](xi[:0])]

    with oracle.x64():
        expected = jax.jit(lambda *args: all_of(jax.scipy.interpolate.RegularGridInterpolator, *args))(
            points, values, xi
        )
    found = tvmfun.jit(lambda *args: all_of(RegularGridInterpolator, *args))(points, values, xi)
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    for ours, each in zip(found, options, strict=False):
        of = scipy.interpolate.RegularGridInterpolator(points, values, bounds_error=False, **each)
        np.testing.assert_allclose(ours, of(xi), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_an_axis_with_one_line():
    of = RegularGridInterpolator((X, [3.0]), np.arange(4.0)[:, None], fill_value=None)
    np.testing.assert_allclose(of(np.array([[1.25, 3.0], [0.25, 9.0]])), [2.5, 1.5])


@pytest.mark.slow
def test_no_number_is_nowhere():
    of = RegularGridInterpolator((X,), np.arange(4.0), fill_value=7.0)
    np.testing.assert_array_equal(of(np.array([np.nan, np.inf, -np.inf])), [np.nan, 7.0, 7.0])


@pytest.mark.slow
def test_derivatives_and_batches():
    points, values = GRIDS["two axes"]
    xi = np.array([[0.2, 0.7], [1.1, 3.3], [-0.4, 2.1]])
    derivatives.check(lambda v, xi: RegularGridInterpolator(points, v, fill_value=None)(xi), (values, xi), order=1)
    slopes = tvmfun.vmap(tvmfun.grad(lambda x: RegularGridInterpolator(points, values)(x)[0]))(xi)
    with oracle.x64():
        theirs = jax.scipy.interpolate.RegularGridInterpolator(points, values)
        np.testing.assert_allclose(slopes, jax.vmap(jax.grad(lambda x: theirs(x)[0]))(xi), rtol=1e-10)
    shifted = tvmfun.vmap(lambda p: RegularGridInterpolator((p,), tnp.arange(4.0))(np.array([0.5])))
    np.testing.assert_allclose(shifted(np.stack([X, X + 0.25]))[:, 0], [2.0, 1.5])


WRONG = {
    "method": (ArgumentError, "the method must be", lambda: RegularGridInterpolator((X,), X, "cubic")),
    "error": (ArgumentError, "cannot depend", lambda: RegularGridInterpolator((X,), X, bounds_error=True)),
    "descending": (ArgumentError, "must ascend", lambda: RegularGridInterpolator((X[::-1],), X)),
    "size": (ShapeError, "of its size", lambda: RegularGridInterpolator((X,), Y)),
    "axes": (ShapeError, "of its size", lambda: RegularGridInterpolator((X, X), X)),
    "coordinates": (ShapeError, "must be 1 coordinates", lambda: RegularGridInterpolator((X,), X)(np.ones((3, 2)))),
    "nothing": (ShapeError, "there must be values", lambda: RegularGridInterpolator((X[:0],), X[:0])),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    error, message, call = WRONG[case]
    with pytest.raises(error, match=rf"^\[RegularGridInterpolator\] .*{message}"):
        call()
