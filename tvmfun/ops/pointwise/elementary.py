"""Exponentials, logarithms, powers, and the trigonometric and hyperbolic functions.

They are within a few units in the last place of the exact value over the whole range. Infinities, NaN and signed zeros
give the same results as in C.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx

from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name
from tvmfun.errors import ArgumentError
from tvmfun.ops import formula
from tvmfun.ops.formula import compute_in_float32, libm, one, opaque
from tvmfun.ops.pointwise.arithmetic import abs, one_minus_square
from tvmfun.ops.pointwise.comparison import equal, where
from tvmfun.ops.pointwise.registration import constant, float_function, pointwise, require_float
from tvmfun.ops.simplify import is_number, number

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "cos",
    "cosh",
    "exp",
    "exp2",
    "expm1",
    "hypot",
    "integer_power",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "power",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]

# -- exponentials and logarithms -------------------------------------------------------------------------------


exp = float_function("exp", tirx.exp, lambda g, o, x: g * o, spelling=relax.op.exp)
exp2 = float_function("exp2", libm("exp2"), lambda g, o, x: g * (o * math.log(2)))
expm1 = float_function("expm1", libm("expm1"), lambda g, o, x: g * (o + 1))
log = float_function("log", tirx.log, lambda g, o, x: g / x, spelling=relax.op.log)
log2 = float_function("log2", libm("log2"), lambda g, o, x: g / (x * math.log(2)))
log10 = float_function("log10", libm("log10"), lambda g, o, x: g / (x * math.log(10)))
log1p = float_function("log1p", tirx.log1p, lambda g, o, x: g / (x + 1))
sigmoid = float_function(
    "sigmoid",
    lambda x: one(x) / (one(x) + tirx.exp(-x)),
    lambda g, o, x: g * (o * (1 - o)),
    spelling=relax.op.sigmoid,
    precision="either",
)


def _logaddexp(x: Any, y: Any) -> Any:
    largest = formula.maximum(x, y)
    # The difference of equal infinities is NaN.
    is_infinite = tirx.abs(largest) >= tirx.infinity(dtype_name(x))
    return tirx.Select(is_infinite, largest, largest + tirx.log1p(tirx.exp(-tirx.abs(formula.subtract(x, y)))))


def _share(x: Array, y: Array) -> Array:
    """``exp(x) / (exp(x) + exp(y))``; 1/2 for equal infinities."""
    # Not 0 if both are equal: the derivative of a constant is 0, but the derivative of the difference is not.
    alike = (x == y) & (abs(x) == math.inf)
    return sigmoid(where(alike, constant(0, x), x - y))


#: ``logaddexp(x, y)``: ``log(exp(x) + exp(y))`` without overflow.
logaddexp = float_function(
    "logaddexp",
    _logaddexp,
    lambda g, o, x, y: g * _share(x, y),
    lambda g, o, x, y: g * _share(y, x),
    spelling=relax.op.log_add_exp,
    relax_name="log_add_exp",
)

# -- powers and roots ------------------------------------------------------------------------------------------

sqrt = float_function("sqrt", tirx.sqrt, lambda g, o, x: g * 0.5 / o, spelling=relax.op.sqrt)
rsqrt = float_function(
    "rsqrt", lambda x: one(x) / tirx.sqrt(x), lambda g, o, x: g * -0.5 * (o / x), spelling=relax.op.rsqrt
)
cbrt = float_function("cbrt", libm("cbrt"), lambda g, o, x: g * (1 / 3 * integer_power(o, exponent=-2)))


def _power_vjp_base(g: Array, out: Array, x: Array, y: Array) -> Array:
    # 0 at x = y = 0, where x**(y-1) is infinite. The product stays where y is 0: it depends on y there.
    # Not `x == 0`, which NumPy would compute where x is a number, also in half precision.
    base = where(equal(x, constant(0, x)) & equal(y, constant(0, y)), constant(1, x), x)
    return g * (y * power(base, y - 1))


def _power_vjp_exponent(g: Array, out: Array, x: Array, y: Array) -> Array:
    # 0 where x is 0, where log(x) is infinite.
    return g * (out * log(where(equal(x, constant(0, x)), constant(1, x), x)))


# The formula has this many terms: TVM compares and prints shared factors as often as they are used.
_LARGEST_EXPONENT = 1024


def _integer_power_shape(x: ShapeDtype, *, exponent: int) -> ShapeDtype:
    require_float("integer_power", x)
    if not -_LARGEST_EXPONENT <= exponent <= _LARGEST_EXPONENT:
        what = f"the magnitude of the exponent must be at most {_LARGEST_EXPONENT}"
        raise ArgumentError("integer_power", what, got=str(exponent), hint="power")
    return x


def _integer_power(x: Any, *, exponent: int) -> Any:
    factor, result = x, None
    n = -exponent if exponent < 0 else exponent
    while n:
        if n & 1:
            result = factor if result is None else result * factor
        n >>= 1
        factor = factor * factor
    if result is None:
        return one(x)
    return one(x) / result if exponent < 0 else result


#: ``integer_power(x, exponent=)``: ``x**exponent`` for a small integer, by multiplications. It is an op for negative
#: exponents: through the chain of multiplications and a division, the factors of the derivative leave the range of
#: the dtype long before the derivative does.
integer_power = pointwise(
    "integer_power",
    lambda x, *, exponent: compute_in_float32(lambda y: _integer_power(y, exponent=exponent))(x),
    (lambda g, o, x, *, exponent: g * (exponent * integer_power(x, exponent=exponent - 1)),),
    shape=_integer_power_shape,
)


# Exponents for which a product or a quotient is within the error of the function.
_SMALL_EXPONENTS = (-1, 2, 3)


def _power(x: Any, y: Any) -> Any:
    """``x**y``; for the exponents 0.5 and -0.5 by a square root, but with C's results for -0.0 and -inf."""
    exponent = y.value if isinstance(y, tirx.Cast) else y
    if not isinstance(exponent, tirx.FloatImm):
        return tirx.power(x, y)
    if exponent.value not in (0.5, -0.5):
        # TVM warns of known exponents from 3 on. In float32 they become products, in float64 calls.
        y = opaque(exponent.value, "float64") if dtype_name(x) == "float64" else y
        return tirx.call_intrin(dtype_name(x), "tirx.pow", x, y)
    root, infinity = tirx.abs(tirx.sqrt(x)), tirx.const(math.inf, dtype_name(x))
    if exponent.value > 0:
        return tirx.Select(x == -infinity, infinity, root)
    return tirx.Select(x == -infinity, tirx.const(0, dtype_name(x)), one(x) / root)


