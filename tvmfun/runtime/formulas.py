"""Formulas of dynamic sizes in postfix notation: as text in stored plans, and as numbers in exported libraries."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TypeAlias

#: An integer, or sizes, integers and operators with spaces between them, such as ``"b 4 * 1 +"``.
Formula: TypeAlias = int | str

#: The operators of sizes; ``//`` rounds down, and its divisor is positive.
OPERATORS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "*": operator.mul, "//": operator.floordiv}
#: The operators that launches on GPUs have besides: the smaller and the larger one.
_ALL_OPERATORS = {**OPERATORS, "<": min, ">": max}


def evaluate(formula: Formula, sizes: Mapping[str, int]) -> int:
    """Returns the value of a formula for these sizes.

    >>> evaluate("b 4 * 1 +", {"b": 10})
    41
    """
    if isinstance(formula, int):
        return formula
    stack: list[int] = []
    for token in formula.split():
        if token in _ALL_OPERATORS:
            right = stack.pop()
            stack.append(_ALL_OPERATORS[token](stack.pop(), right))
        else:
            stack.append(sizes[token] if token in sizes else int(token))
    (value,) = stack
    return value
