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
from tvmfun.numpy.elementwise import named
from tvmfun.numpy.promotion import array, operands
from tvmfun.ops import pointwise
from tvmfun.typing import ArrayLike, DTypeLike, PyTree

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


def stop_gradient(x: PyTree) -> PyTree:
    """Returns the tree ``x``, through which no gradient flows.

    >>> import tvmfun
    >>> float(tvmfun.grad(lambda x: x * stop_gradient(x))(3.0))
    3.0
    """

    def stop(leaf: Any) -> Any:
        is_float = isinstance(leaf, Array) and dtypes.is_float(leaf.dtype)
        return pointwise.stop_gradient(leaf) if is_float else leaf

    return tree.map(stop, x)


def _unary(function: Callable[..., Array], name: str = "") -> Callable[[ArrayLike], Array]:
    """NumPy's function of one operand, which JAX's function is as well; ``name`` if JAX calls it something else."""

    def call(x: ArrayLike) -> Array:
        return function(x)

    return named(call, name or function.__name__, str(function.__doc__))


def _binary(function: Callable[..., Array], name: str = "") -> Callable[[ArrayLike, ArrayLike], Array]:
    """NumPy's function of two operands, which JAX's function is as well; ``name`` if JAX calls it something else."""

    def call(x: ArrayLike, y: ArrayLike) -> Array:
        return function(x, y)

    doc = str(function.__doc__).replace("x_1", "x").replace("x_2", "y")
    return named(call, name or function.__name__, doc)


def _op(op: Op, name: str, formula: str, *, floating: bool = False) -> Callable[[ArrayLike], Array]:
    """The function that applies an op to one operand; integers become floats if ``floating``."""

    def call(x: ArrayLike) -> Array:
        return op(*operands(name, x, floating=floating))

    return named(call, name, f"Returns {formula}, elementwise.")


def _binary_op(op: Op, name: str, formula: str) -> Callable[[ArrayLike, ArrayLike], Array]:
    """The function that applies an op to two operands."""

    def call(x: ArrayLike, y: ArrayLike) -> Array:
        return op(*operands(name, x, y))

    return named(call, name, f"Returns {formula}, elementwise.")


acos = _unary(tnp.acos)
acosh = _unary(tnp.acosh)
asin = _unary(tnp.asin)
asinh = _unary(tnp.asinh)
atan = _unary(tnp.atan)
atanh = _unary(tnp.atanh)
bitwise_not = _unary(tnp.bitwise_not)
cbrt = _unary(tnp.cbrt)
conj = _unary(tnp.conj)
cos = _unary(tnp.cos)
cosh = _unary(tnp.cosh)
exp = _unary(tnp.exp)
exp2 = _unary(tnp.exp2)
expm1 = _unary(tnp.expm1)
imag = _unary(tnp.imag)
log = _unary(tnp.log)
log1p = _unary(tnp.log1p)
neg = _unary(tnp.negative, "neg")
real = _unary(tnp.real)
reciprocal = _unary(tnp.reciprocal)
sign = _unary(tnp.sign)
sin = _unary(tnp.sin)
sinh = _unary(tnp.sinh)
sqrt = _unary(tnp.sqrt)
square = _unary(tnp.square)
tan = _unary(tnp.tan)
tanh = _unary(tnp.tanh)

atan2 = _binary(tnp.atan2)
bitwise_and = _binary(tnp.bitwise_and)
bitwise_or = _binary(tnp.bitwise_or)
bitwise_xor = _binary(tnp.bitwise_xor)
eq = _binary(tnp.equal, "eq")
ge = _binary(tnp.greater_equal, "ge")
gt = _binary(tnp.greater, "gt")
le = _binary(tnp.less_equal, "le")
lt = _binary(tnp.less, "lt")
ne = _binary(tnp.not_equal, "ne")
sub = _binary(tnp.subtract, "sub")

# Unlike NumPy's, these refuse bools, or make floats of integers.
abs = _op(pointwise.abs, "abs", ":math:`|x|`")
add = _binary_op(pointwise.add, "add", ":math:`x + y`")
ceil = _op(pointwise.ceil, "ceil", r":math:`\lceil x \rceil`", floating=True)
floor = _op(pointwise.floor, "floor", r":math:`\lfloor x \rfloor`", floating=True)
is_finite = _op(pointwise.isfinite, "is_finite", "whether an element is neither infinite nor NaN", floating=True)
max = _binary_op(pointwise.maximum, "max", r":math:`\max(x, y)`, NaN where either is")
min = _binary_op(pointwise.minimum, "min", r":math:`\min(x, y)`, NaN where either is")
shift_left = _binary_op(pointwise.left_shift, "shift_left", r":math:`x \cdot 2^y` for integers")

