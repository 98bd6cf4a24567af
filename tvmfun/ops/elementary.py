"""Pointwise functions of C's math library, and the polygamma functions, which it lacks.

They are within a few units in the last place of the exact value over the whole range. Infinities, NaN and signed
zeros come out as in C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tvm import relax, tirx

from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name
from tvmfun.core.op import Op
from tvmfun.errors import DtypeError
from tvmfun.ops import pointwise as pw
from tvmfun.ops.pointwise import FLOATS, compute_in_float32, constant, exp, rsqrt, sqrt, where


def _libm(function: str) -> Callable[..., Any]:
    """The formula that calls a function of C's math library, which has one for each precision."""

    def formula(*xs: Any) -> Any:
        dtype = dtype_name(xs[0])
        return tirx.call_pure_extern(dtype, f"{function}f" if dtype == "float32" else function, *xs)

    return compute_in_float32(formula)


def _from_libm(name: str, *vjp: Callable[..., Array], function: str = "") -> Op:
    return pw.pointwise(name, _libm(function or name), vjp, domain=FLOATS, inexpensive=False)


#: ``one_minus_square(x)``: ``1 - x**2``, exact near 1. It is an op because its derivative, through the two factors,
#: would be the difference of two infinities where what is made of it has a pole.
one_minus_square = pw.pointwise(
    "one_minus_square",
    compute_in_float32(lambda x: (tirx.const(1, dtype_name(x)) - x) * (tirx.const(1, dtype_name(x)) + x)),
    (lambda g, o, x: g * (-2 * x),),
    domain=FLOATS,
)


# -- trigonometric and hyperbolic functions --------------------------------------------------------------------

tan = _from_libm("tan", lambda g, o, x: g * (1 + o * o))
asin = _from_libm("asin", lambda g, o, x: g * rsqrt(one_minus_square(x)))
acos = _from_libm("acos", lambda g, o, x: -(g * rsqrt(one_minus_square(x))))
atan = _from_libm("atan", lambda g, o, x: g / (1 + x * x))
sinh = _from_libm("sinh", lambda g, o, x: g * cosh(x))
cosh = _from_libm("cosh", lambda g, o, x: g * sinh(x))
asinh = _from_libm("asinh", lambda g, o, x: g / hypot(x, constant(1, x)))
# Below -1, where there is no value, the derivative is a number as in JAX: a mask in front of it is enough.
acosh = _from_libm("acosh", lambda g, o, x: g / sqrt(abs(x) - 1) / sqrt(abs(x) + 1))
atanh = _from_libm("atanh", lambda g, o, x: g / one_minus_square(x))


def _over_radius(g: Array, x: Array, y: Array, z: Array) -> Array:
    """``g x / (y^2 + z^2)`` without overflow."""
    radius = hypot(y, z)
    return g * (x / radius / radius)


#: ``fmod(x, y)``: what is left of the division rounded towards 0. The derivative by ``y`` is exactly the quotient.
fmod = pw.pointwise(
    "fmod",
    pw.fmod_formula,
    (lambda g, o, x, y: g, lambda g, o, x, y: -(g * pw.round((x - o) / y))),
    domain=FLOATS,
    inexpensive=False,
)

#: ``atan2(y, x)``: the angle of the point ``(x, y)``.
atan2 = _from_libm(
    "atan2",
    lambda g, o, y, x: _over_radius(g, x, x, y),
    lambda g, o, y, x: -_over_radius(g, y, x, y),
)


def _hypot_vjp(g: Array, out: Array, x: Array) -> Array:
    # 0 at the tip of the cone, where there is no derivative.
    at_tip = out == 0
    return where(at_tip, constant(0, g), g * (x / where(at_tip, constant(1, out), out)))


hypot = _from_libm("hypot", lambda g, o, x, y: _hypot_vjp(g, o, x), lambda g, o, x, y: _hypot_vjp(g, o, y))

# -- powers and logarithms -------------------------------------------------------------------------------------

exp2 = _from_libm("exp2", lambda g, o, x: g * (o * math.log(2)))
log2 = _from_libm("log2", lambda g, o, x: g / (x * math.log(2)))
log10 = _from_libm("log10", lambda g, o, x: g / (x * math.log(10)))
cbrt = _from_libm("cbrt", lambda g, o, x: g * (1 / 3 * integer_power(o, exponent=-2)))


def _integer_power(x: Any, *, exponent: int) -> Any:
    factor, result = x, None
    n = abs(exponent)
    while n:
        if n & 1:
            result = factor if result is None else result * factor
        n >>= 1
        factor = factor * factor
    one = tirx.const(1, dtype_name(x))
    if result is None:
        return one
    return one / result if exponent < 0 else result


