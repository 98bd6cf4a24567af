"""The exponential function, and functions based on it: hyperbolic functions and the logistic sigmoid.

All reduce their argument to ``r = x - n log(2)`` with ``|r| <= log(2) / 2``, so that ``exp(x) = 2**n exp(r)``. The
polynomial in single precision is that of Cephes (S. Moshier).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tvm import tirx

from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.vector_math.formats import Name, cast, estrin, format_of, horner
from tvmfun.lower.tir.vector_math.logarithms import log_of_wide

LOG2_E = 1.44269504088896341

# (exp(r) - 1 - r) / r**2 for |r| <= log(2) / 2; in double precision interpolated at Chebyshev's points, within 2e-18,
# and for results in single precision within 2e-11.
_EXP = {
    "float32": (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    "float64": (
        2.0914686968086876e-09,
        2.5105217004720745e-08,
        2.75572736431103e-07,
        2.7557255400206422e-06,
        2.4801587325547743e-05,
        0.00019841269874820627,
        0.0013888888888883748,
        0.008333333333326136,
        0.04166666666666667,
        0.1666666666666667,
        0.5,
    ),
    "wide": (
        2.4859589834589056e-05,
        0.00019899285575896282,
        0.001388885403566671,
        0.00833329846980059,
        0.04166666671901226,
        0.16666666719028936,
        0.5,
    ),
}
# (sinh(x) - x) / x**3 in x**2, for |x| <= 1.
_SINH = {
    "float32": tuple(1 / math.factorial(n) for n in range(11, 2, -2)),
    "float64": tuple(1 / math.factorial(n) for n in range(19, 2, -2)),
}
# The rational function of Eigen and XLA: tanh(x) / x in x**2.
_TANH = (
    (
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)

# Below the first argument the result is 0, and above the second one infinite.
_EXP_BOUNDS = {"float32": (-104.0, 89.5), "float64": (-746.0, 710.0)}
_EXP2_BOUNDS = {"float32": (-150.0, 128.5), "float64": (-1075.0, 1024.5)}
# The least argument whose result is not -1, and one whose result is infinite.
_EXPM1_BOUNDS = {"float32": (-18.0, 89.0), "float64": (-38.0, 710.0)}
# The argument from which sinh and cosh are infinite.
_COSH_BOUND = {"float32": 90.0, "float64": 711.0}


class _Reduced(NamedTuple):
    """An argument as ``n log(2) + r``.

    Args:
        r: the rest.
        tail: ``exp(r) - 1 - r``.
        bits: an unsigned integer whose last bits are ``n`` plus twice the bias of exponents.
    """

    r: Expr
    tail: Expr
    bits: Expr

    def total(self, name: Name) -> Expr:
        """``exp(r)``."""
        own = format_of(self.r)
        one = own.number(1.0)
        if own.dtype != "float64":
            return name(self.tail + self.r + one)
        near = name(own.as_computed(self.r + one, name))  # adds the rounding error of 1 + r
        return name(near + (one - near + self.r + self.tail))

    def power(self, less: int = 0) -> Expr:
        """``2**(n - less)``, in the range of exponents."""
        own = format_of(self.r)
        return own.of_exponent(self.bits - own.unsigned(own.bias + less))

    def scaled(self, value: Expr, name: Name, less: int = 0) -> Expr:
        """``value * 2**(n - less)``."""
        first, second = self._factors(name, less)
        return value * first * second

    def exponential(self, name: Name, less: int = 0) -> Expr:
        """``exp(x) * 2**-less`` of the argument ``x``."""
        if format_of(self.r).dtype == "float64":
            return self.scaled(self.total(name), name, less)
        first, second = self._factors(name, less)
        return ((self.tail + self.r) * first + first) * second  # one rounding for a product and the sum with 1

    def _factors(self, name: Name, less: int) -> tuple[Expr, Expr]:
        """``2**(n - less)`` as two factors, because alone it leaves the range before a result does."""
        own = format_of(self.r)
        bits = name(self.bits - own.unsigned(less)) if less else self.bits
        half = name(tirx.shift_right(bits, own.unsigned(1)))
        return name(own.of_exponent(half)), own.of_exponent(bits - half)


def reduced(x: Expr, bounds: tuple[float, float], name: Name, below: float = 0.0, low: Expr | None = None) -> _Reduced:
    """Reduces an argument.

    Args:
        x: the argument. NaN stays NaN.
        bounds: the least and the largest argument; the largest one replaces all arguments above.
        name: binds intermediate results.
        below: the argument that replaces those below the bounds.
        low: the low part of the argument, which rounding would lose; None if there is none.
    """
    own = format_of(x)
    kept = _clipped(x, bounds, below, name)
    n, bits = _rounded(kept * own.number(LOG2_E), name)
    rest = kept - n * own.number(own.ln2[0]) - n * own.number(own.ln2[1])
    return _of_rest(name(rest if low is None else rest + low), bits, name)


def _clipped(x: Expr, bounds: tuple[float, float], below: float, name: Name) -> Expr:
    """The argument within the bounds, or NaN: in this order the second choice is one instruction."""
    number = format_of(x).number
    most = number(bounds[1])
    kept = name(tirx.Select(x < number(bounds[0]), number(below), x))
    return name(tirx.Select(kept > most, most, kept))


def _rounded(x: Expr, name: Name) -> tuple[Expr, Expr]:
    """The nearest integer to a number in the range of exponents, and the bits of :class:`_Reduced`.

    A number whose last bit is 1 rounds the sum. NaN stays NaN: it could not be converted to an integer.
    """
    own = format_of(x)
    shift = own.number(1.5 * 2**own.fraction + 2 * own.bias)
    bits = name(own.as_unsigned(x + shift))
    return name(own.of_integer(bits) - shift), bits


def _of_rest(r: Expr, bits: Expr, name: Name, table: str | None = None) -> _Reduced:
    tail = name(estrin(r, _EXP[table or format_of(r).dtype], name) * name(r * r))
    return _Reduced(r, tail, bits)


def exp(x: Expr, name: Name) -> Expr:
    """e**x, within 1.01 ulp; in double precision within 0.8."""
    number, bounds = format_of(x).number, _EXP_BOUNDS[format_of(x).dtype]
    parts = reduced(x, bounds, name)
    # Arithmetic on subnormal numbers is slow, and masks produce many, so results of 0 are selected.
    return tirx.Select(x < number(bounds[0]), number(0.0), parts.exponential(name))


def exp2(x: Expr, name: Name) -> Expr:
    """2**x, within 1.1 ulp; exact for integers."""
    number, bounds = format_of(x).number, _EXP2_BOUNDS[format_of(x).dtype]
    kept = _clipped(x, bounds, 0.0, name)
    n, bits = _rounded(kept, name)
    parts = _of_rest(name((kept - n) * number(math.log(2))), bits, name)
    return tirx.Select(x < number(bounds[0]), number(0.0), parts.exponential(name))


def expm1(x: Expr, name: Name) -> Expr:
    """exp(x) - 1 without the rounding of exp(x), within 1.5 ulp; in double precision within 2."""
    own = format_of(x)
    number, bounds = own.number, _EXPM1_BOUNDS[own.dtype]
    parts = reduced(x, bounds, name, below=bounds[0])
    # Half of the result, because 2**n may leave the range before the result does.
    scale = name(parts.power(less=1))
    half = scale * (parts.r + parts.tail) + (scale - number(0.5))
    return tirx.Select(own.size(x, name) < number(1e-10 if own.dtype == "float32" else 1e-20), x, half * number(2.0))


def power(x: Expr, y: Expr, name: Name) -> tuple[Expr, Expr]:
    """x**y, within 0.55 ulp, in single precision; usual are positive finite bases and finite exponents."""
    own = format_of(x)
    infinity, zero = own.number(float("inf")), own.number(0.0)
    is_usual = tirx.all(tirx.all(x > zero, x < infinity), own.size(y, name) < infinity)
    base = name(cast("float64", name(tirx.Select(is_usual, x, own.number(1.0)))))
    number = format_of(base).number
    exponent = name(cast("float64", name(tirx.Select(is_usual, y, zero))) * log_of_wide(base, name))
    # Far outside of the range of single precision, and well inside that of double precision.
    exponent = name(tirx.max(tirx.min(exponent, number(300.0)), number(-300.0)))
    n, bits = _rounded(exponent * number(LOG2_E), name)
    parts = _of_rest(name(exponent - n * number(math.log(2))), bits, name, table="wide")
    return cast("float32", (parts.tail + parts.r + number(1.0)) * parts.power()), is_usual


def sinh(x: Expr, name: Name) -> Expr:
    """The hyperbolic sine, within 2 ulp."""
    own = format_of(x)
    size = own.size(x, name)
    half = _half_exp(size, name)
    square = name(tirx.Select(size < own.number(1.0), x * x, own.number(0.0)))
    near = x + x * square * horner(square, _SINH[own.dtype])
    far = own.signed(half - own.number(0.25) / half, x, name)
    # NaN fails the comparison, and is in both.
    return tirx.Select(size >= own.number(1.0), far, tirx.Select(square == own.number(0.0), x, near))


def cosh(x: Expr, name: Name) -> Expr:
    """The hyperbolic cosine, within 2 ulp."""
    own = format_of(x)
    half = _half_exp(own.size(x, name), name)
    return half + own.number(0.25) / half


def _half_exp(size: Expr, name: Name) -> Expr:
    """exp(size) / 2 for a positive number, which is finite wherever sinh and cosh are."""
    own = format_of(size)
    parts = reduced(size, (0.0, _COSH_BOUND[own.dtype]), name)
    return name(parts.exponential(name, less=1))


def tanh(x: Expr, name: Name) -> Expr:
    """The hyperbolic tangent, within 5 ulp; in double precision within 3."""
    own = format_of(x)
    number = own.number
    if own.dtype == "float64":
        size = own.size(x, name)
        # exp(2 size) - 1, without the checks of expm1. From 20 on the result is 1.
        parts = reduced(name(size + size), (0.0, 40.0), name)
        scale = name(parts.power())
        grown = name(scale * (parts.r + parts.tail) + (scale - number(1.0)))
        return own.signed(grown / (grown + number(2.0)), x, name)
    result = tirx.Select(own.size(x, name) < number(4e-4), x, odd_rational(x, 7.90531110763549805, _TANH, name))
    # The rational function ends just below 1.
    return tirx.Select(x > number(9.0), number(1.0), tirx.Select(x < number(-9.0), number(-1.0), result))


def odd_rational(x: Expr, bound: float, tables: tuple[tuple[float, ...], tuple[float, ...]], name: Name) -> Expr:
    """Returns x * p(x**2) / q(x**2), with x clipped to +-bound."""
    numerator, denominator = tables
    kept = _clipped(x, (-bound, bound), -bound, name)
    square = name(kept * kept)
    return kept * horner(square, numerator) / horner(square, denominator)


def sigmoid(x: Expr, name: Name) -> Expr:
    """1 / (1 + exp(-x)), within 3 ulp where that is a normal number."""
    number = format_of(x).number
    return number(1.0) / (number(1.0) + exp(name(number(0.0) - x), name))