# NumPy has none of these.
erf = _op(pointwise.erf, "erf", r":math:`\frac{2}{\sqrt\pi} \int_0^x e^{-t^2} dt`", floating=True)
erf_inv = _op(pointwise.erf_inv, "erf_inv", "the inverse of :func:`erf`", floating=True)
erfc = _op(pointwise.erfc, "erfc", "``1 - erf(x)``, accurate where that is small", floating=True)
lgamma = _op(pointwise.lgamma, "lgamma", r":math:`\ln |\Gamma(x)|`", floating=True)
logistic = _op(pointwise.sigmoid, "logistic", r":math:`1 / (1 + e^{-x})`", floating=True)
rsqrt = _op(pointwise.rsqrt, "rsqrt", r":math:`1 / \sqrt x`", floating=True)


def shift_right_arithmetic(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the bits of an integer moved right, copies of the first one on the left, elementwise."""
    return _shift_right("shift_right_arithmetic", x, y, dtypes.SIGNED)


def shift_right_logical(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the bits of an integer moved right, zeros on the left, elementwise."""
    return _shift_right("shift_right_logical", x, y, dtypes.UNSIGNED)


def _shift_right(name: str, x: Any, y: Any, kinds: tuple[np.dtype, ...]) -> Array:
    """Shifts the bits as integers of one of the ``kinds``."""
    x, y = operands(name, x, y)
    own = dtypes.NAMES[x.dtype]
    if x.dtype in kinds or not dtypes.is_integer(x.dtype):
        return pointwise.right_shift(x, y)
    other = dtypes.NAMES[next(kind for kind in kinds if kind.itemsize == x.dtype.itemsize)]
    shifted = pointwise.right_shift(*(pointwise.bitcast(value, dtype=other) for value in (x, y)))
    return pointwise.bitcast(shifted, dtype=own)


def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: DTypeLike | None = None) -> Array:
    r"""Returns :math:`x \cdot y`, elementwise, multiplied in ``out_dtype`` if that is given."""
    if out_dtype is not None:
        x, y = (tnp.astype(value, out_dtype) for value in (x, y))
    return pointwise.multiply(*operands("mul", x, y))


