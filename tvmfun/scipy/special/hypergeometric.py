"""Hypergeometric functions."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.special import derivative_of, in_full_precision, no_derivative, until_converged
from tvmfun.lax.staging import compiled, with_partials
from tvmfun.scipy.special.gammas import _gammasgn
from tvmfun.typing import ArrayLike

_SLACK = 1.5


def _sum(ratio: Callable[[Array], Array], x: Array, slack: float) -> Array:
    """The sum of terms that begin with 1, each of which is ``ratio(k - 1)`` times the one before."""
    eps = float(tnp.finfo(x.dtype).eps)

    def step(k: Array, state: tuple) -> tuple:
        term, total = state
        term = term * ratio(k - 1) * (x / k)
        return term, total + term

    one = tnp.ones_like(x)
    done = lambda old, new: tnp.logical_not(tnp.abs(new[0]) > eps * tnp.abs(new[1]))
    # One small term may be an accident: two in a row are not.
    both = lambda old, new: tnp.logical_and(done(old, new), tnp.logical_not(tnp.abs(old[0]) > tnp.abs(new[1])))
    return until_converged(step, (one, one), both, slack)[1]


def _gamma_ratio(over: tuple, under: tuple) -> Array:
    """A quotient of products of gamma functions, 0 at the poles of those below the line."""
    log = sum((lax.lgamma(x) for x in over), 0.0) - sum((lax.lgamma(x) for x in under), 0.0)
    sign, at_pole = tnp.ones_like(over[0]), tnp.zeros(over[0].shape, "bool")
    for x in (*over, *under):
        sign = sign * tnp.where(tnp.isnan(_gammasgn(x)), 1.0, _gammasgn(x))
    for x in under:
        at_pole = tnp.logical_or(at_pole, tnp.logical_and(x <= 0, tnp.floor(x) == x))
    return tnp.where(at_pole, 0.0, sign * tnp.exp(tnp.where(at_pole, 0.0, log)))


def _hyp1f1(a: Array, b: Array, x: Array, slack: float = 1.0) -> Array:
    # Kummer's transformation makes the terms of negative arguments positive.
    p, y = tnp.where(x < 0, b - a, a), tnp.abs(x)
    is_near = y < 100
    near = tnp.where(is_near, y, 1.0)
    safe_b = tnp.where(b == 0, 1.0, b)
    series = _sum(lambda k: (p + k) / (safe_b + k), near, slack)
    series = tnp.where(x < 0, tnp.exp(tnp.minimum(x, 0.0)) * series, series)
    # For large positive y: Gamma(b) / Gamma(p) e^y y^(p - b) times a series in 1 / y, cut where its terms are smallest.
    far = tnp.where(is_near, 200.0, y)
    term, total = tnp.ones_like(far), tnp.ones_like(far)
    for k in range(40):
        new = term * ((b - p + k) * (1 - p + k) / ((k + 1) * far))
        term = tnp.where(tnp.abs(new) < tnp.abs(term), new, 0.0)
        total = total + term
    power = tnp.exp((p - b) * tnp.log(far) + tnp.where(x < 0, 0.0, far))
    value = tnp.where(is_near, series, _gamma_ratio((b,), (p,)) * power * total)
    value = tnp.where(a == b, tnp.exp(x), value)
    return tnp.where(a == 0, 1.0, tnp.where(b == 0, math.inf, value))


def _partials(function: Callable[..., Array], name: str, count: int) -> list[Callable[..., Array]]:
    """The derivatives by the parameters, which have no derivatives by these themselves."""

    def by(number: int) -> Callable[..., Array]:
        value = lambda *args: derivative_of(lambda *xs: function(*xs, slack=_SLACK), number, *args)
        refused = [no_derivative(name, "a derivative by a parameter")] * (count + 1)
        derivative = with_partials(value, refused)
        return lambda out, *args: derivative(*args)

    return [by(number) for number in range(count)]


_HYP1F1 = compiled()(
    with_partials(_hyp1f1, (*_partials(_hyp1f1, "hyp1f1", 2), lambda o, a, b, x: a / b * _HYP1F1(a + 1, b + 1, x)))
)


def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns Kummer's :math:`{}_1F_1(a; b; x) = \sum_k \frac{(a)_k}{(b)_k} \frac{x^k}{k!}`, elementwise.

    It is differentiable by ``x`` any number of times, and once by ``a`` and ``b``.

    Source: https://dlmf.nist.gov/13.2 and 13.7.

    >>> round(float(hyp1f1(1.0, 2.0, 1.0)), 5)
    1.71828
    """
    return in_full_precision("hyp1f1", _HYP1F1, a, b, x)


def _hyp2f1(a: Array, b: Array, c: Array, x: Array, slack: float = 1.0) -> Array:
    # Pfaff's transformation brings negative arguments into the interval from 0 to 1.
    is_negative = x < 0
    q, z = tnp.where(is_negative, c - b, b), tnp.where(is_negative, x / (x - 1), x)
    gap = c - a - q
    # Near 1 it is a sum of two functions near 0 (https://dlmf.nist.gov/15.8.E4), unless the gap is whole.
    is_whole = tnp.abs(gap - tnp.round(lax.stop_gradient(gap))) < 1e-3
    inside = tnp.logical_and(z >= 0, z < 1)
    turned = tnp.logical_and(inside, tnp.logical_and(z > 0.75, tnp.logical_not(is_whole)))
    direct = tnp.logical_and(inside, tnp.logical_not(turned))
    y = tnp.where(direct, z, 0.0)
    safe_c = tnp.where(tnp.logical_and(c <= 0, tnp.floor(c) == c), 1.0, c)
    series = _sum(lambda k: (a + k) * (q + k) / (safe_c + k), y, slack)
    shift = tnp.where(turned, gap, 0.5)
    rest = tnp.where(turned, 1 - z, 0.25)
    first = _sum(lambda k: (a + k) * (q + k) / (1 - shift + k), rest, slack)
    second = _sum(lambda k: (c - a + k) * (c - q + k) / (1 + shift + k), rest, slack)
    both = _gamma_ratio((c, shift), (c - a, c - q)) * first
    both = both + _gamma_ratio((c, -shift), (a, q)) * rest**shift * second
    value = tnp.where(turned, both, series)
    value = tnp.where(is_negative, (1 - tnp.minimum(x, 0.0)) ** -a * value, value)
    at_one = tnp.where(gap > 0, _gamma_ratio((c, tnp.where(gap > 0, gap, 1.0)), (c - a, c - q)), math.inf)
    value = tnp.where(x == 1, at_one, value)
    value = tnp.where(tnp.logical_or(a == 0, b == 0), 1.0, value)
    return tnp.where(tnp.logical_or(x > 1, tnp.isnan(x)), math.nan, value)


_HYP2F1 = compiled()(
    with_partials(
        _hyp2f1,
        (
            *_partials(_hyp2f1, "hyp2f1", 3),
            lambda o, a, b, c, x: a * b / c * _HYP2F1(a + 1, b + 1, c + 1, x),
        ),
    )
)


def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike) -> Array:
    r"""Returns Gauss' :math:`{}_2F_1(a, b; c; x) = \sum_k \frac{(a)_k (b)_k}{(c)_k} \frac{x^k}{k!}`, elementwise.

    It is NaN above 1. It is differentiable by ``x`` any number of times, and once by the parameters.

    Source: https://dlmf.nist.gov/15.2 and 15.8.

    >>> round(float(hyp2f1(1.0, 1.0, 2.0, 0.5)), 5)
    1.38629
    """
    return in_full_precision("hyp2f1", _HYP2F1, a, b, c, x)
