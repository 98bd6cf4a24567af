"""Distributions: JAX's numbers, the distributions themselves, derivatives, batches and errors."""

import numpy as np
import pytest
from scipy import stats

import tvmfun
from tvmfun import lax, random
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, GradientError, ShapeError

jax = pytest.importorskip("jax")

P = np.asarray([0.1, 0.4, 0.3, 0.2], "float32")
A = np.asarray([0.3, 1.0, 2.5, 20.0], "float32")
N = np.asarray([3, 10, 100, 1000], "float32")
COV = np.asarray([[2.0, 0.5], [0.5, 1.0]], "float32")
LOGITS = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
RTOL = 3e-5

CASES = [
    ("choice", (10, (3,)), {}),
    ("choice", (10, (3, 2)), {"replace": False}),
    ("choice", (4, (3, 2)), {"p": P}),
    ("choice", (4, (3,)), {"p": P, "replace": False}),
    ("choice", (LOGITS, (2, 3)), {"axis": 1}),
    ("choice", (LOGITS, (2,)), {"axis": -1, "replace": False}),
    ("choice", (LOGITS, (0, 2)), {}),
    ("categorical", (LOGITS,), {}),
    ("categorical", (LOGITS, 0), {}),
    ("categorical", (LOGITS,), {"shape": (5, 3)}),
    ("categorical", (LOGITS, 0), {"shape": (5, 4), "mode": "high"}),
    ("categorical", (LOGITS,), {"shape": (2, 3), "replace": False}),
    ("categorical", (LOGITS, 0), {"shape": (3, 1, 4), "replace": True}),
    ("gumbel", ((5,),), {}),
    ("gumbel", ((5,),), {"mode": "high"}),
    ("gumbel", ((5,),), {"mode": "highest"}),
    ("exponential", ((5,),), {}),
    ("laplace", ((5,),), {}),
    ("logistic", ((5,),), {}),
    ("cauchy", ((5,),), {}),
    ("pareto", (A,), {}),
    ("rayleigh", (A,), {}),
    ("weibull_min", (2.0, 3.0, (4,)), {}),
    ("maxwell", ((4,),), {}),
    ("double_sided_maxwell", (1.0, 2.0, (4,)), {}),
    ("wald", (A,), {}),
    ("triangular", (0.0, 0.3, 1.0, (4,)), {}),
    ("lognormal", (A,), {}),
    ("gamma", (A,), {}),
    ("gamma", (0.7, (3, 500)), {}),
    ("loggamma", (A,), {}),
    ("beta", (A, 2.0), {}),
    ("dirichlet", (A, (3,)), {}),
    ("t", (A,), {}),
    ("chisquare", (A,), {}),
    ("f", (A, 3.0), {}),
    ("generalized_normal", (1.5, (4,)), {}),
    ("ball", (3,), {"shape": (4,)}),
    ("orthogonal", (3,), {}),
    ("orthogonal", (3, (2,)), {"m": 2}),
    ("orthogonal", (2,), {"m": 3}),
    ("multivariate_normal", (np.ones(2, "float32"), COV), {}),
    ("multivariate_normal", (np.ones(2, "float32"), COV, (4,)), {}),
    ("rademacher", ((6,),), {}),
    ("geometric", (P,), {}),
    ("bernoulli", (P,), {"mode": "high"}),
    ("poisson", (A,), {}),
    ("poisson", (A, (50, 4)), {}),
    ("poisson", (np.asarray([-1.0, 0.0, np.nan], "float32"),), {}),
    ("binomial", (N, P), {}),
    ("binomial", (N, P, (50, 4)), {}),
    ("binomial", (np.float32([-1.0, 3.0, np.nan, 3.0]), np.float32([0.5, -1.0, 0.5, np.nan])), {}),
    ("multinomial", (100.0, P), {}),
    ("multinomial", (100.0, P), {"shape": (3, 4)}),
]  # fmt: skip


@pytest.mark.quick("poisson--2")
@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_numbers_are_those_of_jax(name, args, kwargs):
    with jax.enable_x64(False):
        expected = np.asarray(getattr(jax.random, name)(jax.random.PRNGKey(3), *args, **kwargs))
    actual = np.asarray(getattr(random, name)(random.key(3), *args, **kwargs))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=1e-6)


