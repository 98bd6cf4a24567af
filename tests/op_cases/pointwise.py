"""Elementary functions, those of the gamma function, and searching."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special  # comes with jax

from op_cases.case import Case, apart, ints, reals


def unary(reference: Callable, low: float = -2.0, high: float = 2.0) -> list[Case]:
    return [Case(reference, (reals(*shape, low=low, high=high),)) for shape in ((3, 4), (), (0, 2))]


def lgamma(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.lgamma, otypes=[np.float64])(x)


def polygamma(x: np.ndarray, order: int) -> np.ndarray:
    return special.digamma(x) if order == 0 else special.polygamma(order, x)


def searchsorted(x: np.ndarray, values: np.ndarray, side: str, batch: int = 0) -> np.ndarray:
    if batch:
        rows = [searchsorted(row, own, side, batch - 1) for row, own in zip(x, values, strict=True)]
        return np.asarray(rows, np.int32).reshape(values.shape)
    return np.searchsorted(x, values, side).astype(np.int32)


CASES: dict[str, list[Case]] = {
    "tan": unary(np.tan, -1.2, 1.2),
    "one_minus_square": unary(lambda x: 1 - x * x),
    "asin": unary(np.arcsin, -0.9, 0.9),
    "acos": unary(np.arccos, -0.9, 0.9),
    "atan": unary(np.arctan, -4, 4),
    "sinh": unary(np.sinh),
    "cosh": unary(np.cosh),
    "asinh": unary(np.arcsinh, -4, 4),
    "acosh": unary(np.arccosh, 1.2, 5),
    "atanh": unary(np.arctanh, -0.9, 0.9),
    "fmod": [
        Case(np.fmod, (reals(3, 4), np.asarray([2.5, -3.1, 4.7, 2.2]))),
        Case(np.fmod, (apart(9), np.float64(0.71))),
    ],
    "atan2": [Case(np.arctan2, (apart(3, 4), apart(4) + 0.05)), Case(np.arctan2, (reals(), apart(2, 3)))],
    "hypot": [Case(np.hypot, (apart(3, 4), apart(4) + 0.05)), Case(np.hypot, (reals(), apart(2, 3)))],
    "exp2": unary(np.exp2),
    "log2": unary(np.log2, 0.3),
    "log10": unary(np.log10, 0.3),
    "cbrt": [*unary(np.cbrt, 0.3), Case(np.cbrt, (apart(3, 4),))],
    "integer_power": [
        Case(lambda x, exponent: x**exponent, (reals(3, 4, low=0.5),), {"exponent": exponent})
        for exponent in (-3, -8, 5, 0, -1)
    ],
    "logaddexp": [
        *(Case(np.logaddexp, pair) for pair in ((reals(3, 4), reals(4)), (reals(), reals(2, 3)))),
        Case(np.logaddexp, (np.asarray([1.0, -2.0, 0.0]), np.asarray([1.0, -2.0, -0.0]))),
    ],
    "erfc": unary(special.erfc),
    "lgamma": [*unary(lgamma, 0.3, 5), Case(lgamma, (reals(5, low=-0.9, high=-0.1),))],
    "polygamma": [
        Case(polygamma, (reals(3, 4, low=low, high=high),), {"order": order})
        for order, low, high in ((0, 0.3, 5), (1, 0.3, 5), (2, 0.3, 5), (0, -0.7, -0.3), (1, -2.7, -2.3), (3, 0.6, 9))
    ],
    "searchsorted": [
        Case(searchsorted, (np.sort(x), values), {"side": side, "batch": batch}, exact=True)
        for side in ("left", "right")
        for x, values, batch in (
            (ints(9), ints(3, 4), 0),
            (np.asarray([-1.0, -0.0, 2.0, np.nan, np.nan]), np.asarray([0.0, np.nan, np.inf, -np.inf, 2.0]), 0),
            (reals(2, 8), reals(2, 3), 1),
            (reals(0), reals(2), 0),
        )
    ],
}
