"""The error function, its inverse and complement, and the logarithm of the gamma function with its derivatives."""

from __future__ import annotations

import math
from fractions import Fraction
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

# The polynomial in sqrt(w) - 4 for all numbers of double precision, interpolated at Chebyshev's points, within 8e-7.
_ERF_INV_TAIL_DOUBLE = (
    6.995027159326243e-07, -2.0298250092551526e-06, -7.651663091908081e-06, 3.723280800904198e-05,
    -4.656019458655869e-05, 2.6138366349608452e-05, -9.21677741089875e-05, 0.0003419811435157505,
    -0.0008855016225406793, 0.0012543538807622263, 1.0094960632629033, 3.839784031794465,
)  # fmt: skip


def _erf_inv(x: Any) -> Any:
    def polynomial(coefficients: tuple[float, ...], w: Any) -> Any:
        result = tirx.const(coefficients[0], dtype_name(x))
        for coefficient in coefficients[1:]:
            result = result * w + tirx.const(coefficient, dtype_name(x))
        return result

    number = lambda value: tirx.const(value, dtype_name(x))
    minus_one, size = opaque(-1.0, dtype_name(x)), tirx.abs(x)
    complement = one(x) + minus_one * size  # exact from 1/2 on
    if dtype_name(x) == "float64":
        w = -tirx.log(complement * (one(x) + size))
    else:  # as XLA, so that normal numbers are JAX's; the maximum keeps the square from being fused into the difference
        w = -tirx.log1p(tirx.max(-x * x, -one(x)))
    central = polynomial(_ERF_INV_CENTRAL, w - number(2.5))
    center, table = (4.0, _ERF_INV_TAIL_DOUBLE) if dtype_name(x) == "float64" else (3.0, _ERF_INV_TAIL)
    tail = polynomial(table, tirx.sqrt(w) - number(center))
    value = tirx.Select(w < number(5.0), central, tail) * size
    if dtype_name(x) == "float64":  # single precision so far; a step of Halley's method triples the digits
        # Near 1 the error function no longer tells arguments apart, but its complement does.
        excess = tirx.Select(size < number(0.5), tirx.erf(value) - size, complement - libm("erfc")(value))
        step = excess * number(math.sqrt(math.pi) / 2) * tirx.exp(value * value)
        value = value - step / (one(x) + value * step)
    signed = tirx.Select(x < number(0.0), minus_one * value, tirx.Select(x > number(0.0), value, x))
    edge = tirx.Select(tirx.EQ(size, one(x)), x * tirx.infinity(dtype_name(x)), number(math.nan))
    return tirx.Select(size < one(x), signed, edge)


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
