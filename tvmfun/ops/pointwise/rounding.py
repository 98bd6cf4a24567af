"""Rounding to integers, and quotients with a remainder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmfun.core.expressions import dtype_name
from tvmfun.ops.formula import (
    c_remainder,
    compute_in_float32,
    is_float,
    is_signed,
    negative,
    one,
    opaque,
    subtract,
    zero,
)
from tvmfun.ops.pointwise.registration import FLOATS, INTEGERS, float_function, pointwise

__all__ = ["ceil", "floor", "floor_divide", "fmod", "remainder", "round", "trunc"]

floor = float_function("floor", tirx.floor, None, spelling=relax.op.floor, inexpensive=True)
ceil = float_function("ceil", tirx.ceil, None, spelling=relax.op.ceil, inexpensive=True)
round = float_function("round", tirx.nearbyint, None, spelling=relax.op.round, inexpensive=True)  # half to even
trunc = float_function("trunc", tirx.trunc, None, spelling=relax.op.trunc, inexpensive=True)


def _floor_divide(x: Any, y: Any) -> Any:
    if is_float(x):
        return compute_in_float32(_float_floor_divide)(x, y)
    # Division of integers by zero is 0, as in NumPy.
    quotient = tirx.Select(tirx.EQ(y, zero(y)), zero(y), tirx.floordiv(x, _safe_divisor(y)))
    if not is_signed(y):
        return quotient
    return tirx.Select(tirx.EQ(y, tirx.const(-1, dtype_name(y))), negative(x), quotient)


def _float_floor_divide(x: Any, y: Any) -> Any:
    dtype = dtype_name(x)
    plain = tirx.div(x, y)
    rest = c_remainder(x, y)
    # Through the remainder: x / y may round up to the next integer.
    whole = tirx.nearbyint(tirx.div(subtract(x, rest), y))
    whole = tirx.Select(_is_opposite(rest, y), whole - one(x), whole)
    whole = tirx.Select(tirx.EQ(whole, zero(x)), plain * opaque(0.0, dtype), whole)  # 0 with its sign
    # The plain quotient is infinite, or NaN. That of infinity by a number is NaN, as in Python and NumPy.
    return tirx.Select(tirx.EQ(y, zero(x)), plain, whole)


def _is_opposite(rest: Any, y: Any) -> Any:
    """Whether a remainder is not 0 and differs in sign from the divisor."""
    return tirx.Or(tirx.And(rest < zero(y), y > zero(y)), tirx.And(rest > zero(y), y < zero(y)))


def _safe_divisor(y: Any) -> Any:
    """A divisor that cannot trap: 1 instead of 0, and instead of -1, since INT_MIN / -1 overflows."""
    # The division is speculated, so its divisor has to be safe. Without `opaque` TVM would drop this test below the
    # caller's test for 0.
    turned = y ^ opaque(1, dtype_name(y))
    bad = tirx.EQ(turned, one(y))
    if is_signed(y):
        bad = tirx.Or(bad, tirx.EQ(turned, tirx.const(-2, dtype_name(y))))
    return tirx.Select(bad, one(y), y)


def _remainder_of_scale(x: Any, y: Any, scale: float) -> Any:
    """The remainder by a power of two, with which products and quotients are exact."""
    rest = subtract(x, tirx.floor(x * tirx.const(1 / scale, dtype_name(x))) * y)
    rest = tirx.Select(rest < zero(x), rest + y, rest)  # x is so small that its quotient rounds to 0
    # Larger numbers are multiples of the divisor, and their quotients may overflow. Of infinity it is NaN.
    size = tirx.abs(x)
    is_multiple = size >= tirx.const(scale * 2.0 ** np.finfo(dtype_name(x)).nmant, dtype_name(x))
    return tirx.Select(is_multiple, size * opaque(0.0, dtype_name(x)), rest)


def _scale(y: Any) -> float:
    """The number that a divisor is known to be, if it is a power of two; 0 otherwise."""
    number = y.value if isinstance(y, tirx.Cast) else y
    value = float(number.value) if isinstance(number, tirx.FloatImm) else 0.0
    return value if value > 0 and math.frexp(value)[0] == 0.5 and 1e-9 < value < 1e9 else 0.0


def _remainder(x: Any, y: Any) -> Any:
    if is_float(x) and (scale := _scale(y)):
        return compute_in_float32(lambda x, y: _remainder_of_scale(x, y, scale))(x, y)
    if is_float(x):
        rest = c_remainder(x, y)
        signed_zero = tirx.Select(y < zero(y), opaque(-0.0, dtype_name(y)), opaque(0.0, dtype_name(y)))
        nonzero = tirx.Select(_is_opposite(rest, y), rest + y, rest)
        return tirx.Select(tirx.EQ(rest, zero(x)), signed_zero, nonzero)
    return tirx.Select(tirx.EQ(y, zero(y)), zero(y), tirx.floormod(x, _safe_divisor(y)))


# Quotients of floats need an exact remainder, which is expensive; quotients of integers are part of every index.
floor_divide = pointwise(
    "floor_divide", _floor_divide, (None, None), spelling=relax.op.floor_divide, inexpensive=INTEGERS
)
remainder = pointwise(
    "remainder",
    _remainder,
    (lambda g, o, x, y: g, lambda g, o, x, y: -(g * (x // y))),
    spelling=relax.op.floor_mod,
    relax_name="floor_mod",
    inexpensive=INTEGERS,
)

#: ``fmod(x, y)``: the remainder of the division rounded towards 0. The derivative by ``y`` is exactly the quotient.
fmod = pointwise(
    "fmod",
    c_remainder,
    (lambda g, o, x, y: g, lambda g, o, x, y: -(g * round((x - o) / y))),
    domain=FLOATS,
    inexpensive=False,
)
