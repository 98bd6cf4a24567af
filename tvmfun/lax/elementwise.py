"""Elementwise functions, ``stop_gradient`` and bits.

Operands are promoted to one dtype and broadcast, which is more than JAX does.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.core.op import Op
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.numpy import integers
from tvmfun.numpy.dtypes import finfo
from tvmfun.numpy.promotion import array, operands
from tvmfun.ops import pointwise
from tvmfun.ops import pointwise as ops

__all__ = [
    "RoundingMethod",
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitcast_convert_type",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clamp",
    "clz",
    "conj",
    "convert_element_type",
    "cos",
    "cosh",
    "digamma",
    "div",
    "eq",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "ge",
    "gt",
    "imag",
    "integer_pow",
    "is_finite",
    "le",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "lt",
    "max",
    "min",
    "mul",
    "mulhi",
    "ne",
    "neg",
    "nextafter",
    "optimization_barrier",
    "population_count",
    "pow",
    "real",
    "reciprocal",
    "reduce_precision",
    "rem",
    "round",
    "rsqrt",
    "select",
    "select_n",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "sub",
    "tan",
    "tanh",
]


def stop_gradient(x: Any) -> Any:
    """Returns the tree ``x``, through which no gradient flows.

    >>> import tvmfun
    >>> float(tvmfun.grad(lambda x: x * stop_gradient(x))(3.0))
    3.0
    """

    def stop(leaf: Any) -> Any:
        is_float = isinstance(leaf, Array) and dtypes.is_float(leaf.dtype)
        return pointwise.stop_gradient(leaf) if is_float else leaf

    return tree.map(stop, x)


def _named(function: Callable[..., Array], name: str, formula: str) -> Callable[..., Array]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Returns {formula}, elementwise."
    return function


def _unary(name: str, op: Op, formula: str, *, floating: bool = True) -> Callable[[Any], Array]:
    def function(x: Any) -> Array:
        return op(*operands(name, x, floating=floating))

    return _named(function, name, formula)


def _binary(name: str, op: Op, formula: str, *, floating: bool = False) -> Callable[[Any, Any], Array]:
    def function(x: Any, y: Any) -> Array:
        return op(*operands(name, x, y, floating=floating))

    return _named(function, name, formula)


abs = _unary("abs", pointwise.abs, ":math:`|x|`", floating=False)
acos = _unary("acos", pointwise.acos, r":math:`\arccos x`")
acosh = _unary("acosh", pointwise.acosh, r":math:`\operatorname{arcosh} x`")
asin = _unary("asin", pointwise.asin, r":math:`\arcsin x`")
asinh = _unary("asinh", pointwise.asinh, r":math:`\operatorname{arsinh} x`")
atan = _unary("atan", pointwise.atan, r":math:`\arctan x`")
atanh = _unary("atanh", pointwise.atanh, r":math:`\operatorname{artanh} x`")
bitwise_not = _unary(
    "bitwise_not", pointwise.bitwise_not, "the opposite of every bit of an integer or bool", floating=False
)
cbrt = _unary("cbrt", pointwise.cbrt, r":math:`\sqrt[3] x`")
ceil = _unary("ceil", pointwise.ceil, r":math:`\lceil x \rceil`")
cos = _unary("cos", pointwise.cos, r":math:`\cos x`")
cosh = _unary("cosh", pointwise.cosh, r":math:`\cosh x`")
erf = _unary("erf", pointwise.erf, r":math:`\frac{2}{\sqrt\pi} \int_0^x e^{-t^2} dt`")
erf_inv = _unary("erf_inv", pointwise.erf_inv, "the inverse of :func:`erf`")
erfc = _unary("erfc", pointwise.erfc, "``1 - erf(x)``, accurate where that is small")
exp = _unary("exp", pointwise.exp, ":math:`e^x`")
exp2 = _unary("exp2", pointwise.exp2, ":math:`2^x`")
expm1 = _unary("expm1", pointwise.expm1, ":math:`e^x - 1`, accurate near 0")
floor = _unary("floor", pointwise.floor, r":math:`\lfloor x \rfloor`")
is_finite = _unary("is_finite", pointwise.isfinite, "whether an element is neither infinite nor NaN")
lgamma = _unary("lgamma", pointwise.lgamma, r":math:`\ln |\Gamma(x)|`")
log = _unary("log", pointwise.log, r":math:`\ln x`")
log1p = _unary("log1p", pointwise.log1p, r":math:`\ln(1 + x)`, accurate near 0")
logistic = _unary("logistic", pointwise.sigmoid, r":math:`1 / (1 + e^{-x})`")
neg = _unary("neg", pointwise.negative, ":math:`-x`", floating=False)
rsqrt = _unary("rsqrt", pointwise.rsqrt, r":math:`1 / \sqrt x`")
sign = _unary("sign", pointwise.sign, "-1, 0 or 1 with the sign of :math:`x`", floating=False)
sin = _unary("sin", pointwise.sin, r":math:`\sin x`")
sinh = _unary("sinh", pointwise.sinh, r":math:`\sinh x`")
sqrt = _unary("sqrt", pointwise.sqrt, r":math:`\sqrt x`")
tan = _unary("tan", pointwise.tan, r":math:`\tan x`")
tanh = _unary("tanh", pointwise.tanh, r":math:`\tanh x`")


add = _binary("add", pointwise.add, ":math:`x + y`")
atan2 = _binary("atan2", pointwise.atan2, "the angle of the point :math:`(y, x)`", floating=True)
bitwise_and = _binary("bitwise_and", pointwise.bitwise_and, "the bits that are set in both integers or bools")
bitwise_or = _binary("bitwise_or", pointwise.bitwise_or, "the bits that are set in either integer or bool")
bitwise_xor = _binary("bitwise_xor", pointwise.bitwise_xor, "the bits that are set in one of two integers or bools")
eq = _binary("eq", pointwise.equal, ":math:`x = y`")
ge = _binary("ge", pointwise.greater_equal, r":math:`x \ge y`")
gt = _binary("gt", pointwise.greater, ":math:`x > y`")
le = _binary("le", pointwise.less_equal, r":math:`x \le y`")
lt = _binary("lt", pointwise.less, ":math:`x < y`")
max = _binary("max", pointwise.maximum, "the larger of :math:`x` and :math:`y`, NaN if either is")
min = _binary("min", pointwise.minimum, "the smaller of :math:`x` and :math:`y`, NaN if either is")
ne = _binary("ne", pointwise.not_equal, r":math:`x \ne y`")
pow = _named(lambda x, y: tnp.power(x, y), "pow", ":math:`x^y`")
shift_left = _binary("shift_left", pointwise.left_shift, r":math:`x \cdot 2^y` for integers")
sub = _binary("sub", pointwise.subtract, ":math:`x - y`")


def shift_right_arithmetic(x: Any, y: Any) -> Array:
    """Returns the bits of an integer moved right, copies of the first one on the left, elementwise."""
    return _shift_right("shift_right_arithmetic", x, y, dtypes.SIGNED)


def shift_right_logical(x: Any, y: Any) -> Array:
    """Returns the bits of an integer moved right, zeros on the left, elementwise."""
    return _shift_right("shift_right_logical", x, y, dtypes.UNSIGNED)


def _shift_right(name: str, x: Any, y: Any, kinds: tuple[np.dtype, ...]) -> Array:
    """Shifts the bits as those of one of the ``kinds``."""
    x, y = operands(name, x, y)
    own = dtypes.NAMES[x.dtype]
    if x.dtype in kinds or not dtypes.is_integer(x.dtype):
        return pointwise.right_shift(x, y)
    other = dtypes.NAMES[next(kind for kind in kinds if kind.itemsize == x.dtype.itemsize)]
    shifted = pointwise.right_shift(*(pointwise.bitcast(value, dtype=other) for value in (x, y)))
    return pointwise.bitcast(shifted, dtype=own)


def mul(x: Any, y: Any, *, out_dtype: Any = None) -> Array:
    r"""Returns :math:`x \cdot y`, elementwise, multiplied in ``out_dtype`` if that is given."""
    if out_dtype is not None:
        x, y = (tnp.astype(value, out_dtype) for value in (x, y))
    return pointwise.multiply(*operands("mul", x, y))


def div(x: Any, y: Any) -> Array:
    """Returns :math:`x / y`, elementwise; of integers the part before the point.

    Integers divided by 0 are -1, the largest number if there is no sign.
    """
    x, y = operands("div", x, y)
    if dtypes.is_float(x.dtype):
        return pointwise.divide(x, y)
    quotient = pointwise.floor_divide(x, y)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    if x.dtype in dtypes.SIGNED:
        inexact = pointwise.not_equal(pointwise.remainder(x, y), zero)
        signs_differ = pointwise.not_equal(pointwise.less(x, zero), pointwise.less(y, zero))
        up = pointwise.bitwise_and(inexact, signs_differ)
        quotient = pointwise.where(up, pointwise.add(quotient, one), quotient)
    return pointwise.where(pointwise.equal(y, zero), np.invert(zero), quotient)


def rem(x: Any, y: Any) -> Array:
    """Returns what :func:`div`, rounded towards 0, leaves: with the sign of :math:`x`, elementwise.

    Integers divided by 0 are left as they are.
    """
    x, y = operands("rem", x, y)
    zero = x.dtype.type(0)
    if dtypes.is_float(x.dtype):
        return pointwise.fmod(x, y)
    floored = pointwise.remainder(x, y)
    if x.dtype in dtypes.SIGNED:
        inexact = pointwise.not_equal(floored, zero)
        signs_differ = pointwise.not_equal(pointwise.less(x, zero), pointwise.less(y, zero))
        down = pointwise.bitwise_and(inexact, signs_differ)
        floored = pointwise.where(down, pointwise.subtract(floored, y), floored)
    return pointwise.where(pointwise.equal(y, zero), x, floored)


def square(x: Any) -> Array:
    """Returns :math:`x^2`, elementwise."""
    return tnp.square(x)


def reciprocal(x: Any) -> Array:
    """Returns :math:`1 / x`, elementwise."""
    return tnp.reciprocal(x)


def integer_pow(x: Any, y: int) -> Array:
    """Returns :math:`x^y` for a static integer :math:`y`, by multiplications, elementwise."""
    return tnp.power(x, y)


def digamma(x: Any) -> Array:
    r"""Returns :math:`\frac{d}{dx} \ln \Gamma(x)`, elementwise."""
    return pointwise.polygamma(*operands("digamma", x, floating=True), order=0)


class RoundingMethod(enum.IntEnum):
    """Where halves are rounded to."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: Any, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Array:
    """Returns the nearest integer, elementwise.

    Args:
        x: floats.
        rounding_method: where halves go; by default away from 0.

    >>> round(np.asarray([0.5, 2.5, -0.5])).tolist()
    [1.0, 3.0, -1.0]
    """
    (x,) = operands("round", x, floating=True)
    if rounding_method == RoundingMethod.TO_NEAREST_EVEN:
        return pointwise.round(x)
    whole = pointwise.trunc(x)
    is_up = pointwise.greater_equal(pointwise.abs(pointwise.subtract(x, whole)), x.dtype.type(0.5))
    return pointwise.where(is_up, pointwise.add(whole, pointwise.sign(x)), whole)


