"""The modified Bessel functions of the first kind, of orders 0 and 1.

Source: Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 9.6.10 and 9.7.1. The power series has
positive terms only, so that it is accurate as far as it is used; behind that the asymptotic series is, to the last bits
of float64.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.numpy.creation import arrays
from tvmfun.numpy.promotion import operands
from tvmfun.ops import pointwise as ops

#: Where the asymptotic series takes over, and how many terms both have then.
_BORDER, _TERMS, _ASYMPTOTIC_TERMS = 18.0, 38, 30


def _horner(coefficients: list[float], x: Any) -> Any:
    real = x.dtype.type
    result: Any = real(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = ops.add(ops.multiply(result, x), real(c))
    return result


def scaled(name: str, order: int, x: Any) -> Array:
    r"""Returns :math:`e^{-|x|} I_n(x)` for the order 0 or 1, elementwise."""
    (x,) = operands(name, x, floating=True)
    own = x.dtype
    if own.itemsize < 4:
        x = ops.astype(x, dtype="float32")
    real = x.dtype.type
    size = ops.abs(x)
    near = ops.less(size, real(_BORDER))
    # Each series gets a harmless argument where the other one counts.
    small, large = ops.where(near, x, real(1)), ops.where(near, real(_BORDER), size)
    half = ops.multiply(small, real(0.5))
    # In a variable up to 1, whose powers do not overflow in derivatives.
    scale = (_BORDER / 2) ** 2
    powers = [scale**k / (math.factorial(k) * math.factorial(k + order)) for k in range(_TERMS)]
    series = _horner(powers, ops.multiply(half, ops.multiply(half, real(1 / scale))))
    # The sign is 0 at 0, where the derivative of the size is 0 then.
    first = ops.multiply(series, ops.exp(ops.negative(ops.multiply(small, ops.sign(small)))))
    terms = [1.0]
    for k in range(1, _ASYMPTOTIC_TERMS):
        terms.append(-terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k * _BORDER))
    second = ops.divide(
        _horner(terms, ops.divide(real(_BORDER), large)), ops.sqrt(ops.multiply(real(2 * math.pi), large))
    )
    if order:
        first = ops.multiply(first, half)
        second = ops.where(ops.less(x, real(0)), ops.negative(second), second)
    result = ops.where(near, first, second)
    result = ops.where(ops.isnan(x), x, result)
    return result if own == x.dtype else ops.astype(result, dtype=dtypes.NAMES[own])


def i0(x: Any) -> Array:
    """Returns the modified Bessel function of the first kind of order 0, elementwise.

    >>> i0([0.0, 1.0])
    Array([1.       , 1.2660658], dtype=float32)
    """
    (x,) = arrays("i0", x, floating=True)
    return ops.multiply(scaled("i0", 0, x), ops.exp(ops.abs(x)))


__all__ = ["i0"]
