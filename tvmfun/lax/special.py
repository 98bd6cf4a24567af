"""Special functions of two or three arguments, and Bessel functions, with JAX's names.

They are compositions: power series and continued fractions, summed in loops until every element has converged.
Derivatives are given in closed form, or taken of the series. Half precision is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.derivative import pushforward
from tvmfun.errors import GradientError
from tvmfun.lax import control_flow, elementwise
from tvmfun.lax.gamma_quotients import log_beta_density, log_binomial, log_gamma_density, log_poisson
from tvmfun.lax.staging import compiled, with_partials
from tvmfun.numpy.promotion import operands
from tvmfun.numpy.signal import scaled
from tvmfun.ops import control, pointwise
from tvmfun.ops.pointwise import broadcast_shapes
from tvmfun.typing import ArrayLike

__all__ = [
    "bessel_i0e",
    "bessel_i1e",
    "betainc",
    "igamma",
    "igamma_grad_a",
    "igammac",
    "polygamma",
    "random_gamma_grad",
    "regularized_incomplete_beta",
    "zeta",
]


def in_full_precision(name: str, function: Callable[..., Array], *values: Any) -> Array:
    """``function`` of the values as arrays of one shape and dtype, in float32 for half precision."""
    arrays = [tnp.asarray(x) for x in operands(name, *values, floating=True)]
    shape = tuple(broadcast_shapes(name, [x.shape for x in arrays]))
    dtype = arrays[0].dtype
    wide = dtype if dtype.itemsize > 2 else dtypes.float32
    result = function(*(tnp.astype(tnp.broadcast_to(x, shape), wide) for x in arrays))
    return tnp.astype(result, dtype)


def derivative_of(function: Callable[..., Array], number: int, *args: Array) -> Array:
    """The derivative of an elementwise function by the argument of this number, in forward mode."""
    program, captured = control.closed(function, [x.aval for x in args], "function")
    tangents = [tnp.ones_like(x) if i == number else None for i, x in enumerate(args)]
    return pushforward(program, [*captured, *args], [None] * len(captured) + tangents)[1][0]


def no_derivative(name: str, argument: str) -> Callable[..., NoReturn]:
    """A derivative rule that raises: the function is not differentiable with respect to this argument."""

    def partial(*values: Any) -> NoReturn:
        raise GradientError(name, f"there is no derivative by {argument}", hint="stop_gradient")

    return partial


# The roundings of a step of a continued fraction.
_ROUNDINGS = 3


def _eps(x: Array) -> float:
    return float(tnp.finfo(x.dtype).eps)


def _has_converged(old: tuple, new: tuple) -> Array:
    """Whether a step of a continued fraction, the last value of its state, changed no more than its roundings.

    All elements take the steps of the slowest one, so one that is never still would cost the others digits.
    """
    return tnp.logical_not(tnp.abs(new[-1] - old[-1]) > _ROUNDINGS * _eps(new[-1]) * tnp.abs(new[-1]))


def until_converged(
    step: Callable, start: tuple, converged: Callable, slack: float = 1.0, most: int = 100_000
) -> tuple:
    """The state after steps ``step(k, state)``, k = 1, 2, ..., until ``converged(old, new)`` of all elements.

    Args:
        step: from the number of the step and a tuple of arrays to the next tuple.
        start: the first tuple.
        converged: from two successive tuples to bools.
        slack: how many times as many steps to take. Derivatives converge a little later than values.
        most: the largest number of steps.
    """

    def again(state: tuple) -> tuple:
        k, last, values = state
        new = step(tnp.astype(k, start[0].dtype), values)
        return k + 1, tnp.where(tnp.all(converged(values, new)), last, k), new

    def wanting(state: tuple) -> Array:
        k, last, _ = state
        return tnp.logical_and(k <= slack * last + 1 + 8 * (slack > 1), k <= most)

    one = tnp.ones((), "int32")
    return control_flow.while_loop(wanting, again, (one, one, start))[2]


def _gamma_series(a: Array, x: Array, slack: float) -> Array:
    r""":math:`\sum_{n > 0} x^n / ((a + 1) \cdots (a + n))`."""

    def step(k: Array, state: tuple) -> tuple:
        term, total = state
        term = term * (x / (a + k))
        return term, total + term

    eps, one = _eps(x), tnp.ones_like(x)
    start = one, tnp.zeros_like(x)
    return until_converged(step, start, lambda old, new: tnp.logical_not(new[0] > eps * new[1]), slack)[1]


def _gamma_fraction(a: Array, x: Array, slack: float) -> Array:
    r"""Legendre's continued fraction of :math:`\Gamma(a, x) e^x x^{-a}`."""
    eps, one, zero = _eps(x), tnp.ones_like(x), tnp.zeros_like(x)

    def step(k: Array, state: tuple) -> tuple:
        p0, p1, q0, q1, _ = state
        numerator, denominator = k * (k - a), x + (2 * k + 1) - a
        p0, p1 = p1, denominator * p1 - numerator * p0
        q0, q1 = q1, denominator * q1 - numerator * q0
        scale = elementwise.stop_gradient(tnp.where(tnp.abs(q1) > 1 / eps, eps, 1.0))
        p0, p1, q0, q1 = (value * scale for value in (p0, p1, q0, q1))
        return p0, p1, q0, q1, p1 / q1

    b = x + 1 - a
    return until_converged(step, (zero, one, one, b, 1 / b), _has_converged, slack)[-1]