def convert_element_type(operand: Any, new_dtype: Any) -> Array:
    """Returns the array in another dtype; floats become integers by leaving out what is behind the point."""
    return tnp.astype(tnp.asarray(operand), new_dtype)


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Array:
    """Returns the bits of ``operand`` read as another dtype of the same width."""
    return pointwise.bitcast(tnp.asarray(operand), dtype=dtypes.NAMES[dtypes.canonical(new_dtype)])


def select(pred: Any, on_true: Any, on_false: Any) -> Array:
    """Returns ``on_true`` where ``pred`` is true and ``on_false`` elsewhere."""
    return tnp.where(pred, on_true, on_false)


def select_n(which: Any, *cases: Any) -> Array:
    """Returns for each element that of the case whose number ``which`` holds.

    Args:
        which: bools for two cases, the first for False; or integers, clamped to the number of cases.
        cases: arrays of the shape of ``which``, or ``which`` is a scalar.

    >>> select_n(np.asarray([2, 0, 1]), np.zeros(3), np.ones(3), 2 * np.ones(3)).tolist()
    [2.0, 0.0, 1.0]
    """
    if not cases:
        raise ArgumentError("select_n", "there must be a case", got="none")
    which = tnp.asarray(which)
    if which.dtype == dtypes.bool_:
        if len(cases) > 2:
            raise ArgumentError("select_n", "a bool selects from two cases", got=str(len(cases)))
        return tnp.asarray(cases[0]) if len(cases) == 1 else tnp.where(which, cases[1], cases[0])  # type: ignore[reportGeneralTypeIssues]
    if not dtypes.is_integer(which.dtype):
        raise DtypeError("select_n", "which is made of bools or integers", got=repr(which.aval))
    values = operands("select_n", *cases)
    result = values[0]
    for number, value in enumerate(values[1:], 1):
        result = pointwise.where(pointwise.greater_equal(which, which.dtype.type(number)), value, result)
    return tnp.asarray(result)


