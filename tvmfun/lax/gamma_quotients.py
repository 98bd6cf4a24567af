r"""Logarithms of quotients of gamma functions, without differences of large numbers.

:math:`\ln \Gamma(a) + \ln \Gamma(b) - \ln \Gamma(a + b)` has no right digit where the terms are large and the sum is
not: in float32 for :math:`a = 3, b = 10^8`. So large arguments are inserted in Stirling's formula,

.. math:: \ln \Gamma(x) = (x - \tfrac12) \ln x - x + \tfrac12 \ln 2 \pi + \Delta(x),

whose large terms cancel before anything is computed. Arguments are arrays of one dtype, not negative.

Sources: DiDonato and Morris, "Algorithm 708" (1992); Loader, "Fast and accurate computation of binomial probabilities"
(2000).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax import elementwise

# From this argument on, the series of Stirling's formula has all digits of a float64.
_LARGE = 8.0
_STIRLING = [1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400, 43867 / 244188]
_EULER = 0.57721566490153286
# The largest argument for which the series of ln(1 + x) - x in x / (2 + x) is summed.
_NEAR_ONE = 0.5
# The largest argument for which the series of ln Gamma(1 + x) in x is summed.
_NEAR_ZERO = 0.25


def _zeta(s: int) -> float:
    """Riemann's zeta function, by the Euler-Maclaurin formula from term 100 on."""
    n = 100
    tail = n ** (1 - s) / (s - 1) + n**-s / 2 + s * n ** (-s - 1) / 12 - s * (s + 1) * (s + 2) * n ** (-s - 3) / 720
    return math.fsum([*(k**-s for k in range(1, n)), tail])


