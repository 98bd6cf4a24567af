"""The error function, its inverse and complement, and the logarithm of the gamma function with its derivatives."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from typing import Any

from tvm import relax, tirx

from tvmfun.core.array import ShapeDtype
from tvmfun.core.expressions import dtype_name
from tvmfun.errors import ArgumentError
from tvmfun.ops.formula import libm, one, opaque
from tvmfun.ops.pointwise.elementary import exp
from tvmfun.ops.pointwise.registration import float_function, pointwise, require_float

__all__ = ["erf", "erf_inv", "erfc", "lgamma", "polygamma"]

erf = float_function(
    "erf",
    tirx.erf,
    lambda g, o, x: g * (2 / math.sqrt(math.pi) * exp(-(x * x))),
    spelling=relax.op.erf,
    precision="either",
)
erfc = float_function("erfc", libm("erfc"), lambda g, o, x: g * (-2 / math.sqrt(math.pi) * exp(-(x * x))))

# Giles, "Approximating the erfinv function" (2011): polynomials, highest power first, in w - 2.5 and sqrt(w) - 3, with
# w = -log(1 - x*x).
_ERF_INV_CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERF_INV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip

# The same in sqrt(w) - 4 for all numbers of double precision, interpolated at Chebyshev's points, within 8e-7.
_ERF_INV_TAIL_DOUBLE = (
    6.995027159326243e-07, -2.0298250092551526e-06, -7.651663091908081e-06, 3.723280800904198e-05,
    -4.656019458655869e-05, 2.6138366349608452e-05, -9.21677741089875e-05, 0.0003419811435157505,
    -0.0008855016225406793, 0.0012543538807622263, 1.0094960632629033, 3.839784031794465,
)  # fmt: skip


# The error function over its argument v, in v*v, up to v = 0.512, within 2e-18; and exp(v*v) erfc(v) in
# (v - 1.5) / (v + 1.5) from 0.51 to 5.87, within 6e-17. Both interpolated at Chebyshev's points.
_ERF_OVER_ARGUMENT = (
    1.4644325784465824e-06, -1.483801096616606e-05, 0.00012053030304644861, -0.0008548291611038483,
    0.005223977304834054, -0.02686617062880488, 0.11283791670913441, -0.37612638903183343, 1.1283791670955126,
)  # fmt: skip
_SCALED_ERFC = (
    4.3166603151175174e-07, 1.2215751620334775e-06, 2.4654338065156984e-07, -3.291810641651901e-06,
    -6.90597433742839e-06, -4.540882571537827e-06, 1.2595402736726718e-05, 4.240931447516707e-05,
    4.348259683903393e-05, -7.018219167952784e-05, -0.0003101508552005793, -0.0002959002527667999,
    0.0008607310860493886, 0.0028836859573806916, -0.0004471922951324894, -0.018629389166035133,
    -0.009284478887297385, 0.194490605501617, -0.49086875319768014, 0.3215854164543175,
)  # fmt: skip
# The error function of 0.512, where the second takes over.
_ERF_INV_SMALL = 0.53


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """A polynomial, its highest power first."""
    number = lambda value: tirx.const(value, dtype_name(x))
    return reduce(lambda value, coefficient: value * x + number(coefficient), coefficients[1:], number(coefficients[0]))


def _erf_inv(x: Any) -> Any:
    number = lambda value: tirx.const(value, dtype_name(x))
    minus_one, size = opaque(-1.0, dtype_name(x)), tirx.abs(x)
    complement = one(x) + minus_one * size  # exact from 1/2 on
    is_double = dtype_name(x) == "float64"
    # In single precision as XLA, so that normal numbers are JAX's; the maximum keeps the square from being fused.
    logarithm = tirx.log(complement * (one(x) + size)) if is_double else tirx.log1p(tirx.max(-x * x, -one(x)))
    w = -logarithm
    central = _polynomial(_ERF_INV_CENTRAL, w - number(2.5))
    center, table = (4.0, _ERF_INV_TAIL_DOUBLE) if is_double else (3.0, _ERF_INV_TAIL)
    tail = _polynomial(table, tirx.sqrt(w) - number(center))
    value = tirx.Select(w < number(5.0), central, tail) * size
    if is_double:
        value = _refined(value, size, complement)
    signed = tirx.Select(x < number(0.0), minus_one * value, tirx.Select(x > number(0.0), value, x))
    edge = tirx.Select(tirx.EQ(size, one(x)), x * tirx.infinity(dtype_name(x)), number(math.nan))
    return tirx.Select(size < one(x), signed, edge)


def _refined(value: Any, size: Any, complement: Any) -> Any:
    """The inverse at ``size``, from one of single precision: a step of Halley's method triples the digits.

    Near 1 the error function no longer tells arguments apart, but its complement does. With its scaled form one
    exponential serves both. The error of a small argument is relative to a result that is itself small, so the
    second form begins only where results are above 1/2.
    """
    number = lambda constant: tirx.const(constant, "float64")
    growth = tirx.exp(value * value)
    small = (size - value * _polynomial(_ERF_OVER_ARGUMENT, value * value)) * growth
    scaled = _polynomial(_SCALED_ERFC, (value - number(1.5)) / (value + number(1.5)))
    missing = tirx.Select(size < number(_ERF_INV_SMALL), small, scaled - complement * growth)
    step = missing * number(math.sqrt(math.pi) / 2)
    return value + step / (number(1.0) - value * step)


erf_inv = float_function("erf_inv", _erf_inv, lambda g, o, x: g * (math.sqrt(math.pi) / 2 * exp(o * o)))

lgamma = float_function("lgamma", libm("lgamma"), lambda g, o, x: g * polygamma(x, order=0))

_BERNOULLI = (
    Fraction(1, 6), Fraction(-1, 30), Fraction(1, 42), Fraction(-1, 30), Fraction(5, 66),
    Fraction(-691, 2730), Fraction(7, 6), Fraction(-3617, 510),
)  # fmt: skip


# The factors of higher orders leave the range of float64.
_HIGHEST_ORDER = 100


def _polygamma_shape(x: ShapeDtype, *, order: int) -> ShapeDtype:
    require_float("polygamma", x)
    if not 0 <= order <= _HIGHEST_ORDER:
        raise ArgumentError("polygamma", f"the order must be from 0 to {_HIGHEST_ORDER}", got=str(order))
    return x


def _polygamma(x: Any, *, order: int) -> Any:
    dtype = dtype_name(x)
    if dtype != "float64":  # in float32 the sums would cancel near the zeros
        return _polygamma(tirx.Cast("float64", x), order=order).astype(dtype)
    real = lambda value: tirx.const(float(value), "float64")
    minus_one = opaque(-1.0, "float64")
    is_negative = x < real(0)
    y = tirx.Select(is_negative, real(1) + minus_one * x, x)
    # The recurrence moves the argument to where the asymptotic series has converged.
    steps = 10 + order
    z = y + real(steps)
    inverse = real(1) / z
    square = inverse * inverse
    series = real(0)
    for k in range(len(_BERNOULLI), 0, -1):
        series = (series + real(_BERNOULLI[k - 1] * math.factorial(2 * k + order - 1) / math.factorial(2 * k))) * square
    series = series + real(Fraction(math.factorial(order), 2)) * inverse
    power = lambda value, n: real(1) if n == 0 else value if n == 1 else value * power(value, n - 1)
    terms = real(0)
    for k in range(steps):
        terms = terms + power(real(1) / (y + real(k)), order + 1)
    if order:
        series = (series + real(math.factorial(order - 1))) * power(inverse, order)
        value = series + real(math.factorial(order)) * terms
        value = value if order % 2 else minus_one * value
    else:
        value = tirx.log(z) + minus_one * series + minus_one * terms
    # psi_n(x) = (-1)^n psi_n(1 - x) - d^n/dx^n (pi cot(pi x)), a polynomial in the cotangent c: c' = -pi (1 + c^2).
    rest = x + minus_one * tirx.nearbyint(x)
    cotangent = real(1) / tirx.call_pure_extern("float64", "tan", real(math.pi) * rest)
    polynomial = [0.0, math.pi]
    for _ in range(order):
        slope = [(i + 1) * c for i, c in enumerate(polynomial[1:])]
        polynomial = [-math.pi * (a + b) for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    reflection = real(polynomial[-1])
    for coefficient in reversed(polynomial[:-1]):
        reflection = reflection * cotangent + real(coefficient)
    reflected = (minus_one * value if order % 2 else value) + minus_one * reflection
    # At the poles, all non-positive integers, even orders change their sign.
    pole = real(math.nan) if order % 2 == 0 else tirx.infinity("float64")
    reflected = tirx.Select(tirx.EQ(rest, real(0)), pole, reflected)
    return tirx.Select(is_negative, reflected, value)


#: ``polygamma(x, order=)``: the derivative of that order of the digamma function, the derivative of ``lgamma``.
polygamma = pointwise(
    "polygamma",
    _polygamma,
    (lambda g, o, x, *, order: g * polygamma(x, order=order + 1),),
    shape=_polygamma_shape,
    inexpensive=False,
)
