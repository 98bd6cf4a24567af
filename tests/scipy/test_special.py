"""Special functions against SciPy in double precision, at special points, with derivatives against JAX."""

import functools
import math

import numpy as np
import pytest
import scipy.special
from support import derivatives

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, DtypeError, GradientError, ShapeError
from tvmfun.scipy import special

jax = pytest.importorskip("jax")

RNG = np.random.default_rng(0)
INF = np.inf
EDGES = np.asarray([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, INF, np.nan])
POSITIVE_EDGES = np.asarray([0.0, 1.0, 2.0, 0.5, INF, np.nan])


def real(low, high, edges=EDGES):
    return np.concatenate([RNG.uniform(low, high, 24), edges])


def scale(low, high, edges=POSITIVE_EDGES):
    return np.concatenate([10 ** RNG.uniform(low, high, 24), edges])


NONE = np.zeros(0)
#: Arguments, and the relative error that is allowed.
ONE = {
    "gammaln": (real(-5, 200), 1e-13),
    "gammasgn": (real(-6, 6), 0),
    "gamma": (real(-5, 100), 1e-12),
    "factorial": (real(0, 100), 1e-12),
    "digamma": (real(-5, 50, POSITIVE_EDGES[1:]), 1e-12),
    "erf": (real(-3, 3), 1e-15),
    "erfc": (real(-3, 20), 1e-13),
    "erfinv": (real(-1, 1), 1e-14),
    "erfcx": (scale(-3, 20), 2e-15),
    "dawsn": (scale(-5, 100), 3e-15),
    "ndtr": (real(-30, 5), 1e-13),
    "ndtri": (scale(-300, -0.01), 3e-15),
    "log_ndtr": (np.concatenate([real(-40, 10), -scale(0, 6)]), 1e-13),
    "entr": (scale(-3, 3), 1e-15),
    "logit": (real(0, 1), 1e-14),
    "expit": (real(-40, 40), 1e-15),
    "i0": (real(-30, 30), 1e-14),
    "i0e": (scale(-3, 5), 2e-15),
    "i1": (real(-30, 30), 1e-14),
    "i1e": (-scale(-3, 5), 2e-15),
    "exp1": (scale(-3, 2.5), 2e-15),
    "expi": (real(-50, 100, np.asarray([0.0, INF])), 3e-14),
    "spence": (scale(-5, 5), 5e-15),
    "sici": (real(-30, 30), 1e-13),
    "fresnel": (real(-8, 8), 1e-14),
}
TWO = {
    "betaln": (scale(-2, 2, NONE), scale(-2, 2, NONE), 1e-12),
    "beta": (scale(-2, 1, NONE), scale(-2, 1, NONE), 1e-13),
    "comb": (RNG.uniform(0, 50, 24), RNG.uniform(0, 20, 24), 1e-12),
    "poch": (scale(-2, 1, NONE), RNG.uniform(0, 5, 24), 1e-13),
    "gammainc": (scale(-2, 3, NONE), scale(-2, 3, NONE), 1e-11),
    "gammaincc": (np.repeat([0.5, 3.0, 90.0], 8), np.tile([0.1, 1, 2, 4, 10, 40, 90, 120], 3), 1e-12),
    "zeta": (RNG.uniform(1.01, 20, 24), scale(-2, 2, NONE), 2e-15),
    "xlogy": (real(0, 3), real(0, 3), 1e-15),
    "xlog1py": (real(0, 3), real(0, 3), 1e-15),
    "rel_entr": (scale(-3, 3, POSITIVE_EDGES[:4]), scale(-3, 3, POSITIVE_EDGES[3::-1]), 1e-12),
    "kl_div": (scale(-3, 3, NONE), scale(-3, 3, NONE), 1e-11),
    "boxcox": (scale(-3, 3, NONE), RNG.uniform(-2, 2, 24), 1e-14),
    "boxcox1p": (scale(-3, 3, NONE), RNG.uniform(-2, 2, 24), 1e-14),
    "owens_t": (RNG.uniform(-4, 4, 24), RNG.uniform(-4, 4, 24), 1e-11),
    "expn": (np.arange(24) % 6, np.repeat([0.0, 0.1, 0.9, 1.1, 5.0, 100.0], 4), 3e-14),
}