# The coefficients of x, x^2, ... in ln Gamma(1 + x).
_LGAMMA_AT_ONE = [-_EULER, *((-1) ** k * _zeta(k) / k for k in range(2, 27))]


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """The polynomial with these coefficients, the constant first; in float32 without the last ones."""
    is_double = x.dtype.itemsize > 4
    total = tnp.zeros_like(x)
    for coefficient in reversed(coefficients if is_double else coefficients[: (len(coefficients) + 1) // 2]):
        total = total * x + coefficient
    return total


def _in_order(a: Array, b: Array) -> tuple[Array, Array]:
    """The smaller and the larger number, elementwise.

    Functions that do not depend on the order have the right second derivatives also where both are the same: there a
    maximum would give half of each first derivative to either.
    """
    is_first = a <= b
    return tnp.where(is_first, a, b), tnp.where(is_first, b, a)


def _stirling_remainder(x: Array) -> Array:
    r""":math:`\Delta(x)` for large ``x``."""
    inverse = 1 / x
    return inverse * _polynomial(inverse * inverse, _STIRLING)


def _log_quotient(a: Array, b: Array) -> Array:
    """``log(a / b)``, also where the quotient is too large or too small for its type."""
    quotient = a / b
    is_normal = tnp.logical_and(quotient > float(tnp.finfo(a.dtype).tiny), quotient < math.inf)
    return tnp.where(is_normal, tnp.log(tnp.where(is_normal, quotient, 1.0)), tnp.log(a) - tnp.log(b))


def _log_minus(log: Array, x: Array) -> Array:
    r""":math:`\ln(1 + x) - x` of ``x`` and the logarithm, which has all digits where ``x`` is not near 0."""
    is_near = tnp.abs(x) < _NEAR_ONE
    near = tnp.where(is_near, x, 0.0)
    # ln(1 + x) = 2 artanh(r), of which 2 r - x = -x r.
    r = near / (2 + near)
    square = r * r
    series = r * (2 * square * _polynomial(square, [1 / k for k in range(3, 37, 2)]) - near)
    return tnp.where(is_near, series, log - x)


def lgamma1p(x: Array) -> Array:
    r""":math:`\ln \Gamma(1 + x)`, elementwise, with all digits also near 0."""
    is_near = tnp.abs(x) < _NEAR_ZERO
    near, far = tnp.where(is_near, x, 0.0), tnp.where(is_near, 1.0, x)
    return tnp.where(is_near, near * _polynomial(near, _LGAMMA_AT_ONE), elementwise.lgamma(1 + far))


def log_gamma_ratio(x: Array, step: Array) -> Array:
    r""":math:`\ln \Gamma(x + s) - \ln \Gamma(x)` for a step :math:`s` up or down to a positive number, elementwise.

    >>> round(float(log_gamma_ratio(tnp.asarray(1e8), tnp.asarray(0.5))), 5)
    9.21034
    """
    end = x + step
    is_large = tnp.logical_and(tnp.minimum(x, end) >= _LARGE, end < math.inf)
    y, s = tnp.where(is_large, x, _LARGE), tnp.where(is_large, step, 0.0)
    far = (y + s - 0.5) * tnp.log1p(s / y) - s + s * tnp.log(y)
    far = far + _stirling_remainder(y + s) - _stirling_remainder(y)
    x, end = tnp.where(is_large, 1.0, x), tnp.where(is_large, 1.0, end)
    return tnp.where(is_large, far, elementwise.lgamma(end) - elementwise.lgamma(x))


def log_beta(a: Array, b: Array) -> Array:
    r""":math:`\ln B(a, b) = \ln \Gamma(a) + \ln \Gamma(b) - \ln \Gamma(a + b)` of positive numbers, elementwise.

    >>> round(float(log_beta(tnp.asarray(3.0), tnp.asarray(1e8))), 4)
    -54.5689
    """
    small, large = _in_order(a, b)
    are_large = small >= _LARGE
    p, q = tnp.where(are_large, small, _LARGE), tnp.where(are_large, large, _LARGE)
    far = 0.5 * tnp.log(2 * math.pi * (1 / p + 1 / q)) - p * tnp.log1p(q / p) - q * tnp.log1p(p / q)
    far = far + _stirling_remainder(p) + _stirling_remainder(q) - _stirling_remainder(p + q)
    p, q = tnp.where(are_large, 1.0, small), tnp.where(are_large, 1.0, large)
    return tnp.where(are_large, far, elementwise.lgamma(p) - log_gamma_ratio(q, p))


def log_binomial_coefficient(k: Array, m: Array) -> Array:
    r""":math:`\ln(\Gamma(k + m + 1) / (\Gamma(k + 1) \Gamma(m + 1)))`, elementwise.

    >>> round(float(log_binomial_coefficient(tnp.asarray(2.0), tnp.asarray(3.0))), 5)
    2.30259
    """
    few, others = _in_order(k, m)
    return log_gamma_ratio(others + 1, few) - lgamma1p(few)


def log_poisson(k: Array, mean: Array) -> Array:
    r""":math:`\ln(\mu^k e^{-\mu} / \Gamma(k + 1))`, elementwise.

    >>> round(float(log_poisson(tnp.asarray(1e6), tnp.asarray(1e6))), 5)
    -7.82669
    """
    is_infinite = tnp.logical_or(k == math.inf, mean == math.inf)
    k, mean = tnp.where(is_infinite, 1.0, k), tnp.where(is_infinite, 1.0, mean)
    is_large = tnp.logical_and(k >= _LARGE, mean > 0)
    n, many = tnp.where(is_large, k, _LARGE), tnp.where(is_large, mean, _LARGE)
    far = n * _log_minus(_log_quotient(many, n), (many - n) / n)
    far = far - 0.5 * tnp.log(2 * math.pi * n) - _stirling_remainder(n)
    few, rare = tnp.where(is_large, 1.0, k), tnp.where(is_large, 1.0, mean)
    value = tnp.where(is_large, far, _times_log(few, rare) - rare - lgamma1p(few))
    return tnp.where(is_infinite, -math.inf, value)


def log_gamma_density(a: Array, x: Array) -> Array:
    r""":math:`\ln(x^{a - 1} e^{-x} / \Gamma(a))`, elementwise.

    >>> round(float(log_gamma_density(tnp.asarray(1e6), tnp.asarray(1e6))), 5)
    -7.82669
    """
    is_small, is_large = a < 1, tnp.logical_and(a >= _LARGE, tnp.logical_and(a < math.inf, x > 0))
    b, y = tnp.where(is_small, a, 1.0), tnp.where(is_small, x, 1.0)
    small = (b - 1) * tnp.log(y) - y - elementwise.lgamma(b)
    # From a large number, 1 cannot be subtracted.
    large = _log_quotient(*(tnp.where(is_large, value, 1.0) for value in (a, x)))
    k = tnp.where(is_small, 0.0, tnp.where(is_large, a, a - 1))
    return tnp.where(is_small, small, log_poisson(k, tnp.where(is_small, 1.0, x)) + large)


def log_binomial(k: Array, m: Array, p: Array) -> Array:
    r""":math:`\ln(\Gamma(k + m + 1) / (\Gamma(k + 1) \Gamma(m + 1)) \, p^k (1 - p)^m)`, elementwise.

    With integers, the probability of ``k`` successes and ``m`` failures. It is :math:`(a + b) / (a b)` times
    :math:`x^a (1 - x)^b / B(a, b)` at :math:`(a, b, x)`.

    >>> round(float(log_binomial(tnp.asarray(1e5), tnp.asarray(1e5), tnp.asarray(0.5))), 5)
    -6.32883
    """
    are_large = tnp.logical_and(tnp.minimum(k, m) >= _LARGE, tnp.logical_and(p > 0, p < 1))
    return tnp.where(are_large, _both_large(are_large, k, m, p), _one_small(are_large, k, m, p))


def log_beta_density(a: Array, b: Array, x: Array) -> Array:
    r""":math:`\ln(x^{a - 1} (1 - x)^{b - 1} / B(a, b))`, elementwise.

    >>> round(float(log_beta_density(tnp.asarray(2.0), tnp.asarray(1e6), tnp.asarray(1e-6))), 4)
    12.8155
    """
    are_large = tnp.logical_and(tnp.minimum(a, b) >= _LARGE, tnp.logical_and(x > 0, x < 1))
    k, m, y = (tnp.where(are_large, value, other) for value, other in ((a, _LARGE), (b, _LARGE), (x, 0.5)))
    large = log_binomial(k, m, y) + _log_quotient(k * (m / (k + m)), y * (1 - y))
    a, b, x = (tnp.where(are_large, other, value) for value, other in ((a, 1.0), (b, 1.0), (x, 0.5)))
    return tnp.where(are_large, large, _times_log(a - 1, x) + _times_log1p(b - 1, -x) - log_beta(a, b))


def _both_large(where: Array, k: Array, m: Array, p: Array) -> Array:
    """:func:`log_binomial` where both numbers are large: Loader's saddle-point expansion around the mean."""
    k, m, p = tnp.where(where, k, _LARGE), tnp.where(where, m, _LARGE), tnp.where(where, p, 0.5)
    above = m * p - k * (1 - p)
    trials = k + m
    value = k * _log_minus(_log_quotient(trials * p, k), above / k)
    value = value + m * _log_minus(_log_quotient(trials * (1 - p), m), -above / m)
    value = value - 0.5 * tnp.log(2 * math.pi * k * (m / trials))
    return value + _stirling_remainder(k + m) - _stirling_remainder(k) - _stirling_remainder(m)


def _one_small(except_where: Array, k: Array, m: Array, p: Array) -> Array:
    """:func:`log_binomial` where a number is small, so that its own factorial cancels nothing."""
    k, m, p = (tnp.where(except_where, other, x) for x, other in ((k, 1.0), (m, 1.0), (p, 0.5)))
    is_first = k <= m
    small, large = tnp.where(is_first, k, m), tnp.where(is_first, m, k)
    own = tnp.where(is_first, p, 1 - p)
    # p and 1 - p to the power of the larger number.
    with_other = tnp.where(
        is_first,
        _times_log1p(large, -tnp.where(is_first, p, 0.5)),
        _times_log(large, tnp.where(is_first, 0.5, p)),
    )
    is_large = large >= _LARGE
    x, s = tnp.where(is_large, large + 1, _LARGE), tnp.where(is_large, small, 0.0)
    far = (x + s - 0.5) * tnp.log1p(s / x) - s + _stirling_remainder(x + s) - _stirling_remainder(x)
    few = tnp.where(is_large, 1.0, large)
    near = lgamma1p(tnp.where(is_large, 1.0, small) + few) - lgamma1p(few)
    # The logarithms of the mean and of the rest of the quotient are about as large as the result.
    powers = _times_log(small, tnp.where(is_large, x * own, own)) + with_other
    return powers + tnp.where(is_large, far, near) - lgamma1p(small)


def _times_log(x: Array, y: Array) -> Array:
    """``x * log(y)``, 0 where ``x`` is."""
    return x * tnp.log(tnp.where(tnp.logical_and(x == 0, y <= 0), 1.0, y))


def _times_log1p(x: Array, y: Array) -> Array:
    """``x * log(1 + y)``, 0 where ``x`` is."""
    return x * tnp.log1p(tnp.where(tnp.logical_and(x == 0, y <= -1), 0.0, y))