def _power_simplify(x: Any, y: Any) -> Any:
    exponent = number(y)
    if is_number(x, 1) or (exponent is not None and exponent == 0):
        return y.dtype.type(1)
    if exponent is None or exponent not in (1, *_SMALL_EXPONENTS):
        return None
    if exponent == 1:
        return x
    if exponent == -1:
        return constant(1, x) / x
    return x * x if exponent == 2 else integer_power(x, exponent=int(exponent))


power = float_function(
    "power",
    _power,
    _power_vjp_base,
    _power_vjp_exponent,
    spelling=relax.op.power,
    simplify=_power_simplify,
)


def _hypot_vjp(g: Array, out: Array, x: Array) -> Array:
    # 0 at the tip of the cone, where no derivative exists.
    at_tip = out == 0
    return where(at_tip, constant(0, g), g * (x / where(at_tip, constant(1, out), out)))


#: ``hypot(x, y)``: ``sqrt(x**2 + y**2)`` without overflow.
hypot = float_function(
    "hypot", libm("hypot"), lambda g, o, x, y: _hypot_vjp(g, o, x), lambda g, o, x, y: _hypot_vjp(g, o, y)
)

# -- trigonometric functions -----------------------------------------------------------------------------------

sin = float_function("sin", tirx.sin, lambda g, o, x: g * cos(x), spelling=relax.op.sin)
cos = float_function("cos", tirx.cos, lambda g, o, x: -(g * sin(x)), spelling=relax.op.cos)
tan = float_function("tan", libm("tan"), lambda g, o, x: g * (1 + o * o))
asin = float_function("asin", libm("asin"), lambda g, o, x: g * rsqrt(one_minus_square(x)))
acos = float_function("acos", libm("acos"), lambda g, o, x: -(g * rsqrt(one_minus_square(x))))
atan = float_function("atan", libm("atan"), lambda g, o, x: g / (1 + x * x))


def _over_radius(g: Array, x: Array, y: Array, z: Array) -> Array:
    """``g x / (y^2 + z^2)`` without overflow."""
    radius = hypot(y, z)
    return g * (x / radius / radius)


#: ``atan2(y, x)``: the angle of the point ``(x, y)``.
atan2 = float_function(
    "atan2",
    libm("atan2"),
    lambda g, o, y, x: _over_radius(g, x, x, y),
    lambda g, o, y, x: -_over_radius(g, y, x, y),
)

# -- hyperbolic functions --------------------------------------------------------------------------------------


def _tanh(x: Any) -> Any:
    # TVM's own formula for double precision cancels near 0.
    return libm("tanh")(x) if dtype_name(x) == "float64" else tirx.tanh(x)


sinh = float_function("sinh", libm("sinh"), lambda g, o, x: g * cosh(x))
cosh = float_function("cosh", libm("cosh"), lambda g, o, x: g * sinh(x))
tanh = float_function("tanh", _tanh, lambda g, o, x: g * (1 - o * o), spelling=relax.op.tanh, precision="either")
asinh = float_function("asinh", libm("asinh"), lambda g, o, x: g / hypot(x, constant(1, x)))
# Below -1, where there is no value, the derivative is a number as in JAX, so that masking the result is enough.
acosh = float_function("acosh", libm("acosh"), lambda g, o, x: g / sqrt(abs(x) - 1) / sqrt(abs(x) + 1))
atanh = float_function("atanh", libm("atanh"), lambda g, o, x: g / one_minus_square(x))
