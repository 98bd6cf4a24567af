"""Dynamic sizes: a ``Dim`` stands for the size of an axis that is known only when a compiled function is called.

A Dim is a polynomial with integer coefficients in named sizes and in quotients ``p // q`` that have a remainder.
Polynomials have one form, so equal sizes compare equal, and 4 times ``b`` elements fill ``(b, 2, 2)``. If
a size has to be compared (``b < 3``), the bounds of the named sizes decide; if they do not, an error is raised.

In kernels and in Relax a Dim is an expression of TVM (``core/expressions.py``); TVM's functions take a Dim wherever
they take an expression.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import ir

from tvmfun.core import polynomial as polynomials
from tvmfun.core.numpy_operators import REFLECTED
from tvmfun.core.polynomial import Name, Polynomial, constant, of_atom
from tvmfun.core.source import raised_at, user_line
from tvmfun.errors import ArgumentError, DimensionError, ShapeError

# The assumed value of a size for decisions that only affect speed.
_TYPICAL = 64


class Dim:
    """The size of an axis that is known only at call time: a name, or arithmetic on such sizes.

    Args:
        name: of the size; equal names in a function are equal sizes.
        min: the smallest size to support. Some functions need a minimum number of elements.
        max: the largest size; None for no limit.

    Raises:
        ArgumentError: if the name is not an identifier, or the bounds are not ``0 <= min <= max``.
        DimensionError: when used where Python needs a number, or in a comparison that the bounds do not decide.

    Source: ``jax.export.symbolic_shape``, and the bounds of ``torch.export.Dim``.

    >>> b = Dim("b")
    >>> (4 * b + 4) // 4, b * b - b, (b + 1) // 2
    (b + 1, b*b - b, (b + 1) // 2)
    >>> b >= 1, b == 3
    (True, False)
    """

    __slots__ = ("_hash", "polynomial")
    polynomial: Polynomial
    _hash: int

    def __new__(cls, name: str, min: int = 1, max: int | None = None) -> Dim:
        """A named size; other Dims are results of arithmetic."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ArgumentError("Dim", "the name must be an identifier", got=repr(name), hint="Dim('b')")
        high = math.inf if max is None else max
        if not 0 <= min <= high:
            raise ArgumentError("Dim", "the bounds must be 0 <= min <= max", got=f"min={min}, max={max}")
        return _dim(of_atom(Name(name, min, high)))

    # -- properties ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The name, or None for the result of arithmetic."""
        atom = polynomials.as_atom(self.polynomial)
        return atom.name if isinstance(atom, Name) else None

    @property
    def bounds(self) -> tuple[float, float]:
        """Conservative bounds: the smallest and the largest possible value."""
        return polynomials.bounds(self.polynomial)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self.polynomial == other.polynomial
        return False if _is_int(other) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple:
        return of_polynomial, (self.polynomial,)

    def __str__(self) -> str:
        return polynomials.text(self.polynomial)

    __repr__ = __str__

    # -- arithmetic: with integers and Dims it is exact; with other numbers the result is an array ---------------

    def _combine(self, other: Any, of_numbers: Callable, of_polynomials: Callable, swapped: bool) -> Any:
        if isinstance(other, Dim) or _is_int(other):
            left, right = self.polynomial, _polynomial_of(other)
            return of_polynomial(of_polynomials(right, left) if swapped else of_polynomials(left, right))
        if isinstance(other, ir.Expr):
            mine = self._scalar(str(other.ty))
            return of_numbers(other, mine) if swapped else of_numbers(mine, other)
        if isinstance(other, float | np.floating):
            return self._as_number(other, of_numbers, swapped)
        return NotImplemented

    def _as_number(self, other: Any, operation: Callable, swapped: bool = False) -> Any:
        """Arithmetic on the value of the size, an array."""
        if not isinstance(other, Dim | int | float | np.generic):
            return NotImplemented
        value = as_array(self)
        return operation(other, value) if swapped else operation(value, other)

    def __add__(self, other: Any) -> Any:
        return self._combine(other, operator.add, polynomials.add, swapped=False)

    def __radd__(self, other: Any) -> Any:
        return self._combine(other, operator.add, polynomials.add, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, operator.sub, polynomials.subtract, swapped=False)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(other, operator.sub, polynomials.subtract, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._combine(other, operator.mul, polynomials.multiply, swapped=False)

    def __rmul__(self, other: Any) -> Any:
        return self._combine(other, operator.mul, polynomials.multiply, swapped=True)

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
            return holds(self._scalar(str(other.ty)), other)
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

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's scalars defer arithmetic and comparisons to the Dim."""
        reflected = REFLECTED.get(ufunc.__name__)
        if method == "__call__" and reflected and inputs[-1] is self and not options:
            other = inputs[0][()] if isinstance(inputs[0], np.ndarray) else inputs[0]  # a scalar comes as an array
            result = getattr(self, reflected)(bool(other) if isinstance(other, np.bool_) else other)
            is_equality = result is NotImplemented and ufunc.__name__ in ("equal", "not_equal")
            return ufunc.__name__ == "not_equal" if is_equality else result
        what = f"{self} is known at call time only, and numpy.{ufunc.__name__} needs a number"
        raise _unknown(what, (self,), f"tvmfun.numpy.{ufunc.__name__}, or a static size")

    # -- where Python needs a number ---------------------------------------------------------------------------

    def __index__(self) -> int:
        raise self._no_number("an integer")

    __int__ = __index__

    def __float__(self) -> float:
        raise self._no_number("a float")

    def _no_number(self, what: str) -> DimensionError:
        hint = f"a static size, or tvmfun.numpy.asarray({self}) to compute with it"
        return _unknown(f"{self} is known at call time only, and Python needs {what}", (self,), hint)

    # -- in TVM ------------------------------------------------------------------------------------------------

    def _scalar(self, dtype: str) -> Any:
        from tvmfun.core import expressions

        return expressions.scalar(self, dtype)

    def __tvm_ffi_object__(self) -> ir.Expr:
        from tvmfun.core import expressions

        return expressions.of_size(self)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def of_polynomial(polynomial: Polynomial) -> Any:
    """The size with the value of a polynomial: an integer or a Dim."""
    number = polynomials.as_integer(polynomial)
    return _dim(polynomial) if number is None else number


def _dim(polynomial: Polynomial) -> Dim:
    result = object.__new__(Dim)
    result.polynomial = polynomial
    result._hash = hash(polynomial)
    return result


def _polynomial_of(size: Any) -> Polynomial:
    return size.polynomial if isinstance(size, Dim) else constant(size)


def _divide(left: Polynomial, right: Polynomial) -> Polynomial:
    _check_divisor(right)
    return polynomials.divide(left, right)


def _remainder(left: Polynomial, right: Polynomial) -> Polynomial:
    _check_divisor(right)
    return polynomials.remainder(left, right)


def _check_divisor(divisor: Polynomial) -> None:
    """Raises unless a divisor is a number or always positive."""
    if polynomials.as_integer(divisor) is None and not of_polynomial(divisor) >= 1:
        raise ZeroDivisionError("integer division or modulo by zero")


# -- bounds ----------------------------------------------------------------------------------------------------------


def bounds(size: Any) -> tuple[float, float]:
    """The smallest and the largest value that a size may have."""
    return size.bounds if isinstance(size, Dim) else (size, size)


def _decide(left: Any, right: Any, holds: Callable) -> bool | None:
    """Whether a comparison holds for all sizes (True), for none (False), or for some (None)."""
    if isinstance(right, Dim) or _is_int(right):
        left, right = left - right, 0
    low, high = bounds(left)
    always, never = holds(low, right) and holds(high, right), not holds(low, right) and not holds(high, right)
    return True if always else False if never else None


def always_le(a: Any, b: Any) -> bool:
    """Whether ``a <= b`` for all sizes."""
    return bounds(b - a)[0] >= 0


def maximum(a: Any, b: Any) -> Any:
    """The larger of two sizes; the bounds must decide which one that is."""
    return a if always_le(b, a) else b if always_le(a, b) else max(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two sizes; the bounds must decide which one that is."""
    return a if always_le(a, b) else b if always_le(b, a) else min(a, b)


def _bound_that_decides(left: Any, right: Any, holds: Callable) -> str:
    """The hint for an undecided comparison: a minimum of a named size that would decide it."""
    for atom in sorted(_names_in((left, right))):

        def decides(least: int, atom: Name = atom) -> bool:
            known = {atom.name: _dim(of_atom(Name(atom.name, least, atom.high)))}
            return _decide(at(left, known), at(right, known), holds) is not None

        enough = bisect_left(range(1 << 20), True, lo=atom.low, key=decides)
        if enough < min(1 << 20, atom.high):
            return f"Dim({atom.name!r}, min={enough})"
    return ""


def _unknown(what: str, values: tuple, hint: str) -> DimensionError:
    """The error for a question that only the sizes of a call can answer."""
    return blamed("Dim", what, values, user_line(), hint)


def unknown_length(size: Dim) -> DimensionError:
    """The error for ``len()`` of an array whose first size is dynamic."""
    what = f"{size} is known at call time only, and len() returns a Python integer"
    return _unknown(what, (size,), "x.shape[0], or a static size")


def blamed(where: str, what: str, values: tuple, line: str, hint: str) -> DimensionError:
    """An error about the sizes in ``values``, at a line of the user."""
    names = " and ".join(f"{atom}, {described(atom)}" for atom in sorted(_names_in(values)))
    error = DimensionError(where, what, got=f"{names} at {line}" if line else names, hint=hint)
    error.values = values
    return error


def blame_op(error: DimensionError, op: str, line: str = "") -> DimensionError:
    """Returns the error with an op blamed for it, traced at ``line`` or by default at the current line."""
    return blamed(op, error.what, error.values, line or user_line(), error.hint)


def explained(error: Any, shapes: tuple) -> Any:
    """An error with an explanation of the dynamic sizes in ``shapes`` and the line of the user that it came from."""
    atoms = sorted(_names_in(shapes))
    if not atoms or isinstance(error, DimensionError) or hasattr(error, "explained"):
        return error
    line = raised_at(error)
    source = f" at {line}" if line else ""
    sizes = " and ".join(f"{atom} is {described(atom)}" for atom in atoms)
    result = type(error)(error.where, error.what, got=f"{error.got}{source}, where {sizes}", hint=error.hint)
    result.explained = True
    return result.with_traceback(error.__traceback__)


def described(atom: Name) -> str:
    """A description of a named size."""
    limit = f"at least {atom.low}" if math.isinf(atom.high) else f"{atom.low} to {atom.high}"
    return f"a dynamic size of {limit}"


# -- sizes, and nested tuples of them --------------------------------------------------------------------------------


def size(value: Any) -> Any:
    """An integer, a Dim, or the name of a Dim as a size.

    Raises:
        ArgumentError: if the name is not an identifier.
        TypeError: otherwise.
    """
    return Dim(value) if isinstance(value, str) else index(value)


def index(value: Any) -> Any:
    """A Dim unchanged, or any integer as a Python integer.

    Raises:
        TypeError: otherwise.
    """
    return value if isinstance(value, Dim) else operator.index(value)


def _leaves(value: Any) -> Iterator[Dim]:
    """The Dims in a size, in nested tuples, or in a Program."""
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            if type(item) is not int:  # nearly all are
                yield from _leaves(item)
    elif hasattr(value, "with_sizes"):
        yield from value.sizes.values()


def _names_in(value: Any) -> set[Name]:
    return set().union(*(polynomials.atoms(dim.polynomial) for dim in _leaves(value)))


def names(*values: Any) -> dict[str, Dim]:
    """The named sizes in sizes and nested tuples of them, by name.

    Raises:
        ArgumentError: if a name occurs with different bounds.
    """
    found: dict[str, Name] = {}
    for atom in sorted(_names_in(values)):
        if found.setdefault(atom.name, atom) != atom:
            both = f"{atom} as {described(found[atom.name])} and as {described(atom)}"
            raise ArgumentError("Dim", "a name must have the same bounds everywhere", got=both)
    return {name: _dim(of_atom(atom)) for name, atom in found.items()}


def linear(size: Any) -> tuple[str, int, int] | None:
    """The name, the factor and the constant of a linear size like ``4*b + 1``; None for other sizes."""
    if not isinstance(size, Dim):
        return None
    (monomial, factor), *rest = size.polynomial
    plain = len(monomial) == 1 and isinstance(monomial[0], Name) and factor > 0
    if not plain or any(other for other, _ in rest):
        return None
    return monomial[0].name, factor, rest[0][1] if rest else 0


def known(shapes: Iterable[tuple]) -> dict[str, Dim]:
    """For each named size, an axis size to solve for it: the name itself if an axis has it, or a linear one."""
    found: dict[str, Dim] = {}
    for size in (size for shape in shapes for size in shape):
        form = linear(size)
        if form and (form[0] not in found or size.name):
            found[form[0]] = size
    return found


def bounds_text(sizes: Iterable[Dim]) -> str:
    """The bounds of named sizes other than the default, as text."""
    atoms = [atom for atom in sorted(_names_in(tuple(sizes))) if (atom.low, atom.high) != (1, math.inf)]
    limits = [f"{a.low} <= {a.name}" + ("" if math.isinf(a.high) else f" <= {a.high}") for a in atoms]
    return f" where {', '.join(limits)}" if limits else ""


def is_dynamic(value: Any) -> bool:
    """Whether there is a Dim in a size or in nested tuples."""
    return next(_leaves(value), None) is not None


def at(value: Any, sizes: Mapping[str, Any]) -> Any:
    """Substitutes values for the named sizes in a size or nested tuples; returns anything else unchanged.

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
    for monomial, factor in value.polynomial:
        product: Any = factor
        for atom in monomial:
            if isinstance(atom, Name):
                product = product * sizes.get(atom.name, _dim(of_atom(atom)))
            else:
                dividend, divisor = (at(of_polynomial(side), sizes) for side in atom)
                product = product * (dividend // divisor)
        total = total + product
    return total


def postfix(size: Any) -> int | str:
    """A size as an integer, or as a formula in postfix notation.

    >>> postfix(4 * Dim("b") + 1)
    '4 b * 1 +'
    """
    return polynomials.postfix(size.polynomial) if isinstance(size, Dim) else int(size)


def typical(value: Any) -> Any:
    """A representative number for a size, for decisions that only affect speed."""
    if isinstance(value, int):
        return value
    chosen = {atom.name: int(min(max(_TYPICAL, atom.low), atom.high)) for atom in _names_in((value,))}
    return at(value, chosen)


def solve(
    patterns: Sequence[tuple], shapes: Sequence[tuple], where: str, name_of: Callable[[int], str]
) -> dict[str, Any]:
    """The values of the named sizes that make ``patterns`` the ``shapes`` of a call.

    Args:
        patterns: shapes with Dims in them.
        shapes: the shapes of the arguments, of the same ranks.
        where: the function, for errors.
        name_of: returns the name of argument ``i``, for errors.

    Raises:
        ShapeError: if two axes disagree about a size, or one is out of bounds.
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
        (atom,), (name, factor, term) = _names_in(pattern), form
        value, rest = divmod(got - term, factor)
        if rest != 0:
            raise ShapeError(where, f"{axis.format(name_of(i))} must be {pattern} for an integer {name}", got=str(got))
        if not (always_le(atom.low, value) and bounds(value)[1] <= atom.high):
            hint = f"Dim({name!r}, min={value})" if bounds(value)[1] < atom.low else "a size within the bounds"
            named = f"{name}, " if pattern.name else f"{pattern}, where {name} is "
            what = f"{axis.format(name_of(i))} must be {named}{described(atom)}"
            raise ShapeError(where, what, got=str(got), hint=hint)
        found[name] = value, axis.format(name_of(i))
    values = {name: got for name, (got, _) in found.items()}
    for pattern, got, axis, i in pairs:
        expected = at(pattern, values)
        if expected != got:
            because = " and ".join(f"{name} = {found[name][0]} from {found[name][1]}" for name in names(pattern))
            what = f"{axis.format(name_of(i))} must be {pattern} with {because}"
            raise ShapeError(where, what, got=str(got), hint="equal sizes")
    return values


def check_values(where: str, names: Mapping[str, Dim], values: Mapping[str, Any]) -> None:
    """Checks values that a user gives for named sizes.

    Args:
        where: the function, for errors.
        names: the named sizes.
        values: the values.

    Raises:
        ArgumentError: if there is another name, or a value is not an integer within its bounds.
    """
    if set(values) != set(names):
        wanted = ", ".join(names) or "no sizes"
        got = ", ".join(map(str, values)) or "none"
        raise ArgumentError(where, f"it takes values for the dynamic sizes: {wanted}", got=got)
    for name, value in values.items():
        (atom,) = _names_in((names[name],))
        if not _is_int(value) or not atom.low <= value <= atom.high:
            raise ArgumentError(where, f"{name} is {described(atom)}", got=repr(value))


def with_quotients(size: Any) -> list[Any]:
    """A size, and the dividends and divisors of all quotients in it.

    >>> b = Dim("b")
    >>> with_quotients(b * b // 2)
    [(b*b) // 2, b*b, 2]
    """
    found = [size]
    for monomial, _ in _polynomial_of(size):
        for atom in monomial:
            if not isinstance(atom, Name):
                found += [part for side in atom for part in with_quotients(of_polynomial(side))]
    return found


def may_be_long(size: Any) -> bool:
    """Whether computing a size may exceed int32 although the named sizes in it do not.

    >>> may_be_long(Dim("b") - 1), may_be_long(Dim("b") * 2)
    (False, True)
    """
    return any(_is_long(_polynomial_of(part)) for part in with_quotients(size))


def _is_long(polynomial: Polynomial) -> bool:
    terms = [(monomial, factor) for monomial, factor in polynomial if monomial]
    return len(terms) > 1 or any(len(monomial) > 1 or factor != 1 for monomial, factor in terms)


def as_array(size: Dim) -> Any:
    """The value of a size as a 0-d int32 array with a weak dtype, like that of a Python integer."""
    from tvmfun.core.op import REGISTRY

    return REGISTRY["dim_size"](size=size, dtype="int32")