DOUBLE = [
    ("gumbel", ((5,),), {"mode": "highest"}),
    ("gumbel", ((5,),), {}),
    ("gamma", (A.astype("float64"),), {}),
    ("loggamma", (A.astype("float64"),), {}),
    ("laplace", ((5,),), {}),
    ("cauchy", ((5,),), {}),
    ("wald", (A.astype("float64"),), {}),
    ("binomial", (N.astype("float64"), P.astype("float64")), {}),
    ("orthogonal", (3,), {}),
    ("poisson", (A,), {"dtype": "int64"}),
    ("geometric", (P,), {"dtype": "int16"}),
    ("rademacher", ((3,),), {"dtype": "int8"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "args", "kwargs"), DOUBLE, ids=lambda x: x if isinstance(x, str) else "")
def test_numbers_in_other_dtypes_are_those_of_jax(name, args, kwargs):
    kwargs = {"dtype": "float64"} | kwargs
    with jax.enable_x64(True):
        # Probabilities of 1/2 are drawn as float32 here and as float64 there.
        expected = np.asarray(getattr(jax.random, name)(jax.random.PRNGKey(3), *args, **kwargs))
    actual = np.asarray(getattr(random, name)(random.key(3), *args, **kwargs))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if name == "rademacher":
        assert set(np.abs(actual)) == {1}
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-11)


def test_all_names_of_jax_are_there_but_two():
    names = {name for name in dir(jax.random) if not name.startswith("_")}
    assert names - set(random.__all__) <= {"key_dtype", "random_gamma_p"}
    assert {"random_gamma_p", "key_dtype"} <= set(str(random.__doc__).replace("`", " ").split())


