"""The values of index expressions in Python's integers."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx


def value(number: Any, at: dict[str, int]) -> int:
    """The value of an expression at these values of its variables; a division by zero raises."""
    if isinstance(number, tirx.IntImm):
        return int(number.value)
    if isinstance(number, ir.Var):
        return at[number.name]
    a, b = value(number.a, at), value(number.b, at)
    quotient = lambda: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    compute = {
        "Add": lambda: a + b,
        "Sub": lambda: a - b,
        "Mul": lambda: a * b,
        "Min": lambda: min(a, b),
        "Max": lambda: max(a, b),
        "FloorDiv": lambda: a // b,
        "FloorMod": lambda: a % b,
        "Div": quotient,
        "Mod": lambda: a - quotient() * b,
    }
    return compute[type(number).__name__]()