def clamp(min: Any, x: Any, max: Any) -> Array:
    """Returns ``x`` moved into the interval from ``min`` to ``max``, elementwise; no derivative at its ends."""
    dtype = abstract(tnp.asarray(x), "clamp").dtype
    low, x, high = (tnp.asarray(value, dtype) for value in (min, x, max))
    # At an end of the interval nothing has a derivative.
    end = pointwise.stop_gradient(pointwise.minimum(pointwise.maximum(x, low), high))
    low = pointwise.where(pointwise.less(high, low), high, low)
    end = pointwise.where(pointwise.less(high, x), high, end)
    end = pointwise.where(pointwise.less(x, low), low, end)
    return pointwise.where(pointwise.bitwise_and(pointwise.less(low, x), pointwise.less(x, high)), x, end)


def optimization_barrier(operand: Any) -> Any:
    """Returns the tree of arrays as it is: no optimization here changes what is computed from it."""
    return tree.map(tnp.asarray, operand)


def real(x: Any) -> Array:
    """Returns the real part: the array itself."""
    return tnp.real(x)


def imag(x: Any) -> Array:
    """Returns the imaginary part: zeros."""
    return tnp.imag(x)


def conj(x: Any) -> Array:
    """Returns the complex conjugate: the array itself."""
    return tnp.conj(x)