def agree(found, expected, rtol, message=""):
    found = found if isinstance(found, tuple) else (found,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=rtol, atol=1e-290, err_msg=message)


@pytest.mark.quick("exp1")
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_argument(name):
    x, rtol = ONE[name]
    single = np.asarray([0.25, 0.75, 1.5], "float32")
    double, found = tvmfun.jit(lambda *xs: [getattr(special, name)(x) for x in xs])(x, single)
    with np.errstate(all="ignore"):
        agree(double, getattr(scipy.special, name)(x), rtol)
    for value in found if isinstance(found, tuple) else (found,):
        assert str(value.dtype) == "float32"
    agree(found, getattr(scipy.special, name)(single), 3e-6)


@pytest.mark.quick("kl_div", "xlogy", "boxcox")
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_arguments(name):
    x, y, rtol = TWO[name]
    with np.errstate(all="ignore"):
        agree(tvmfun.jit(getattr(special, name))(x, y), getattr(scipy.special, name)(x, y), rtol)


@pytest.mark.slow
def test_incomplete_beta():
    a, b, x = 10 ** RNG.uniform(-1, 2, 30), 10 ** RNG.uniform(-1, 2, 30), RNG.uniform(0, 1, 30)
    agree(special.betainc(a, b, x), scipy.special.betainc(a, b, x), 1e-11)
    edges = [(0.0, 2.0, 0.5), (2.0, 0.0, 0.5), (1.0, 2.0, 0.0), (1.0, 2.0, 1.0), (1.0, 2.0, -0.1), (1.0, 2.0, 1.1)]
    a, b, x = np.asarray(edges).T
    agree(special.betainc(a, b, x), scipy.special.betainc(a, b, x), 0)


def test_incomplete_gamma_at_special_points():
    a, x = np.asarray([(0, 1), (0, 0), (1, 0), (1, INF), (-1, 1), (1, -1), (INF, 1), (2, np.nan)], float).T
    agree(special.gammainc(a, x), scipy.special.gammainc(a, x), 0)
    agree(special.gammaincc(a, x), scipy.special.gammaincc(a, x), 0)


@pytest.mark.quick("1.0-2.0-0.0", "-2.0-1.5-4.0", "2.0-3.0--20.0", "1.5-0.5-150.0")
@pytest.mark.parametrize(
    ("a", "b", "x"),
    [(0.5, 1.5, 3.0), (2.0, 3.0, -20.0), (1.0, 2.0, 0.0), (0.0, 1.0, 2.0), (2.0, 2.0, 1.0), (-2.0, 1.5, 4.0),
     (1.5, 0.5, 150.0)],
)  # fmt: skip
def test_confluent_hypergeometric_function(a, b, x):
    np.testing.assert_allclose(
        np.asarray(special.hyp1f1(*map(np.float64, (a, b, x)))), scipy.special.hyp1f1(a, b, x), rtol=1e-11
    )


@pytest.mark.quick("args2", "args5", "args7")
@pytest.mark.parametrize(
    "args",
    [(0.5, 1.5, 2.5, 0.3), (1.0, 1.0, 2.0, 0.5), (0.5, 0.7, 1.9, 0.95), (0.5, 1.5, 2.5, -3.0), (-2.0, 3.0, 1.5, 0.6),
     (0.5, 0.5, 2.0, 1.0), (1.0, 2.0, 4.0, 0.9), (0.0, 1.0, 2.0, 0.3)],
)  # fmt: skip
def test_hypergeometric_function(args):
    np.testing.assert_allclose(
        np.asarray(special.hyp2f1(*map(np.float64, args))), scipy.special.hyp2f1(*args), rtol=1e-10
    )


def test_bessel_functions_of_many_orders():
    z = np.asarray([0.0, 0.5, -3.0, 10.0])
    expected = scipy.special.jv(np.arange(4)[:, None], z)
    np.testing.assert_allclose(np.asarray(special.bessel_jn(z, v=3)), expected, rtol=1e-10, atol=1e-14)


