"""Building blocks of TIR formulas that follow IEEE 754 and two's complement.

TVM's simplifier takes floats for real numbers and integers for numbers without bounds. Obvious formulas are therefore
rewritten into wrong ones:

=====================  ===========================  =========================================  =====================
written                becomes                      but it is                                  write instead
=====================  ===========================  =========================================  =====================
``x != x``             false                        true for NaN                               :func:`is_nan`
``x - x``              0                            NaN for infinities                         :func:`opaque` factor
``x * 0``, ``0 / x``   0                            -0 for negative ``x``, NaN for NaN         :func:`opaque`
``x / 0``              an error of the compiler     an infinity, or NaN                        :func:`opaque`
``not x < y``          ``x >= y``                   true if one is NaN                         a test of an ``int8``
``x + 1 > x``          true                         false for the largest integer              :func:`wrapping`
``0 - x`` (unsigned)   0                            ``2**bits - x``                            ``~x + 1``
``abs(x) >= 0``        true                         false for the smallest integer             :func:`opaque`
=====================  ===========================  =========================================  =====================

LLVM has limits of its own: a signed overflow, a division by 0, a shift by the width, and the conversion of a float that
does not fit an integer are undefined. The formula of an op has to avoid them.

Half precision (float16 and bfloat16) has neither library functions nor, on most processors, arithmetic. TVM's
legalization computes bfloat16 in float32, and leaves out the rounding between two equations of one kernel.
:func:`compute_in_float32` makes both explicit: it computes in float32 and rounds once, at the end.
:func:`rounded_to_bfloat16` rounds if another op uses the bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from tvmfun import dtypes
from tvmfun.core.expressions import dtype_name, is_from_memory

_HALF = ("float16", "bfloat16")


def is_float(x: Any) -> bool:
    """Whether a scalar expression is a float."""
    return dtype_name(x).startswith(("float", "bfloat"))


def is_signed(x: Any) -> bool:
    """Whether a scalar expression is a signed integer."""
    return dtype_name(x).startswith("int")


def one(x: Any) -> Any:
    """The constant 1 in the dtype of ``x``."""
    return tirx.const(1, dtype_name(x))


def zero(x: Any) -> Any:
    """The constant 0 in the dtype of ``x``."""
    return tirx.const(0, dtype_name(x))


def opaque(value: float, dtype: str) -> Any:
    """A constant whose value is hidden from TVM's simplifier, but not from LLVM."""
    kind = np.dtype(dtypes.canonical(dtype))
    other = f"int{kind.itemsize * 8}" if dtype.startswith("uint") else f"uint{kind.itemsize * 8}"
    bits = int(kind.type(value).view(other))
    if dtype.startswith("float") and not bits:  # TVM refuses to reinterpret the integer 0
        return opaque(-0.0, dtype) * tirx.const(-1, dtype)
    return tirx.reinterpret(dtype, tirx.const(bits, other))


