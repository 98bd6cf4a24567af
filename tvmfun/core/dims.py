"""Dynamic sizes: a ``Dim`` stands for the size of an axis that is known only when a compiled function is called.

A Dim is a polynomial with integer coefficients in named sizes and in quotients ``p // q`` that do not come out
even. Polynomials have one form, so equal sizes compare equal, and 4 times ``b`` elements fill ``(b, 2, 2)``. Where
a size has to be compared (``b < 3``), the bounds of the named sizes decide, or an error says that they do not.

In kernels a Dim is a TIR expression in int32 variables, in Relax one in int64 variables; TVM's functions take a
Dim wherever they take an expression.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from tvm import ir, tirx

from tvmfun.core.source import raised_at, user_line
from tvmfun.errors import ArgumentError, DimensionError, ShapeError

# What a size is taken for where only speed depends on it.
_TYPICAL = 64


class _Name(NamedTuple):
    """A named size and its bounds; ``high`` is infinite if there is none."""

    name: str
    low: int
    high: float

    def __str__(self) -> str:
        return self.name


class _Quotient(NamedTuple):
    """The integer part of a division that does not come out even."""

    dividend: Dim
    divisor: Any

    def __str__(self) -> str:
        return " // ".join(str(part) if str(part).isalnum() else f"({part})" for part in self)


_Atom = _Name | _Quotient
# A product of atoms, sorted; the empty one is 1.
_Monomial = tuple[_Atom, ...]
_Terms = dict[_Monomial, int]


class Dim:
    """The size of an axis that is known only at call time: a name, or arithmetic on such sizes.

    Args:
        name: what to call it; the same name is the same size everywhere in a function.
        min: the smallest size to support. Some functions need to know that there are enough elements.
        max: the largest size, if there is one.

    Raises:
        ArgumentError: if the name is no identifier or the bounds make no sense.
        DimensionError: later, where Python needs a number, or the bounds do not decide a comparison.

    Source: ``jax.export.symbolic_shape``, and the bounds of ``torch.export.Dim``.

    >>> b = Dim("b")
    >>> (4 * b + 4) // 4, b * b - b, (b + 1) // 2
    (b + 1, b*b - b, (b + 1) // 2)
    >>> b >= 1, b == 3
    (True, False)
    """

    __slots__ = ("_hash", "_terms")
    # NumPy's scalars leave arithmetic with a Dim to the Dim.
    __array_ufunc__ = None
    _terms: _Terms
    _hash: int

    def __new__(cls, name: str, min: int = 1, max: int | None = None) -> Dim:
        """A named size; arithmetic makes the others."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ArgumentError("Dim", "the name must be an identifier", got=repr(name), hint="Dim('b')")
        high = math.inf if max is None else max
        if not 0 <= min <= high:
            raise ArgumentError("Dim", "the bounds must be 0 <= min <= max", got=f"min={min}, max={max}")
        return _of_atom(_Name(name, min, high))

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """Its name, or None if it is computed."""
        atom = self._atom()
        return atom.name if isinstance(atom, _Name) else None

    def _atom(self) -> _Atom | None:
        ((monomial, factor), *rest) = self._terms.items()
        return monomial[0] if not rest and factor == 1 and len(monomial) == 1 else None

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value it may have, as far as that is easy to see."""
        return _lower(self), -_lower(-self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self._terms == other._terms
        return False if _is_int(other) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple:
        return _polynomial, (self._terms,)

    def __str__(self) -> str:
        text = ""
        for monomial, factor in self._terms.items():
            sign = (" - " if factor < 0 else " + ") if text else ("-" if factor < 0 else "")
            parts = [*([] if abs(factor) == 1 and monomial else [str(abs(factor))]), *map(str, monomial)]
            bare = len(parts) == 1 and sign != "-"
            text += sign + "*".join(part if bare or " " not in part else f"({part})" for part in parts)
        return text

    __repr__ = __str__

    # -- arithmetic: that of integers with integers and Dims, that of an array with other numbers ---------------

    def _combine(self, other: Any, of_numbers: Callable, of_terms: Callable, swapped: bool) -> Any:
        if isinstance(other, Dim) or _is_int(other):
            left, right = _terms_of(self), _terms_of(other)
            return _polynomial(of_terms(right, left) if swapped else of_terms(left, right))
        if isinstance(other, ir.Expr):
            mine = scalar(self, str(other.ty))
            return of_numbers(other, mine) if swapped else of_numbers(mine, other)
        if isinstance(other, float | np.floating):
            return self._as_number(other, of_numbers, swapped)
        return NotImplemented

    def _as_number(self, other: Any, operation: Callable, swapped: bool = False) -> Any:
        """Arithmetic on the value of the size, which is an array."""
        if not isinstance(other, Dim | int | float | np.generic):
            return NotImplemented
        value = _as_array(self)
        return operation(other, value) if swapped else operation(value, other)

    def __add__(self, other: Any) -> Any:
        return self._combine(other, operator.add, _add, swapped=False)

    def __radd__(self, other: Any) -> Any:
        return self._combine(other, operator.add, _add, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, operator.sub, _subtract, swapped=False)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(other, operator.sub, _subtract, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._combine(other, operator.mul, _multiply, swapped=False)

    def __rmul__(self, other: Any) -> Any:
        return self._combine(other, operator.mul, _multiply, swapped=True)

    def __floordiv__(self, other: Any) -> Any:
        return self._combine(other, operator.floordiv, _divide, swapped=False)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._combine(other, operator.floordiv, _divide, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self._combine(other, operator.mod, _remainder, swapped=False)

    def __rmod__(self, other: Any) -> Any:
        return self._combine(other, operator.mod, _remainder, swapped=True)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return self._as_number(other, operator.truediv)

    def __rtruediv__(self, other: Any) -> Any:
        return self._as_number(other, operator.truediv, swapped=True)

    def __pow__(self, other: Any) -> Any:
        if _is_int(other) and other >= 0:
            return reduce(operator.mul, [self] * int(other), 1)
        return self._as_number(other, operator.pow)

    def __rpow__(self, other: Any) -> Any:
        return self._as_number(other, operator.pow, swapped=True)

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Dim:
        return self

    # -- comparisons: decided by the bounds ---------------------------------------------------------------------

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, operator.lt, "<")

    def __le__(self, other: Any) -> bool:
        return self._compare(other, operator.le, "<=")

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, operator.gt, ">")

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, operator.ge, ">=")

    def _compare(self, other: Any, holds: Callable, sign: str) -> Any:
        if isinstance(other, ir.Expr):
            return holds(scalar(self, str(other.ty)), other)
        if not isinstance(other, Dim | int | float | np.number):
            return NotImplemented
        found = _decide(self, other, holds)
        if found is not None:
            return found
        needed = _bound_that_decides(self, other, holds)
        hint = f"{needed}, or a static size" if needed else "a static size"
        raise _unknown(f"it depends on the call whether {self} {sign} {other}", (self, other), hint)

    def __bool__(self) -> bool:
        low, high = self.bounds
        return True if low > 0 or high < 0 else self > 0

    # -- where Python needs a number ---------------------------------------------------------------------------

    def __index__(self) -> int:
        raise self._no_number("an integer")

    __int__ = __index__

    def __float__(self) -> float:
        raise self._no_number("a float")

    def _no_number(self, what: str) -> DimensionError:
        hint = f"a static size, or tvmfun.numpy.asarray({self}) to compute with it"
        return _unknown(f"{self} is known at call time only, and Python needs {what}", (self,), hint)

    def __tvm_ffi_object__(self) -> ir.Expr:
        return expr(self)


# -- polynomials -----------------------------------------------------------------------------------------------------


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def _of_atom(atom: _Atom) -> Dim:
    return _polynomial({(atom,): 1})


def _polynomial(terms: _Terms) -> Any:
    """A number, or a Dim in its one form: the terms of higher degree first."""
    kept = sorted(((m, c) for m, c in terms.items() if c), key=lambda term: _order(term[0]))
    if not kept or (len(kept) == 1 and not kept[0][0]):
        return kept[0][1] if kept else 0
    result = object.__new__(Dim)
    result._terms = dict(kept)
    result._hash = hash(tuple(kept))
    return result


def _order(monomial: _Monomial) -> tuple:
    return -len(monomial), [(isinstance(atom, _Quotient), str(atom)) for atom in monomial]


def _terms_of(value: Any) -> _Terms:
    return value._terms if isinstance(value, Dim) else {(): int(value)}


def _add(left: _Terms, right: _Terms) -> _Terms:
    return {m: left.get(m, 0) + right.get(m, 0) for m in {**left, **right}}


def _scaled(terms: _Terms, factor: int) -> _Terms:
    return {monomial: factor * c for monomial, c in terms.items()}


def _subtract(left: _Terms, right: _Terms) -> _Terms:
    return _add(left, _scaled(right, -1))


def _multiply(left: _Terms, right: _Terms) -> _Terms:
    result: _Terms = {}
    for m, c in left.items():
        for n, d in right.items():
            monomial = tuple(sorted((*m, *n), key=str))
            result[monomial] = result.get(monomial, 0) + c * d
    return result


def _divide(left: _Terms, right: _Terms) -> _Terms:
    """The integer part of the quotient: what comes out even, and an atom for the rest."""
    divisor = _polynomial(right)
    if _is_int(divisor):
        if not divisor:
            raise ZeroDivisionError("integer division or modulo by zero")
        if divisor < 0:
            return _divide(_scaled(left, -1), {(): -divisor})
        left = _terms_of(_polynomial(left))
        lead = next(iter(left.values()))
        if lead < 0 and 2 * (lead % divisor) > divisor:  # -x // q with small numbers: -((x + q - 1) // q)
            return _scaled(_divide(_add(_scaled(left, -1), {(): divisor - 1}), right), -1)
        even = {m: c // divisor for m, c in left.items()}
        rest = _polynomial({m: c % divisor for m, c in left.items()})
        common = math.gcd(divisor, *_terms_of(rest).values())
        rest = _polynomial({m: c // common for m, c in _terms_of(rest).items()})
        return _add(even, _terms_of(_quotient(rest, divisor // common)))
    if not divisor >= 1:
        raise ZeroDivisionError("integer division or modulo by zero")
    even, rest = _long_division(left, right)
    return _add(even, _terms_of(_quotient(_polynomial(rest), divisor)))


def _long_division(left: _Terms, right: _Terms) -> tuple[_Terms, _Terms]:
    """Quotient and remainder of polynomials, as far as leading terms divide."""
    lead, factor = next(iter(right.items()))
    quotient: _Terms = {}
    while left:
        for monomial, c in _terms_of(_polynomial(left)).items():
            missing = _without(monomial, lead)
            if missing is not None and c % factor == 0:
                step = {missing: c // factor}
                quotient = _add(quotient, step)
                left = _subtract(left, _multiply(step, right))
                break
        else:
            break
        left = {m: c for m, c in left.items() if c}
    return quotient, left


def _without(monomial: _Monomial, part: _Monomial) -> _Monomial | None:
    """The monomial divided by another one, or None if that does not come out even."""
    rest = list(monomial)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _quotient(dividend: Any, divisor: Any) -> Any:
    """``dividend // divisor`` of which nothing comes out even."""
    if _is_int(dividend) and _is_int(divisor):
        return dividend // divisor
    if _is_int(dividend) and not dividend:
        return 0
    for result in (0, -1):
        if always_le(result * divisor, dividend) and always_le(dividend + 1, (result + 1) * divisor):
            return result
    return _of_atom(_Quotient(dividend, divisor))


def _remainder(left: _Terms, right: _Terms) -> _Terms:
    return _subtract(left, _multiply(right, _terms_of(_polynomial(_divide(left, right)))))


# -- bounds ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 14)
def _lower(size: Any) -> float:
    """A number that a size is never below."""
    terms = _terms_of(size)
    best = _sum_of_bounds(_from_lowest(terms))
    for monomial, factor in terms.items():
        # (p - q + 1) / q <= p // q <= p / q, which lets p cancel against other terms.
        if len(monomial) == 1 and isinstance(monomial[0], _Quotient) and _is_int(monomial[0].divisor):
            dividend, divisor = monomial[0]
            p = dividend if factor < 0 else dividend - (divisor - 1)
            low = _lower((size - _polynomial({monomial: factor})) * divisor + p * factor)
            best = max(best, low if math.isinf(low) else -(-int(low) // divisor))
    return best


def _from_lowest(terms: _Terms) -> _Terms:
    """The polynomial in how much each named size exceeds its minimum."""
    shifts = {}
    for atom in {atom for monomial in terms for atom in monomial if isinstance(atom, _Name) and atom.low}:
        excess = {(_Name(atom.name, 0, atom.high - atom.low),): 1}
        shifts[atom] = _add(excess, {(): atom.low})
    if not shifts:
        return terms
    result: _Terms = {}
    for monomial, factor in terms.items():
        product: _Terms = {(): factor}
        for atom in monomial:
            product = _multiply(product, shifts.get(atom, {(atom,): 1}))
        result = _add(result, product)
    return {m: c for m, c in result.items() if c}


def _sum_of_bounds(terms: _Terms) -> float:
    total: float = 0
    for monomial, factor in terms.items():
        low, high = reduce(_times, map(_interval, monomial), (1, 1))
        total += factor * (low if factor > 0 else high)
    return total


def _interval(atom: _Atom) -> tuple[float, float]:
    if isinstance(atom, _Name):
        return atom.low, atom.high
    (low, high), (least, most) = (bounds(part) for part in atom)
    ends = [_floor(end, divisor) for end in (low, high) for divisor in (least, most)]
    return min(ends), max(ends)


def _floor(a: float, b: float) -> float:
    if math.isinf(a):
        return a
    return (0 if a >= 0 else -1) if math.isinf(b) else a // b


def _times(left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
    ends = [0 if not a or not b else a * b for a in left for b in right]
    return min(ends), max(ends)


def bounds(size: Any) -> tuple[float, float]:
    """The smallest and the largest value that a size may have."""
    return size.bounds if isinstance(size, Dim) else (size, size)


def _decide(left: Any, right: Any, holds: Callable) -> bool | None:
    """Whether a comparison holds for all sizes (True), for none (False), or it depends (None)."""
    if isinstance(right, Dim) or _is_int(right):
        left, right = left - right, 0
    low, high = bounds(left)
    always, never = holds(low, right) and holds(high, right), not holds(low, right) and not holds(high, right)
    return True if always else False if never else None


def always_le(a: Any, b: Any) -> bool:
    """Whether ``a <= b`` whatever the sizes are."""
    return bounds(b - a)[0] >= 0


def maximum(a: Any, b: Any) -> Any:
    """The larger of two sizes, one of which never exceeds the other."""
    return a if always_le(b, a) else b if always_le(a, b) else max(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two sizes, one of which never exceeds the other."""
    return a if always_le(a, b) else b if always_le(b, a) else min(a, b)


def _bound_that_decides(left: Any, right: Any, holds: Callable) -> str:
    """A minimum for one of the names that would decide a comparison, as a hint."""
    for atom in sorted(_atoms((left, right))):

        def decides(least: int, atom: _Name = atom) -> bool:
            known = {atom.name: _of_atom(_Name(atom.name, least, atom.high))}
            return _decide(at(left, known), at(right, known), holds) is not None

        enough = bisect_left(range(1 << 20), True, lo=atom.low, key=decides)
        if enough < min(1 << 20, atom.high):
            return f"Dim({atom.name!r}, min={enough})"
    return ""


def _unknown(what: str, values: tuple, hint: str) -> DimensionError:
    """The error for a question about sizes that has no answer before the call."""
    return blamed("Dim", what, values, user_line(), hint)


def blamed(where: str, what: str, values: tuple, line: str, hint: str) -> DimensionError:
    """An error about the sizes in ``values``, at a line of the user."""
    names = " and ".join(f"{atom}, {described(atom)}" for atom in sorted(_atoms(values)))
    error = DimensionError(where, what, got=f"{names} at {line}" if line else names, hint=hint)
    error.values = values
    return error


def blame_op(error: DimensionError, op: str, line: str = "") -> DimensionError:
    """The error as one of an op, which was traced at ``line``; by default here."""
    return blamed(op, error.what, error.values, line or user_line(), error.hint)


def explained(error: Any, shapes: tuple) -> Any:
    """An error of a function that has dynamic sizes: what they are, and the line of the user that it came from."""
    atoms = sorted(_atoms(shapes))
    if not atoms or isinstance(error, DimensionError) or hasattr(error, "explained"):
        return error
    line = raised_at(error)
    source = f" at {line}" if line else ""
    sizes = " and ".join(f"{atom} is {described(atom)}" for atom in atoms)
    result = type(error)(error.where, error.what, got=f"{error.got}{source}, where {sizes}", hint=error.hint)
    result.explained = True
    return result.with_traceback(error.__traceback__)


def described(atom: _Name) -> str:
    """What a named size is, in words."""
    limit = f"at least {atom.low}" if math.isinf(atom.high) else f"{atom.low} to {atom.high}"
    return f"a dynamic size of {limit}"


# -- sizes wherever they are -----------------------------------------------------------------------------------------


def size(value: Any) -> Any:
    """A size given as an integer, a Dim, or the name of one.

    Raises:
        ArgumentError: if the name is no identifier.
        TypeError: if it is nothing of that.
    """
    return Dim(value) if isinstance(value, str) else index(value)


def index(value: Any) -> Any:
    """A Dim as it is, and anything else that is an integer as a Python integer.

    Raises:
        TypeError: if it is neither.
    """
    return value if isinstance(value, Dim) else operator.index(value)


def _leaves(value: Any) -> Iterator[Dim]:
    """The Dims in a size, in nested tuples, or in a Program."""
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    elif hasattr(value, "with_sizes"):
        yield from value.sizes.values()


def _atoms(value: Any) -> set[_Name]:
    found: set[_Name] = set()
    for dim in _leaves(value):
        for monomial in dim._terms:
            for atom in monomial:
                found |= {atom} if isinstance(atom, _Name) else _atoms(tuple(atom))
    return found


def names(*values: Any) -> dict[str, Dim]:
    """The named sizes in sizes and nested tuples of them, by name.

    Raises:
        ArgumentError: if a name occurs with different bounds.
    """
    found: dict[str, _Name] = {}
    for atom in sorted(_atoms(values)):
        if found.setdefault(atom.name, atom) != atom:
            both = f"{atom} as {described(found[atom.name])} and as {described(atom)}"
            raise ArgumentError("Dim", "a name must have the same bounds everywhere", got=both)
    return {name: _of_atom(atom) for name, atom in found.items()}


def linear(size: Any) -> tuple[str, int, int] | None:
    """The name, the factor and the term of a size like ``4*b + 1``, which tells ``b``."""
    if not isinstance(size, Dim):
        return None
    ((monomial, factor), *rest) = size._terms.items()
    plain = len(monomial) == 1 and isinstance(monomial[0], _Name) and factor > 0
    if not plain or any(other for other, _ in rest):
        return None
    return monomial[0].name, factor, rest[0][1] if rest else 0


def told_by(size: Dim, value: Any) -> Any:
    """The named size for which a size like ``4*b + 1`` has the given value; less the remainder if there is none."""
    _, factor, term = linear(size)  # type: ignore[misc]
    return (value - term) // factor


def known(shapes: Iterable[tuple]) -> dict[str, Dim]:
    """The sizes of axes that tell the named ones, by their names; the names themselves where they are axes."""
    found: dict[str, Dim] = {}
    for size in (size for shape in shapes for size in shape):
        form = linear(size)
        if form and (form[0] not in found or size.name):
            found[form[0]] = size
    return found


def bounds_text(sizes: Iterable[Dim]) -> str:
    """The bounds of named sizes that are not the usual ones, as text."""
    atoms = [atom for atom in sorted(_atoms(tuple(sizes))) if (atom.low, atom.high) != (1, math.inf)]
    limits = [f"{a.low} <= {a.name}" + ("" if math.isinf(a.high) else f" <= {a.high}") for a in atoms]
    return f" where {', '.join(limits)}" if limits else ""


def is_dynamic(value: Any) -> bool:
    """Whether there is a Dim in a size or in nested tuples."""
    return next(_leaves(value), None) is not None


def at(value: Any, sizes: Mapping[str, Any]) -> Any:
    """A size, or nested tuples of them, with values for the named sizes; anything else as it is.

    >>> at((Dim("b") * 2, 3), {"b": 5})
    (10, 3)
    """
    if isinstance(value, tuple) and is_dynamic(value):
        return tuple(at(item, sizes) for item in value)
    if hasattr(value, "with_sizes"):
        return value.with_sizes(sizes)
    if not isinstance(value, Dim):
        return value
    total: Any = 0
    for monomial, factor in value._terms.items():
        product: Any = factor
        for atom in monomial:
            if isinstance(atom, _Name):
                product = product * sizes.get(atom.name, _of_atom(atom))
            else:
                product = product * (at(atom.dividend, sizes) // at(atom.divisor, sizes))
        total = total + product
    return total


def typical(value: Any) -> Any:
    """A number to take a size for where only speed depends on it."""
    chosen = {atom.name: int(min(max(_TYPICAL, atom.low), atom.high)) for atom in _atoms((value,))}
    return at(value, chosen)


def solve(
    patterns: Sequence[tuple], shapes: Sequence[tuple], where: str, place: Callable[[int], str]
) -> dict[str, Any]:
    """The values of the named sizes that make ``patterns`` the ``shapes`` of a call.

    Args:
        patterns: shapes with Dims in them.
        shapes: what arrived, of the same ranks.
        where: the function, for errors.
        place: says where shape ``i`` is in the arguments.

    Raises:
        ShapeError: if two places disagree about a size, or one is out of bounds.
    """
    found: dict[str, tuple[Any, str]] = {}
    pairs = [
        (pattern, got, f"axis {axis} of {{}}", i)
        for i, (sizes, shape) in enumerate(zip(patterns, shapes, strict=True))
        for axis, (pattern, got) in enumerate(zip(sizes, shape, strict=True))
        if isinstance(pattern, Dim)
    ]
    for pattern, got, axis, i in sorted(pairs, key=lambda pair: pair[0].name is None):
        form = linear(pattern)
        if form is None or form[0] in found:
            continue
        (atom,), (name, factor, term) = _atoms(pattern), form
        value, rest = divmod(got - term, factor)
        if rest != 0:
            raise ShapeError(where, f"{axis.format(place(i))} must be {pattern} for an integer {name}", got=str(got))
        if not (always_le(atom.low, value) and bounds(value)[1] <= atom.high):
            hint = f"Dim({name!r}, min={value})" if bounds(value)[1] < atom.low else "a size within the bounds"
            named = f"{name}, " if pattern.name else f"{pattern}, where {name} is "
            what = f"{axis.format(place(i))} must be {named}{described(atom)}"
            raise ShapeError(where, what, got=str(got), hint=hint)
        found[name] = value, axis.format(place(i))
    values = {name: got for name, (got, _) in found.items()}
    for pattern, got, axis, i in pairs:
        expected = at(pattern, values)
        if expected != got:
            because = " and ".join(f"{name} = {found[name][0]} from {found[name][1]}" for name in names(pattern))
            what = f"{axis.format(place(i))} must be {pattern} with {because}"
            raise ShapeError(where, what, got=str(got), hint="equal sizes")
    return values


# -- TVM -------------------------------------------------------------------------------------------------------------

_VARIABLES: dict[tuple[_Name, str], ir.Var] = {}
_NAME_OF: dict[ir.Var, _Name] = {}
_LOCK = Lock()


def _variable(atom: _Name, dtype: str) -> ir.Var:
    """The one variable that stands for a named size."""
    with _LOCK:
        if (atom, dtype) not in _VARIABLES:
            _VARIABLES[atom, dtype] = var = ir.Var(atom.name, ir.PrimType(dtype))
            _NAME_OF[var] = atom
        return _VARIABLES[atom, dtype]


def expr(value: Any, dtype: str = "int32") -> Any:
    """A size as an expression of TVM: int32 in kernels, int64 in Relax; an integer stays what it is."""
    if not isinstance(value, Dim):
        return value
    total = None
    for monomial, factor in sorted(value._terms.items(), key=lambda term: term[1] < 0):
        product = None if abs(factor) == 1 and monomial else tirx.const(abs(factor), dtype)
        for atom in monomial:
            if isinstance(atom, _Name):
                part = _variable(atom, dtype)
            else:
                part = tirx.floordiv(*(_constant(expr(side, dtype), dtype) for side in atom))
            product = part if product is None else product * part
        if total is None:
            total = product if factor > 0 else product * tirx.const(-1, dtype)  # type: ignore[operator]
        else:
            total = total + product if factor > 0 else total - product  # type: ignore[reportOperatorIssue]
    return total


def scalar(value: Any, dtype: str) -> Any:
    """A size as a scalar of any dtype in a kernel."""
    if not isinstance(value, Dim):
        return tirx.const(value, dtype)
    return expr(value) if dtype == "int32" else tirx.Cast(dtype, expr(value))


def _constant(value: Any, dtype: str) -> Any:
    return tirx.const(value, dtype) if isinstance(value, int) else value


def of_expr(value: Any, foreign: bool = False) -> Any:
    """The size that an expression of TVM stands for; the inverse of :func:`expr`.

    Args:
        value: the expression.
        foreign: whether variables that others made are sizes, too.

    Raises:
        ShapeError: if it is no arithmetic on sizes.
    """
    if isinstance(value, tirx.IntImm):
        return int(value)
    if isinstance(value, ir.Var):
        atom = _NAME_OF.get(value)
        if atom is None and foreign:
            atom = _Name(value.name, 1, math.inf)
        if atom is not None:
            return _of_atom(atom)
    if isinstance(value, tirx.Cast):
        return of_expr(value.value, foreign)
    operation = _OPERATIONS.get(type(value))
    if operation is None:
        raise ShapeError("Dim", "the expression is no size", got=str(value))
    return operation(of_expr(value.a, foreign), of_expr(value.b, foreign))


_OPERATIONS: dict[type, Callable] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
}


def as_array(size: Dim) -> Any:
    """The value of a size as a 0-d int32 array, whose dtype gives way as that of a Python integer does."""
    return _as_array(size)


_as_array: Callable[[Dim], Any]


def install_as_array(as_array: Callable[[Dim], Any]) -> None:
    """Sets how a Dim becomes an array of its value; called once, by ``tvmfun.ops.shape``."""
    global _as_array
    _as_array = as_array
