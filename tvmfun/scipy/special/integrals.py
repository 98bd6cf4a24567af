"""Exponential, trigonometric and Fresnel integrals, and the dilogarithm."""

from __future__ import annotations

import math

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.special import BERNOULLI, in_full_precision, until_converged
from tvmfun.lax.staging import compiled, with_partials
from tvmfun.scipy.special import tables
from tvmfun.scipy.special.chebyshev import on_half_line, polynomial
from tvmfun.typing import ArrayLike

_GAMMA = 0.5772156649015329  # Euler's constant


def _exp1(x: Array) -> Array:
    small, large = tnp.clip(x, 0.0, 1.0), tnp.maximum(x, 1.0)
    series = polynomial(small, [0.0, *((-1) ** (k + 1) / (k * math.factorial(k)) for k in range(1, 21))])
    near = series - _GAMMA - tnp.log(tnp.where(x > 0, small, 1.0))
    far = tnp.exp(-large) / large * on_half_line(large, 1.0, 3.0, tables.E1)
    value = tnp.where(x == 0, math.inf, tnp.where(x <= 1, near, far))
    return tnp.where(x < 0, math.nan, tnp.where(tnp.isnan(x), x, value))


_EXP1 = compiled()(with_partials(_exp1, (lambda o, x: -tnp.exp(-x) / x,)))


def exp1(x: ArrayLike) -> Array:
    r"""Returns :math:`E_1(x) = \int_x^\infty \frac{e^{-t}}{t} dt`, NaN below 0, elementwise.

    >>> round(float(exp1(1.0)), 5)
    0.21938
    """
    return in_full_precision("exp1", _EXP1, x)


def _expi(x: Array) -> Array:
    near = tnp.logical_and(x > 0, x <= 40)
    y = tnp.where(near, x, 0.0)
    eps = float(tnp.finfo(x.dtype).eps)

    def step(k: Array, state: tuple) -> tuple:
        power, total = state
        power = power * (y / k)
        return power, total + power / k

    done = lambda old, new: tnp.logical_and(new[1] - old[1] <= eps * new[1], new[0] <= 1)
    total = until_converged(step, (tnp.ones_like(y), tnp.zeros_like(y)), done)[1]
    series = total + _GAMMA + tnp.log(tnp.where(near, x, 1.0))
    large = tnp.maximum(x, 40.0)
    # The terms k! / x^k of the asymptotic series fall until k reaches x.
    factor = tnp.ones_like(large)
    for k in range(39, 0, -1):
        factor = 1 + k / large * factor
    far = tnp.where(tnp.isinf(x), math.inf, tnp.exp(large) / large * factor)
    value = tnp.where(x <= 40, series, far)
    value = tnp.where(x < 0, -_exp1(tnp.abs(x)), tnp.where(x == 0, -math.inf, value))
    return tnp.where(tnp.isnan(x), x, value)


_EXPI = compiled()(with_partials(_expi, (lambda o, x: tnp.exp(x) / x,)))


def expi(x: ArrayLike) -> Array:
    r"""Returns the principal value of :math:`\operatorname{Ei}(x) = \int_{-\infty}^x \frac{e^t}{t} dt`, elementwise.

    >>> round(float(expi(1.0)), 5)
    1.89512
    """
    return in_full_precision("expi", _EXPI, x)


