"""Floating-point formats for the formulas of elementary functions, and polynomials in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from tvmfun.lower.tir.build import Expr

# At most this many terms are added up one by one.
_FEW_TERMS = 3
# Binds an intermediate result to a variable, so that it is computed once.
Name = Callable[[Expr], Expr]


@dataclass(frozen=True)
class Format:
    """A floating-point format.

    Args:
        dtype, bits: its name, and the name of the integer of the same size.
        lanes: the lanes of its vectors.
        fraction: the bits of the fraction.
        bias: the number that is added to exponents.
        root_half: the bits of the square root of 1/2.
        ln2: log(2) in two parts; the product of the first with any exponent is exact.
        log10_2: log10(2) in two parts; the product of the first with any exponent is exact.
        log10_e: log10(e) in two parts, the first with few bits.
    """

    dtype: str
    bits: str
    fraction: int
    bias: int
    root_half: int
    ln2: tuple[float, float]
    log10_2: tuple[float, float]
    log10_e: tuple[float, float]
    lanes: int = 1

    def vector(self, dtype: str) -> str:
        """Another type, with as many lanes."""
        return dtype if self.lanes == 1 else f"{dtype}x{self.lanes}"

    def number(self, value: float) -> Expr:
        """A constant."""
        return tirx.const(value, self.vector(self.dtype))

    def integer(self, value: int) -> Expr:
        """A constant of the integer type."""
        return tirx.const(value, self.vector(self.bits))

    def unsigned(self, value: int) -> Expr:
        """A constant of the unsigned integer type."""
        return tirx.const(value, self.vector(f"u{self.bits}"))

    def int32(self, value: int) -> Expr:
        """A constant of the type of exponents."""
        return tirx.const(value, self.vector("int32"))

    def as_integer(self, value: Expr) -> Expr:
        """The bits of a number."""
        return tirx.reinterpret(self.vector(self.bits), value)

    def as_unsigned(self, value: Expr) -> Expr:
        """The bits of a number as an unsigned integer."""
        return tirx.reinterpret(self.vector(f"u{self.bits}"), value)

    def of_integer(self, bits: Expr) -> Expr:
        """The number with these bits."""
        return tirx.reinterpret(self.vector(self.dtype), bits)

    def as_computed(self, value: Expr, name: Name) -> Expr:
        """A rounded value as its bits, so that TVM does not simplify formulas of it as if it were exact."""
        return self.of_integer(name(self.as_integer(value)))

    def of_exponent(self, biased: Expr) -> Expr:
        """The power of two whose exponent, with the bias, is in the last bits of an unsigned integer."""
        return self.of_integer(tirx.shift_left(biased, self.unsigned(self.fraction)))

    def size(self, x: Expr, name: Name) -> Expr:
        """The absolute value, by clearing the sign's bit."""
        width = int(self.bits[3:])
        return name(self.of_integer(name(self.as_integer(x) & self.integer(2 ** (width - 1) - 1))))

    def signed(self, size: Expr, x: Expr, name: Name) -> Expr:
        """A positive number with the sign of x, also of a zero."""
        width = int(self.bits[3:])
        sign = self.as_integer(x) & self.integer(-(2 ** (width - 1)))
        return self.of_integer(name(self.as_integer(name(size)) | sign))


FLOAT32 = Format(
    dtype="float32",
    bits="int32",
    fraction=23,
    bias=127,
    root_half=0x3F3504F3,
    ln2=(0.693359375, -2.12194440e-4),
    log10_2=(0.30078125, 2.487456639811952e-4),
    log10_e=(0.43359375, 7.007319032518277e-4),
)
FLOAT64 = Format(
    dtype="float64",
    bits="int64",
    fraction=52,
    bias=1023,
    root_half=0x3FE6A09E667F3BCD,
    ln2=(float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")),
    log10_2=(float.fromhex("0x1.34413509fp-2"), float.fromhex("0x1.e7fbcc47c4acdp-40")),
    log10_e=(0.43359375, 7.007319032518277e-4),
)


def format_of(x: Expr) -> Format:
    """The format of an expression of ``float32`` or ``float64``, or of vectors of them."""
    dtype, lanes = _parts_of(x)
    return replace(FLOAT64 if dtype == "float64" else FLOAT32, lanes=lanes)


def _parts_of(x: Expr) -> tuple[str, int]:
    dtype, _, lanes = str(x.ty).partition("x")
    return dtype, int(lanes or 1)


def horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial with these coefficients, highest power first."""
    return _nested(x, list(map(format_of(x).number, coefficients)))


def estrin(x: Expr, coefficients: Sequence[float], name: Name) -> Expr:
    """The polynomial in Estrin's scheme: independent sums of two terms become the terms of a polynomial in ``x**2``.

    In Horner's scheme each step waits for the one before, and the processor cannot fill the wait with other work.
    """
    terms: list[Expr] = list(map(format_of(x).number, coefficients))
    while len(terms) > _FEW_TERMS:
        first = len(terms) % 2
        terms[first:] = [name(a * x + b) for a, b in zip(terms[first::2], terms[first + 1 :: 2], strict=True)]
        x = name(x * x)
    return _nested(x, terms)


def _nested(x: Expr, terms: Sequence[Expr]) -> Expr:
    total, *rest = terms
    for term in rest:
        total = total * x + term
    return total


def cast(dtype: str, value: Expr) -> Expr:
    """The value in another type, with as many lanes."""
    own, lanes = _parts_of(value)
    return value if own == dtype else tirx.Cast(dtype if lanes == 1 else f"{dtype}x{lanes}", value)