SIZE = (4000,)
CONTINUOUS = {
    "gumbel": (random.gumbel, (), stats.gumbel_r()),
    "exponential": (random.exponential, (), stats.expon()),
    "laplace": (random.laplace, (), stats.laplace()),
    "logistic": (random.logistic, (), stats.logistic()),
    "cauchy": (random.cauchy, (), stats.cauchy()),
    "maxwell": (random.maxwell, (), stats.maxwell()),
    "pareto": (random.pareto, (3.0,), stats.pareto(3)),
    "rayleigh": (random.rayleigh, (2.0,), stats.rayleigh(scale=2)),
    "weibull_min": (random.weibull_min, (2.0, 1.5), stats.weibull_min(1.5, scale=2)),
    "wald": (random.wald, (2.0,), stats.invgauss(2.0)),
    "triangular": (random.triangular, (1.0, 1.5, 3.0), stats.triang(0.25, loc=1, scale=2)),
    "lognormal": (random.lognormal, (0.5,), stats.lognorm(0.5)),
    "gamma": (random.gamma, (2.5,), stats.gamma(2.5)),
    "small gamma": (random.gamma, (0.2,), stats.gamma(0.2)),
    "loggamma": (random.loggamma, (0.2,), stats.loggamma(0.2)),
    "beta": (random.beta, (0.5, 2.0), stats.beta(0.5, 2)),
    "t": (random.t, (3.0,), stats.t(3)),
    "chisquare": (random.chisquare, (3.0,), stats.chi2(3)),
    "f": (random.f, (3.0, 5.0), stats.f(3, 5)),
    "generalized_normal": (random.generalized_normal, (1.5,), stats.gennorm(1.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_samples_have_the_distribution(name):
    sample, parameters, distribution = CONTINUOUS[name]
    values = np.asarray(sample(random.key(7), *parameters, SIZE), np.float64)
    assert stats.kstest(values, distribution.cdf).pvalue > 1e-3


DISCRETE = {
    "poisson": (random.poisson, (3.0,), stats.poisson(3)),
    "large poisson": (random.poisson, (40.0,), stats.poisson(40)),
    "binomial": (random.binomial, (10.0, 0.3), stats.binom(10, 0.3)),
    "large binomial": (random.binomial, (100.0, 0.7), stats.binom(100, 0.7)),
    "geometric": (random.geometric, (0.3,), stats.geom(0.3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCRETE)
def test_counts_have_the_distribution(name):
    sample, parameters, distribution = DISCRETE[name]
    values = np.asarray(sample(random.key(7), *parameters, SIZE), np.float64)
    edges = np.unique(distribution.ppf(np.linspace(0.1, 0.9, 9)))
    observed = np.histogram(values, [-np.inf, *(edges + 0.5), np.inf])[0]
    expected = np.diff([0, *distribution.cdf(edges), 1]) * len(values)
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cholesky", "eigh", "svd"])
def test_normal_vectors_have_the_covariance(method):
    x = np.asarray(random.multivariate_normal(random.key(5), np.ones(2), COV, (20_000,), method=method), np.float64)
    np.testing.assert_allclose(x.mean(0), 1, atol=0.05)
    np.testing.assert_allclose(np.cov(x.T), COV, atol=0.1)


@pytest.mark.slow
def test_frequencies_of_choices():
    k = random.key(1)
    drawn = {
        "categorical": random.categorical(k, np.log(P), shape=(20_000,)),
        "choice": random.choice(k, 4, (20_000,), p=P),
    }
    for indices in drawn.values():
        np.testing.assert_allclose(np.bincount(np.asarray(indices), minlength=4) / 20_000, P, atol=0.02)
    for indices in (
        random.choice(k, 9, (9,), replace=False),
        random.categorical(k, np.zeros(9), shape=(9,), replace=False),
    ):
        assert sorted(indices.tolist()) == list(range(9))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    k = random.key(2)
    for sample in (random.gumbel, random.exponential, random.laplace, random.maxwell, random.cauchy):
        values = sample(k, (100,), dtype)
        assert str(values.dtype) == dtype and bool(tnp.all(tnp.isfinite(values)))
    values = random.gamma(k, 2.0, (500,), dtype)
    assert str(values.dtype) == dtype
    assert abs(float(np.asarray(values, "float32").mean()) - 2) < 0.3


# Rounding differs where a proposal is nearly rejected, so the numbers are compared above and the derivatives here.
DERIVATIVES = {
    "gamma": lambda r, k, a: r.gamma(k, a, dtype="float64"),
    "loggamma": lambda r, k, a: r.loggamma(k, a, dtype="float64"),
    "beta": lambda r, k, a: r.beta(k, a, a + 1, dtype="float64"),
    "dirichlet": lambda r, k, a: r.dirichlet(k, a, dtype="float64")[0],
    "t": lambda r, k, a: r.t(k, a, dtype="float64"),
    "chisquare": lambda r, k, a: r.chisquare(k, a, dtype="float64"),
    "pareto": lambda r, k, a: r.pareto(k, a, dtype="float64"),
    "wald": lambda r, k, a: r.wald(k, a, dtype="float64"),
    "lognormal": lambda r, k, a: r.lognormal(k, a, dtype="float64"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_those_of_jax(name):
    sample = DERIVATIVES[name]
    a = A.astype("float64") + 0.1
    with jax.enable_x64(True):
        expected = jax.jit(jax.grad(lambda a: sample(jax.random, jax.random.PRNGKey(0), a).sum()))(a)
    actual = tvmfun.jit(tvmfun.grad(lambda a: tnp.sum(sample(random, random.key(0), a))))(a)
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-9)
    if name == "gamma":
        along = lambda a: tvmfun.jvp(lambda a: sample(random, random.key(0), a), (a,), (tnp.ones_like(a),))
        value, tangent = tvmfun.jit(along)(a)
        np.testing.assert_allclose(np.asarray(tangent), np.asarray(expected), rtol=1e-9)
        np.testing.assert_allclose(lax.random_gamma_grad(a, value), np.asarray(expected), rtol=1e-9)


def test_a_second_derivative_of_gamma_samples_is_refused():
    sample = lambda a: random.gamma(random.key(0), a)
    with pytest.raises(GradientError, match=r"^\[random_gamma_grad\] there is no derivative"):
        tvmfun.grad(tvmfun.grad(sample))(2.0)


@pytest.mark.slow
def test_batches_of_keys_and_parameters():
    keys, js = random.split(random.key(0), 3), jax.random.split(jax.random.PRNGKey(0), 3)
    a = A[:3]
    samples = [
        lambda r, k, a: r.gamma(k, a),
        lambda r, k, a: r.poisson(k, a),
        lambda r, k, a: r.categorical(k, a * LOGITS[0]),
        lambda r, k, a: r.exponential(k, (2,)) * a,
    ]
    for sample in samples:
        actual = tvmfun.vmap(lambda k, a, f=sample: f(random, k, a))(keys, a)
        with jax.enable_x64(False):
            expected = [np.asarray(sample(jax.random, k, x)) for k, x in zip(js, a, strict=True)]
        np.testing.assert_allclose(np.asarray(actual), np.stack(expected), rtol=RTOL)


@pytest.mark.slow
def test_in_and_outside_of_jit_numbers_are_the_same():
    k = random.key(9)
    samples = [lambda k: random.gamma(k, 0.3, (50,)), lambda k: random.poisson(k, 30.0, (50,)), random.gumbel]
    inside = tvmfun.jit(lambda k: [sample(k) for sample in samples])(k)
    for sample, value in zip(samples, inside, strict=True):
        np.testing.assert_array_equal(np.asarray(sample(k)), np.asarray(value))


@pytest.mark.slow
def test_empty_shapes():
    k = random.key(0)
    assert random.gamma(k, np.zeros((0, 2))).shape == (0, 2)
    assert random.poisson(k, 3.0, (0,)).shape == (0,)
    assert random.binomial(k, 30.0, 0.5, (2, 0)).shape == (2, 0)
    assert random.categorical(k, np.zeros((0, 3))).shape == (0,)
    assert random.dirichlet(k, np.ones((0, 3))).shape == (0, 3)
    assert random.ball(k, 3, shape=(0,)).shape == (0, 3)


def test_keys_have_jax_s_names():
    k = random.PRNGKey(3)
    np.testing.assert_array_equal(np.asarray(k), np.asarray(jax.random.PRNGKey(3)))
    np.testing.assert_array_equal(np.asarray(random.wrap_key_data(random.key_data(random.split(k)))), random.split(k))
    np.testing.assert_array_equal(np.asarray(random.clone(k)), np.asarray(random.key(3, impl="threefry2x32")))
    assert random.key_impl(k) == "threefry2x32"


K = np.zeros(2, "uint32")
WRONG = {
    "generator": (ArgumentError, r"^\[key\] there is one generator", lambda: random.key(0, impl="rbg")),
    "words": (ShapeError, r"^\[key_data\] keys are uint32", lambda: random.key_data(np.zeros(3))),
    "key": (ShapeError, r"^\[gamma\] a key is uint32", lambda: random.gamma(0, 1.0)),
    "dtype": (DtypeError, r"^\[gumbel\] the dtype must be a float", lambda: random.gumbel(K, (), "int32")),
    "integer": (DtypeError, r"^\[poisson\] the dtype must be an int", lambda: random.poisson(K, 1.0, (), "float32")),
    "mode": (ArgumentError, r"^\[gumbel\] the mode must be", lambda: random.gumbel(K, mode="x")),
    "bernoulli": (ArgumentError, r"^\[bernoulli\] the mode must be", lambda: random.bernoulli(K, mode="x")),
    "shape": (ShapeError, r"^\[gamma\] the parameters must broadcast", lambda: random.gamma(K, np.ones(3), (2, 1))),
    "too many": (ArgumentError, r"^\[choice\] without replacement", lambda: random.choice(K, 3, (4,), replace=False)),
    "none": (ArgumentError, r"^\[choice\] there must be something", lambda: random.choice(K, 0, (4,))),
    "p": (ShapeError, r"^\[choice\] p must be a vector of 3", lambda: random.choice(K, 3, (1,), p=P)),
    "axis": (ShapeError, r"^\[choice\] there is no axis 2", lambda: random.choice(K, LOGITS, (1,), axis=2)),
    "categories": (
        ArgumentError,
        r"^\[categorical\] without replacement",
        lambda: random.categorical(K, LOGITS, shape=(5, 3), replace=False),
    ),
    "logits": (ShapeError, r"^\[categorical\] there is no axis -1", lambda: random.categorical(K, 1.0)),
    "alpha": (ShapeError, r"^\[dirichlet\] alpha must have an axis", lambda: random.dirichlet(K, 1.0)),
    "covariance": (
        ShapeError,
        r"^\[multivariate_normal\] the covariance of n numbers",
        lambda: random.multivariate_normal(K, P, COV),
    ),
    "method": (
        ArgumentError,
        r"^\[multivariate_normal\] the method",
        lambda: random.multivariate_normal(K, np.ones(2), COV, method="lu"),
    ),
    "outcomes": (ShapeError, r"^\[multinomial\] p must have an axis", lambda: random.multinomial(K, 1.0, 0.5)),
}  # fmt: skip


@pytest.mark.quick("method", "alpha", "dtype", "mode")
@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    error, message, call = WRONG[case]
    with pytest.raises(error, match=message):
        call()
