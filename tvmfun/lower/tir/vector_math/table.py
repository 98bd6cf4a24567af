"""The functions by name, and the lowering of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfun.lower.tir.vector_math.exponentials import cosh, exp, exp2, expm1, power, sigmoid, sinh, tanh
from tvmfun.lower.tir.vector_math.logarithms import acosh, asinh, atanh, log, log1p, log2, log10
from tvmfun.lower.tir.vector_math.remainders import fmod
from tvmfun.lower.tir.vector_math.special import erf, erfc, hypot, lgamma
from tvmfun.lower.tir.vector_math.trigonometric import acos, asin, atan, atan2, cos, sin, tan


def _by_name(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {function.__name__: function for function in functions}


#: The functions by their names in C's math library, and ``sigmoid``.
FUNCTIONS = _by_name(
    acos, acosh, asin, asinh, atan, atan2, atanh, cosh, erf, erfc, exp, exp2, expm1, hypot, lgamma, log, log1p, log2,
    log10, sigmoid, sinh, tanh,
)  # fmt: skip

#: Functions that are arithmetic for usual arguments only. They also return whether the arguments are usual.
OF_USUAL_ARGUMENTS = _by_name(cos, fmod, sin, tan) | {"pow": power}

#: The functions that are calls of libm in double precision.
ONLY_SINGLE = {"acos", "asin", "atan", "atan2", "lgamma", "pow", "tan"}

#: By format, the functions whose formulas are short enough to be part of each kernel.
INLINED = {
    "float32": {"erf", "erfc", "exp", "exp2", "expm1", "hypot", "log", "log10", "log1p", "log2", "sigmoid", "tanh"},
    "float64": {"exp", "log", "sigmoid", "tanh"},
}


def is_called(function: str | None, dtype: str) -> bool:
    """Whether calls of a function in this format are calls of a function of vectors."""
    if dtype not in INLINED or function in INLINED[dtype] or (dtype == "float64" and function in ONLY_SINGLE):
        return False
    return function in FUNCTIONS or function in OF_USUAL_ARGUMENTS
