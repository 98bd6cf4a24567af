"""Elementary and special functions as arithmetic that LLVM vectorizes.

Each function takes its arguments and ``name``, which binds intermediate results, and states its error bound in units in
the last place (ulp), measured over random numbers against float64, and in double precision against numbers of 80 bits.
Infinities, NaN, zeros and subnormal numbers give the same results as in C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfun.lower.tir.vector_math.exponentials import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from tvmfun.lower.tir.vector_math.logarithms import acosh, asinh, atanh, log, log1p, log2, log10
from tvmfun.lower.tir.vector_math.special import erf, erfc, hypot, lgamma

__all__ = ["FUNCTIONS", "IN_DOUBLE"]

#: The functions by their names in C's math library, and ``sigmoid``.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        acosh, asinh, atanh, cosh, erf, erfc, exp, exp2, expm1, hypot, lgamma, log, log1p, log2, log10, sigmoid, sinh,
        tanh,
    )
}  # fmt: skip

#: Those that are in double precision, too; the others are calls of libm there.
IN_DOUBLE = FUNCTIONS.keys() - {"lgamma"}