def _expn(n: Array, x: Array) -> Array:
    inside = tnp.logical_and(tnp.logical_and(n >= 1, x > 0), tnp.isfinite(x))
    by_series = tnp.logical_and(inside, x <= 1)
    by_fraction = tnp.logical_and(inside, x > 1)
    # The power series, in which one term is a logarithm.
    order, small = tnp.where(by_series, n, 1.0), tnp.where(by_series, x, 0.5)
    power, total = tnp.ones_like(small), tnp.zeros_like(small)
    for m in range(21):
        gap = order - (m + 1)
        total = total + power / tnp.where(gap == 0, math.inf, gap)
        power = power * (-small / (m + 1))
    sign = tnp.where(order % 2 == 0, -1.0, 1.0)
    log_term = tnp.exp((order - 1) * tnp.log(small) - lax.lgamma(order))
    series = total + sign * log_term * (lax.digamma(order) - tnp.log(small))
    # The continued fraction, by Lentz's algorithm.
    order, large = tnp.where(by_fraction, n, 1.0), tnp.where(by_fraction, x, 2.0)
    eps = float(tnp.finfo(x.dtype).eps)

    def step(k: Array, state: tuple) -> tuple:
        c, d, value = state
        numerator, denominator = -k * (order + (k - 1)), large + (order + 2 * k)
        d = 1 / (denominator + numerator * d)
        c = denominator + numerator / c
        return c, d, value * (c * d)

    first = large + order
    done = lambda old, new: tnp.abs(new[2] - old[2]) <= eps * new[2]
    # A first level without a numerator makes C infinite, which is right for the second.
    start = (tnp.full_like(first, math.inf), 1 / first, 1 / first)
    fraction = tnp.exp(-large) * until_converged(step, start, done)[2]
    value = tnp.where(by_series, series, fraction)
    value = tnp.where(x == 0, tnp.where(n > 1, 1 / tnp.where(n > 1, n - 1, 1.0), math.inf), value)
    value = tnp.where(tnp.isinf(x), 0.0, value)
    value = tnp.where(tnp.logical_and(n == 0, x > 0), tnp.exp(-x) / tnp.where(x == 0, 1.0, x), value)
    known = tnp.logical_and(tnp.logical_and(n >= 0, x >= 0), tnp.floor(n) == n)
    return tnp.where(known, value, math.nan)


def _expn_slope(o: Array, n: Array, x: Array) -> Array:
    return tnp.where(n == 0, -tnp.exp(-x) * (x + 1) / (x * x), -_EXPN(tnp.maximum(n - 1, 0.0), x))


_EXPN = compiled()(with_partials(_expn, (None, _expn_slope)))


