"""Dynamic sizes in a Program's text: sums of products of names and quotients, as ``Dim`` prints them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvmfun.core import polynomial
from tvmfun.core.dims import Dim
from tvmfun.errors import ArgumentError
from tvmfun.program_text.tokens import Tokens

# Bounds of polynomials take time exponential in these.
_MOST_TERMS = 32
_MOST_FACTORS = 8
_MOST_QUOTIENTS = 8
_LARGEST = 2**63


class Sizes:
    """Reads the sizes of one Program.

    Args:
        tokens: the tokens.
        bounds: the smallest and largest values of named sizes; by default 1 and no limit.
    """

    def __init__(self, tokens: Tokens, bounds: Mapping[str, tuple[int, int | None]]) -> None:
        self._tokens, self._bounds = tokens, bounds
        self._names: dict[str, Dim] = {}
        self._quotients = 0

    def read(self) -> Any:
        """Reads a size: an integer or a Dim."""
        self._quotients = 0
        try:
            return self._sum()
        except (ZeroDivisionError, ArgumentError) as error:
            raise self._tokens.error("a size that cannot be", got=str(error)) from None

    def _sum(self) -> Any:
        tokens, total = self._tokens, 0
        negative = tokens.accept("-")
        for _ in range(_MOST_TERMS):
            term = self._product()
            total = total - term if negative else total + term
            if not (tokens.at("+") or tokens.at("-")):
                return total
            negative = tokens.next() == "-"
        raise tokens.error(f"a size of more than {_MOST_TERMS} terms")

    def _product(self) -> Any:
        tokens = self._tokens
        result = self._factor()
        if tokens.at("//"):
            return self._quotient(result)
        for _ in range(_MOST_FACTORS):
            if not tokens.accept("*"):
                return result
            result = result * self._factor()
        raise tokens.error(f"a size of more than {_MOST_FACTORS} factors")

    def _factor(self) -> Any:
        tokens = self._tokens
        if not tokens.accept("("):
            return self._simple()
        # Either a factor that is a quotient, or the dividend of one.
        inner = self._sum()
        tokens.expect(")")
        is_quotient = isinstance(inner, Dim) and isinstance(polynomial.as_atom(inner.polynomial), polynomial.Quotient)
        if not is_quotient and not tokens.at("//"):
            raise tokens.error("expected '//' after a sum in parentheses")
        return inner

    def _quotient(self, dividend: Any) -> Any:
        tokens = self._tokens
        self._quotients += 1
        if self._quotients > _MOST_QUOTIENTS:
            raise tokens.error(f"a size of more than {_MOST_QUOTIENTS} quotients")
        tokens.expect("//")
        if tokens.accept("("):
            divisor = self._sum()
            tokens.expect(")")
        else:
            divisor = self._simple()
        result = dividend // divisor
        atom = polynomial.as_atom(result.polynomial) if isinstance(result, Dim) else None
        if not isinstance(atom, polynomial.Quotient):
            raise tokens.error("a quotient that is not in its simplest form", got=str(result), hint=str(result))
        return result

    def _simple(self) -> Any:
        tokens = self._tokens
        if tokens.kind == "number":
            value = tokens.natural()
            if value >= _LARGEST:
                raise tokens.error("a size must be below 2**63", got=str(value))
            return value
        name = tokens.expect_kind("name", "a size")
        if name not in self._names:
            low, high = self._bounds.get(name, (1, None))
            self._names[name] = Dim(name, low, high)
        return self._names[name]


def read_bounds(tokens: Tokens) -> dict[str, tuple[int, int | None]]:
    """Reads the bounds after ``where``: ``2 <= n, 0 <= m <= 10``."""
    found: dict[str, tuple[int, int | None]] = {}
    while True:
        low = tokens.natural()
        tokens.expect("<=")
        name = tokens.expect_kind("name", "the name of a size")
        high = tokens.natural() if tokens.accept("<=") else None
        if name in found or low > (math.inf if high is None else high):
            raise tokens.error(f"bounds of {name} that cannot be")
        found[name] = low, high
        if not tokens.accept(","):
            return found