def _integer(name: str, x: Any) -> Any:
    x = array(name, x)
    if not dtypes.is_integer(x.dtype):
        raise DtypeError(name, "the numbers must be integers", got=dtypes.NAMES[x.dtype])
    return x


def population_count(x: Any) -> Array:
    """Returns the number of bits that are set in an integer, in its dtype, elementwise.

    >>> population_count(tnp.asarray([7, -1]))
    Array([ 3, 32], dtype=int32)
    """
    return integers.population_count(_integer("population_count", x))


def clz(x: Any) -> Array:
    """Returns the number of zeros before the first bit that is set in an integer, in its dtype, elementwise.

    >>> clz(tnp.asarray([1, 0, -1]))
    Array([31, 32,  0], dtype=int32)
    """
    x = _integer("clz", x)
    own, width = dtypes.NAMES[x.dtype], x.dtype.itemsize * 8
    value = ops.bitcast(x, dtype=f"uint{width}") if x.dtype in dtypes.SIGNED else x
    shift = 1
    while shift < width:  # every bit after the first one
        value = ops.bitwise_or(value, ops.right_shift(value, value.dtype.type(shift)))
        shift *= 2
    return ops.astype(integers.population_count(ops.bitwise_not(value)), dtype=own)


def mulhi(x: Any, y: Any) -> Array:
    """Returns the upper half of the bits of the product of two integers, elementwise.

    >>> mulhi(tnp.asarray([1 << 30]), tnp.asarray([8]))
    Array([2], dtype=int32)
    """
    x, y = operands("mulhi", _integer("mulhi", x), _integer("mulhi", y))
    width = x.dtype.itemsize * 8
    shift = lambda value, count: ops.right_shift(value, value.dtype.type(count))
    if width < 64:
        wide = "int64" if x.dtype in dtypes.SIGNED else "uint64"
        product = ops.multiply(ops.astype(x, dtype=wide), ops.astype(y, dtype=wide))
        return ops.astype(shift(product, width), dtype=dtypes.NAMES[x.dtype])
    # In halves of 32 bits; a signed upper half carries the sign.
    mask = x.dtype.type(0xFFFFFFFF)
    low = lambda value: ops.bitwise_and(value, mask)
    a, b, c, d = shift(x, 32), low(x), shift(y, 32), low(y)
    as_unsigned = lambda value: ops.astype(value, dtype="uint64")
    carry = ops.astype(shift(ops.multiply(as_unsigned(b), as_unsigned(d)), 32), dtype=dtypes.NAMES[x.dtype])
    middle = ops.add(ops.multiply(a, d), carry)
    rest = ops.add(ops.multiply(b, c), low(middle))
    return ops.add(ops.add(ops.multiply(a, c), shift(middle, 32)), shift(rest, 32))


