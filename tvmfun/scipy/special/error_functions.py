"""The error function and the normal distribution."""

from __future__ import annotations

import math

import numpy as np

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.special import in_full_precision
from tvmfun.lax.staging import compiled, with_partials
from tvmfun.scipy.special import tables
from tvmfun.scipy.special.chebyshev import chebyshev, on_half_line
from tvmfun.typing import ArrayLike

_ROOT_PI = math.sqrt(math.pi)
_ROOT_HALF = math.sqrt(0.5)
_ROOT_2PI = math.sqrt(2 * math.pi)


def erf(x: ArrayLike) -> Array:
    r"""Returns :math:`\frac{2}{\sqrt\pi} \int_0^x e^{-t^2} dt`, elementwise.

    >>> round(float(erf(1.0)), 5)
    0.8427
    """
    return lax.erf(x)


def erfc(x: ArrayLike) -> Array:
    """Returns ``1 - erf(x)``, accurate where that is small, elementwise.

    >>> round(float(erfc(1.0)), 5)
    0.1573
    """
    return lax.erfc(x)


def erfinv(x: ArrayLike) -> Array:
    """Returns the inverse of :func:`erf`, elementwise.

    >>> round(float(erfinv(0.5)), 5)
    0.47694
    """
    return lax.erf_inv(x)


def _erfcx(x: Array) -> Array:
    size = tnp.abs(x)
    value = on_half_line(size, 0.0, 3.0, tables.ERFCX) / (1 + _ROOT_PI * size)
    return tnp.where(x < 0, 2 * tnp.exp(x * x) - value, value)


_ERFCX = compiled()(with_partials(_erfcx, (lambda o, x: 2 * x * _ERFCX(x) - 2 / _ROOT_PI,)))


def erfcx(x: ArrayLike) -> Array:
    r"""Returns :math:`e^{x^2} \operatorname{erfc} x`, elementwise.

    >>> round(float(erfcx(1.0)), 5)
    0.42758
    """
    return in_full_precision("erfcx", _ERFCX, x)


def _dawsn(x: Array) -> Array:
    square = x * x
    small = chebyshev(tnp.minimum(square, 16.0) / 8 - 1, tables.DAWSN_SMALL)
    large = chebyshev(32 / tnp.maximum(square, 16.0) - 1, tables.DAWSN_LARGE)
    ratio = x / (1 + 2 * square)
    # Where the square overflows, the quotient is 1 / (2 x).
    ratio = tnp.where(tnp.abs(x) > 1e15, 0.5 / tnp.where(x == 0, 1.0, x), ratio)
    return tnp.where(square < 16.0, small, large) * ratio


_DAWSN = compiled()(with_partials(_dawsn, (lambda o, x: 1 - 2 * x * _DAWSN(x),)))


def dawsn(x: ArrayLike) -> Array:
    r"""Returns Dawson's integral :math:`e^{-x^2} \int_0^x e^{t^2} dt`, elementwise.

    >>> round(float(dawsn(1.0)), 5)
    0.53808
    """
    return in_full_precision("dawsn", _DAWSN, x)


_NDTR = compiled()(lambda x: 0.5 * lax.erfc(-_ROOT_HALF * x))


def ndtr(x: ArrayLike) -> Array:
    r"""Returns the standard normal distribution function :math:`\Phi(x)`, elementwise.

    >>> float(ndtr(0.0))
    0.5
    """
    return in_full_precision("ndtr", _NDTR, x)


def _ndtri(p: Array) -> Array:
    inside = tnp.logical_and(p > 0, p < 1)
    safe = tnp.where(inside, p, 0.5)
    tail = tnp.minimum(safe, 1 - safe)
    # Hastings' approximation (Abramowitz and Stegun 26.2.23), then Halley's steps, each of which triples the digits.
    r = tnp.sqrt(-2 * tnp.log(tail))
    x = (2.515517 + r * (0.802853 + r * 0.010328)) / (1 + r * (1.432788 + r * (0.189269 + r * 0.001308))) - r
    for _ in range(2):
        error = (_NDTR(x) - tail) / tnp.exp(-x * x / 2) * _ROOT_2PI
        x = x - error / (1 + x * error / 2)
    x = tnp.where(safe > 0.5, -x, x)
    center = math.sqrt(2) * lax.erf_inv(2 * safe - 1)
    x = tnp.where(tnp.abs(safe - 0.5) < 0.25, center, x)
    x = tnp.where(p == 0, -math.inf, tnp.where(p == 1, math.inf, x))
    return tnp.where(tnp.logical_and(p >= 0, p <= 1), x, math.nan)


