"""Estimated densities against JAX and SciPy."""

from functools import cache

import jax
import jax.scipy.stats
import numpy as np
import pytest
import scipy.stats
from support import derivatives, oracle

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.scipy.stats import gaussian_kde

RNG = np.random.default_rng(0)
SAMPLES = {"numbers": RNG.normal(size=9), "vectors": RNG.normal(size=(2, 7)), "of three": RNG.normal(size=(3, 8))}
KEY = np.array([0, 7], "uint32")


def everything(module, sample, weights, **options):
    d = np.shape(sample)[0] if np.ndim(sample) > 1 else 1
    density = module.gaussian_kde(sample, weights=weights, **options)
    other = module.gaussian_kde(0.5 * sample + 1)
    points = np.linspace(-2, 2, 4 * d).reshape(d, 4).astype(sample.dtype)
    results = {
        "arrays": (density.neff, density.dataset, density.weights, density.covariance, density.inv_cov),
        "values": (density(points), density.evaluate(points), density.pdf(points), density.logpdf(points * 3)),
        "one": density(points[:, 0]),
        "gaussian": density.integrate_gaussian(points[:, 1], np.eye(d, dtype=sample.dtype) * 0.5),
        "product": density.integrate_kde(other),
        "samples": (density.resample(KEY), density.resample(KEY, (5,))),
    }
    if d == 1:
        results["box"] = [density.integrate_box_1d(low, 1.5) for low in (-np.inf, 0.25)]
    return results


OPTIONS = {
    "defaults": ({}, False),
    "silverman": ({"bw_method": "silverman"}, True),
    "number": ({"bw_method": 0.3}, True),
    "function": ({"bw_method": lambda density: density.neff ** (-0.5) * density.d}, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values(sample, dtype):
    x = SAMPLES[sample].astype(dtype)
    weights = RNG.uniform(0.5, 2, size=x.shape[-1]).astype(dtype)

    def all_of(module, x, weights):
        return {name: everything(module, x, weights if w else None, **o) for name, (o, w) in OPTIONS.items()}

    with oracle.x64():
        expected = jax.jit(lambda *args: all_of(jax.scipy.stats, *args))(x, weights)
    found = tvmfun.jit(lambda *args: all_of(tvmfun.scipy.stats, *args))(x, weights)
    tolerance = 1e-9 if dtype == "float64" else 2e-4
    for name, theirs in expected.items():
        pairs = zip(tvmfun.tree.leaves_with_path(found[name]), jax.tree.leaves(theirs), strict=True)
        for (path, one), other in pairs:
            assert one.shape == other.shape and one.dtype == dtype, (name, path)
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=f"{name} {path}")
    theirs = scipy.stats.gaussian_kde(x, weights=weights, bw_method="silverman")
    points = np.linspace(-2, 2, 4 * theirs.d).reshape(theirs.d, 4)
    np.testing.assert_allclose(
        found["silverman"]["values"][0], theirs(points), rtol=2e-3 if dtype != "float64" else 1e-9
    )


@pytest.mark.slow
def test_densities_are_trees():
    density = gaussian_kde(SAMPLES["vectors"])
    points = np.array([[0.0, 0.5], [1.0, -1.0]])
    made = tvmfun.jit(gaussian_kde)(SAMPLES["vectors"])
    assert (made.n, made.d) == (density.n, density.d) == (7, 2)
    np.testing.assert_allclose(tvmfun.jit(lambda k, x: k(x))(made, points), density(points), rtol=1e-12)
    assert density.resample(KEY, (3, 2)).shape == (2, 3, 2)
    stacked = tvmfun.vmap(lambda x: gaussian_kde(x)(points[0]))(np.stack([SAMPLES["numbers"], SAMPLES["numbers"] + 1]))
    np.testing.assert_allclose(stacked[1], gaussian_kde(SAMPLES["numbers"] + 1)(points[0]), rtol=1e-12)


@pytest.mark.slow
def test_far_away_the_logarithm_is_finite():
    density = gaussian_kde(SAMPLES["numbers"])
    assert float(density(1e3)[0]) == 0 and -1e8 < float(density.logpdf(1e3)[0]) < -1e5


@pytest.mark.slow
def test_derivatives():
    x, points = SAMPLES["numbers"], np.array([0.3, -0.2])
    derivatives.check(lambda x, p: gaussian_kde(x).logpdf(p), (x[:4], points))
    derivatives.check(lambda x, p: gaussian_kde(x, "silverman")(p), (SAMPLES["vectors"], points), order=1)
    derivatives.check(lambda x, low: gaussian_kde(x).integrate_box_1d(low, 1.0), (x, points[0]), order=1)


@cache
def density(of: str) -> gaussian_kde:
    return gaussian_kde(SAMPLES[of])


WRONG = {
    "gaussian_kde": [
        (ShapeError, "several elements", lambda: gaussian_kde(np.ones(1))),
        (ShapeError, "several elements", lambda: gaussian_kde(np.ones((2, 2, 2)))),
        (ShapeError, "9 weights", lambda: gaussian_kde(SAMPLES["numbers"], weights=np.ones(3))),
        (ArgumentError, "bw_method must be", lambda: gaussian_kde(SAMPLES["numbers"], "scot")),
        (ArgumentError, "bw_method must be", lambda: gaussian_kde(SAMPLES["numbers"], np.ones(3))),
    ],
    "evaluate": [(ShapeError, "vectors of 2 elements", lambda: density("vectors").evaluate(np.ones((3, 4))))],
    "logpdf": [(ShapeError, "vectors of 2 elements", lambda: density("vectors").logpdf(1.0))],
    "integrate_gaussian": [(ShapeError, "2 elements", lambda: density("vectors").integrate_gaussian(np.ones(2), 1.0))],
    "integrate_box_1d": [
        (ShapeError, "one dimension", lambda: density("vectors").integrate_box_1d(0, 1)),
        (ShapeError, "one dimension", lambda: density("numbers").integrate_box_1d(np.zeros(2), 1)),
    ],
    "integrate_kde": [
        (ShapeError, "same number of dimensions", lambda: density("numbers").integrate_kde(density("vectors")))
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name):
    for error, message, call in WRONG[name]:
        with pytest.raises(error, match=rf"^\[(gaussian_kde\.)?{name}\] .*{message}"):
            call()


@pytest.mark.slow
def test_integers_are_floats():
    assert gaussian_kde(tnp.arange(5)).covariance.dtype == "float32"
