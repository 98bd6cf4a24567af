"""Distributions and functions of samples against SciPy and JAX, with derivatives."""

import inspect

import numpy as np
import pytest
import scipy.stats
from support import derivatives

import tvmfun
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.scipy import stats

jax = pytest.importorskip("jax")

X = np.asarray([-3.0, -0.5, 0.0, 0.25, 0.5, 0.8, 1.0, 1.5, 3.0, 20.0, np.inf, -np.inf, np.nan])
Q = np.asarray([0.0, 1e-10, 0.1, 0.5, 0.9, 1.0, -0.1, np.nan])
K = np.asarray([-1.0, 0.0, 1.0, 2.0, 3.0, 7.0, 1.5])
#: The parameters of each distribution, and its location and scale.
CONTINUOUS = {
    "norm": (), "cauchy": (), "expon": (), "gamma": (1.7,), "chi2": (3.0,), "beta": (1.5, 2.5), "gumbel_r": (),
    "gumbel_l": (), "laplace": (), "logistic": (), "pareto": (2.5,), "t": (3.5,), "uniform": (), "gennorm": (1.5,),
    "truncnorm": (-1.0, 2.0),
}  # fmt: skip
DISCRETE = {
    "bernoulli": (0.3,), "binom": (5, 0.3), "betabinom": (5, 1.5, 2.5), "geom": (0.3,), "nbinom": (3, 0.3),
    "poisson": (2.5,),
}  # fmt: skip


def functions(name):
    return [getattr(stats, name).__dict__[f] for f in getattr(stats, name).__all__]


@pytest.mark.quick("norm")
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name):
    ours, theirs = getattr(stats, name), getattr(scipy.stats, name)
    parameters = CONTINUOUS[name]

    def values(x, q):
        results = {}
        for f in ours.__all__:
            point = q if f in ("ppf", "isf") else x
            results[f] = getattr(ours, f)(point, *parameters)
            results[f + " moved"] = getattr(ours, f)(point, *parameters, 0.5, 2.0)
        return results

    found = tvmfun.jit(values)(X, Q)
    for f in ours.__all__:
        point = Q if f in ("ppf", "isf") else X
        for suffix, more in (("", ()), (" moved", (0.5, 2.0))):
            expected = getattr(theirs, f)(point, *parameters, *more)
            finite = np.isfinite(point) | np.isnan(point)
            actual = np.asarray(found[f + suffix])
            np.testing.assert_allclose(actual[finite], expected[finite], rtol=2e-12, atol=1e-290, err_msg=f + suffix)
            if f in ("cdf", "sf"):
                np.testing.assert_allclose(actual, expected, rtol=2e-12, err_msg=f + suffix)


@pytest.mark.quick("poisson")
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name):
    ours, theirs = getattr(stats, name), getattr(scipy.stats, name)
    parameters = DISCRETE[name]
    names = [f for f in ours.__all__ if f in ("pmf", "logpmf", "cdf")]
    moved = [] if name == "bernoulli" else [2]
    found, of_moved = tvmfun.jit(
        lambda k: ({f: getattr(ours, f)(k, *parameters) for f in names}, ours.pmf(k + 2, *parameters, *moved))
    )(K)
    for f in names:
        expected = getattr(theirs, f)(K, *parameters)
        np.testing.assert_allclose(np.asarray(found[f]), expected, rtol=1e-12, err_msg=f)
    np.testing.assert_allclose(of_moved, theirs.pmf(K + 2, *parameters, *moved), rtol=1e-12)


@pytest.mark.slow
def test_other_functions_of_discrete_distributions():
    np.testing.assert_allclose(stats.bernoulli.ppf(Q, 0.3), scipy.stats.bernoulli.ppf(Q, 0.3))
    mu = np.asarray([0.0, 0.5, 5.0, 50.0, 200.0])
    np.testing.assert_allclose(stats.poisson.entropy(mu), scipy.stats.poisson.entropy(mu), rtol=1e-7)