def _gamma_parts(a: Array, x: Array) -> tuple[Array, Array, Array, Array, Array]:
    """A mask of the elements for the continued fraction, and arguments for both methods, harmless elsewhere."""
    inside = tnp.logical_and(tnp.logical_and(a > 0, x > 0), tnp.isfinite(x) & tnp.isfinite(a))
    by_fraction = tnp.logical_and(inside, tnp.logical_and(x > 1, x > a))
    by_series = tnp.logical_and(inside, tnp.logical_not(by_fraction))
    series = tnp.where(by_series, a, 1.0), tnp.where(by_series, x, 0.0)
    return by_fraction, *series, tnp.where(by_fraction, a, 1.0), tnp.where(by_fraction, x, 2.0)


def _incomplete_gamma(a: Array, x: Array, upper: bool) -> Array:
    by_fraction, a_series, x_series, a_fraction, x_fraction = _gamma_parts(a, x)
    log_factor = log_poisson(a, x)
    # A series of tiny terms is 1, but its excess over 1 is not 0.
    log_low = log_factor + tnp.log1p(_gamma_series(a_series, x_series, 1.0))
    high = a * tnp.exp(log_factor) * _gamma_fraction(a_fraction, x_fraction, 1.0)
    if upper:
        result = tnp.where(by_fraction, high, 0.0 - tnp.expm1(tnp.minimum(log_low, 0.0)))
        at_zero, at_infinity = 1.0, 0.0
    else:
        result = tnp.where(by_fraction, 1 - high, tnp.exp(tnp.minimum(log_low, 0.0)))
        at_zero, at_infinity = 0.0, 1.0
    result = tnp.where(tnp.logical_or(x == 0, tnp.isinf(a)), at_zero, result)
    result = tnp.where(tnp.logical_or(a == 0, tnp.isinf(x)), at_infinity, result)
    both = tnp.logical_or(tnp.logical_and(a == 0, x == 0), tnp.logical_and(tnp.isinf(a), tnp.isinf(x)))
    outside = tnp.logical_or(tnp.logical_or(a < 0, x < 0), both)
    missing = tnp.logical_or(tnp.isnan(a), tnp.isnan(x))
    return tnp.where(tnp.logical_or(outside, missing), math.nan, result)


def _logarithmic_derivatives(a: Array, x: Array) -> tuple[Array, Array, Array]:
    """The mask of :func:`_gamma_parts`, and the derivatives by ``a`` over ``x^a e^-x / Gamma(a)``."""
    by_fraction, a_series, x_series, a_fraction, x_fraction = _gamma_parts(a, x)
    slack = 1.5
    series = lambda a, x: _gamma_series(a, x, slack)
    fraction = lambda a, x: _gamma_fraction(a, x, slack)
    low = (1 + series(a_series, x_series)) * (tnp.log(x) - elementwise.digamma(a + 1))
    low = (low + derivative_of(series, 0, a_series, x_series)) / a
    high = fraction(a_fraction, x_fraction) * (tnp.log(x) - elementwise.digamma(a))
    return by_fraction, low, high + derivative_of(fraction, 0, a_fraction, x_fraction)


