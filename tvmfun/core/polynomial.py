"""Polynomials with integer coefficients: the values of dynamic sizes, and bounds on them.

The variables are named sizes and quotients ``p // q`` with a remainder. A polynomial is a sorted tuple of terms without
zeros, so equal polynomials are equal tuples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache, reduce
from typing import NamedTuple, TypeAlias


class Name(NamedTuple):
    """A named size and its bounds; ``high`` is infinite if there is no upper bound."""

    name: str
    low: int
    high: float

    def __str__(self) -> str:
        return self.name


class Quotient(NamedTuple):
    """The floor of a division that has a remainder."""

    dividend: Polynomial
    divisor: Polynomial

    def __str__(self) -> str:
        texts = map(text, self)
        return " // ".join(part if part.isalnum() else f"({part})" for part in texts)


#: A variable of a polynomial.
Atom: TypeAlias = Name | Quotient
#: A product of atoms, sorted; the empty one is 1.
Monomial: TypeAlias = tuple[Atom, ...]
#: Monomials and their coefficients, higher degrees first.
Polynomial: TypeAlias = tuple[tuple[Monomial, int], ...]


def constant(value: int) -> Polynomial:
    """The polynomial of an integer."""
    return (((), int(value)),) if value else ()


def of_atom(atom: Atom) -> Polynomial:
    """The polynomial of a single atom."""
    return (((atom,), 1),)


def as_integer(polynomial: Polynomial) -> int | None:
    """The integer that a polynomial equals, or None."""
    if not polynomial:
        return 0
    (monomial, factor), *rest = polynomial
    return factor if not monomial and not rest else None


def as_atom(polynomial: Polynomial) -> Atom | None:
    """The atom that a polynomial equals, or None."""
    if len(polynomial) != 1:
        return None
    ((monomial, factor),) = polynomial
    return monomial[0] if factor == 1 and len(monomial) == 1 else None


def atoms(polynomial: Polynomial) -> set[Name]:
    """The named sizes in a polynomial, also inside of quotients."""
    found: set[Name] = set()
    for monomial, _ in polynomial:
        for atom in monomial:
            found |= {atom} if isinstance(atom, Name) else atoms(atom.dividend) | atoms(atom.divisor)
    return found


def text(polynomial: Polynomial) -> str:
    """A polynomial as text."""
    result = ""
    for monomial, factor in polynomial:
        sign = (" - " if factor < 0 else " + ") if result else ("-" if factor < 0 else "")
        parts = [*([] if abs(factor) == 1 and monomial else [str(abs(factor))]), *map(str, monomial)]
        bare = len(parts) == 1 and sign != "-"
        result += sign + "*".join(part if bare or " " not in part else f"({part})" for part in parts)
    return result or "0"


def postfix(polynomial: Polynomial) -> str:
    """A polynomial in postfix notation."""
    result: list[str] = []
    for monomial, factor in polynomial:
        factors = [str(factor)] if factor != 1 or not monomial else []
        for atom in monomial:
            factors.append(atom.name if isinstance(atom, Name) else " ".join([*map(postfix, atom), "//"]))
        term = " ".join([factors[0], *(f"{part} *" for part in factors[1:])])
        result.append(f"{term} +" if result else term)
    return " ".join(result) or "0"


def _normal(terms: Mapping[Monomial, int]) -> Polynomial:
    return tuple(sorted(((m, c) for m, c in terms.items() if c), key=lambda term: _order(term[0])))


def _order(monomial: Monomial) -> tuple:
    return -len(monomial), [(isinstance(atom, Quotient), str(atom)) for atom in monomial]


# -- arithmetic ------------------------------------------------------------------------------------------------------


def _collected(terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
    """The sum of terms."""
    sums: dict[Monomial, int] = {}
    for monomial, factor in terms:
        sums[monomial] = sums.get(monomial, 0) + factor
    return _normal(sums)


def add(left: Polynomial, right: Polynomial) -> Polynomial:
    """The sum."""
    return _collected((*left, *right))


def scale(polynomial: Polynomial, factor: int) -> Polynomial:
    """The product with an integer."""
    return tuple((monomial, factor * c) for monomial, c in polynomial) if factor else ()


def subtract(left: Polynomial, right: Polynomial) -> Polynomial:
    """The difference."""
    return add(left, scale(right, -1))


def multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product."""
    return _collected((tuple(sorted((*m, *n), key=str)), c * d) for m, c in left for n, d in right)