def test_distributions_of_angles():
    x = np.linspace(0, 2 * np.pi, 7)
    np.testing.assert_allclose(stats.vonmises.logpdf(x, 2.0), scipy.stats.vonmises.logpdf(x, 2.0), rtol=1e-12)
    np.testing.assert_allclose(stats.wrapcauchy.pdf(x, 0.3), scipy.stats.wrapcauchy.pdf(x, 0.3), rtol=1e-12)


@pytest.mark.slow
def test_distributions_of_vectors():
    rng = np.random.default_rng(0)
    p = np.asarray([0.2, 0.3, 0.5])
    counts = np.asarray([[1, 2, 0], [0, 0, 3], [1, 1, 0]])
    np.testing.assert_allclose(stats.multinomial.pmf(counts, 3, p), scipy.stats.multinomial.pmf(counts, 3, p))
    alpha = np.asarray([0.5, 2.0, 3.0])
    np.testing.assert_allclose(stats.dirichlet.logpdf(p, alpha), scipy.stats.dirichlet.logpdf(p, alpha), rtol=1e-12)
    np.testing.assert_allclose(stats.dirichlet.logpdf(p[:2], alpha), scipy.stats.dirichlet.logpdf(p, alpha), rtol=1e-9)
    a = rng.normal(size=(3, 3))
    cov, mean, x = a @ a.T + np.eye(3), rng.normal(size=3), rng.normal(size=(4, 3))
    expected = scipy.stats.multivariate_normal.logpdf(x, mean, cov)
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(x, mean, cov), expected, rtol=1e-12)
    np.testing.assert_allclose(
        stats.multivariate_normal.pdf(x, mean, 2.0), scipy.stats.multivariate_normal.pdf(x, mean, 2.0 * np.eye(3))
    )
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(0.5, 1.0, 2.0), scipy.stats.norm.logpdf(0.5, 1, 2**0.5))
    with jax.enable_x64(True):
        for i in (1, 2):
            f = lambda s: lambda *args: s.multivariate_normal.logpdf(*args).sum()
            wanted = jax.jit(jax.grad(f(jax.scipy.stats), argnums=i))(x, mean, cov)
            found = tvmfun.jit(tvmfun.grad(f(stats), argnums=i))(x, mean, cov)
            symmetric = lambda m: np.asarray(m) + np.asarray(m).T
            np.testing.assert_allclose(symmetric(found), symmetric(wanted), rtol=1e-9)


POINTS = {"pareto": [1.5, 3.0], "beta": [0.2, 0.7], "uniform": [0.2, 0.7]}


@pytest.mark.quick("gennorm")
@pytest.mark.parametrize("name", ["gumbel_l", "gumbel_r", "gennorm", "truncnorm"])
def test_derivatives(name):
    values = lambda x, scale: getattr(stats, name).logpdf(x, *CONTINUOUS[name], 0.01, scale)
    derivatives.check(values, (np.asarray([0.3, 1.3]), 1.1))


@pytest.mark.quick("beta", "t")
@pytest.mark.parametrize("name", sorted(set(CONTINUOUS) - {"gumbel_l", "gumbel_r", "gennorm"}))
def test_derivatives_are_those_of_jax(name):
    x = np.asarray(POINTS.get(name, [0.3, 1.3]))
    parameters = CONTINUOUS[name]
    with jax.enable_x64(True):
        both = [getattr(s, name) for s in (stats, jax.scipy.stats)]
        names = [f for f in ("logpdf", "cdf") if all(hasattr(s, f) for s in both)]

        def of(m, numpy, s):
            total = lambda f: lambda x, m, r: numpy.sum(getattr(s, f)(x, *parameters, m, r))
            return m.jit(lambda *args: {f: m.grad(total(f), argnums=(0, 1, 2))(*args) for f in names})(x, 0.01, 1.1)

        actual, expected = of(tvmfun, tnp, both[0]), of(jax, jax.numpy, both[1])
        for f in names:
            for one, other in zip(actual[f], expected[f], strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-12, err_msg=f)