def _outside(a: Array, x: Array) -> Array:
    bad = tnp.logical_or(x < 0, a <= 0)
    return tnp.logical_or(bad, tnp.logical_or(tnp.isnan(a), tnp.isnan(x)))


def _igamma_by_a(a: Array, x: Array) -> Array:
    by_fraction, low, high = _logarithmic_derivatives(a, x)
    result = a * tnp.exp(log_poisson(a, x)) * tnp.where(by_fraction, -high, low)
    result = tnp.where(tnp.logical_or(x == 0, tnp.isinf(x)), 0.0, result)
    return tnp.where(_outside(a, x), math.nan, result)


def _gamma_sample_by_a(a: Array, x: Array) -> Array:
    by_fraction, low, high = _logarithmic_derivatives(a, x)
    result = x * tnp.where(by_fraction, high, -low)
    result = tnp.where(x == 0, 0.0, result)
    return tnp.where(_outside(a, x), math.nan, result)


def _density(out: Array, a: Array, x: Array) -> Array:
    return tnp.exp(log_gamma_density(a, x))


def _density_by_a(out: Array, a: Array, x: Array) -> Array:
    return _density(out, a, x) * (tnp.log(x) - elementwise.digamma(a))


_IGAMMA_BY_A = compiled()(with_partials(_igamma_by_a, (no_derivative("igamma_grad_a", "a"), _density_by_a)))
_IGAMMA = compiled()(
    with_partials(lambda a, x: _incomplete_gamma(a, x, False), (lambda o, a, x: _IGAMMA_BY_A(a, x), _density))
)
_IGAMMAC = compiled()(
    with_partials(
        lambda a, x: _incomplete_gamma(a, x, True),
        (lambda o, a, x: -_IGAMMA_BY_A(a, x), lambda o, a, x: -_density(o, a, x)),
    )
)
_GAMMA_SAMPLE = compiled()(
    with_partials(
        _gamma_sample_by_a, (no_derivative("random_gamma_grad", "a"), no_derivative("random_gamma_grad", "x"))
    )
)


