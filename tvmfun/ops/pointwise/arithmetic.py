"""Sums, products, quotients, signs, and the larger and smaller of two numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.expressions import dtype_name
from tvmfun.core.op import SimplifyRule
from tvmfun.core.relax import Spelling
from tvmfun.core.trace import argument
from tvmfun.ops import formula
from tvmfun.ops.formula import hidden, is_float, is_signed, one, wrapping, zero
from tvmfun.ops.pointwise.comparison import where
from tvmfun.ops.pointwise.registration import FLOATS, constant, float_function, pointwise
from tvmfun.ops.simplify import by_numpy, is_number, made_by

__all__ = [
    "abs",
    "add",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "one_minus_square",
    "relu",
    "sign",
    "subtract",
]


def _neutral(value: float) -> SimplifyRule:
    """The simplification rule of a commutative op with the neutral element ``value``."""
    return lambda x, y: x if is_number(y, value) else y if is_number(x, value) else None


def _multiply_simplify(x: Any, y: Any) -> Any:
    if dtypes.is_integer(x.dtype) and (is_number(x, 0) or is_number(y, 0)):
        return constant(0, x)  # 0 times a float may be -0 or NaN
    return _neutral(1)(x, y)


add = pointwise(
    "add",
    wrapping(lambda x, y: x + y),
    (lambda g, o, x, y: g, lambda g, o, x, y: g),
    spelling=relax.op.add,
    simplify=_neutral(-0.0),  # -0.0 + 0.0 is 0.0
    exact=by_numpy(np.add),
)
subtract = pointwise(
    "subtract",
    formula.subtract,
    (lambda g, o, x, y: g, lambda g, o, x, y: -g),
    spelling=relax.op.subtract,
    simplify=lambda x, y: x if is_number(y, 0) else None,
    exact=by_numpy(np.subtract),
)
multiply = pointwise(
    "multiply",
    wrapping(lambda x, y: x * y, grows=True),
    (lambda g, o, x, y: g * y, lambda g, o, x, y: g * x),
    spelling=relax.op.multiply,
    simplify=_multiply_simplify,
    exact=by_numpy(np.multiply),
)


def _divide_read(call: relax.Call):
    # Relax divides integers, too: towards 0.
    return (list(call.args), {}) if str(call.ty.dtype.dtype).startswith(("float", "bfloat")) else None


divide = pointwise(
    "divide",
    lambda x, y: tirx.div(x, y),
    (lambda g, o, x, y: g / y, lambda g, o, x, y: -(g * o / y)),
    domain=FLOATS,
    spelling=Spelling("relax.divide", lambda exprs, params: relax.op.divide(*exprs), _divide_read),
    simplify=lambda x, y: x if is_number(y, 1) else None,
    exact=by_numpy(np.divide),
)


negative = pointwise(
    "negative",
    formula.negative,
    (lambda g, o, x: -g,),
    spelling=relax.op.negative,
    simplify=lambda x: argument(x, 0) if made_by(x, "negative") else None,
    exact=by_numpy(np.negative),
)

#: ``one_minus_square(x)``: ``1 - x**2``, exact near 1. It is an op because its derivative, through the two factors,
#: would be the difference of two infinities where a function of it has a pole.
one_minus_square = float_function(
    "one_minus_square", lambda x: (one(x) - x) * (one(x) + x), lambda g, o, x: g * (-2 * x), inexpensive=True
)


def _abs(x: Any) -> Any:
    if not is_signed(x):
        return tirx.abs(x)
    # abs(INT_MIN) is INT_MIN. Computed unsigned, so that LLVM sees no overflow; hidden, so that TVM does not conclude
    # that the result is at least 0.
    dtype = dtype_name(x)
    below = x < zero(x)
    size = tirx.Cast(f"u{dtype}", tirx.Select(below, ~x, x)) + tirx.Cast(f"u{dtype}", below)
    return hidden(tirx.Cast(dtype, size))


# The derivative at 0 is the one from the right: with 0, the square of an absolute value would have no curvature.
abs = pointwise("abs", _abs, (lambda g, o, x: where(x >= 0, g, -g),), spelling=relax.op.abs)


def _sign(x: Any) -> Any:
    if dtype_name(x).startswith("uint"):
        return tirx.Select(x > zero(x), one(x), zero(x))
    neither = tirx.Select(formula.is_nan(x), x, zero(x)) if is_float(x) else zero(x)
    return tirx.Select(x > zero(x), one(x), tirx.Select(x < zero(x), tirx.const(-1, dtype_name(x)), neither))


sign = pointwise("sign", _sign, (None,), spelling=relax.op.sign)


def _ties_shared(g: Array, chosen: Array, other: Array, out: Array) -> Array:
    """The cotangent of a maximum or minimum: all to the winner, half to each in a tie."""
    share = where(chosen == other, constant(0.5, g), constant(1, g))
    return where(chosen == out, g * share, constant(0, g))


maximum = pointwise(
    "maximum",
    formula.maximum,
    (lambda g, o, x, y: _ties_shared(g, x, y, o), lambda g, o, x, y: _ties_shared(g, y, x, o)),
    domain=dtypes.ALL,
    spelling=relax.op.maximum,
)
minimum = pointwise(
    "minimum",
    formula.minimum,
    (lambda g, o, x, y: _ties_shared(g, x, y, o), lambda g, o, x, y: _ties_shared(g, y, x, o)),
    domain=dtypes.ALL,
    spelling=relax.op.minimum,
)
relu = pointwise(
    "relu",
    lambda x: tirx.Select(x <= zero(x), zero(x), x),
    # Computed from the result, so that the argument need not be kept; 0 at 0, as in every framework.
    (lambda g, o, x: where(o > 0, g, constant(0, g)),),
    spelling=relax.op.nn.relu,
    relax_name="nn.relu",
)
