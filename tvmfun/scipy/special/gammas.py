"""The gamma function and its relatives."""

from __future__ import annotations

import math

import numpy as np

from tvmfun import dtypes, lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.lax.gamma_quotients import log_beta, log_binomial_coefficient, log_gamma_ratio
from tvmfun.lax.special import BERNOULLI, in_full_precision
from tvmfun.lax.staging import compiled, with_partials
from tvmfun.typing import ArrayLike


def gammaln(x: ArrayLike) -> Array:
    r"""Returns :math:`\ln |\Gamma(x)|`, elementwise.

    >>> round(float(gammaln(4.0)), 5)
    1.79176
    """
    return lax.lgamma(x)


def _gammasgn(x: Array) -> Array:
    floor = tnp.floor(x)
    is_odd = tnp.logical_and(x < 0, floor % 2 != 0)
    sign = tnp.where(tnp.logical_or(is_odd, tnp.logical_and(x == 0, tnp.signbit(x))), -1.0, tnp.ones_like(x))
    is_pole = tnp.logical_and(x < 0, floor == x)
    return tnp.where(tnp.logical_or(is_pole, tnp.isnan(x)), math.nan, sign)


_GAMMASGN = compiled()(_gammasgn)


def gammasgn(x: ArrayLike) -> Array:
    r"""Returns the sign of :math:`\Gamma(x)`, NaN at its poles below 0, elementwise.

    >>> float(gammasgn(-0.5))
    -1.0
    """
    return in_full_precision("gammasgn", _GAMMASGN, x)


_LOGGAMMA = compiled()(lambda x: tnp.where(x < 0, math.nan, lax.lgamma(x)))


def loggamma(x: ArrayLike) -> Array:
    r"""Returns the principal value of :math:`\ln \Gamma(x)`, NaN below 0, where it is not real, elementwise.

    >>> round(float(loggamma(4.0)), 5)
    1.79176
    """
    return in_full_precision("loggamma", _LOGGAMMA, x)


_GAMMA = compiled()(lambda x: _gammasgn(x) * tnp.exp(lax.lgamma(x)))


def gamma(x: ArrayLike) -> Array:
    r"""Returns :math:`\Gamma(x) = \int_0^\infty t^{x-1} e^{-t} dt`, elementwise.

    >>> round(float(gamma(5.0)), 3)
    24.0
    """
    return in_full_precision("gamma", _GAMMA, x)


def _betaln(a: Array, b: Array) -> Array:
    is_plain = tnp.logical_and(tnp.minimum(a, b) <= 0, a + b < 8)
    plain = lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(a + b)
    return tnp.where(is_plain, plain, log_beta(tnp.where(is_plain, 1.0, a), tnp.where(is_plain, 1.0, b)))


_BETALN = compiled()(_betaln)


def betaln(a: ArrayLike, b: ArrayLike) -> Array:
    r"""Returns :math:`\ln |B(a, b)|`, elementwise.

    >>> round(float(betaln(2.0, 3.0)), 5)
    -2.48491
    """
    return in_full_precision("betaln", _BETALN, a, b)


def _beta(a: Array, b: Array) -> Array:
    sign = _gammasgn(a) * _gammasgn(b) * _gammasgn(a + b)
    return sign * tnp.exp(_BETALN(a, b))


_BETA = compiled()(_beta)