def igamma(a: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns :math:`P(a, x) = \frac{1}{\Gamma(a)} \int_0^x t^{a-1} e^{-t} dt`, elementwise.

    Args:
        a: positive floats; 0 gives 1, negative ones NaN.
        x: non-negative floats; negative ones give NaN.

    Differentiable with respect to both, once with respect to ``a``.

    Source: https://dlmf.nist.gov/8.7 and 8.9.

    >>> round(float(igamma(1.0, 2.0)), 6)
    0.864665
    """
    return in_full_precision("igamma", _IGAMMA, a, x)


def igammac(a: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns :math:`Q(a, x) = 1 - P(a, x)`, accurate where that is small, elementwise; see :func:`igamma`.

    >>> round(float(igammac(1.0, 2.0)), 6)
    0.135335
    """
    return in_full_precision("igammac", _IGAMMAC, a, x)


def igamma_grad_a(a: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns :math:`\frac{\partial}{\partial a} P(a, x)`, elementwise.

    >>> round(float(igamma_grad_a(1.0, 2.0)), 6)
    -0.220825
    """
    return in_full_precision("igamma_grad_a", _IGAMMA_BY_A, a, x)


def random_gamma_grad(a: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns :math:`dx / da` of a sample ``x`` of the gamma distribution with :math:`P(a, x)` held, elementwise.

    Source: Figurnov et al., "Implicit reparameterization gradients" (2018).

    >>> round(float(random_gamma_grad(1.0, 2.0)), 6)
    1.631692
    """
    return in_full_precision("random_gamma_grad", _GAMMA_SAMPLE, a, x)


def _beta_fraction(a: Array, b: Array, x: Array, slack: float) -> Array:
    """The continued fraction of the incomplete beta function, by Lentz's algorithm, two levels a step."""
    eps, one = _eps(x), tnp.ones_like(x)
    tiny = eps * eps

    def away_from_zero(value: Array) -> Array:
        return tnp.where(tnp.abs(value) < tiny, tiny, value)

    def level(coefficient: Array, c: Array, d: Array, h: Array) -> tuple[Array, Array, Array]:
        d = 1 / away_from_zero(1 + coefficient * d)
        c = away_from_zero(1 + coefficient / c)
        return c, d, h * (c * d)

    def step(m: Array, state: tuple) -> tuple:
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        return level(odd, *level(even, *state))

    d = 1 / away_from_zero(1 - (a + b) * x / (a + 1))
    return until_converged(step, (one, d, d), _has_converged, slack)[2]


def _incomplete_beta(a: Array, b: Array, x: Array, slack: float = 1.0) -> Array:
    inside = tnp.logical_and(tnp.logical_and(a > 0, b > 0), tnp.logical_and(x > 0, x < 1))
    inside = tnp.logical_and(inside, tnp.isfinite(a) & tnp.isfinite(b))
    a_safe, b_safe, x_safe = (tnp.where(inside, value, fill) for value, fill in ((a, 1.0), (b, 1.0), (x, 0.5)))
    # The continued fraction converges fast on one side of the mean; on the other, use that of the complement.
    is_low = x_safe <= (a_safe + 1) / (a_safe + b_safe + 2)
    p, q = tnp.where(is_low, a_safe, b_safe), tnp.where(is_low, b_safe, a_safe)
    z = tnp.where(is_low, x_safe, 1 - x_safe)
    # x^a (1 - x)^b / B(a, b), over p.
    factor = tnp.exp(log_binomial(a_safe, b_safe, x_safe)) * (q / (p + q))
    part = tnp.minimum(factor * _beta_fraction(p, q, z, slack), 1.0)
    result = tnp.where(is_low, part, 1 - part)
    zero_at = lambda value, other: tnp.logical_or(value == 0, tnp.isinf(other))
    at_zero, at_one = zero_at(a, b), zero_at(b, a)
    result = tnp.where(tnp.logical_or(x == 0, tnp.logical_and(at_one, x < 1)), 0.0, result)
    result = tnp.where(tnp.logical_or(x == 1, tnp.logical_and(at_zero, x > 0)), 1.0, result)
    known = tnp.logical_and(tnp.logical_and(a >= 0, b >= 0), tnp.logical_and(x >= 0, x <= 1))
    return tnp.where(tnp.logical_and(known, tnp.logical_not(tnp.logical_and(at_zero, at_one))), result, math.nan)


def _beta_partial(number: int, argument: str) -> Callable[..., Array]:
    derivative = compiled()(
        with_partials(
            lambda a, b, x: derivative_of(lambda *args: _incomplete_beta(*args, slack=1.5), number, a, b, x),
            [no_derivative("betainc", f"{name} and {argument}") for name in "abx"],
        )
    )
    return lambda out, *args: derivative(*args)


def _beta_density(out: Array, a: Array, b: Array, x: Array) -> Array:
    return tnp.exp(log_beta_density(a, b, x))


_BETAINC = compiled()(with_partials(_incomplete_beta, (_beta_partial(0, "a"), _beta_partial(1, "b"), _beta_density)))


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns :math:`I_x(a, b) = \frac{1}{B(a, b)} \int_0^x t^{a-1} (1-t)^{b-1} dt`, elementwise.

    Args:
        a: positive floats.
        b: positive floats.
        x: floats from 0 to 1; others give NaN.

    It is differentiable by ``x`` any number of times, and once by ``a`` and ``b``.

    Source: https://dlmf.nist.gov/8.17.

    >>> round(float(betainc(2.0, 3.0, 0.5)), 4)
    0.6875
    """
    return in_full_precision("betainc", _BETAINC, a, b, x)


def regularized_incomplete_beta(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Returns :func:`betainc`, under the name of its operation.

    >>> round(float(regularized_incomplete_beta(2.0, 3.0, 0.5)), 4)
    0.6875
    """
    return in_full_precision("regularized_incomplete_beta", _BETAINC, a, b, x)


def _bernoulli_numbers(count: int) -> list[Fraction]:
    """The Bernoulli numbers from 0 to ``count - 1``, that of 1 being -1/2."""
    numbers = [Fraction(1)]
    for m in range(1, count):
        numbers.append(-sum((math.comb(m + 1, k) * numbers[k] for k in range(m)), Fraction(0)) / (m + 1))
    return numbers


BERNOULLI = _bernoulli_numbers(62)


def _zeta(x: Array, q: Array) -> Array:
    terms = 9
    total = tnp.zeros_like(x)
    for k in range(terms):
        total = total + (q + k) ** -x
    end = q + terms
    power = end**-x
    total = total + power * end / (x - 1) + power / 2
    factor, power = x, power / end
    for j in range(1, 13):
        total = total + float(BERNOULLI[2 * j] / math.factorial(2 * j)) * factor * power
        factor = factor * ((x + (2 * j - 1)) * (x + 2 * j))
        power = power / (end * end)
    total = tnp.where(tnp.isinf(q), 0.0, total)
    # The infinite power of 1 is 1; all others are 0 or infinite.
    at_infinity = tnp.where(q > 1, 0.0, tnp.where(q == 1, 1.0, math.inf))
    total = tnp.where(tnp.isinf(x), at_infinity, total)
    is_pole = tnp.logical_or(x == 1, tnp.logical_and(q <= 0, tnp.floor(q) == q))
    total = tnp.where(is_pole, math.inf, total)
    unknown = tnp.logical_or(x < 1, tnp.logical_and(q < 0, tnp.floor(x) != x))
    return tnp.where(tnp.logical_or(unknown, tnp.isnan(x) | tnp.isnan(q)), math.nan, total)


_ZETA = compiled()(_zeta)


def zeta(x: ArrayLike, q: ArrayLike) -> Array:
    r"""Returns Hurwitz' :math:`\zeta(x, q) = \sum_{k=0}^\infty (q + k)^{-x}`, elementwise.

    Args:
        x: the exponent; NaN below 1, infinite at 1.
        q: the offset; infinite at integers that are not positive.

    Source: the Euler-Maclaurin formula, https://dlmf.nist.gov/25.11.E5.

    >>> round(float(zeta(2.0, 1.0)), 6)
    1.644934
    """
    return in_full_precision("zeta", _ZETA, x, q)


def polygamma(m: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns the derivative of order ``m`` of :func:`digamma`, elementwise.

    Args:
        m: the order, a non-negative integer or an array of such integers.
        x: floats; the function is differentiable with respect to them.

    >>> round(float(polygamma(1, 1.0)), 6)
    1.644934
    """
    if isinstance(m, int) and not isinstance(m, bool):
        return pointwise.polygamma(*operands("polygamma", x, floating=True), order=m)
    return in_full_precision("polygamma", _POLYGAMMA, m, x)


def _polygamma(m: Array, x: Array) -> Array:
    m = elementwise.stop_gradient(m)
    sign = tnp.where(m % 2 == 0, -1.0, 1.0)
    order = tnp.where(m == 0, 1.0, m)
    value = sign * tnp.exp(elementwise.lgamma(order + 1)) * _zeta(order + 1, x)
    is_order = tnp.logical_and(m >= 0, tnp.floor(m) == m)
    return tnp.where(is_order, tnp.where(m == 0, elementwise.digamma(x), value), math.nan)


_POLYGAMMA = compiled()(_polygamma)


def bessel_i0e(x: ArrayLike) -> Array:
    r"""Returns :math:`e^{-|x|} I_0(x)`, elementwise."""
    return scaled("bessel_i0e", 0, x)


def bessel_i1e(x: ArrayLike) -> Array:
    r"""Returns :math:`e^{-|x|} I_1(x)`, elementwise."""
    return scaled("bessel_i1e", 1, x)