def test_derivatives_outside_of_the_support_are_finite():
    for name in ("gamma", "beta", "pareto", "expon"):
        density = lambda x, name=name: tnp.sum(getattr(stats, name).pdf(x, *CONTINUOUS[name]))
        slope = tvmfun.grad(density)(np.asarray([-1.0, -2.0]))
        np.testing.assert_array_equal(np.asarray(slope), 0)


SAMPLES = np.asarray([[3.0, 1.0, 2.0, 2.0], [5.0, 5.0, 5.0, 1.0], [0.0, -1.0, 2.0, 7.0]])


@pytest.mark.quick("None-dense", "None-ordinal")
@pytest.mark.parametrize("method", ["average", "min", "max", "dense", "ordinal"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_ranks(method, axis):
    expected = scipy.stats.rankdata(SAMPLES, method, axis=axis)
    np.testing.assert_array_equal(np.asarray(stats.rankdata(SAMPLES, method, axis=axis)).ravel(), expected.ravel())


def test_ranks_and_modes_of_nothing_and_of_nan():
    assert stats.rankdata(np.zeros(0)).shape == (0,)
    assert np.isnan(np.asarray(stats.rankdata(np.asarray([1.0, np.nan])))).all()


@pytest.mark.quick("False-0", "True-None")
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_modes_and_standard_errors(axis, keepdims):
    expected = scipy.stats.mode(SAMPLES, axis=axis, keepdims=keepdims)
    actual = stats.mode(SAMPLES, axis=axis, keepdims=keepdims)
    np.testing.assert_array_equal(np.asarray(actual.mode), expected.mode)
    np.testing.assert_array_equal(np.asarray(actual.count), expected.count)
    error = stats.sem(SAMPLES, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(np.asarray(error).ravel(), np.ravel(scipy.stats.sem(SAMPLES, axis=axis)), rtol=1e-12)


def test_standard_errors_without_nan():
    x = np.where(SAMPLES == 7, np.nan, SAMPLES)
    np.testing.assert_allclose(stats.sem(x, nan_policy="omit"), scipy.stats.sem(x, nan_policy="omit"), rtol=1e-12)


def test_names_and_arguments_are_those_of_jax():
    missing = []
    for name in dir(jax.scipy.stats):
        theirs = getattr(jax.scipy.stats, name)
        if name.startswith("_") or not inspect.ismodule(theirs):
            continue
        for f in dir(theirs):
            if f.startswith("_"):
                continue
            ours = getattr(getattr(stats, name, None), f, None)
            if ours is None:
                missing.append(f"{name}.{f}")
                continue
            expected = list(inspect.signature(getattr(theirs, f)).parameters)
            if f in ("ppf", "isf"):
                expected[0] = "q"  # SciPy's name, which JAX calls p in one module
            assert list(inspect.signature(ours).parameters)[: len(expected)] == expected, f"{name}.{f}"
    assert missing == []


def test_errors():
    with pytest.raises(ArgumentError, match=r"^\[rankdata\] the method must be one of"):
        stats.rankdata(SAMPLES, "median")
    with pytest.raises(ArgumentError, match=r"^\[mode\] NaN is always propagated"):
        stats.mode(SAMPLES, nan_policy="omit")
    with pytest.raises(ShapeError, match=r"^\[mode\] there is no axis 3"):
        stats.mode(SAMPLES, axis=3)
    with pytest.raises(ShapeError, match=r"^\[logpdf\] there must be a probability"):
        stats.dirichlet.logpdf(np.ones(4), np.ones(2))


@pytest.mark.slow
def test_batches_and_half_precision():
    x = np.asarray([0.1, 0.5], "float32")
    batched = tvmfun.vmap(lambda x, a: stats.gamma.logpdf(x, a))(x, 1 + x)
    np.testing.assert_allclose(np.asarray(batched), scipy.stats.gamma.logpdf(x, 1 + x), rtol=1e-5)
    half = stats.norm.cdf(tnp.asarray(x, "bfloat16"))
    assert str(half.dtype) == "bfloat16"