def test_numbers_and_multivariate_gamma():
    np.testing.assert_allclose(special.bernoulli(50), scipy.special.bernoulli(50), rtol=1e-6)
    np.testing.assert_allclose(
        special.multigammaln(np.asarray([3.5, 9.0]), 3), scipy.special.multigammaln([3.5, 9.0], 3)
    )
    np.testing.assert_allclose(special.loggamma(np.float64(2.5)), scipy.special.loggamma(2.5))


def test_polygamma_of_arrays():
    n, x = np.repeat(np.arange(5), 4), np.tile([0.1, 1.0, 2.3, 100.0], 5)
    agree(special.polygamma(n, x), scipy.special.polygamma(n, x), 1e-12)
    agree(lax.polygamma(2, x), scipy.special.polygamma(2, x), 1e-12)


X = np.asarray([[1000.0, -1000.0, 2.0], [-INF, -INF, -INF], [0.5, INF, 1.0]])
FACTORS = np.asarray([[1.0, 2.0, 0.0], [1.0, 1.0, 1.0], [-1.0, 0.0, 3.0]])


@pytest.mark.slow
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp(axis, keepdims):
    with jax.enable_x64(True):
        for kwargs in ({}, {"b": FACTORS, "return_sign": True}, {"where": X != INF}):
            kwargs = {"axis": axis, "keepdims": keepdims} | kwargs
            agree(
                special.logsumexp(X, **kwargs),
                jax.tree.map(np.asarray, jax.scipy.special.logsumexp(X, **kwargs)),
                1e-14,
            )
    soft, log_soft = special.softmax(X[:1], axis=axis), special.log_softmax(X[:1], axis=axis)
    agree((soft, log_soft), (scipy.special.softmax(X[:1], axis), scipy.special.log_softmax(X[:1], axis)), 1e-14)


SMOOTH = {
    "gamma": (1.7,), "betaln": (1.2, 2.3), "beta": (1.2, 2.3), "comb": (5.5, 2.2), "poch": (1.5, 2.5), "erfcx": (0.7,),
    "dawsn": (0.7,), "ndtr": (0.3,), "ndtri": (0.3,), "log_ndtr": (-2.0,), "owens_t": (0.5, 0.7), "xlogy": (1.2, 0.7),
    "xlog1py": (1.2, 0.7), "entr": (0.7,), "rel_entr": (0.7, 1.3), "kl_div": (0.7, 1.3), "logit": (0.3,),
    "boxcox": (1.5, 0.7), "boxcox1p": (1.5, 0.7), "i0": (1.5,), "i0e": (1.5,), "i1": (1.5,), "i1e": (1.5,),
    "exp1": (0.8,), "expi": (1.5,), "spence": (0.7,), "sici": (1.5,), "fresnel": (0.8,), "zeta": (2.5, 1.5),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_to_order_two(name):
    derivatives.check(getattr(special, name), SMOOTH[name], tolerance=1e-5)


@pytest.mark.slow
def test_derivatives_of_incomplete_functions():
    # Their loops have hundreds of steps.
    check = functools.partial(derivatives.check, compiled=True)
    check(special.gammainc, (1.5, 2.5), order=1)
    check(special.gammainc, (3.5, 0.5), order=1)
    check(special.betainc, (1.5, 2.5, 0.3), order=1)
    check(lambda x: special.gammainc(1.5, x), (2.5,))
    check(lambda x: special.betainc(1.5, 2.5, x), (0.3,))
    check(lambda x: special.expn(np.float64(3), x), (1.5,))
    check(special.hyp1f1, (1.5, 2.5, 0.7), order=1)
    check(special.hyp2f1, (0.5, 1.5, 2.5, 0.3), order=1)
    check(lambda z: special.bessel_jn(z, v=2), (1.5,))
    with pytest.raises(GradientError, match=r"^\[igamma_grad_a\] there is no derivative by a"):
        tvmfun.grad(tvmfun.grad(lambda a: special.gammainc(a, 1.0)))(2.0)


@pytest.mark.slow
def test_gradients_at_the_edge_are_those_of_jax():
    edge = {"xlogy": (0.0, 1.0), "entr": (1.0,), "i1e": (0.0,), "log_ndtr": (-30.0,), "sici": (0.0,)}
    first = lambda f, *a: f(*a)[0] if isinstance(f(*a), tuple) else f(*a)
    for name, args in edge.items():
        with jax.enable_x64(True):
            wanted = jax.grad(lambda x, f=name, a=args: first(getattr(jax.scipy.special, f), x, *a[1:]))(args[0])
        found = tvmfun.grad(lambda x, f=name, a=args: first(getattr(special, f), x, *a[1:]))(np.float64(args[0]))
        np.testing.assert_allclose(float(found), float(wanted), rtol=1e-8, err_msg=name)


@pytest.mark.slow
def test_batches_half_precision_and_empty_arrays():
    x = np.asarray([0.5, 1.5, 2.5])
    many = lambda f: (tvmfun.vmap(f)(x), f(x))
    for name in ("gammainc", "expn"):
        one, other = many(lambda x, f=name: getattr(special, f)(2.0, x))
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-12)
    for name in ("i0e", "gamma", "ndtri", "spence", "expi"):
        half = getattr(special, name)(tnp.asarray([0.25, 0.5], "bfloat16"))
        assert str(half.dtype) == "bfloat16"
        assert getattr(special, name)(np.zeros((0, 2))).shape == (0, 2)
    assert special.gammainc(np.zeros((0,)), 1.0).shape == (0,)