def nextafter(x1: Any, x2: Any) -> Array:
    """Returns the next float after ``x1`` in the direction of ``x2``, elementwise."""
    return tnp.nextafter(x1, x2)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Array:
    """Returns the nearest number that a narrower float could hold, in the dtype of ``operand``, elementwise.

    The even one of two equally near ones; infinity for what is too large, 0 for what is less than the smallest normal
    number. The derivative is 1.

    Args:
        operand: floats.
        exponent_bits: of the narrower float, at least 1.
        mantissa_bits: of the narrower float, without the first bit, which is implied.

    >>> reduce_precision(tnp.asarray(1.2345), 8, 7)
    Array(1.234375, dtype=float32)
    """
    (x,) = operands("reduce_precision", operand, floating=True)
    if exponent_bits < 1 or mantissa_bits < 0:
        got = f"{exponent_bits} and {mantissa_bits}"
        raise ArgumentError("reduce_precision", "a float has bits for its exponent and its mantissa", got=got)
    own, limits = x.dtype, finfo(x.dtype)
    width, real = own.itemsize * 8, own.type
    value = ops.bitcast(ops.stop_gradient(x), dtype=f"uint{width}")
    unsigned = value.dtype.type
    sign = ops.bitwise_and(value, unsigned(1 << (width - 1)))
    size = ops.bitwise_xor(value, sign)
    drop = limits.nmant - mantissa_bits
    if drop > 0:
        last = ops.bitwise_and(ops.right_shift(size, unsigned(drop)), unsigned(1))
        size = ops.add(size, ops.add(last, unsigned((1 << (drop - 1)) - 1)))
        size = ops.bitwise_and(size, unsigned((1 << width) - (1 << drop)))
    infinity = unsigned(int.from_bytes(np.asarray(np.inf, own).tobytes(), "little"))
    if exponent_bits < width - 1 - limits.nmant:
        bias, own_bias = (1 << (exponent_bits - 1)) - 1, (1 << (width - 2 - limits.nmant)) - 1
        too_large = unsigned((own_bias + bias + 1) << limits.nmant)
        smallest = unsigned((own_bias - bias + 1) << limits.nmant)
        size = ops.where(ops.greater_equal(size, too_large), infinity, size)
        size = ops.where(ops.less(size, smallest), unsigned(0), size)
    rounded = ops.bitcast(ops.bitwise_or(size, sign), dtype=dtypes.NAMES[own])
    finite = ops.isfinite(x)
    rounded = ops.where(ops.isnan(x), real(np.nan), rounded)
    # Adds 0, whose derivative is 1.
    return ops.add(rounded, ops.where(finite, ops.subtract(x, ops.stop_gradient(x)), real(0)))