def _of_floats(name: str) -> Callable[..., ShapeDtype]:
    """The shape rule of a function of one float with parameters."""

    def rule(x: ShapeDtype, **params: int) -> ShapeDtype:
        if x.dtype not in FLOATS:
            raise DtypeError(name, "the argument must be a float", got=repr(x), hint="x.astype('float32')")
        return x

    return rule


#: ``integer_power(x, exponent=)``: ``x**exponent`` for a small integer, by multiplications. It is an op for negative
#: exponents: through the chain of multiplications and a division, the factors of the derivative leave the range of
#: the dtype long before it does.
integer_power = pw.register_pointwise(
    Op(
        "integer_power",
        "pointwise",
        _of_floats("integer_power"),
        lambda x, *, exponent: compute_in_float32(lambda y: _integer_power(y, exponent=exponent))(x),
        (lambda g, o, x, *, exponent: g * (exponent * integer_power(x, exponent=exponent - 1)),),
    )
)


def _logaddexp(x: Any, y: Any) -> Any:
    largest = pw.maximum.compute(x, y)
    # The difference of equal infinities is NaN.
    is_infinite = tirx.abs(largest) >= tirx.infinity(dtype_name(x))
    return tirx.Select(is_infinite, largest, largest + tirx.log1p(tirx.exp(-tirx.abs(pw.subtract.compute(x, y)))))


def _share(x: Array, y: Array) -> Array:
    """``exp(x) / (exp(x) + exp(y))``, of equal infinities a half."""
    # Not 0 wherever both are equal: the derivative of a constant is 0, and that of the difference is not.
    alike = (x == y) & (abs(x) == math.inf)
    return pw.sigmoid(where(alike, constant(0, x), x - y))


#: ``logaddexp(x, y)``: ``log(exp(x) + exp(y))`` without overflow.
logaddexp = pw.pointwise(
    "logaddexp",
    compute_in_float32(_logaddexp),
    (lambda g, o, x, y: g * _share(x, y), lambda g, o, x, y: g * _share(y, x)),
    domain=FLOATS,
    spelling=relax.op.log_add_exp,
    relax_name="log_add_exp",
    inexpensive=False,
)

# -- the error function and the gamma function -----------------------------------------------------------------

erfc = _from_libm(
    "erfc",
    lambda g, o, x: g * (-2 / math.sqrt(math.pi) * exp(-(x * x))),
)
lgamma = _from_libm("lgamma", lambda g, o, x: g * polygamma(x, order=0))

_BERNOULLI = (
    Fraction(1, 6), Fraction(-1, 30), Fraction(1, 42), Fraction(-1, 30), Fraction(5, 66),
    Fraction(-691, 2730), Fraction(7, 6), Fraction(-3617, 510),
)  # fmt: skip


def _polygamma(x: Any, *, order: int) -> Any:
    dtype = dtype_name(x)
    if dtype != "float64":  # in float32 the sums would cancel near the zeros
        return _polygamma(tirx.Cast("float64", x), order=order).astype(dtype)
    real = lambda value: tirx.const(float(value), "float64")
    minus_one = pw.opaque(-1.0, "float64")
    one = real(1)
    is_negative = x < real(0)
    y = tirx.Select(is_negative, one + minus_one * x, x)
    # The recurrence moves the argument to where the asymptotic series has converged.
    steps = 10 + order
    z = y + real(steps)
    inverse = one / z
    square = inverse * inverse
    series = real(0)
    for k in range(len(_BERNOULLI), 0, -1):
        series = (series + real(_BERNOULLI[k - 1] * math.factorial(2 * k + order - 1) / math.factorial(2 * k))) * square
    series = series + real(Fraction(math.factorial(order), 2)) * inverse
    power = lambda value, n: one if n == 0 else value if n == 1 else value * power(value, n - 1)
    terms = real(0)
    for k in range(steps):
        terms = terms + power(one / (y + real(k)), order + 1)
    if order:
        series = (series + real(math.factorial(order - 1))) * power(inverse, order)
        value = series + real(math.factorial(order)) * terms
        value = value if order % 2 else minus_one * value
    else:
        value = tirx.log(z) + minus_one * series + minus_one * terms
    # psi_n(x) = (-1)^n psi_n(1 - x) - d^n/dx^n (pi cot(pi x)), a polynomial in the cotangent c: c' = -pi (1 + c^2).
    rest = x + minus_one * tirx.nearbyint(x)
    cotangent = one / tirx.call_pure_extern("float64", "tan", real(math.pi) * rest)
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


#: ``polygamma(x, order=)``: the derivative of that order of the digamma function, which is that of ``lgamma``.
polygamma = pw.register_pointwise(
    Op(
        "polygamma",
        "pointwise",
        _of_floats("polygamma"),
        _polygamma,
        (lambda g, o, x, *, order: g * polygamma(x, order=order + 1),),
        inexpensive=False,
    )
)
