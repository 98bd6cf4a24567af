"""Spellings of pointwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.onnx.writing.builder import Builder, Value, composed, spells

_SAME = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "add": "Add",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "equal": "Equal",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "isnan": "IsNaN",
    "log": "Log",
    "multiply": "Mul",
    "power": "Pow",
    "relu": "Relu",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "subtract": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
}


def _same(operator: str) -> Callable:
    return lambda b, *xs: b(operator, *xs)


for _name, _operator in _SAME.items():
    spells(_name)(_same(_operator))


@spells("where")
def _where(b: Builder, condition: Value, x: Value, y: Value) -> str:
    if x.dtype == dtypes.bool_:  # for which onnxruntime has no kernel
        return b("Or", b("And", condition, x), b("And", b("Not", condition), y))
    return b("Where", condition, x, y)


def _comparison(operator: str) -> Callable:
    def write(b: Builder, *xs: Value) -> str:
        return b(operator, *(b.cast(x, np.int32) if x.dtype == dtypes.bool_ else x for x in xs))

    return write


spells("greater")(_comparison("Greater"))
spells("greater_equal")(_comparison("GreaterOrEqual"))
spells("less")(_comparison("Less"))
spells("less_equal")(_comparison("LessOrEqual"))
spells("barrier", "stop_gradient")(lambda b, x: x.name)
spells("name")(lambda b, x, *, name: x.name)
spells("not_equal")(lambda b, x, y: b("Not", b("Equal", x, y)))
spells("rsqrt")(lambda b, x: b("Reciprocal", b("Sqrt", x)))


def _of_bools(of_numbers: str, of_bools: str) -> Callable:
    return lambda b, *xs: b(of_bools if xs[0].dtype == dtypes.bool_ else of_numbers, *xs)


spells("maximum")(_of_bools("Max", "Or"))
spells("minimum")(_of_bools("Min", "And"))
spells("bitwise_and")(_of_bools("BitwiseAnd", "And"))
spells("bitwise_or")(_of_bools("BitwiseOr", "Or"))
spells("bitwise_xor")(_of_bools("BitwiseXor", "Xor"))
spells("bitwise_not")(_of_bools("BitwiseNot", "Not"))


@spells("negative")
def _negative(b: Builder, x: Value) -> str:
    if x.dtype in dtypes.UNSIGNED:
        return b("Sub", b.constant(0, x.dtype), x)
    return b("Neg", x)


@spells("astype")
def _astype(b: Builder, x: Value, *, dtype: str, weak: bool = False) -> str:
    """Floats saturate at the limits of integers, and NaN becomes 0; ONNX leaves that open."""
    target = np.dtype(dtype)
    if not dtypes.is_float(x.dtype) or not dtypes.is_integer(target) or target.itemsize > 4:
        return b.cast(x, dtype)
    limits = np.iinfo(target)
    wide = x.name if x.dtype == dtypes.float64 else b.cast(x, np.float64)
    low, high = (b.constant(limit, np.float64) for limit in (limits.min, limits.max))
    number = b("Where", b("IsNaN", wide), b.constant(0, np.float64), wide)
    return b.cast(b("Min", b("Max", number, low), high), target)


@spells("isfinite")
def _isfinite(b: Builder, x: Value) -> str:
    return b("Less", b("Abs", x), b.constant(np.inf, x.dtype))


@spells("integer_power")
def _integer_power(b: Builder, x: Value, **params: int) -> str:
    (exponent,) = params.values()
    return b("Pow", x, b.constant(exponent, x.dtype if dtypes.is_float(x.dtype) else np.int64))


@spells("trunc")
def _trunc(b: Builder, x: Value) -> str:
    return b("Mul", b("Sign", x), b("Floor", b("Abs", x)))


def _shifted(b: Builder, x: Any, y: Any, dtype: np.dtype, direction: str) -> str:
    """A shift of unsigned numbers, which are all that ONNX shifts; zero if it is by all bits or more."""
    unsigned, bits = np.dtype(f"uint{8 * dtype.itemsize}"), 8 * dtype.itemsize
    count = b.cast(y, unsigned)
    is_far = b("GreaterOrEqual", count, b.constant(bits, unsigned))
    count = b("Where", is_far, b.constant(0, unsigned), count)
    shifted = b("BitShift", b.cast(x, unsigned), count, direction=direction)
    return b.cast(b("Where", is_far, b.constant(0, unsigned), shifted), dtype)


spells("left_shift")(lambda b, x, y: _shifted(b, x, y, x.dtype, "LEFT"))


@spells("right_shift")
def _right_shift(b: Builder, x: Value, y: Value) -> str:
    """Shifts right arithmetically: for negative numbers, the complement is shifted, so that the sign bit fills."""
    plain = _shifted(b, x, y, x.dtype, "RIGHT")
    if x.dtype in dtypes.UNSIGNED:
        return plain
    filled = b("BitwiseNot", _shifted(b, b("BitwiseNot", x), y, x.dtype, "RIGHT"))
    return b("Where", b("Less", x, b.constant(0, x.dtype)), filled, plain)


# -- compositions of others --------------------------------------------------------------------------------------------


@composed("exp2")
def _exp2(x: Any) -> Any:
    return 2.0**x


@composed("expm1")
def _expm1(x: Any) -> Any:
    """Exact near zero, where the exponential is not."""
    return tnp.where(tnp.abs(x) < 1, tnp.tanh(x / 2) * (tnp.exp(x) + 1), tnp.exp(x) - 1)


@composed("log1p")
def log1p(x: Any) -> Any:
    """The logarithm of ``1 + x``, with the error of the sum corrected."""
    total = 1 + x
    rounded = total - 1
    is_small = rounded == 0
    safe = tnp.where(is_small, tnp.ones_like(x), rounded)
    corrected = tnp.log(tnp.where(is_small, tnp.ones_like(x), total)) * (x / safe)
    return tnp.where(is_small, x, tnp.where(total == math.inf, total, corrected))


@composed("logaddexp")
def _logaddexp(x: Any, y: Any) -> Any:
    larger, difference = tnp.maximum(x, y), x - y
    # Equal infinities have no difference.
    difference = tnp.where(x == y, tnp.zeros_like(difference), difference)
    return larger + log1p(tnp.exp(-tnp.abs(difference)))


composed("log2")(lambda x: tnp.log(x) * (1 / math.log(2)))
composed("log10")(lambda x: tnp.log(x) * (1 / math.log(10)))
composed("one_minus_square")(lambda x: (1 - x) * (1 + x))
composed("erfc")(lambda x: 1 - lax.erf(x))


@composed("cbrt")
def _cbrt(x: Any) -> Any:
    return tnp.sign(x) * tnp.abs(x) ** (1 / 3)


@composed("hypot")
def _hypot(x: Any, y: Any) -> Any:
    """Scaled by the larger one, so that squares do not overflow."""
    x, y = tnp.abs(x), tnp.abs(y)
    larger, smaller = tnp.maximum(x, y), tnp.minimum(x, y)
    ratio = smaller / tnp.where((larger == 0) | (larger == math.inf), tnp.ones_like(larger), larger)
    return tnp.where(larger == math.inf, larger, larger * tnp.sqrt(1 + ratio * ratio))


@composed("atan2")
def _atan2(y: Any, x: Any) -> Any:
    """The angle of a point, from the smaller one of the two ratios."""
    flat = tnp.abs(y) <= tnp.abs(x)
    one = tnp.ones_like(x + y)
    ratio = tnp.where(flat, y, x) / tnp.where(flat, tnp.where(x == 0, one, x), y)
    angle = tnp.atan(ratio)
    steep = tnp.where(y > 0, math.pi / 2, -math.pi / 2) - angle
    shallow = tnp.where(x < 0, tnp.where(y < 0, angle - math.pi, angle + math.pi), angle)
    return tnp.where(flat, shallow, steep)


def _divisor(b: Builder, y: Value) -> str:
    """The divisor, or 1 for 0 and -1, whose remainder is 0: with them, some runtimes end the process."""
    fails = b("Equal", y, b.constant(0, y.dtype))
    if y.dtype not in dtypes.UNSIGNED:
        fails = b("Or", fails, b("Equal", y, b.constant(-1, y.dtype)))
    return b("Where", fails, b.constant(1, y.dtype), y)


@spells("divide")
def _divide(b: Builder, x: Value, y: Value) -> str:
    return b("Div", x, y)


@spells("floor_divide")
def _floor_divide(b: Builder, x: Value, y: Value) -> str:
    if dtypes.is_float(x.dtype):
        # The quotient of the difference is whole up to rounding, where that of the operands may be rounded up to one.
        exact = b("Round", b("Div", b("Sub", x, _remainder(b, x, y)), y))
        special = b("Or", b("Equal", y, b.constant(0, y.dtype)), b("Equal", b("Abs", x), b.constant(np.inf, x.dtype)))
        return b("Where", special, b("Div", x, y), exact)
    zero, divisor = b.constant(0, x.dtype), _divisor(b, y)
    quotient = b("Div", x, divisor)
    if x.dtype not in dtypes.UNSIGNED:
        # Division is towards zero: one less where the remainder and the divisor have different signs.
        rest = b("Sub", x, b("Mul", quotient, divisor))
        signs = b("Xor", b("Less", rest, zero), b("Less", divisor, zero))
        less = b("And", signs, b("Not", b("Equal", rest, zero)))
        quotient = b("Sub", quotient, b.cast(less, x.dtype))
        quotient = b("Where", b("Equal", y, b.constant(-1, y.dtype)), b("Sub", zero, x), quotient)
    return b("Where", b("Equal", y, zero), zero, quotient)


@spells("remainder")
def _remainder(b: Builder, x: Value, y: Value) -> str:
    if not dtypes.is_float(x.dtype):
        return b("Mod", x, _divisor(b, y))
    rest, zero = b("Mod", x, y, fmod=1), b.constant(0, x.dtype)
    signs = b("Xor", b("Less", rest, zero), b("Less", y, zero))
    return b("Where", b("And", signs, b("Not", b("Equal", rest, zero))), b("Add", rest, y), rest)


@spells("fmod")
def _fmod(b: Builder, x: Value, y: Value) -> str:
    return b("Mod", x, y if dtypes.is_float(x.dtype) else _divisor(b, y), fmod=1)
