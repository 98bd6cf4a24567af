"""Reference implementations of pointwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.reference.meaning import enter

# Terms of Euler and Maclaurin's formula for sums of powers: Bernoulli numbers B2, B4, ...
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
# The smallest argument at which the Euler-Maclaurin formula is exact in double precision.
_LARGE = 20
_MOST_STEPS = 5000


def _each(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def _is_float(x: np.ndarray) -> bool:
    return np.asarray(x).dtype.kind == "f"


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _log_gamma(x: float) -> float:
    if math.isnan(x):
        return x
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _erf_inv(y: float) -> float:
    if math.isnan(y) or abs(y) > 1:
        return math.nan
    if abs(y) == 1 or y == 0:
        return y * math.inf if y else y
    # Winitzki's approximation, then Newton's and Halley's method on the tail, which does not cancel near 1.
    tail = math.log1p(-y * y)
    first = 2 / (math.pi * 0.147) + tail / 2
    x = math.copysign(math.sqrt(math.sqrt(first * first - tail / 0.147) - first), y)
    for _ in range(4):
        error = (math.erf(x) - y) if abs(y) < 0.5 else math.copysign(1, y) * ((1 - abs(y)) - math.erfc(abs(x)))
        slope = 2 / math.sqrt(math.pi) * math.exp(-x * x)
        if slope == 0:
            break
        step = error / slope
        x -= step / (1 + x * step)
    return x


def _polygamma(x: np.ndarray, order: int) -> np.ndarray:
    """The derivative of order ``order`` of the digamma function."""
    return np.vectorize(lambda value: _polygamma_of(np.float64(value), order), otypes=[np.float64])(x)


def _polygamma_of(x: np.float64, n: int) -> Any:
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == math.inf:
        return math.inf if n == 0 else 0.0
    if n % 2 == 0 and x == 0:
        return -math.copysign(math.inf, x)
    if x <= 0 and x == math.floor(x):
        return math.inf if n % 2 else math.nan
    if n == 0 and x < -_MOST_STEPS:  # by reflection
        return _polygamma_of(1 - x, 0) - math.pi / math.tan(math.pi * (x - math.floor(x)))
    total, sign, factorial = 0.0, (-1) ** (n + 1), math.factorial(n)
    steps = max(0, math.ceil(_LARGE - x))
    if steps > _MOST_STEPS:
        return math.nan
    for k in range(steps):
        total += sign * factorial / (x + k) ** (n + 1)
    x = np.float64(x + steps)  # its powers may be infinite
    if n == 0:
        tail = math.log(x) - 1 / (2 * x)
        return total + tail - sum(b / (2 * k * x ** (2 * k)) for k, b in enumerate(_BERNOULLI, 1))
    tail = math.factorial(n - 1) / x**n + factorial / (2 * x ** (n + 1))
    for k, b in enumerate(_BERNOULLI, 1):
        tail += b * math.factorial(2 * k + n - 1) / (math.factorial(2 * k) * x ** (2 * k + n))
    return total + sign * tail


def _floor_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # For a divisor of 0 NumPy returns NaN in some versions, where the quotient is infinite.
    return np.where(y == 0, x / y, np.floor_divide(x, y)) if _is_float(x) else np.floor_divide(x, y)


def _shift(function: Callable, signs_fill: bool) -> Callable:
    def shifted(x: np.ndarray, count: np.ndarray) -> np.ndarray:
        bits = x.dtype.itemsize * 8
        too_far = (count >= bits) | (count < 0)
        result = function(x, np.where(too_far, 0, count).astype(x.dtype))
        gone = np.where(x < 0, -1, 0).astype(x.dtype) if signs_fill and x.dtype.kind == "i" else np.zeros_like(x)
        return np.where(too_far, gone, result)

    return shifted


def _astype(x: np.ndarray, dtype: str, weak: bool = False) -> np.ndarray:
    target = dtypes.canonical(dtype)
    if dtypes.is_float(x.dtype) and target.kind in "iu":
        # Truncated; saturates outside the range, and NaN becomes 0.
        info, wide = np.iinfo(target), np.trunc(x.astype(np.float64))
        fits = (wide >= float(info.min)) & (wide < 2.0 ** (info.bits - (info.min < 0)))
        outside = np.where(wide > 0, info.max, np.where(wide < 0, info.min, 0)).astype(target)
        return np.where(fits, np.where(fits, wide, 0).astype(target), outside)
    return x.astype(target)


_EXACT: dict[str, Callable[..., Any]] = {
    "negative": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "relu": lambda x: np.where(x <= 0, np.zeros_like(x), x),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.bitwise_not,
    "left_shift": _shift(np.left_shift, signs_fill=False),
    "right_shift": _shift(np.right_shift, signs_fill=True),
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "where": np.where,
    "stop_gradient": lambda x: x,
    "barrier": lambda x: x,
    "name": lambda x, name: x,
}

_ROUNDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floor_divide": _floor_divide,
    "remainder": np.remainder,
    "fmod": np.fmod,
    "power": np.power,
    "integer_power": lambda x, exponent: np.float_power(x, exponent),
    "one_minus_square": lambda x: (1 - x) * (1 + x),
    "logaddexp": np.logaddexp,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "exp2": np.exp2,
    "log2": np.log2,
    "log10": np.log10,
    "cbrt": np.cbrt,
    "sigmoid": _sigmoid,
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "erf_inv": _each(_erf_inv),
    "lgamma": _each(_log_gamma),
    "polygamma": _polygamma,
}


def enter_all() -> None:
    """Adds the reference implementations of this module to the table."""
    enter(_EXACT, exact=True)
    enter({"astype": _astype, "bitcast": lambda x, dtype: x.view(dtypes.canonical(dtype))}, exact=True, raw=True)
    enter(_ROUNDED)