def div(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns :math:`x / y`, elementwise; quotients of integers are truncated.

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


def rem(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the remainder of :func:`div`, rounded towards 0, with the sign of :math:`x`, elementwise.

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


def pow(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns :math:`x^y`, elementwise; a Python integer as the exponent is computed by multiplications."""
    return tnp.power(x, y)


def integer_pow(x: ArrayLike, y: int) -> Array:
    """Returns :math:`x^y` for a static integer :math:`y`, by multiplications, elementwise."""
    return tnp.power(x, y)


def digamma(x: ArrayLike) -> Array:
    r"""Returns :math:`\frac{d}{dx} \ln \Gamma(x)`, elementwise."""
    return pointwise.polygamma(*operands("digamma", x, floating=True), order=0)


class RoundingMethod(enum.IntEnum):
    """The direction in which halves are rounded."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: ArrayLike, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Array:
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


def convert_element_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """Returns the array in another dtype; floats become integers by truncation towards zero."""
    return tnp.astype(tnp.asarray(operand), new_dtype)


def bitcast_convert_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """Returns the bits of ``operand`` read as another dtype.

    Args:
        operand: numbers. If the other dtype is wider, the last axis has the parts of each of its elements.
        new_dtype: the other dtype. If it is narrower, the result has the parts of each element along a further axis.

    Raises:
        DtypeError: if either is bool, and the widths differ.
        ShapeError: if the last axis does not have as many elements as one of the wider dtype needs.

    Source: ``jax.lax.bitcast_convert_type``. The lowest bits come first.

    >>> bitcast_convert_type(np.asarray([1.0, -2.0], "float32"), "uint16").tolist()
    [[0, 16256], [0, 49152]]
    """
    return integers.with_other_bits(tnp.asarray(operand), dtypes.canonical(new_dtype))


def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
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
    # No derivative at the ends of the interval.
    end = pointwise.stop_gradient(pointwise.minimum(pointwise.maximum(x, low), high))
    low = pointwise.where(pointwise.less(high, low), high, low)
    end = pointwise.where(pointwise.less(high, x), high, end)
    end = pointwise.where(pointwise.less(x, low), low, end)
    return pointwise.where(pointwise.bitwise_and(pointwise.less(low, x), pointwise.less(x, high)), x, end)


def optimization_barrier(operand: PyTree) -> PyTree:
    """Returns the tree of arrays unchanged: no optimization here changes the values computed from it."""
    return tree.map(tnp.asarray, operand)


def _integer(name: str, x: Any) -> Array:
    x = array(name, x)
    if not dtypes.is_integer(x.dtype):
        raise DtypeError(name, "the numbers must be integers", got=dtypes.NAMES[x.dtype])
    return x


def population_count(x: ArrayLike) -> Array:
    """Returns the number of bits that are set in an integer, in its dtype, elementwise.

    >>> population_count(tnp.asarray([7, -1]))
    Array([ 3, 32], dtype=int32)
    """
    return integers.population_count(_integer("population_count", x))


def clz(x: ArrayLike) -> Array:
    """Returns the number of zeros before the first bit that is set in an integer, in its dtype, elementwise.

    >>> clz(tnp.asarray([1, 0, -1]))
    Array([31, 32,  0], dtype=int32)
    """
    x = _integer("clz", x)
    own, width = dtypes.NAMES[x.dtype], x.dtype.itemsize * 8
    value = pointwise.bitcast(x, dtype=f"uint{width}") if x.dtype in dtypes.SIGNED else x
    shift = 1
    while shift < width:  # every bit after the first one
        value = pointwise.bitwise_or(value, pointwise.right_shift(value, value.dtype.type(shift)))
        shift *= 2
    return pointwise.astype(integers.population_count(pointwise.bitwise_not(value)), dtype=own)


def mulhi(x: ArrayLike, y: ArrayLike) -> Array:
    """Returns the upper half of the bits of the product of two integers, elementwise.

    >>> mulhi(tnp.asarray([1 << 30]), tnp.asarray([8]))
    Array([2], dtype=int32)
    """
    x, y = operands("mulhi", _integer("mulhi", x), _integer("mulhi", y))
    width = x.dtype.itemsize * 8
    shift = lambda value, count: pointwise.right_shift(value, value.dtype.type(count))
    if width < 64:
        wide = "int64" if x.dtype in dtypes.SIGNED else "uint64"
        product = pointwise.multiply(pointwise.astype(x, dtype=wide), pointwise.astype(y, dtype=wide))
        return pointwise.astype(shift(product, width), dtype=dtypes.NAMES[x.dtype])
    # In halves of 32 bits; a signed upper half carries the sign.
    mask = x.dtype.type(0xFFFFFFFF)
    low = lambda value: pointwise.bitwise_and(value, mask)
    a, b, c, d = shift(x, 32), low(x), shift(y, 32), low(y)
    as_unsigned = lambda value: pointwise.astype(value, dtype="uint64")
    carry = pointwise.astype(shift(pointwise.multiply(as_unsigned(b), as_unsigned(d)), 32), dtype=dtypes.NAMES[x.dtype])
    middle = pointwise.add(pointwise.multiply(a, d), carry)
    rest = pointwise.add(pointwise.multiply(b, c), low(middle))
    return pointwise.add(pointwise.add(pointwise.multiply(a, c), shift(middle, 32)), shift(rest, 32))


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Array:
    """Returns the nearest number that a narrower float could hold, in the dtype of ``operand``, elementwise.

    Ties round to even. Numbers that are too large become infinite, and those below the smallest normal number 0. The
    derivative is 1.

    Args:
        operand: floats.
        exponent_bits: the number of exponent bits of the narrower float, at least 1.
        mantissa_bits: the number of its mantissa bits, without the implicit first one.

    >>> reduce_precision(tnp.asarray(1.2345), 8, 7)
    Array(1.234375, dtype=float32)
    """
    (x,) = operands("reduce_precision", operand, floating=True)
    if exponent_bits < 1 or mantissa_bits < 0:
        got = f"{exponent_bits} and {mantissa_bits}"
        raise ArgumentError("reduce_precision", "a float has bits for its exponent and its mantissa", got=got)
    own, limits = x.dtype, finfo(x.dtype)
    width, real = own.itemsize * 8, own.type
    value = pointwise.bitcast(pointwise.stop_gradient(x), dtype=f"uint{width}")
    unsigned = value.dtype.type
    sign = pointwise.bitwise_and(value, unsigned(1 << (width - 1)))
    size = pointwise.bitwise_xor(value, sign)
    drop = limits.nmant - mantissa_bits
    if drop > 0:
        last = pointwise.bitwise_and(pointwise.right_shift(size, unsigned(drop)), unsigned(1))
        size = pointwise.add(size, pointwise.add(last, unsigned((1 << (drop - 1)) - 1)))
        size = pointwise.bitwise_and(size, unsigned((1 << width) - (1 << drop)))
    infinity = unsigned(int.from_bytes(np.asarray(np.inf, own).tobytes(), "little"))
    if exponent_bits < width - 1 - limits.nmant:
        bias, own_bias = (1 << (exponent_bits - 1)) - 1, (1 << (width - 2 - limits.nmant)) - 1
        too_large = unsigned((own_bias + bias + 1) << limits.nmant)
        smallest = unsigned((own_bias - bias + 1) << limits.nmant)
        size = pointwise.where(pointwise.greater_equal(size, too_large), infinity, size)
        size = pointwise.where(pointwise.less(size, smallest), unsigned(0), size)
    rounded = pointwise.bitcast(pointwise.bitwise_or(size, sign), dtype=dtypes.NAMES[own])
    finite = pointwise.isfinite(x)
    rounded = pointwise.where(pointwise.isnan(x), real(np.nan), rounded)
    # Adds 0, whose derivative is 1.
    return pointwise.add(rounded, pointwise.where(finite, pointwise.subtract(x, pointwise.stop_gradient(x)), real(0)))


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Returns the next float after ``x1`` in the direction of ``x2``, elementwise."""
    return tnp.nextafter(x1, x2)