def beta(a: ArrayLike, b: ArrayLike) -> Array:
    r"""Returns :math:`B(a, b) = \Gamma(a) \Gamma(b) / \Gamma(a + b)`, elementwise.

    >>> round(float(beta(2.0, 3.0)), 5)
    0.08333
    """
    return in_full_precision("beta", _BETA, a, b)


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Returns the regularized incomplete beta function, :func:`tvmfun.lax.betainc`.

    >>> round(float(betainc(2.0, 3.0, 0.5)), 4)
    0.6875
    """
    return lax.betainc(a, b, x)


def gammainc(a: ArrayLike, x: ArrayLike) -> Array:
    """Returns the regularized lower incomplete gamma function, :func:`tvmfun.lax.igamma`.

    >>> round(float(gammainc(1.0, 2.0)), 5)
    0.86466
    """
    return lax.igamma(a, x)


def gammaincc(a: ArrayLike, x: ArrayLike) -> Array:
    """Returns the regularized upper incomplete gamma function, :func:`tvmfun.lax.igammac`.

    >>> round(float(gammaincc(1.0, 2.0)), 5)
    0.13534
    """
    return lax.igammac(a, x)


def digamma(x: ArrayLike) -> Array:
    r"""Returns :math:`\frac{d}{dx} \ln \Gamma(x)`, elementwise.

    >>> round(float(digamma(1.0)), 5)
    -0.57722
    """
    return lax.digamma(x)


def polygamma(n: ArrayLike, x: ArrayLike) -> Array:
    """Returns the derivative of order ``n``, an integer or an array of integers, of :func:`digamma`, elementwise.

    Raises:
        DtypeError: if the orders are not integers.

    >>> round(float(polygamma(1, 1.0)), 5)
    1.64493
    """
    if not dtypes.is_integer(abstract(n, "polygamma").dtype):
        raise DtypeError("polygamma", "the order must be an integer", got=repr(abstract(n)))
    return lax.polygamma(n, x)


def zeta(x: ArrayLike, q: ArrayLike = 1.0) -> Array:
    r"""Returns :math:`\sum_{k=0}^\infty (q + k)^{-x}`, Riemann's zeta function for ``q = 1``, elementwise.

    >>> round(float(zeta(2.0)), 5)
    1.64493
    """
    return lax.zeta(x, q)


_FACTORIAL = compiled()(lambda n: tnp.where(n < 0, 0.0, tnp.exp(lax.lgamma(n + 1))))


def factorial(n: ArrayLike, exact: bool = False) -> Array:
    """Returns :math:`n!`, 0 for negative numbers, elementwise.

    Args:
        n: numbers.
        exact: only False, as in JAX: the result is made of floats.

    Raises:
        ArgumentError: for ``exact=True``.

    >>> round(float(factorial(5.0)), 3)
    120.0
    """
    if exact:
        raise ArgumentError("factorial", "there is no exact factorial", got="exact=True", hint="math.factorial")
    return in_full_precision("factorial", _FACTORIAL, n)


def _comb(n: Array, k: Array) -> Array:
    inside = tnp.logical_and(k <= n, tnp.logical_and(n >= 0, k >= 0))
    n, k = tnp.where(inside, n, 0.0), tnp.where(inside, k, 0.0)
    return tnp.where(inside, tnp.exp(log_binomial_coefficient(k, n - k)), 0.0)


_COMB = compiled()(_comb)
_COMB_REPEATED = compiled()(lambda n, k: tnp.where(tnp.logical_and(k == 0, n >= 0), 1.0, _comb(n + k - 1, k)))


def comb(N: ArrayLike, k: ArrayLike, *, repetition: bool = False) -> Array:
    """Returns how many ways there are to choose ``k`` of ``N`` things, elementwise.

    Args:
        N: numbers of things.
        k: numbers of choices.
        repetition: whether a thing may be chosen more than once.

    >>> round(float(comb(5.0, 2.0)), 3)
    10.0
    """
    return in_full_precision("comb", _COMB_REPEATED if repetition else _COMB, N, k)


def _poch(z: Array, m: Array) -> Array:
    is_positive = tnp.logical_and(z > 0, z + m > 0)
    ratio = tnp.exp(log_gamma_ratio(tnp.where(is_positive, z, 1.0), tnp.where(is_positive, m, 0.0)))
    return tnp.where(m == 0, 1.0, tnp.where(is_positive, ratio, _GAMMA(z + m) / _GAMMA(z)))


_POCH = compiled()(
    with_partials(
        _poch,
        (
            lambda o, z, m: (lax.digamma(z + m) - lax.digamma(z)) * _POCH(z, m),
            lambda o, z, m: lax.digamma(z + m) * _POCH(z, m),
        ),
    )
)


def poch(z: ArrayLike, m: ArrayLike) -> Array:
    r"""Returns Pochhammer's symbol :math:`\Gamma(z + m) / \Gamma(z)`, elementwise.

    >>> round(float(poch(2.0, 3.0)), 3)
    24.0
    """
    return in_full_precision("poch", _POCH, z, m)


def multigammaln(a: ArrayLike, d: int) -> Array:
    r"""Returns the logarithm of the multivariate gamma function of dimension ``d``, elementwise.

    It is :math:`\frac{d (d-1)}{4} \ln \pi + \sum_{j=0}^{d-1} \ln \Gamma(a - j/2)`.

    Raises:
        ArgumentError: if ``d`` is not a positive integer.

    >>> round(float(multigammaln(3.0, 2)), 5)
    1.55019
    """
    if not hasattr(d, "__index__") or int(d) < 1:
        raise ArgumentError("multigammaln", "d must be a positive integer", got=repr(d))
    constant = int(d) * (int(d) - 1) / 4 * math.log(math.pi)
    value = lambda a: sum((lax.lgamma(a - j / 2) for j in range(1, int(d))), constant + lax.lgamma(a))
    return in_full_precision("multigammaln", value, a)


def bernoulli(n: int) -> Array:
    """Returns the Bernoulli numbers from 0 to ``n``, a vector float32.

    Raises:
        ArgumentError: if ``n`` is not an integer, or is negative.

    >>> bernoulli(2).tolist()[:2]
    [1.0, -0.5]
    """
    if not hasattr(n, "__index__") or int(n) < 0:
        raise ArgumentError("bernoulli", "n must be an integer that is not negative", got=repr(n))
    return tnp.asarray(np.asarray([_bernoulli(k) for k in range(int(n) + 1)], np.float64).astype("float32"))


def _bernoulli(k: int) -> float:
    if k < len(BERNOULLI):
        return float(BERNOULLI[k])
    if k % 2 or k > 250:
        return 0.0 if k % 2 else math.copysign(math.inf, 1 if k % 4 else -1)
    # The zeta function at k is 1 here.
    return (2 if k % 4 else -2) * math.exp(math.lgamma(k + 1) - k * math.log(2 * math.pi))