def expn(n: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns :math:`E_n(x) = \int_1^\infty \frac{e^{-xt}}{t^n} dt`, NaN below 0, elementwise.

    Args:
        n: the orders, integers from 0, by which the derivative counts as 0.
        x: floats; by them it is differentiable.

    Source: https://dlmf.nist.gov/8.19.

    >>> round(float(expn(2, 1.0)), 5)
    0.1485
    """
    return in_full_precision("expn", _EXPN, n, x)


def _auxiliary(large: Array) -> tuple[Array, Array]:
    """The auxiliary functions f and g of the sine and cosine integrals (https://dlmf.nist.gov/6.2.iii)."""
    f = on_half_line(large, 4.0, 9.0, tables.SICI_F) / large
    return f, on_half_line(large, 4.0, 9.0, tables.SICI_G) / (large * large)


def _si(x: Array) -> Array:
    size = tnp.abs(x)
    small, large = tnp.minimum(size, 4.0), tnp.maximum(size, 4.0)
    terms = [(-1) ** k / ((2 * k + 1) * math.factorial(2 * k + 1)) for k in range(16)]
    near = small * polynomial(small * small, terms)
    f, g = _auxiliary(large)
    far = math.pi / 2 - f * tnp.cos(large) - g * tnp.sin(large)
    value = tnp.where(size <= 4, near, tnp.where(tnp.isinf(size), math.pi / 2, far))
    return tnp.where(tnp.isnan(x), x, tnp.where(tnp.signbit(x), -value, value))


def _ci(x: Array) -> Array:
    x = tnp.abs(x)  # the real part on the other side of the cut
    small, large = tnp.minimum(x, 4.0), tnp.maximum(x, 4.0)
    terms = [0.0, *((-1) ** k / (2 * k * math.factorial(2 * k)) for k in range(1, 17))]
    near = polynomial(small * small, terms) + _GAMMA + tnp.log(small)
    f, g = _auxiliary(large)
    far = f * tnp.sin(large) - g * tnp.cos(large)
    value = tnp.where(x <= 4, near, tnp.where(tnp.isinf(x), 0.0, far))
    return tnp.where(tnp.isnan(x), x, value)


_SI = compiled()(with_partials(_si, (lambda o, x: tnp.sinc(x / math.pi),)))
_CI = compiled()(with_partials(_ci, (lambda o, x: tnp.cos(x) / x,)))


def sici(x: ArrayLike) -> tuple[Array, Array]:
    r"""Returns the sine and cosine integrals :math:`\int_0^x \frac{\sin t}{t} dt, -\int_x^\infty \frac{\cos t}{t} dt`.

    The second is that of the absolute value.

    >>> [round(float(value), 5) for value in sici(1.0)]
    [0.94608, 0.3374]
    """
    return in_full_precision("sici", _SI, x), in_full_precision("sici", _CI, x)


def _fresnel(x: Array, cosine: bool) -> Array:
    size = tnp.abs(x)
    small, large = tnp.minimum(size, 1.6), tnp.maximum(size, 1.6)
    angle = math.pi / 2 * (small * small)
    terms = []
    for k in range(16):
        n = 2 * k + (0 if cosine else 1)
        terms.append((-1) ** k / (math.factorial(n) * (2 * n + 1)))
    near = polynomial(angle * angle, terms) * (small if cosine else small * angle)
    f = on_half_line(large, 1.6, 2.0, tables.FRESNEL_F) / (math.pi * large)
    g = on_half_line(large, 1.6, 3.0, tables.FRESNEL_G) / (math.pi * math.pi * large * large * large)
    # Half turns are left out: the square is exact to a multiple of 4 with its rounding error.
    turn = math.pi / 2 * lax.rem(large * large, tnp.full_like(large, 4.0))
    sine, cos = tnp.sin(turn), tnp.cos(turn)
    far = 0.5 + (f * sine - g * cos if cosine else -f * cos - g * sine)
    value = tnp.where(size <= 1.6, near, tnp.where(size > 1e8, 0.5, far))
    return tnp.where(tnp.isnan(x), x, tnp.where(tnp.signbit(x), -value, value))


_FRESNEL_S = compiled()(
    with_partials(lambda x: _fresnel(x, False), (lambda o, x: tnp.sin(math.pi / 2 * x * x),)),
)
_FRESNEL_C = compiled()(
    with_partials(lambda x: _fresnel(x, True), (lambda o, x: tnp.cos(math.pi / 2 * x * x),)),
)


def fresnel(x: ArrayLike) -> tuple[Array, Array]:
    r"""Returns :math:`\int_0^x \sin \frac{\pi t^2}{2} dt` and :math:`\int_0^x \cos \frac{\pi t^2}{2} dt`, elementwise.

    >>> [round(float(value), 5) for value in fresnel(1.0)]
    [0.43826, 0.77989]
    """
    return in_full_precision("fresnel", _FRESNEL_S, x), in_full_precision("fresnel", _FRESNEL_C, x)


def _debye(u: Array) -> Array:
    """The dilogarithm of ``1 - exp(-u)``, for ``u`` up to ``ln 2``."""
    odd = [float(BERNOULLI[n] / math.factorial(n + 1)) for n in range(0, 20, 2)]
    return u * (polynomial(u * u, odd) - u / 4)


def _spence(z: Array) -> Array:
    above = z > 1
    w = tnp.where(above, 1 / tnp.maximum(z, 1.0), tnp.maximum(z, 0.0))
    log = tnp.log(tnp.where(w > 0, tnp.clip(z, 1e-300 if z.dtype.itemsize == 8 else 1e-38, None), 1.0))
    size = tnp.abs(log)  # -ln w
    is_near = w >= 0.5
    reflected = math.pi**2 / 6 + size * tnp.log1p(-tnp.where(is_near, 0.0, w))
    reflected = reflected - _debye(-tnp.log1p(-tnp.where(is_near, 0.0, w)))
    value = tnp.where(is_near, _debye(tnp.where(is_near, size, 0.0)), reflected)
    value = tnp.where(above, -0.5 * log * log - value, value)
    unknown = tnp.logical_or(z < 0, tnp.isinf(z))
    return tnp.where(unknown, math.nan, tnp.where(tnp.isnan(z), z, value))


def _spence_slope(o: Array, z: Array) -> Array:
    is_one = z == 1
    return tnp.where(is_one, -1.0, tnp.log(z) / tnp.where(is_one, 1.0, 1 - z))


_SPENCE = compiled()(with_partials(_spence, (_spence_slope,)))


def spence(x: ArrayLike) -> Array:
    r"""Returns :math:`\int_1^x \frac{\ln t}{1 - t} dt`, the dilogarithm of :math:`1 - x`, NaN below 0, elementwise.

    >>> round(float(spence(0.0)), 5)
    1.64493
    """
    return in_full_precision("spence", _SPENCE, x)
