"""Logarithms, and the inverses of the hyperbolic functions.

All split their argument into ``x = 2**k m`` with ``m`` between ``sqrt(1/2)`` and ``sqrt(2)``, and compute
``log(m) = r - r**2 / 2 + r**3 p(r)`` with ``r = m - 1``. The polynomial and the rational function are those of Cephes
(S. Moshier).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tvm import tirx

from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.vector_math.formats import Name, cast, estrin, format_of

_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_LOG_DOUBLE = (
    (
        1.01875663804580931796e-4,
        4.97494994976747001425e-1,
        4.70579119878881725854,
        1.44989225341610930846e1,
        1.79368678507819816313e1,
        7.70838733755885391666,
    ),
    (
        1.0,
        1.12873587189167450590e1,
        4.52279145837532221105e1,
        8.29875266912776603211e1,
        7.11544750618563894466e1,
        2.31251620126765340583e1,
    ),
)
_LN2 = math.log(2)


class _Parts(NamedTuple):
    """A positive number as ``2**k (1 + r)``.

    Args:
        r: the fraction, minus 1.
        cubic: ``r**3 p(r)``.
        square: ``r**2``.
        k: the exponent, as a float.
    """

    r: Expr
    cubic: Expr
    square: Expr
    k: Expr


def _fraction(x: Expr, name: Name) -> tuple[Expr, Expr]:
    """The fraction m of a positive number, minus 1, and the exponent k."""
    own = format_of(x)
    number, integer, shift = own.number, own.integer, own.integer(own.fraction)
    tiny = x < number(2.0 ** (1 - own.bias))
    bits = name(own.as_integer(name(tirx.Select(tiny, x * number(2.0**own.fraction), x))))
    exponent = name(tirx.shift_right(bits - integer(own.root_half), shift))
    k = name(cast(own.dtype, cast("int32", exponent)) + tirx.Select(tiny, number(-own.fraction), number(0.0)))
    return name(own.of_integer(name(bits - tirx.shift_left(exponent, shift))) - number(1.0)), k


def _parts(x: Expr, name: Name) -> _Parts:
    own = format_of(x)
    r, k = _fraction(x, name)
    square = name(r * r)
    is_double = own.dtype == "float64"
    numerator = estrin(r, _LOG_DOUBLE[0] if is_double else _LOG, name)
    series = numerator / estrin(r, _LOG_DOUBLE[1], name) if is_double else numerator
    return _Parts(r, r * square * series, square, k)


def _with_limits(x: Expr, result: Expr) -> Expr:
    """A logarithm with its values at 0, below it, at infinity and at NaN, which fails every comparison."""
    number = format_of(x).number
    result = tirx.Select(x == number(0.0), number(float("-inf")), result)
    result = tirx.Select(x < number(0.0), number(float("nan")), result)
    return tirx.Select(x < number(float("inf")), result, x)


def log(x: Expr, name: Name) -> Expr:
    """The natural logarithm, within 1 ulp."""
    own = format_of(x)
    r, cubic, square, k = _parts(x, name)
    tail = cubic + k * own.number(own.ln2[1]) - own.number(0.5) * square
    return _with_limits(x, r + tail + k * own.number(own.ln2[0]))


def log2(x: Expr, name: Name) -> Expr:
    """The logarithm to the base 2, within 1.5 ulp; exact for powers of 2."""
    number = format_of(x).number
    r, cubic, square, k = _parts(x, name)
    tail = name(cubic - number(0.5) * square)
    # log2(e) - 1, so that the largest term is exact.
    excess = number(0.4426950408889634)
    return _with_limits(x, tail * excess + r * excess + tail + r + k)


def log10(x: Expr, name: Name) -> Expr:
    """The logarithm to the base 10, within 1.5 ulp; exact for the powers of 10 that the format has."""
    own = format_of(x)
    (e, rest_of_e), (two, rest_of_two) = (tuple(map(own.number, pair)) for pair in (own.log10_e, own.log10_2))
    r, cubic, square, k = _parts(x, name)
    tail = name(cubic - own.number(0.5) * square)
    return _with_limits(x, (tail + r) * rest_of_e + k * rest_of_two + tail * e + r * e + k * two)


def log1p(x: Expr, name: Name) -> Expr:
    """log(1 + x) without the rounding of 1 + x, within 3 ulp."""
    own = format_of(x)
    one = own.number(1.0)
    u = name(own.as_computed(x + one, name))
    exact = tirx.any(u == one, u == own.number(float("inf")))
    return tirx.Select(exact, x, name(log(u, name)) * (x / (u - one)))


def log_of_wide(x: Expr, name: Name) -> Expr:
    """The logarithm of a positive finite float64, within 2e-12 of it: 2 artanh((m - 1) / (m + 1)) + k log(2)."""
    number = format_of(x).number
    r, k = _fraction(x, name)
    quotient = name(r / (r + number(2.0)))
    series = estrin(name(quotient * quotient), [2 / n for n in range(13, 0, -2)], name)
    return quotient * series + k * number(_LN2)


def asinh(x: Expr, name: Name) -> Expr:
    """The inverse of the hyperbolic sine, within 0.51 ulp; in double precision within 4."""
    own = format_of(x)
    if own.dtype == "float32":  # double precision has enough digits for log(1 + x)
        wide = name(cast("float64", own.size(x, name)))
        number = format_of(wide).number
        total = name(wide + tirx.sqrt(wide * wide + number(1.0)))
        far = tirx.Select(total < number(float("inf")), log_of_wide(total, name), total)
        near = wide - wide * wide * wide * number(1 / 6)
        return own.signed(cast("float32", tirx.Select(wide < number(1e-3), near, far)), x, name)
    number, size = own.number, own.size(x, name)
    large = size > number(1e9)
    kept = name(tirx.Select(large, number(1.0), size))
    square = name(kept * kept)
    argument = name(
        tirx.Select(large, size - number(1.0), size + square / (number(1.0) + tirx.sqrt(square + number(1.0))))
    )
    return own.signed(name(log1p(argument, name)) + tirx.Select(large, number(_LN2), number(0.0)), x, name)


def acosh(x: Expr, name: Name) -> Expr:
    """The inverse of the hyperbolic cosine, within 0.51 ulp; in double precision within 4."""
    own = format_of(x)
    if own.dtype == "float32":
        wide = name(cast("float64", x))
        number = format_of(wide).number
        total = name(wide + tirx.sqrt(wide * wide - number(1.0)))
        result = tirx.Select(wide < number(1.0), number(float("nan")), log_of_wide(total, name))
        return cast("float32", tirx.Select(wide < number(float("inf")), result, wide))
    number = own.number
    large = x > number(1e9)
    above = name(tirx.Select(x < number(1.0), number(float("nan")), x) - number(1.0))
    kept = name(tirx.Select(large, number(1.0), above))
    argument = name(tirx.Select(large, above, kept + tirx.sqrt(kept * (kept + number(2.0)))))
    return name(log1p(argument, name)) + tirx.Select(large, number(_LN2), number(0.0))


def atanh(x: Expr, name: Name) -> Expr:
    """The inverse of the hyperbolic tangent, within 0.51 ulp; in double precision within 4."""
    own = format_of(x)
    if own.dtype == "float32":
        wide = name(cast("float64", x))
        number = format_of(wide).number
        far = number(0.5) * log_of_wide(name((number(1.0) + wide) / (number(1.0) - wide)), name)
        near = wide + wide * wide * wide * number(1 / 3)
        result = tirx.Select(wide * wide < number(1e-6), near, far)
        edge = tirx.Select(wide * wide == number(1.0), wide * number(float("inf")), number(float("nan")))
        result = name(cast("float32", tirx.Select(wide * wide < number(1.0), result, edge)))
        return tirx.Select(x == own.number(0.0), x, result)
    number, size = own.number, own.size(x, name)
    inside = name(tirx.Select(size > number(1.0), number(float("nan")), size))
    argument = name((inside + inside) / (number(1.0) - inside))
    return own.signed(number(0.5) * name(log1p(argument, name)), x, name)
