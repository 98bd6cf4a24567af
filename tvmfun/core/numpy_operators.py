"""The operators of NumPy's scalars and arrays, as methods of their right operand."""

from __future__ import annotations

#: The ufunc that NumPy calls for an operator, and the method by which the right operand implements it.
REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "divmod": "__rdivmod__",
    "divide": "__rtruediv__",
    "power": "__rpow__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}
