"""Sums of Chebyshev polynomials, and of powers."""

from __future__ import annotations

from collections.abc import Sequence

from tvmfun.core.array import Array


def chebyshev(t: Array, coefficients: Sequence[float]) -> Array:
    """``sum(coefficients[k] * T_k(t))`` for ``t`` from -1 to 1, by Clenshaw's recurrence."""
    # A coefficient below the rounding error of the first contributes nothing.
    least = abs(coefficients[0]) * (1e-9 if t.dtype.itemsize < 8 else 1e-18)
    used = list(coefficients)
    while len(used) > 2 and abs(used[-1]) < least:
        used.pop()
    twice, b0, b1 = t + t, used[-1] + 0 * t, 0 * t
    for coefficient in reversed(used[1:-1]):
        b0, b1 = twice * b0 - b1 + coefficient, b0
    return t * b0 - b1 + used[0]


def on_half_line(x: Array, start: float, scale: float, coefficients: Sequence[float]) -> Array:
    """A function of ``x`` from ``start`` to infinity, which has a limit there."""
    # 1 - 2 s / (x - start + s) is also right at infinity.
    return chebyshev(1 - 2 * scale / (x - start + scale), coefficients)


def polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """``sum(coefficients[k] * x**k)``, by Horner's rule."""
    total = 0 * x + coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total