_NDTRI = compiled()(with_partials(_ndtri, (lambda o, p: _ROOT_2PI * tnp.exp(tnp.square(_NDTRI(p)) / 2),)))


def ndtri(p: ArrayLike) -> Array:
    """Returns the inverse of :func:`ndtr`, elementwise.

    >>> round(float(ndtri(0.975)), 4)
    1.96
    """
    return in_full_precision("ndtri", _NDTRI, p)


def _log_ndtr(x: Array) -> Array:
    low = tnp.minimum(x, -1.0)
    low = tnp.log(_erfcx(-_ROOT_HALF * low) / 2) - low * low / 2
    return tnp.where(x < -1, low, tnp.log1p(-_NDTR(-tnp.maximum(x, -1.0))))


def _inverse_mills_ratio(o: Array, x: Array) -> Array:
    low, high = tnp.minimum(x, 0.0), tnp.maximum(x, 0.0)
    far = math.sqrt(2 / math.pi) / _ERFCX(-_ROOT_HALF * low)
    return tnp.where(x < 0, far, tnp.exp(-high * high / 2) / _ROOT_2PI / _NDTR(high))


_LOG_NDTR = compiled()(with_partials(_log_ndtr, (_inverse_mills_ratio,)))


def log_ndtr(x: ArrayLike, series_order: int = 3) -> Array:
    r"""Returns :math:`\ln \Phi(x)`, accurate in both tails, elementwise.

    Args:
        x: floats.
        series_order: has no effect: no series is cut off here.

    >>> round(float(log_ndtr(-100.0)), 2)
    -5005.52
    """
    return in_full_precision("log_ndtr", _LOG_NDTR, x)


# Gauss-Legendre quadrature on the interval from 0 to 1.
_NODES = (np.polynomial.legendre.leggauss(20)[0] + 1) / 2
_WEIGHTS = np.polynomial.legendre.leggauss(20)[1] / 2


def _owens_t(h: Array, a: Array) -> Array:
    h, size = tnp.abs(h), tnp.abs(a)
    is_small = size <= 1
    ratio = tnp.where(is_small, size, 1 / tnp.maximum(size, 1.0))
    height = tnp.where(is_small, h, tnp.where(h == 0, 0.0, h * size))
    total = tnp.zeros_like(h)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        r = 1 + (ratio * node) ** 2
        total = total + weight * tnp.exp(-0.5 * height * height * r) / r
    value = ratio * total / (2 * math.pi)
    value = tnp.where(height == 0, tnp.atan(ratio) / (2 * math.pi), value)
    # For a above 1 the other triangle is integrated: T(h, a) + T(a h, 1 / a) is a product of normal probabilities.
    p, q = lax.erfc(_ROOT_HALF * h), lax.erfc(_ROOT_HALF * height)
    value = tnp.where(is_small, value, 0.25 * (p + q - p * q) - value)
    return tnp.sign(a) * value


_OWENS_T = compiled()(
    with_partials(
        _owens_t,
        (
            lambda o, h, a: -tnp.exp(-h * h / 2) * lax.erf(a * h * _ROOT_HALF) / (2 * _ROOT_2PI),
            lambda o, h, a: tnp.exp(-(1 + a * a) * h * h / 2) / (2 * math.pi * (1 + a * a)),
        ),
    )
)


def owens_t(h: ArrayLike, a: ArrayLike) -> Array:
    r"""Returns Owen's :math:`T(h, a) = \frac{1}{2\pi} \int_0^a \frac{e^{-h^2 (1 + x^2) / 2}}{1 + x^2} dx`, elementwise.

    >>> round(float(owens_t(0.0, 1.0)), 4)
    0.125
    """
    return in_full_precision("owens_t", _OWENS_T, h, a)