def compute_in_float32(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula, in half precision computed in float32 and rounded once."""

    def widened(*xs: Any) -> Any:
        if dtype_name(xs[0]) in _HALF:
            return formula(*(tirx.Cast("float32", x) for x in xs)).astype(dtype_name(xs[0]))
        return formula(*xs)

    return widened


def libm(function: str) -> Callable[..., Any]:
    """The formula that calls a function of C's math library, e.g. ``"sinh"``, or ``"sinhf"`` in float32."""

    def formula(*xs: Any) -> Any:
        dtype = dtype_name(xs[0])
        return tirx.call_pure_extern(dtype, f"{function}f" if dtype == "float32" else function, *xs)

    return formula


def hidden(x: Any) -> Any:
    """Hides the value of an integer from TVM's simplifier, but not from LLVM."""
    return (x ^ opaque(1, dtype_name(x))) ^ one(x)


#: Integers into which TVM's simplifier wrongly assumes that indices fit.
NARROW = ("int8", "int16", "uint8", "uint16")
# Sums of sizes, indices and smaller constants fit into 32 bits.
_LARGE = 1 << 24


def wrapping(
    formula: Callable[..., Any], of_unsigned: Callable[..., Any] | None = None, grows: bool = False
) -> Callable[..., Any]:
    """The formula with integers that wrap around: computed in 64 bits, then truncated.

    TVM assumes that integers do not overflow, also in a truncation, so that the product of an index and a large number
    would never be negative. LLVM narrows the 64 bits to the plain instruction. 64-bit integers have nothing wider, and
    must not overflow.

    TVM's simplifier visits what is in a cast to a signed integer twice, so that it would take time that doubles with
    each formula inside of another one. Numbers from memory, of which it knows nothing, are therefore unsigned for it.

    Args:
        formula: the formula.
        of_unsigned: the formula for operands from 0 to ``2**32 - 1``, modulo ``2**32``, without results below 0.
        grows: whether results may exceed 32 bits if operands are indices: such results are hidden from TVM. Results of
            sums are not, so that TVM still recognizes an index plus a number.
    """

    def wrapped(*xs: Any) -> Any:
        dtype = dtype_name(xs[0])
        if dtype not in (*NARROW, "int32", "uint32"):
            return formula(*xs)
        if not dtype.startswith("uint") and any(map(is_from_memory, xs)):
            return _as_signed((of_unsigned or formula)(*map(_as_unsigned, xs)), dtype)
        wide = "uint64" if dtype.startswith("uint") else "int64"
        result = formula(*(tirx.Cast(wide, x) for x in xs))
        is_large = any(isinstance(x, tirx.IntImm) and abs(x.value) >= _LARGE for x in xs)
        return tirx.Cast(dtype, hidden(result) if grows or is_large or dtype in NARROW else result)

    return wrapped


def _as_unsigned(x: Any) -> Any:
    """A signed integer modulo a power of two, as an uint64."""
    unsigned = f"u{dtype_name(x)}"
    if isinstance(x, tirx.IntImm):
        return tirx.const(x.value % (1 << int(unsigned[4:])), "uint64")
    return tirx.Cast("uint64", tirx.reinterpret(unsigned, x))


def _as_signed(x: Any, dtype: str) -> Any:
    """The signed integer that has the low bits of an uint64."""
    return tirx.reinterpret(dtype, tirx.Cast(f"u{dtype}", x))


def _negative(x: Any) -> Any:
    if is_signed(x) or is_float(x):
        return -x
    return tirx.Select(tirx.EQ(x, zero(x)), x, ~x + one(x))  # 0 - x would be simplified to 0


def negative(x: Any) -> Any:
    """``-x``; integers wrap around."""
    return wrapping(_negative, lambda x: _difference(tirx.const(0, "uint64"), x))(x)


def is_nan(x: Any) -> Any:
    """Whether a float is NaN, by its bits; a constant is decided at once."""
    if isinstance(x, tirx.FloatImm):
        return tirx.const(math.isnan(x.value), "bool")
    if dtype_name(x) in _HALF:
        x = tirx.Cast("float32", x)
    uint, magnitude, infinity = {
        "float32": ("uint32", 2**31 - 1, 0xFF << 23),
        "float64": ("uint64", 2**63 - 1, 0x7FF << 52),
    }[dtype_name(x)]
    return (tirx.reinterpret(uint, x) & tirx.const(magnitude, uint)) > tirx.const(infinity, uint)


def subtract(x: Any, y: Any) -> Any:
    """``x - y``; integers wrap around."""
    dtype = dtype_name(x)
    if is_float(x):
        return x + opaque(-1.0, dtype) * y  # LLVM turns this into a subtraction
    if dtype in ("uint8", "uint16", "uint32"):
        return tirx.Cast(dtype, _difference(tirx.Cast("uint64", x), tirx.Cast("uint64", y)))
    if dtype == "uint64":
        return tirx.Select(x >= y, x - y, ~(y - x) + one(x))
    return wrapping(lambda x, y: x - y, _difference)(x, y)


def _difference(x: Any, y: Any) -> Any:
    """``x - y`` modulo ``2**32`` of uint64 below ``2**32``, without a result below 0."""
    return x + (tirx.const(1 << 32, "uint64") - y)


def c_remainder(x: Any, y: Any) -> Any:
    """C's ``fmod(x, y)`` of floats: the remainder of the quotient truncated towards 0."""
    if dtype_name(x) == "float64":
        return tirx.call_pure_extern("float64", "fmod", x, y)
    wide = (tirx.Cast("float32", v) for v in (x, y))
    return tirx.call_pure_extern("float32", "fmodf", *wide).astype(dtype_name(x))


def maximum(x: Any, y: Any) -> Any:
    """The larger one, or NaN if either is."""
    if dtype_name(x) == "bool":
        return tirx.Or(x, y)
    if not is_float(x):
        return tirx.max(x, y)
    if dtype_name(x) == "float16":  # as vectors of float32, to which the comparison converts it anyway
        wide = tirx.Cast("float32", x), tirx.Cast("float32", y)
        return maximum(*wide).astype("float16")
    return tirx.Select(tirx.Or(x > y, is_nan(x)), x, y)  # if y is NaN, the comparison is false and selects it


def minimum(x: Any, y: Any) -> Any:
    """The smaller one, or NaN if either is."""
    if dtype_name(x) == "bool":
        return tirx.And(x, y)
    if not is_float(x):
        return tirx.min(x, y)
    if dtype_name(x) == "float16":  # as vectors of float32, to which the comparison converts it anyway
        wide = tirx.Cast("float32", x), tirx.Cast("float32", y)
        return minimum(*wide).astype("float16")
    return tirx.Select(tirx.Or(x < y, is_nan(x)), x, y)


def rounded_bits(x: Any) -> Any:
    """The bits of a float32 after rounding to bfloat16, in the upper 16 of 32 bits; wrong for some NaNs."""
    bits = tirx.reinterpret("uint32", x)
    unsigned = lambda value: tirx.const(value, "uint32")
    return bits + unsigned(0x7FFF) + (bits >> unsigned(16) & unsigned(1))


def bfloat16_bits(x: Any) -> Any:
    """The 16 bits of a number after rounding to bfloat16; wrong for some NaNs."""
    return (rounded_bits(x.astype("float32")) >> tirx.const(16, "uint32")).astype("uint16")


def rounded_to_bfloat16(x: Any) -> Any:
    """A number rounded to bfloat16, even if the same kernel continues to use it.

    TVM's own rounding turns a NaN whose last bits are ones into 0, by a carry into the sign.
    """
    may_be_nan = is_float(x)
    x = x.astype("float32")
    unsigned = lambda value: tirx.const(value, "uint32")
    bits = rounded_bits(x)
    if may_be_nan:
        bits = tirx.Select(is_nan(x), tirx.reinterpret("uint32", x) | unsigned(0x400000), bits)
    return tirx.reinterpret("float32", bits & unsigned(0xFFFF0000)).astype("bfloat16")
