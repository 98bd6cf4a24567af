"""Parts and classes of floats: sign, mantissa, exponent, NaN and infinities; real and imaginary parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.numpy import elementwise
from tvmfun.numpy.creation import asarray, full, zeros
from tvmfun.numpy.dtypes import finfo
from tvmfun.numpy.elementwise import (
    abs,
    add,
    clip,
    equal,
    less,
    less_equal,
    logical_and,
    logical_or,
    multiply,
    named,
    positive,
    subtract,
    where,
)
from tvmfun.numpy.promotion import array, convert, no_out, operands, require_integer
from tvmfun.ops import pointwise as ops
from tvmfun.typing import ArrayLike

__all__ = [
    "angle",
    "conj",
    "conjugate",
    "copysign",
    "fmax",
    "fmin",
    "frexp",
    "imag",
    "isclose",
    "iscomplex",
    "iscomplexobj",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "isrealobj",
    "ldexp",
    "modf",
    "nan_to_num",
    "nextafter",
    "real",
    "signbit",
    "spacing",
]


def spacing(x: ArrayLike) -> Array:
    """Returns the distance to the next float away from 0, with the sign of ``x``, elementwise."""
    (x,) = operands("spacing", x, floating=True)
    end = copysign(x.dtype.type(math.inf), x)
    distance = ops.subtract(nextafter(x, end), x)
    return ops.where(isinf(x), x.dtype.type(math.nan), distance)


def frexp(x: ArrayLike) -> tuple[Array, Array]:
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
    # Subnormal numbers have no implicit leading bit, so they are scaled up first.
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


def fmax(x1: ArrayLike, x2: ArrayLike) -> Array:
    r"""Returns :math:`\max(x_1, x_2)`, ignoring a NaN, elementwise."""
    x1, x2 = operands("fmax", x1, x2)
    return ops.where(ops.bitwise_or(ops.greater(x1, x2), isnan(x2)), x1, x2)


def fmin(x1: ArrayLike, x2: ArrayLike) -> Array:
    r"""Returns :math:`\min(x_1, x_2)`, ignoring a NaN, elementwise."""
    x1, x2 = operands("fmin", x1, x2)
    return ops.where(ops.bitwise_or(ops.less(x1, x2), isnan(x2)), x1, x2)


def modf(x: ArrayLike, /, out: None = None) -> tuple[Array, Array]:
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


def ldexp(x1: ArrayLike, x2: ArrayLike, /) -> Array:
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
        result = ops.multiply(result, ops.exp2(power))
    return ops.astype(result, dtype=dtypes.NAMES[x1.dtype])


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Returns the array with numbers instead of NaN and infinities; integers do not change.

    Args:
        x: the array.
        copy: for NumPy; arrays are immutable, so a copy cannot be told from the original.
        nan: the replacement of NaN.
        posinf: the replacement of infinity; by default the largest number.
        neginf: the replacement of negative infinity; by default the smallest number.

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


def isposinf(x: ArrayLike, /, out: None = None) -> Array:
    """Returns whether an element is positive infinity, elementwise."""
    no_out("isposinf", out)
    x = array("isposinf", x)
    return ops.equal(x, x.dtype.type(math.inf)) if dtypes.is_float(x.dtype) else isinf(x)


def isneginf(x: ArrayLike, /, out: None = None) -> Array:
    """Returns whether an element is negative infinity, elementwise."""
    no_out("isneginf", out)
    x = array("isneginf", x)
    return ops.equal(x, x.dtype.type(-math.inf)) if dtypes.is_float(x.dtype) else isinf(x)


def real(val: ArrayLike) -> Array:
    """Returns the real part: the array itself."""
    return positive(val)


def imag(val: ArrayLike) -> Array:
    """Returns the imaginary part: zeros."""
    val = asarray(val)
    return zeros(val.shape, val.dtype)


def conj(x: ArrayLike) -> Array:
    """Returns the complex conjugate: the array itself."""
    return positive(x)


def conjugate(x: ArrayLike) -> Array:
    """Returns the complex conjugate: the array itself."""
    return positive(x)


def angle(z: ArrayLike, deg: bool = False) -> Array:
    r"""Returns the angle of numbers in the complex plane: 0, and :math:`\pi` (180 degrees) for negative ones.

    >>> angle([2.0, -3.0], deg=True)
    Array([  0., 180.], dtype=float32)
    """
    (z,) = operands("angle", asarray(z), floating=True)
    half = z.dtype.type(180 if deg else math.pi)
    # -0 has the angle of the negative numbers, and NaN none.
    return where(z != z, z, where(logical_or(less(z, 0), signbit(z)), half, z.dtype.type(0)))


def iscomplex(x: ArrayLike) -> Array:
    """Returns whether an element has an imaginary part, elementwise: false."""
    return full(asarray(x).shape, False)


def isreal(x: ArrayLike) -> Array:
    """Returns whether an element has no imaginary part, elementwise: true."""
    return full(asarray(x).shape, True)


def iscomplexobj(x: ArrayLike) -> bool:
    """Returns whether the dtype of an array is complex: False for every array of this library.

    >>> iscomplexobj([1.0]), iscomplexobj(1j)
    (False, True)
    """
    if isinstance(x, complex) or getattr(getattr(x, "dtype", None), "kind", "") == "c":
        return True
    array("iscomplexobj", asarray(x))
    return False


def isrealobj(x: ArrayLike) -> bool:
    """Returns whether the dtype of an array is not complex: True for every array of this library."""
    return not iscomplexobj(x)


def _float_test(name: str, op: Op, formula: str, otherwise: bool) -> Callable[..., Array]:
    def function(x: ArrayLike, /) -> Array:
        x = array(name, x)
        if dtypes.is_float(x.dtype):
            return op(x)
        return ops.equal(x, x) if otherwise else ops.not_equal(x, x)

    return named(function, name, f"Returns whether {formula}, elementwise.")


isnan = _float_test("isnan", ops.isnan, "an element is NaN", False)
isfinite = _float_test("isfinite", ops.isfinite, "an element is neither infinite nor NaN", True)


def isinf(x: ArrayLike, /) -> Array:
    """Returns whether an element is infinite, elementwise."""
    x = array("isinf", x)
    if not dtypes.is_float(x.dtype):
        return ops.not_equal(x, x)
    return ops.equal(ops.abs(x), x.dtype.type(math.inf))


def signbit(x: ArrayLike, /) -> Array:
    """Returns whether an element is negative, elementwise; true for -0.0."""
    x = array("signbit", x)
    if not dtypes.is_float(x.dtype):
        return ops.less(x, x.dtype.type(0)) if x.dtype in dtypes.SIGNED else ops.not_equal(x, x)
    signed = f"int{x.dtype.itemsize * 8}"
    bits = ops.bitcast(ops.stop_gradient(x), dtype=signed)
    return ops.less(bits, bits.dtype.type(0))


def copysign(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Returns the size of ``x1`` with the sign of ``x2``, elementwise."""
    x1, x2 = operands("copysign", x1, x2, floating=True)
    size = ops.abs(x1)
    return ops.where(signbit(x2), -size, size)


