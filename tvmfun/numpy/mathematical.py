"""NumPy's elementwise functions that the array API does not have."""

from __future__ import annotations

import math
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.numpy.data_types import finfo
from tvmfun.numpy.elementwise import (
    clip,
    copysign,
    floor_divide,
    isinf,
    isnan,
    positive,
    remainder,
    signbit,
    unary,
)
from tvmfun.numpy.promotion import array, convert, no_out, operands, require_integer
from tvmfun.ops import elementary
from tvmfun.ops import pointwise as ops

cbrt = unary("cbrt", elementary.cbrt, r":math:`\sqrt[3]{x}`", floating=True, module=__name__)
rint = unary("rint", ops.round, "the nearest integer, the even one of two, as a float", floating=True, module=__name__)
exp2 = unary("exp2", elementary.exp2, ":math:`2^x`", floating=True, module=__name__)


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
    x1, x2 = operands("fmod", x1, x2)
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