def test_the_least_numbers():
    p = np.array([1e-45, 1e-40, 1e-38, 1e-30], "float32")
    np.testing.assert_allclose(special.ndtri(p), scipy.special.ndtri(p.astype("float64")), rtol=1e-6)
    assert not np.signbit(special.entr(np.float32(0)))


def test_names_of_jax_that_are_missing_are_listed():
    names = {name for name in dir(jax.scipy.special) if not name.startswith("_")}
    assert names - set(special.__all__) <= {"sph_harm_y", "wofz"}
    assert "``wofz``" in special.__doc__ and "``sph_harm_y``" in special.__doc__


def test_errors():
    with pytest.raises(ArgumentError, match=r"^\[factorial\] there is no exact factorial"):
        special.factorial(3, exact=True)
    with pytest.raises(ArgumentError, match=r"^\[bessel_jn\] 0 <= v < n_iter"):
        special.bessel_jn(1.0, v=-1)
    with pytest.raises(DtypeError, match=r"^\[polygamma\] the order must be an integer"):
        special.polygamma(1.5, 2.0)
    with pytest.raises(ArgumentError, match=r"^\[bernoulli\] n must be an integer"):
        special.bernoulli(-1)
    with pytest.raises(ShapeError, match=r"^\[softmax\] .* has no such axis"):
        special.softmax(X, axis=5)


def test_erfc_is_exact_far_out():
    # SciPy's loses three digits there; Python's does not.
    x = np.linspace(-6, 26, 501)
    np.testing.assert_allclose(special.erfc(x), [math.erfc(value) for value in x], rtol=1e-15)


def test_erfinv_in_double_precision():
    """Within a few units of SciPy's, on both sides of where one formula takes over from the other."""
    x = np.concatenate([np.linspace(-0.9999, 0.9999, 4001), np.linspace(0.49, 0.54, 501), 10.0 ** -np.arange(1, 300)])
    np.testing.assert_allclose(special.erfinv(x), scipy.special.erfinv(x), rtol=9e-16)
    np.testing.assert_array_equal(special.erfinv(-x), -np.asarray(special.erfinv(x)))


# XLA's formula in single precision loses some digits there, but normal numbers have to be JAX's.
@pytest.mark.parametrize(("dtype", "digits", "bound"), [("float32", 7, 8e-6), ("float64", 15, 5e-16)])
def test_erfinv_close_to_1(dtype, digits, bound):
    """Where the error function itself is 1 already, up to the last number below 1."""
    distances = 10.0 ** -np.arange(1, digits + 1)
    x = np.concatenate([1 - distances, distances - 1, [np.nextafter(1, 0, dtype=dtype)]]).astype(dtype)
    exact = scipy.special.erfinv(x.astype("float64"))
    np.testing.assert_allclose(special.erfinv(x), exact, rtol=bound)