def divide(left: Polynomial, right: Polynomial) -> Polynomial:
    """The floor of the quotient: the part that divides exactly, and an atom for the rest.

    Args:
        left: the dividend.
        right: the divisor: an integer, or a polynomial that is positive for all sizes.

    Raises:
        ZeroDivisionError: if the divisor is 0.
    """
    divisor = as_integer(right)
    if divisor is None:
        exact, rest = _long_division(left, right)
        return add(exact, _quotient(rest, right))
    if not divisor:
        raise ZeroDivisionError("integer division or modulo by zero")
    if divisor < 0:
        return divide(scale(left, -1), constant(-divisor))
    lead = left[0][1] if left else 0
    if lead < 0 and 2 * (lead % divisor) > divisor:  # -x // q with small numbers: -((x + q - 1) // q)
        return scale(divide(add(scale(left, -1), constant(divisor - 1)), right), -1)
    exact = _normal({m: c // divisor for m, c in left})
    rest = _normal({m: c % divisor for m, c in left})
    common = math.gcd(divisor, *(c for _, c in rest))
    rest = tuple((m, c // common) for m, c in rest)
    return add(exact, _quotient(rest, constant(divisor // common)))


def remainder(left: Polynomial, right: Polynomial) -> Polynomial:
    """The remainder of :func:`divide`."""
    return subtract(left, multiply(right, divide(left, right)))


def _long_division(left: Polynomial, right: Polynomial) -> tuple[Polynomial, Polynomial]:
    """The quotient and the remainder, dividing as long as a term is divisible by the leading term of ``right``."""
    lead, factor = right[0]
    quotient: Polynomial = ()
    while left:
        for monomial, c in left:
            missing = _without(monomial, lead)
            if missing is not None and c % factor == 0:
                step = ((missing, c // factor),)
                quotient = add(quotient, step)
                left = subtract(left, multiply(step, right))
                break
        else:
            break
    return quotient, left


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The quotient of two monomials, or None if there is a remainder."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _quotient(dividend: Polynomial, divisor: Polynomial) -> Polynomial:
    """``dividend // divisor`` if no term of the dividend is divisible."""
    if not dividend:
        return ()
    numbers = as_integer(dividend), as_integer(divisor)
    if numbers[0] is not None and numbers[1] is not None:
        return constant(numbers[0] // numbers[1])
    above = add(dividend, constant(1))
    for result in (0, -1):
        if is_at_most(scale(divisor, result), dividend) and is_at_most(above, scale(divisor, result + 1)):
            return constant(result)
    return of_atom(Quotient(dividend, divisor))


# -- bounds ----------------------------------------------------------------------------------------------------------


def bounds(polynomial: Polynomial) -> tuple[float, float]:
    """Conservative bounds on the values of a polynomial."""
    return lower_bound(polynomial), -lower_bound(scale(polynomial, -1))


def is_at_most(left: Polynomial, right: Polynomial) -> bool:
    """Whether the bounds imply that ``left <= right`` for all sizes."""
    return lower_bound(subtract(right, left)) >= 0


@lru_cache(maxsize=1 << 14)
def lower_bound(polynomial: Polynomial) -> float:
    """A lower bound of the values of a polynomial."""
    best = _sum_of_bounds(_in_excesses(polynomial))
    for monomial, factor in polynomial:
        # (p - q + 1) / q <= p // q <= p / q, which lets p cancel against other terms.
        if len(monomial) == 1 and isinstance(monomial[0], Quotient):
            dividend, divisor = monomial[0].dividend, as_integer(monomial[0].divisor)
            if divisor is None:
                continue
            p = dividend if factor < 0 else subtract(dividend, constant(divisor - 1))
            rest = scale(subtract(polynomial, ((monomial, factor),)), divisor)
            low = lower_bound(add(rest, scale(p, factor)))
            best = max(best, low if math.isinf(low) else -(-int(low) // divisor))
    return best


def _in_excesses(polynomial: Polynomial) -> Polynomial:
    """The polynomial in the variables ``size - minimum``, one per named size."""
    names = {atom for monomial, _ in polynomial for atom in monomial if isinstance(atom, Name) and atom.low}
    if not names:
        return polynomial
    shifts = {name: add(of_atom(Name(name.name, 0, name.high - name.low)), constant(name.low)) for name in names}
    result: Polynomial = ()
    for monomial, factor in polynomial:
        factors = (shifts.get(atom, of_atom(atom)) for atom in monomial)  # type: ignore[call-overload]
        result = add(result, reduce(multiply, factors, constant(factor)))
    return result


def _sum_of_bounds(polynomial: Polynomial) -> float:
    total: float = 0
    for monomial, factor in polynomial:
        low, high = reduce(_times, map(_interval, monomial), (1, 1))
        total += factor * (low if factor > 0 else high)
    return total


def _interval(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Name):
        return atom.low, atom.high
    ends = [_floor(end, divisor) for end in bounds(atom.dividend) for divisor in bounds(atom.divisor)]
    return min(ends), max(ends)


def _floor(a: float, b: float) -> float:
    if math.isinf(a):
        return a
    return (0 if a >= 0 else -1) if math.isinf(b) else a // b


def _times(left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
    ends = [0 if not a or not b else a * b for a in left for b in right]
    return min(ends), max(ends)
