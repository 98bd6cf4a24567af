"""NumPy's elementwise functions that the array API does not have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.errors import DtypeError
from tvmfun.numpy.creation import arrays
from tvmfun.numpy.data_types import finfo
from tvmfun.numpy.elementwise import (
    clip,
    copysign,
    floor_divide,
    isfinite,
    isinf,
    isnan,
    nextafter,
    positive,
    remainder,
    signbit,
    unary,
)
from tvmfun.numpy.manipulation import broadcast_arrays
from tvmfun.numpy.promotion import array, convert, no_out, operands, require_integer
from tvmfun.numpy.utility import any
from tvmfun.ops import elementary
from tvmfun.ops import pointwise as ops

__all__ = [
    "cbrt",
    "deg2rad",
    "divmod",
    "exp2",
    "fabs",
    "float_power",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "gcd",
    "heaviside",
    "isneginf",
    "isposinf",
    "lcm",
    "ldexp",
    "logaddexp2",
    "modf",
    "nan_to_num",
    "rad2deg",
    "rint",
    "sinc",
    "spacing",
]

cbrt = unary("cbrt", elementary.cbrt, r":math:`\sqrt[3]{x}`", floating=True, module=__name__)
rint = unary("rint", ops.round, "the nearest integer, the even one of two, as a float", floating=True, module=__name__)
exp2 = unary("exp2", elementary.exp2, ":math:`2^x`", floating=True, module=__name__)


def fabs(x: Any) -> Array:
    """Returns :math:`|x|`, a float, elementwise."""
    return ops.abs(*operands("fabs", x, floating=True))


def logaddexp2(x1: Any, x2: Any, /) -> Array:
    r"""Returns :math:`\log_2(2^{x_1} + 2^{x_2})` without overflow, elementwise."""
    x1, x2 = operands("logaddexp2", x1, x2, floating=True)
    scale = x1.dtype.type(math.log(2))
    return ops.divide(elementary.logaddexp(ops.multiply(x1, scale), ops.multiply(x2, scale)), scale)


def spacing(x: Any) -> Array:
    """Returns the distance to the next float away from 0, with the sign of ``x``, elementwise."""
    (x,) = operands("spacing", x, floating=True)
    end = copysign(x.dtype.type(math.inf), x)
    distance = ops.subtract(nextafter(x, end), x)
    return ops.where(isinf(x), x.dtype.type(math.nan), distance)


def frexp(x: Any) -> tuple[Array, Array]:
    """Returns the mantissas, in size from 0.5 up to but without 1, and the int32 exponents: ``m * 2**e`` is ``x``.

    >>> frexp(12.0)
    (Array(0.75, dtype=float32), Array(4, dtype=int32))
    """
    (x,) = operands("frexp", x, floating=True)
    own = x.dtype
    wide = x if own.itemsize >= 4 else ops.astype(x, dtype="float32")
    limits = finfo(wide.dtype)
    real, width = wide.dtype.type, wide.dtype.itemsize * 8
    plain = ops.bitwise_and(isfinite(wide), ops.not_equal(wide, real(0)))
    # Numbers whose first bit is not implied are made larger first.
    lift = limits.nmant + 2
    tiny = ops.less(ops.abs(wide), real(limits.smallest_normal))
    size = ops.abs(ops.stop_gradient(wide))
    size = ops.where(tiny, ops.multiply(size, real(2.0**lift)), size)
    bits = ops.bitcast(size, dtype=f"int{width}")
    exponent = ops.astype(ops.right_shift(bits, bits.dtype.type(limits.nmant)), dtype="int32")
    exponent = ops.subtract(exponent, np.int32(limits.maxexp - 2))
    exponent = ops.where(tiny, ops.subtract(exponent, np.int32(lift)), exponent)
    exponent = ops.where(plain, exponent, np.int32(0))
    mantissa = ops.where(plain, ldexp(wide, ops.negative(exponent)), wide)
    return (mantissa if own == wide.dtype else ops.astype(mantissa, dtype=dtypes.NAMES[own])), exponent


def _integers(name: str, *values: Any) -> list[Any]:
    found = operands(name, *values)
    if not dtypes.is_integer(found[0].dtype):
        raise DtypeError(name, "the numbers must be integers", got=dtypes.NAMES[found[0].dtype])
    return found


def gcd(x1: Any, x2: Any) -> Array:
    """Returns the greatest common divisor of integers, elementwise, by Euclid's algorithm.

    >>> gcd(12, [8, 9])
    Array([4, 3], dtype=int32)
    """
    from tvmfun.lax.control_flow import while_loop

    x1, x2 = broadcast_arrays(*arrays("gcd", *_integers("gcd", *arrays("gcd", x1, x2))))
    zero = x1.dtype.type(0)
    pair = while_loop(
        lambda pair: any(ops.not_equal(pair[1], zero)),
        lambda pair: (
            ops.where(ops.equal(pair[1], zero), pair[0], pair[1]),
            ops.where(ops.equal(pair[1], zero), zero, ops.remainder(pair[0], pair[1])),
        ),
        (ops.abs(x1), ops.abs(x2)),
    )
    return pair[0]


def lcm(x1: Any, x2: Any) -> Array:
    """Returns the least common multiple of integers, elementwise.

    >>> lcm(4, [6, 0])
    Array([12,  0], dtype=int32)
    """
    x1, x2 = arrays("lcm", x1, x2)
    divisor = gcd(x1, x2)
    x1, x2 = ops.abs(x1), ops.abs(x2)
    zero, one = divisor.dtype.type(0), divisor.dtype.type(1)
    none = ops.equal(divisor, zero)
    return ops.where(none, zero, ops.multiply(x1, ops.floor_divide(x2, ops.where(none, one, divisor))))


def deg2rad(x: Any, /) -> Array:
    r"""Returns :math:`\frac{\pi}{180} x`, elementwise."""
    (x,) = operands("deg2rad", x, floating=True)
    return ops.multiply(x, x.dtype.type(math.pi / 180))


def rad2deg(x: Any, /) -> Array:
    r"""Returns :math:`\frac{180}{\pi} x`, elementwise."""
    (x,) = operands("rad2deg", x, floating=True)
    return ops.multiply(x, x.dtype.type(180 / math.pi))


def float_power(x1: Any, x2: Any, /) -> Array:
    """Returns :math:`x_1^{x_2}`, a float, elementwise."""
    return ops.power(*operands("float_power", x1, x2, floating=True))


def sinc(x: Any, /) -> Array:
    r"""Returns :math:`\frac{\sin(\pi x)}{\pi x}`, and 1 at 0, elementwise."""
    (x,) = operands("sinc", x, floating=True)
    real = x.dtype.type
    y = ops.multiply(x, real(math.pi))
    # Near 0 the Taylor series, whose derivatives are right as well.
    near = ops.less(ops.abs(y), real(0.5))
    # Each formula gets a harmless argument where the other one counts: 0 times an infinite derivative would be NaN.
    small, large = ops.where(near, y, real(0)), ops.where(near, real(1), y)
    square = ops.multiply(small, small)
    series = real(0)
    for k in range(7, 0, -1):
        series = ops.multiply(square, ops.add(series, real((-1) ** k / math.factorial(2 * k + 1))))
    return ops.where(near, ops.add(series, real(1)), ops.divide(ops.sin(large), large))


def heaviside(x1: Any, x2: Any, /) -> Array:
    """Returns 0 where ``x1`` is negative, 1 where it is positive and ``x2`` where it is 0, elementwise."""
    x1, x2 = operands("heaviside", x1, x2, floating=True)
    zero, one = x1.dtype.type(0), x1.dtype.type(1)
    at_zero = ops.where(ops.equal(x1, zero), x2, x1)
    return ops.where(ops.less(x1, zero), zero, ops.where(ops.greater(x1, zero), one, at_zero))


def fmax(x1: Any, x2: Any) -> Array:
    r"""Returns :math:`\max(x_1, x_2)`, ignoring a NaN, elementwise."""
    x1, x2 = operands("fmax", x1, x2)
    return ops.where(ops.bitwise_or(ops.greater(x1, x2), isnan(x2)), x1, x2)


def fmin(x1: Any, x2: Any) -> Array:
    r"""Returns :math:`\min(x_1, x_2)`, ignoring a NaN, elementwise."""
    x1, x2 = operands("fmin", x1, x2)
    return ops.where(ops.bitwise_or(ops.less(x1, x2), isnan(x2)), x1, x2)


def fmod(x1: Any, x2: Any, /) -> Array:
    """Returns the remainder of the division rounded towards zero, with the sign of :math:`x_1`, elementwise."""
    x1, x2 = operands("fmod", x1, x2, numeric=True)
    if dtypes.is_float(x1.dtype):
        return elementary.fmod(x1, x2)
    rest = ops.remainder(x1, x2)
    if x1.dtype in dtypes.UNSIGNED:
        return rest
    zero = x1.dtype.type(0)
    apart = ops.bitwise_xor(ops.less(x1, zero), ops.less(x2, zero))
    wrong = ops.bitwise_and(ops.not_equal(rest, zero), apart)
    return ops.where(wrong, ops.subtract(rest, x2), rest)


def divmod(x1: Any, x2: Any, /) -> tuple[Array, Array]:
    """Returns the floor division and its remainder, elementwise."""
    return floor_divide(x1, x2), remainder(x1, x2)


def modf(x: Any, /, out: None = None) -> tuple[Array, Array]:
    """Returns the fraction and the integer part of each element, both with its sign.

    >>> modf(-1.5)
    (Array(-0.5, dtype=float32), Array(-1., dtype=float32))
    """
    no_out("modf", out)
    (x,) = operands("modf", x, floating=True)
    whole = ops.trunc(x)
    # Turned twice where it is negative, so that a fraction of 0 has the sign, too.
    rest = ops.where(signbit(x), -(whole - x), x - whole)
    return ops.where(isinf(x), copysign(x.dtype.type(0), x), rest), whole


def ldexp(x1: Any, x2: Any, /) -> Array:
    """Returns :math:`x_1 2^{x_2}` for integers :math:`x_2`, exactly where that is a normal number, elementwise.

    Raises:
        DtypeError: if ``x2`` has no integer dtype.
    """
    x2 = array("ldexp", x2)
    require_integer("ldexp", x2)
    (x1,) = operands("ldexp", x1, floating=True)
    wide = x1.dtype if x1.dtype.itemsize >= 4 else dtypes.float32
    result = ops.astype(x1, dtype=dtypes.NAMES[wide])
    # One factor would leave the range of the dtype before the result does.
    limit = 4 * (finfo(wide).maxexp - 4)
    left = ops.astype(clip(x2, -limit, limit), dtype="int32")
    four = left.dtype.type(4)
    part = ops.astype(ops.floor_divide(left, four), dtype=dtypes.NAMES[wide])
    rest = ops.astype(ops.remainder(left, four), dtype=dtypes.NAMES[wide])
    for power in (part, part, part, ops.add(part, rest)):
        result = ops.multiply(result, elementary.exp2(power))
    return ops.astype(result, dtype=dtypes.NAMES[x1.dtype])


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Returns the array with numbers instead of NaN and infinities; integers stay as they are.

    Args:
        x: the array.
        copy: for NumPy; arrays are immutable, so a copy cannot be told from the original.
        nan: what NaN becomes.
        posinf: what infinity becomes; by default the largest number.
        neginf: what negative infinity becomes; by default the smallest number.

    >>> nan_to_num(math.inf, posinf=9.0)
    Array(9., dtype=float32)
    """
    x = array("nan_to_num", x)
    if not dtypes.is_float(x.dtype):
        return positive(x)
    limits = finfo(x.dtype)
    real = lambda value, default: convert("nan_to_num", default if value is None else value, x.dtype)
    x = ops.where(ops.isnan(x), real(nan, 0.0), x)
    infinity = x.dtype.type(math.inf)
    x = ops.where(ops.equal(x, infinity), real(posinf, limits.max), x)
    return ops.where(ops.equal(x, -infinity), real(neginf, limits.min), x)


def isposinf(x: Any, /, out: None = None) -> Array:
    """Returns whether an element is positive infinity, elementwise."""
    no_out("isposinf", out)
    x = array("isposinf", x)
    return ops.equal(x, x.dtype.type(math.inf)) if dtypes.is_float(x.dtype) else isinf(x)


def isneginf(x: Any, /, out: None = None) -> Array:
    """Returns whether an element is negative infinity, elementwise."""
    no_out("isneginf", out)
    x = array("isneginf", x)
    return ops.equal(x, x.dtype.type(-math.inf)) if dtypes.is_float(x.dtype) else isinf(x)
