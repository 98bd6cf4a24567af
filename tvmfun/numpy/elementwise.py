"""Elementwise functions: operands are promoted to one dtype and broadcast."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.core.trace import abstract
from tvmfun.errors import DtypeError
from tvmfun.numpy.promotion import array, operands
from tvmfun.ops import pointwise as ops
from tvmfun.ops import shape

Operand = Any


def _unary(op: Op, formula: str, *, floating: bool = False):
    def function(x: Operand, /) -> Array:
        (x,) = operands(op.name, x, floating=floating)
        return op(x)

    return _named(function, op.name, f"Returns {formula}, elementwise.")


def _binary(op: Op, formula: str, *, floating: bool = False):
    def function(x1: Operand, x2: Operand, /) -> Array:
        return op(*operands(op.name, x1, x2, floating=floating))

    return _named(function, op.name, f"Returns {formula}, elementwise.")


def _named(function, name: str, doc: str):
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


add = _binary(ops.add, ":math:`x_1 + x_2`")
subtract = _binary(ops.subtract, ":math:`x_1 - x_2`")
multiply = _binary(ops.multiply, r":math:`x_1 \cdot x_2`")
divide = _binary(ops.divide, ":math:`x_1 / x_2`, a float", floating=True)
floor_divide = _binary(ops.floor_divide, r":math:`\lfloor x_1 / x_2 \rfloor`; integers divided by 0 give 0")
remainder = _binary(ops.remainder, "the remainder of the floor division, with the sign of :math:`x_2`")
maximum = _binary(ops.maximum, r":math:`\max(x_1, x_2)`; NaN where either is")
minimum = _binary(ops.minimum, r":math:`\min(x_1, x_2)`; NaN where either is")
negative = _unary(ops.negative, ":math:`-x`")
abs = _unary(ops.abs, ":math:`|x|`")
sign = _unary(ops.sign, "-1, 0 or 1 by the sign of :math:`x`")
exp = _unary(ops.exp, ":math:`e^x`", floating=True)
expm1 = _unary(ops.expm1, ":math:`e^x - 1`, accurate near 0", floating=True)
log = _unary(ops.log, r":math:`\ln x`", floating=True)
log1p = _unary(ops.log1p, r":math:`\ln(1 + x)`, accurate near 0", floating=True)
sqrt = _unary(ops.sqrt, r":math:`\sqrt x`", floating=True)
sin = _unary(ops.sin, r":math:`\sin x`", floating=True)
cos = _unary(ops.cos, r":math:`\cos x`", floating=True)
tanh = _unary(ops.tanh, r":math:`\tanh x`", floating=True)
equal = _binary(ops.equal, "whether :math:`x_1 = x_2`")
not_equal = _binary(ops.not_equal, r"whether :math:`x_1 \ne x_2`")
less = _binary(ops.less, "whether :math:`x_1 < x_2`")
less_equal = _binary(ops.less_equal, r"whether :math:`x_1 \le x_2`")
greater = _binary(ops.greater, "whether :math:`x_1 > x_2`")
greater_equal = _binary(ops.greater_equal, r"whether :math:`x_1 \ge x_2`")
bitwise_and = _binary(ops.bitwise_and, "the bits that both have")
bitwise_or = _binary(ops.bitwise_or, "the bits that either has")
bitwise_xor = _binary(ops.bitwise_xor, "the bits that exactly one has")
bitwise_invert = _unary(ops.bitwise_not, "the other bits")
bitwise_left_shift = _binary(ops.left_shift, r":math:`x_1 \cdot 2^{x_2}`")
bitwise_right_shift = _binary(ops.right_shift, r":math:`\lfloor x_1 / 2^{x_2} \rfloor`")


def _rounding(op: Op, formula: str):
    def function(x: Operand, /) -> Array:
        x = array(x, op.name)
        return op(x) if dtypes.is_float(x.dtype) else positive(x)

    return _named(function, op.name, f"Returns {formula}, elementwise; integers stay as they are.")


def positive(x: Operand, /) -> Array:
    """Returns ``x``."""
    x = array(x, "positive")
    return x if isinstance(x, Array) else ops.add(x, x.dtype.type(0))


floor = _rounding(ops.floor, r":math:`\lfloor x \rfloor`")
ceil = _rounding(ops.ceil, r":math:`\lceil x \rceil`")
trunc = _rounding(ops.trunc, ":math:`x` without its fraction")
round = _rounding(ops.round, "the nearest integer, the even one of two")


def square(x: Operand, /) -> Array:
    """Returns :math:`x^2`, elementwise."""
    return multiply(x, x)


def reciprocal(x: Operand, /) -> Array:
    """Returns :math:`1 / x`, a float, elementwise."""
    return divide(1.0, x)


def power(x1: Operand, x2: Operand, /) -> Array:
    """Returns :math:`x_1^{x_2}`, elementwise.

    A Python integer as the exponent is computed by multiplications, for integers and floats, and is exact where
    they are; other exponents need floats.

    Raises:
        DtypeError: for integers to the power of an array of integers or a negative number.

    >>> power(np.asarray([1, 2, 3]), 3)
    Array([ 1,  8, 27], dtype=int64)
    """
    if isinstance(x2, int) and not isinstance(x2, bool):
        return _integer_power(x1, x2)
    base, exponent = operands("power", x1, x2)
    if not dtypes.is_float(base.dtype):
        raise DtypeError(
            "power",
            "integers need a non-negative Python integer as exponent",
            got=f"{abstract(x1)} ** {abstract(x2)}",
            hint="a float base",
        )
    return ops.power(base, exponent)


def _integer_power(x: Operand, exponent: int) -> Array:
    x = array(x, "power")
    if exponent < 0:
        if not dtypes.is_float(x.dtype):
            raise DtypeError(
                "power", "an integer to a negative power is no integer", got=str(exponent), hint="floats"
            )
        return divide(1.0, _integer_power(x, -exponent))
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else ops.multiply(result, x)
        exponent >>= 1
        if exponent:
            x = ops.multiply(x, x)
    if result is None:
        return shape.broadcast_to(x.dtype.type(1), shape=x.shape)
    return positive(result)


def tan(x: Operand, /) -> Array:
    r"""Returns :math:`\tan x`, elementwise."""
    return divide(sin(x), cos(x))


def log2(x: Operand, /) -> Array:
    r"""Returns :math:`\log_2 x`, elementwise."""
    return multiply(log(x), 1 / math.log(2))


def log10(x: Operand, /) -> Array:
    r"""Returns :math:`\log_{10} x`, elementwise."""
    return multiply(log(x), 1 / math.log(10))


def logaddexp(x1: Operand, x2: Operand, /) -> Array:
    r"""Returns :math:`\ln(e^{x_1} + e^{x_2})` without overflow, elementwise."""
    x1, x2 = operands("logaddexp", x1, x2, floating=True)
    high = ops.stop_gradient(ops.maximum(x1, x2))
    safe = ops.where(ops.isfinite(high), high, high.dtype.type(0))
    return add(log(add(exp(subtract(x1, safe)), exp(subtract(x2, safe)))), safe)


def _float_test(op: Op, formula: str, otherwise: bool):
    def function(x: Operand, /) -> Array:
        x = array(x, op.name)
        if dtypes.is_float(x.dtype):
            return op(x)
        return ops.equal(x, x) if otherwise else ops.not_equal(x, x)

    return _named(function, op.name, f"Returns whether {formula}, elementwise.")


isnan = _float_test(ops.isnan, "an element is NaN", False)
isfinite = _float_test(ops.isfinite, "an element is neither infinite nor NaN", True)


def isinf(x: Operand, /) -> Array:
    """Returns whether an element is infinite, elementwise."""
    return logical_not(logical_or(isfinite(x), isnan(x)))


def _truth(x: Operand, name: str) -> Any:
    x = array(x, name)
    return x if x.dtype == dtypes.bool_ else ops.not_equal(x, x.dtype.type(0))


def logical_not(x: Operand, /) -> Array:
    """Returns whether an element is 0 or false, elementwise."""
    return ops.bitwise_not(_truth(x, "logical_not"))


def _logical(op: Op, name: str, formula: str):
    def function(x1: Operand, x2: Operand, /) -> Array:
        return op(_truth(x1, name), _truth(x2, name))

    return _named(function, name, f"Returns whether {formula} non-zero, elementwise.")


logical_and = _logical(ops.bitwise_and, "logical_and", "both are")
logical_or = _logical(ops.bitwise_or, "logical_or", "either is")
logical_xor = _logical(ops.bitwise_xor, "logical_xor", "exactly one is")


def where(condition: Operand, x1: Operand, x2: Operand, /) -> Array:
    """Returns ``x1`` where the condition holds and ``x2`` elsewhere.

    Gradients flow only to the chosen branch, but are NaN if the other one's derivative is infinite there.

    >>> where(np.asarray([True, False]), 1.0, 2.0)
    Array([1., 2.], dtype=float32)
    """
    return ops.where(_truth(condition, "where"), *operands("where", x1, x2))


def clip(x: Operand, /, min: Operand = None, max: Operand = None) -> Array:
    """Returns ``x`` limited to ``[min, max]``; either bound may be missing."""
    result = positive(x) if min is None else maximum(x, _representable(x, min))
    return result if max is None else minimum(result, _representable(x, max))


def _representable(x: Operand, bound: Operand) -> Operand:
    """A Python bound outside the range of an integer dtype as the end of that range."""
    dtype = abstract(x, "clip").dtype
    if isinstance(bound, int) and dtypes.is_integer(dtype):
        limits = np.iinfo(dtype)
        return builtins.min(builtins.max(bound, limits.min), limits.max)
    return bound


def astype(x: Operand, dtype: Any, /, *, copy: bool = True) -> Array:
    """Returns ``x`` with elements of another dtype; floats lose their fraction in integers.

    Raises:
        DtypeError: if tvmfun has no such dtype.
    """
    x = array(x, "astype")
    target = dtypes.canonical(dtype)
    is_weak = isinstance(x, Array) and x.weak_type
    return (
        x
        if isinstance(x, Array) and x.dtype == target and not is_weak
        else ops.astype(x, dtype=dtypes.NAMES[target])
    )