def nextafter(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Returns the next float after ``x1`` in the direction of ``x2``, elementwise.

    >>> nextafter(np.float32(0), 1)
    Array(1.e-45, dtype=float32)
    """
    x1, x2 = operands("nextafter", x1, x2, floating=True)
    zero, kind = x1.dtype.type(0), dtypes.NAMES[x1.dtype]
    # Floats of one sign are ordered as their bits are.
    bits = ops.bitcast(x1, dtype=f"int{x1.dtype.itemsize * 8}")
    one = bits.dtype.type(1)
    away = ops.equal(ops.less(x1, x2), ops.less(zero, x1))
    moved = ops.bitcast(ops.add(bits, ops.where(away, one, -one)), dtype=kind)
    moved = ops.where(ops.equal(x1, zero), copysign(one.view(x1.dtype), x2), moved)
    moved = ops.where(ops.equal(x1, x2), x2, moved)
    return ops.where(ops.bitwise_or(ops.isnan(x1), ops.isnan(x2)), x1.dtype.type(math.nan), moved)


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    r"""Returns whether :math:`|x_1 - x_2| \le a + r |x_2|`, elementwise; infinities of one sign are close."""
    a, b = operands("isclose", a, b)
    if not dtypes.is_float(a.dtype):
        a, b = (elementwise.multiply(x, 1.0) for x in (a, b))
    near = less_equal(abs(subtract(a, b)), add(atol, multiply(rtol, abs(b))))
    both = logical_and(isfinite(a), isfinite(b))
    close = elementwise.where(both, near, equal(a, b))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close
