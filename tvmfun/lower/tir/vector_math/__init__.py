"""Elementary and special functions as arithmetic that LLVM vectorizes.

Each function takes its arguments and ``name``, which binds intermediate results, and states its error bound in units in
the last place (ulp), measured over random numbers against float64, and in double precision against numbers of 80 bits.
Infinities, NaN, zeros and subnormal numbers give the same results as in C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfun.lower.tir.vector_math.exponentials import cosh, exp, exp2, expm1, power, sigmoid, sinh, tanh
from tvmfun.lower.tir.vector_math.logarithms import acosh, asinh, atanh, log, log1p, log2, log10
from tvmfun.lower.tir.vector_math.remainders import fmod
from tvmfun.lower.tir.vector_math.special import erf, erfc, hypot, lgamma
from tvmfun.lower.tir.vector_math.trigonometric import acos, asin, atan, atan2, cos, sin, tan

__all__ = ["FUNCTIONS", "IN_DOUBLE", "OF_USUAL_ARGUMENTS", "OF_USUAL_IN_DOUBLE"]


def _by_name(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {function.__name__: function for function in functions}


#: The functions by their names in C's math library, and ``sigmoid``.
FUNCTIONS = _by_name(
    acos, acosh, asin, asinh, atan, atan2, atanh, cosh, erf, erfc, exp, exp2, expm1, hypot, lgamma, log, log1p, log2,
    log10, sigmoid, sinh, tanh,
)  # fmt: skip

#: Those that are in double precision, too; the others are calls of libm there.
IN_DOUBLE = FUNCTIONS.keys() - {"acos", "asin", "atan", "atan2", "lgamma"}

#: Functions that are arithmetic for usual arguments only. They return whether the arguments are usual, too.
OF_USUAL_ARGUMENTS = _by_name(cos, fmod, sin, tan) | {"pow": power}

#: The same in double precision.
OF_USUAL_IN_DOUBLE = OF_USUAL_ARGUMENTS.keys() - {"pow", "tan"}
