"""Functions made of quotients of gamma functions, at arguments of very different sizes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.scipy import special, stats

COUNT = 300


def spread(low: float, high: float, seed: int) -> np.ndarray:
    """Numbers whose logarithms are uniform, as float32 in float64."""
    return (10 ** np.random.default_rng(seed).uniform(low, high, COUNT)).astype("float32").astype("float64")


def counts(high: float, seed: int) -> np.ndarray:
    return np.floor(spread(0, high, seed))


def around(mean: np.ndarray, seed: int, low: float = 0.4, high: float = 2.5) -> np.ndarray:
    return mean * np.random.default_rng(seed).uniform(low, high, COUNT)


A, B = spread(-5, 8, 1), spread(-5, 8, 2)
K, M = counts(6, 3), counts(6, 4)
P = np.clip(around(K / (K + M), 5), 1e-9, 0.999).astype("float32").astype("float64")
X = np.clip(around(A / (A + B), 6), 1e-9, 0.999).astype("float32").astype("float64")
#: The functions, SciPy's, their arguments, and how many units of the last digit of the larger of 1 and the value they
#: may be wrong. Densities far out depend on the last digit of their arguments as much.
CASES = {
    "betaln": (special.betaln, scipy.special.betaln, (A, B), 10),
    "betaln of large numbers": (special.betaln, scipy.special.betaln, (spread(4, 8, 1), spread(4, 8, 2)), 10),
    "betaln below 0": (special.betaln, scipy.special.betaln, (-np.arange(COUNT) % 7 - 0.5, spread(0, 1, 1)), 100),
    "beta": (special.beta, scipy.special.beta, (spread(-1, 1, 1), spread(0, 6, 2)), 100),
    "comb": (
        lambda n, k: tnp.log(special.comb(n, k)),
        lambda n, k: np.log(scipy.special.comb(n, k)),
        (M + 5, K % 5),
        10,
    ),
    "poch": (lambda z, m: tnp.log(special.poch(z, m)), lambda z, m: np.log(scipy.special.poch(z, m)), (A, K % 4), 20),
    "beta.logpdf": (stats.beta.logpdf, scipy.stats.beta.logpdf, (X, A, B), 1000),
    "gamma.logpdf": (stats.gamma.logpdf, scipy.stats.gamma.logpdf, (around(A, 7), A), 20),
    "chi2.logpdf": (stats.chi2.logpdf, scipy.stats.chi2.logpdf, (around(A, 8), A), 20),
    "t.logpdf": (stats.t.logpdf, scipy.stats.t.logpdf, (spread(-2, 2, 9), A), 20),
    "poisson.logpmf": (stats.poisson.logpmf, scipy.stats.poisson.logpmf, (K, around(K, 10)), 20),
    "binom.logpmf": (stats.binom.logpmf, scipy.stats.binom.logpmf, (K, K + M, P), 1000),
    "nbinom.logpmf": (stats.nbinom.logpmf, scipy.stats.nbinom.logpmf, (M, K, P), 1000),
    "betabinom.logpmf": (stats.betabinom.logpmf, scipy.stats.betabinom.logpmf, (K % 9, K % 9 + M % 99, A, B), 2000),
}


@pytest.mark.parametrize("name", CASES)
def test_values_in_single_precision(name):
    function, oracle, arguments, units = CASES[name]
    got = np.asarray(tvmfun.jit(lambda *args: function(*args))(*(x.astype("float32") for x in arguments)), "float64")
    expected = oracle(*(x.astype("float32").astype("float64") for x in arguments))
    assert np.all(np.isfinite(expected))
    wrong = np.abs(got - expected) / np.maximum(np.abs(expected), 1) / np.finfo("float32").eps
    assert np.max(wrong) <= units, [float(x[np.argmax(wrong)]) for x in arguments]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(3.0, 1e18, -123.64644784111852), (2.5, 1e16, -91.81872084928891), (1e-09, 1000000000000000.0, 20.72326580183042)],
)
def test_double_precision(a, b, expected):
    """SciPy's own values lose digits there; these are mpmath's."""
    np.testing.assert_allclose(special.betaln(np.array(a), np.array(b)), expected, rtol=1e-14)
    np.testing.assert_allclose(special.betaln(np.array(b), np.array(a)), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("a", "b", "x", "expected"),
    [(1e-5, 1e5, 1e-10, 0.9998906), (1e5, 1e5, 0.5, 0.5), (5, 1e6, 4e-6, 0.3711661), (0.5, 1e6, 1e-7, 0.3452793)],
)
def test_the_incomplete_beta_function(a, b, x, expected):
    values = [np.float32(value) for value in (a, b, x)]
    np.testing.assert_allclose(special.betainc(*values), expected, rtol=1e-4)
    slope = tvmfun.grad(special.betainc, argnums=2)(*values)
    np.testing.assert_allclose(slope, scipy.stats.beta.pdf(*map(float, (values[2], *values[:2]))), rtol=1e-4)


def test_the_incomplete_gamma_function():
    for a, x in [(1e6, 1e6), (1e3, 1e3), (1e-10, 1e-10), (1e-10, 5.0), (5e4, 4.9e4), (0.5, 1e-30), (2.0, 3.0)]:
        values = [np.float32(a), np.float32(x)]
        exact = [float(value) for value in values]
        np.testing.assert_allclose(special.gammaincc(*values), scipy.special.gammaincc(*exact), rtol=5e-5)
        np.testing.assert_allclose(special.gammainc(*values), scipy.special.gammainc(*exact), rtol=5e-5)
        slope = tvmfun.grad(special.gammainc, argnums=1)(*values)
        np.testing.assert_allclose(slope, scipy.stats.gamma.pdf(exact[1], exact[0]), rtol=5e-5)


def test_vectors_of_probabilities():
    many = np.array([2e5, 3e5, 5e5])
    p = np.array([0.1875, 0.3125, 0.5], "float32")
    exact = p.astype("float64")
    got = stats.dirichlet.logpdf(p, many.astype("float32"))
    np.testing.assert_allclose(got, scipy.stats.dirichlet.logpdf(exact, many), rtol=1e-5)
    got = stats.multinomial.logpmf(many.astype("float32"), np.float32(1e6), p)
    np.testing.assert_allclose(got, scipy.stats.multinomial.logpmf(many, 1e6, exact), rtol=1e-3)


@pytest.mark.parametrize("df", [1e4, np.inf])
def test_many_degrees_of_freedom(df):
    x = np.linspace(-3, 3, 7).astype("float32")
    np.testing.assert_allclose(stats.t.logpdf(x, np.float32(df)), scipy.stats.t.logpdf(x, df), rtol=1e-6)


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_derivatives(order):
    """Where formulas meet, at ties, and at the ends of what is possible; of each of a batch, and twice."""
    cases = [
        (special.betaln, [(0.3, 0.7), (7.99, 8.0), (8.0, 8.0), (8.0, 1e3), (1e4, 1e4), (2.0, 1e6)]),
        (lambda a, x: stats.gamma.logpdf(x, a), [(0.5, 0.1), (1.0, 2.0), (9.0, 8.0), (1e3, 1.1e3)]),
        (lambda a, b: stats.beta.logpdf(0.3, a, b), [(0.5, 0.6), (1.0, 1.0), (9.0, 8.5), (30.0, 100.0)]),
        (lambda p, x: stats.binom.logpmf(3.0, 20.0, p) + stats.poisson.logpmf(0.0, x), [(0.2, 1.0), (0.9, 30.0)]),
        (lambda p, x: stats.binom.logpmf(0.0, 20.0, p) + stats.t.logpdf(x, 30.0), [(0.2, 1.0), (0.9, -3.0)]),
    ]
    for function, points in cases:
        f = function if order == 1 else lambda a, b, function=function: tvmfun.grad(function)(a, b)
        value = tvmfun.jit(tvmfun.vmap(lambda pair, f=f: f(pair[0], pair[1])))
        pairs = np.array(points)
        slopes = tvmfun.jit(tvmfun.vmap(tvmfun.grad(f, argnums=(0, 1))))(pairs[:, 0], pairs[:, 1])
        for number, slope in enumerate(slopes):
            step = np.zeros_like(pairs)
            step[:, number] = 1e-6 * pairs[:, number]
            expected = (value(pairs + step) - value(pairs - step)) / (2 * step[:, number])
            np.testing.assert_allclose(slope, expected, rtol=2e-4, atol=1e-5)


def test_the_ends_of_what_is_possible():
    """Quotients that no float32 holds, infinite and negative arguments, and the ends of supports."""
    single = lambda *values: [np.float32(value) for value in values]
    for function, oracle, arguments in [
        (stats.gamma.logpdf, scipy.stats.gamma.logpdf, (1e-36, 1000)),
        (stats.gamma.logpdf, scipy.stats.gamma.logpdf, (1e-40, 8)),
        (stats.gamma.logpdf, scipy.stats.gamma.logpdf, (0.1, np.inf)),
        (stats.chi2.logpdf, scipy.stats.chi2.logpdf, (1e-36, 1000)),
        (stats.beta.logpdf, scipy.stats.beta.logpdf, (1e-36, 1000, 1000)),
        (stats.beta.logpdf, scipy.stats.beta.logpdf, (0.0, 1.0, 3.0)),
        (stats.poisson.logpmf, scipy.stats.poisson.logpmf, (0, 0)),
        (stats.binom.logpmf, scipy.stats.binom.logpmf, (20, 20, 1.0)),
        (stats.binom.logpmf, scipy.stats.binom.logpmf, (0, 20, 0.0)),
        (stats.binom.logpmf, scipy.stats.binom.logpmf, (9, 20, 0.0)),
        (stats.nbinom.logpmf, scipy.stats.nbinom.logpmf, (0, -1, 0.5)),
        (stats.betabinom.logpmf, scipy.stats.betabinom.logpmf, (231278, 989820, 0.875, 0.125)),
        (special.betaln, scipy.special.betaln, (1e8, -0.5)),
        (special.poch, scipy.special.poch, (8.0, np.inf)),
        (special.gammaincc, scipy.special.gammaincc, (1e-30, 1e-10)),
    ]:
        values = single(*arguments)
        expected = oracle(*(float(value) for value in values))
        np.testing.assert_allclose(function(*values), expected, rtol=2e-6, atol=1e-28, err_msg=str(arguments))
    assert stats.poisson.logpmf(0.0, np.inf) == -np.inf
    for function, number, point in [
        (stats.beta.logpdf, 2, (0.0, 8.0, 8.0)),
        (stats.beta.pdf, 1, (1.0, 8.0, 9.0)),
        (stats.nbinom.logpmf, 1, (8.0, 8.0, 1.0)),
        (stats.gamma.logpdf, 1, (0.0, 9.0)),
    ]:
        assert not np.isnan(tvmfun.grad(function, argnums=number)(*point))


def test_probabilities_that_do_not_add_up():
    """Gradients by them are those of the formula, as an optimizer with a multiplier needs."""
    x, p, alpha = np.array([1.0, 2.0, 3.0]), np.array([0.2, 0.3, 0.5]), np.array([10.0, 20.0, 30.0])
    np.testing.assert_allclose(tvmfun.grad(lambda p: stats.multinomial.logpmf(x, 6.0, p))(p), x / p)
    np.testing.assert_allclose(tvmfun.grad(lambda x: stats.dirichlet.logpdf(x, alpha))(p), (alpha - 1) / p)
    less = stats.multinomial.logpmf(x, 6.0, 0.9 * p) - stats.multinomial.logpmf(x, 6.0, p)
    np.testing.assert_allclose(less, 6 * np.log(0.9))


def test_elements_that_converge_at_different_times():
    """Converged elements take the steps of the others without losing digits."""
    a, b, x = spread(-2, 2, 1), spread(-2, 2, 2), np.random.default_rng(3).uniform(0, 1, COUNT).astype("float32")
    exact = x.astype("float64")
    single = [value.astype("float32") for value in (a, b)]
    np.testing.assert_allclose(special.betainc(*single, x), scipy.special.betainc(a, b, exact), atol=1e-5)
    np.testing.assert_allclose(special.gammainc(*single), scipy.special.gammainc(a, b), atol=3e-6)
    np.testing.assert_allclose(special.gammaincc(*single), scipy.special.gammaincc(a, b), atol=3e-6)
