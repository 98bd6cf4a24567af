"""Whether a program means the same to JAX, to the reference and compiled; and if not, which rule explains it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0

from fuzz.asked import Meant, by_numpy, expected, found, given, has_long_integers, is_float, is_wide
from fuzz.case import Case
from fuzz.flushing import flushing
from fuzz.slopes import can_differentiate, confirmed, contradicted
from tvmfun import errors

#: Rounding errors of one operation, in units of the dtype; a special function has a few, and near its zeros more.
_PER_OPERATION, _PER_SERIES, _MOST_TOLERANCE = 8, 128, 0.2
#: Draws of rounding errors that a program is run with to see what it makes of them, and how far it may be off then.
_DRAWS, _FACTOR = 6, 16
#: How near finite differences come, and at how many elements they are tried.
_SLOPE_TOLERANCE, _MOST_SLOPES = 1e-4, 12
#: The steps of finite differences are far above the rounding errors of smaller numbers.
_HUGE = 1e6
#: Beginnings of errors by which tvmfun refuses on purpose, each documented where the function is.
REFUSED = (
    "does not fit",
    "keeps the carry of every step and needs a bound",
    "there is nothing to take from an axis",
    "elements, got index",
    "there is no result for zero elements",
    "the dtype is not supported",
    "the matrices must be float32 or float64",
    "has no such axis",
)

#: A collective has no meaning in NumPy; a matrix of nan has no decomposition.
NO_REFERENCE = (errors.ProgramError, np.linalg.LinAlgError)

FLUSHED = "subnormal numbers are 0 to XLA"
RANGE = "alike in float64: beyond what narrower numbers hold"
ROUNDING = "rounding errors grow so far"
REWRITTEN = "XLA computes it differently where it compiles it together"
SIGNED_NAN = "XLA sorts NaN by its sign, which is nobody's choice"
LOST_NAN = "XLA's extremum over leading axes leaves NaN out"
SINGULAR = "the derivative is NaN in JAX, and is not here"
SELF = "JAX computes another value together with the derivative than without"
AT_TIES = "a documented difference at ties"
SEVERAL = "several rules, each for some elements"
AS_NUMPY = "as NumPy computes it"
FORWARD = "JAX has another derivative in forward mode than in reverse mode, which is ours"
SLOPES = "finite differences have this derivative, not JAX's"
EXTREMA = "an extremum that is NaN has its derivative where a NaN is"
OUTSIDE = "derivatives of derivatives of reads out of bounds"
PADDING = "a convolution multiplies zeros, of padding or of other groups, by infinity: here or in XLA"
EMPTY = "JAX reads 0 from an axis without elements"
POLES = "digamma is infinite at 0, as in SciPy, and NaN in JAX"
BY_ZERO = "integers divided by zero are 0, as in NumPy"
ZEROS = "XLA sorts zeros by their sign"
POWERS = "integers to negative powers are fractions, 0 here; JAX takes six bits of the exponent"
INTEGERS = "sums of int32 are int64 in JAX where it is allowed 64 bits"


#: Functions of which the documentation says that other shares of the derivative go to equal elements.
DOCUMENTED = "cummax|cummin|hypot|logaddexp|remainder|fmod|%"
_WITH_VALUE = ("gradient", "forward", "batched gradient")


@dataclass(frozen=True)
class Difference:
    """A difference, and the rule that explains it, if one does."""

    what: str
    because: str | None = None


def difference(case: Case) -> Difference | None:
    """The difference, unless a rule explains it; None also where JAX refuses the program."""
    seen = compare(case)
    return seen if seen is not None and seen.because is None else None


def compare(case: Case, wider: bool = True) -> Difference | None:
    """The difference, with the rule that explains it if there is one; None also where JAX refuses the program.

    Args:
        case: the program.
        wider: whether other widths of the numbers may explain a difference.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            wanted = expected(case)
        except Exception:
            return None
        try:
            got = found(case)
            meant = Meant(case)
        except Exception as error:
            refused = str(error) if isinstance(error, errors.TvmfunError) else ""
            known = next((part for part in REFUSED if part in refused), None)
            return Difference(f"{type(error).__name__}: {error}", known and f"refused: {known}")
        tolerance = tolerance_of(case, meant)
        return (
            _lowered(case, meant, got, tolerance, wider)
            or _translated(case, meant, wanted, got, tolerance, wider)
            or (_sloped(case, got, tolerance) if wider else None)
        )


def _lowered(case: Case, meant: Meant, got: list[np.ndarray], tolerance: float, wider: bool) -> Difference | None:
    """How compiled results differ from the Program's meaning."""
    try:
        reference = meant.evaluate()
    except NO_REFERENCE:
        return None
    what = unlike(reference, got, tolerance, "in the reference")
    if what is None or within(reference, got, spread(meant), tolerance):
        return None
    if wider and at_the_ends(case, got) and (wide := _in_double(case)) is not None:
        apart = compare(wide, wider=False)
        if apart is None or apart.because is not None:
            return None
    return Difference(what)


def _translated(
    case: Case, meant: Meant, wanted: list[np.ndarray], got: list[np.ndarray], tolerance: float, wider: bool
) -> Difference | None:
    """How compiled results differ from JAX's."""
    what = unlike(wanted, got, tolerance, "in JAX")
    if what is None:
        return None
    flushed = lambda: _flushed(case)
    rules = [
        (FLUSHED, lambda: wanted, flushed),
        (REWRITTEN, lambda: expected(case, compiled=False), lambda: got),
        (SIGNED_NAN, lambda: expected(_with_one_nan(case)), lambda: got),
        (AS_NUMPY, lambda: by_numpy(case) if case.check in ("value", "eager", "donated") else None, lambda: got),
        (LOST_NAN, lambda: _with_our_nan(case, wanted, got), lambda: got),
        (SINGULAR, lambda: _without_nan(case, wanted, got), lambda: got),
        (SINGULAR, lambda: _without_nan(case, wanted, flushed()), flushed),
        (FORWARD, lambda: _in_reverse(case), lambda: got),
        (SLOPES, lambda: _by_slopes(case, wanted, got, tolerance), lambda: got),
        (EMPTY, lambda: _with_our_fill(case, wanted, got), lambda: got),
        (POLES, lambda: _with_our_infinity("digamma", case, wanted, got), lambda: got),
        (SELF, lambda: _without_value(case, wanted, got, tolerance), lambda: got),
    ]
    together = [np.zeros(x.shape, bool) for x in wanted]
    for because, theirs, ours in rules:
        with suppress(Exception):
            left, right = theirs(), ours()
            if unlike(left, right, tolerance, "") is None:
                return Difference(what, because)
            for i, (x, y) in enumerate(zip(left, right, strict=True)):
                together[i] |= _close(x, _widened(y, x.dtype), tolerance)
    if all(alike.all() for alike in together):
        return Difference(what, SEVERAL)
    around = spread(meant)
    if any(within(wanted, results, around, tolerance) for results in (got, _flushed(case))):
        return Difference(what, ROUNDING)
    if wider:
        for because, other in _otherwise(case):
            if _is_alike(other):
                return Difference(what, because)
    return Difference(what)


def _is_alike(case: Case) -> bool:
    """Whether JAX takes a program, and it does not differ but by a rule."""
    try:
        expected(case)
    except Exception:
        return False
    apart = compare(case, wider=False)
    return apart is None or apart.because is not None


def _sloped(case: Case, got: list[np.ndarray], tolerance: float) -> Difference | None:
    """How derivatives differ from finite differences."""
    if not can_differentiate(case) or any(is_float(x.dtype) and x.dtype != np.float64 for x in given(case)):
        return None
    error = _SLOPE_TOLERANCE + tolerance
    if _in_double(case) is not None or (what := contradicted(case, got, error)) is None:
        return None
    # At several ties at a time, a derivative need not be among the slopes along a line; steps are lost in the rounding
    # of a sum with huge numbers; reads out of bounds have no derivative.
    others = _without_ties(case), _with_arguments(case, lambda x: np.where(np.abs(x) < _HUGE, x, 0.37)), _inside(case)
    return Difference(what) if all(contradicted(other, found(other), error) for other in others) else None


def _by_slopes(
    case: Case, wanted: list[np.ndarray], got: list[np.ndarray], tolerance: float
) -> list[np.ndarray] | None:
    """JAX's results with our derivatives where finite differences say that these are right and JAX's are not."""
    wide = _in_double(case) or case
    if not can_differentiate(case) or any(is_float(x.dtype) and x.dtype != np.float64 for x in given(wide)):
        return None
    apart = [~_close(x, y, tolerance) for x, y in zip(wanted, got, strict=True)]
    elements = [(i, tuple(map(int, index))) for i, wrong in enumerate(apart) for index in np.argwhere(wrong)]
    some = elements[:: max(1, len(elements) // _MOST_SLOPES)]
    pairs = [(float(got[i][index]), float(wanted[i][index])) for i, index in some]
    return got if confirmed(wide, some, pairs, _SLOPE_TOLERANCE + tolerance) else None


def _flushed(case: Case) -> list[np.ndarray]:
    with flushing():
        return found(case)


def _otherwise(case: Case) -> Iterator[tuple[str, Case]]:
    """Programs like this one that are alike where a rule explains the difference."""
    if (wide := _in_double(case)) is not None:
        yield RANGE, wide
    if is_wide(case) and has_long_integers(case):
        yield INTEGERS, _in_single(case)
    if _has_derivative(case) and re.search(DOCUMENTED, case.text()):
        yield AT_TIES, _without_ties(case)
        if wide is not None:  # in which small terms are not rounded away
            yield AT_TIES, _without_ties(wide)
    text = case.text()
    if _has_derivative(case):
        yield OUTSIDE, _inside(case)
        if re.search("max|min|reduce_window|sort|top_k|ptp|median", text):
            yield EXTREMA, _with_arguments(case, lambda x: np.where(np.isfinite(x), x, 0.37))
        if re.search(DOCUMENTED, text):
            yield AT_TIES, _without_ties(_with_arguments(case, lambda x: np.clip(x, -9, 9)))
    if re.search("conv|correlate", text):
        yield PADDING, _with_arguments(case, lambda x: np.where(np.isfinite(x), x, 2.0))
    if "sort" in text or "top_k" in text:
        yield ZEROS, _with_statements(case, "np.where({0} == 0, np.zeros((), {0}.dtype), {0})")
    if re.search("divide|mod|remainder|//|%", text):
        yield BY_ZERO, _with_statements(case, "{0} | 1 if np.issubdtype({0}.dtype, np.integer) else {0}")
    yield POWERS, _rewritten(case, r"np\.(power|pow)\((\w+), (\w+)\)", _SIX_BITS)


def _inside(case: Case) -> Case:
    """The program with indices that are within bounds."""
    return _rewritten(case, r"onp\.array\((\[[^a-z']*\]|-?\d+), 'int32'\)", r"onp.clip(\g<0>, -1, 0)")


_SIX_BITS = r"np.\1(\2, \3 if np.issubdtype(\3.dtype, np.inexact) else \3 & np.asarray(63, \3.dtype))"


def _with_arguments(case: Case, change: Callable[[np.ndarray], np.ndarray]) -> Case:
    """The program of other floats."""
    arguments = {
        name: change(x.astype(np.float64)).astype(x.dtype) if is_float(x.dtype) else x
        for name, x in case.arguments.items()
    }
    return replace(case, arguments=arguments)


def _with_statements(case: Case, change: str) -> Case:
    """The program in which every argument and every result is changed by an expression of it."""
    statements = [(name, change.format(name)) for name in case.arguments]
    for name, expression in case.statements:
        statements += [(name, expression), (name, change.format(name))]
    return replace(case, statements=tuple(statements))


def _rewritten(case: Case, pattern: str, by: str) -> Case:
    """The program with other text where a pattern matches."""
    return replace(case, statements=tuple((name, re.sub(pattern, by, text)) for name, text in case.statements))


def _without_ties(case: Case) -> Case:
    """The program with all its arguments and results moved a little, each element by another amount."""
    step = "onp.cos(2.4 * onp.arange({0}.size) + 1).reshape({0}.shape) * 1e-2"
    moved = f"{{0}} + np.asarray({step}, {{0}}.dtype)"
    return _with_statements(case, f"{moved} if np.issubdtype({{0}}.dtype, np.inexact) else {{0}}")


def _has_derivative(case: Case) -> bool:
    text = case.check + case.text()
    return re.search("gradient|second|forward|checkpointed|grad|jvp|jac|hessian", text) is not None


def _without_nan(case: Case, wanted: list[np.ndarray], got: list[np.ndarray]) -> list[np.ndarray] | None:
    """JAX's results with ours where JAX's derivative is NaN and ours is not."""
    if not _has_derivative(case):
        return None
    first = case.check in _WITH_VALUE  # the value is not a derivative
    nan = lambda x, y: np.isnan(x) & ~np.isnan(y) if is_float(x.dtype) else np.zeros(x.shape, bool)
    pairs = list(zip(wanted, got, strict=True))
    return [x if first and i == 0 else np.where(nan(x, y), y, x) for i, (x, y) in enumerate(pairs)]


def _in_reverse(case: Case) -> list[np.ndarray] | None:
    """JAX's derivative in forward mode, computed in reverse mode."""
    if case.check != "forward":
        return None
    value, first, *_ = expected(replace(case, check="gradient"))
    return [value, first.sum(dtype=value.dtype)]


def _with_our_nan(case: Case, wanted: list[np.ndarray], got: list[np.ndarray]) -> list[np.ndarray] | None:
    """JAX's results with NaN where an extremum is NaN here, which the reference confirms."""
    if not re.search("max|min|ptp|median|percentile|quantile", case.text()):
        return None
    return [np.where(np.isnan(y), y, x) if is_float(x.dtype) else x for x, y in zip(wanted, got, strict=True)]


def _without_value(case: Case, wanted: list[np.ndarray], got: list[np.ndarray], tolerance: float) -> list | None:
    """Our results where JAX computes another value when it is asked for the derivative, too."""
    if case.check != "gradient":
        return None
    value = expected(replace(case, check="loss"))
    same = unlike(value, wanted[:1], tolerance, "") is None
    return got if not same and unlike(value, got[:1], tolerance, "") is None else None


def _with_our_fill(case: Case, wanted: list[np.ndarray], got: list[np.ndarray]) -> list[np.ndarray] | None:
    """JAX's results with NaN where JAX reads 0 from an axis without elements."""
    if not re.search("mode='fill'|take", case.text()):
        return None
    return [
        np.where((x == 0) & np.isnan(y), y, x) if is_float(x.dtype) else x for x, y in zip(wanted, got, strict=True)
    ]


def _with_our_infinity(
    names: str, case: Case, wanted: list[np.ndarray], got: list[np.ndarray]
) -> list[np.ndarray] | None:
    """JAX's results with infinity where a function of these names is infinite here, and NaN there."""
    if not re.search(names, case.text()):
        return None
    pairs = list(zip(wanted, got, strict=True))
    return [np.where(np.isnan(x) & np.isinf(y), y, x) if is_float(x.dtype) else x for x, y in pairs]


def _with_one_nan(case: Case) -> Case:
    """The program in which NaN has no sign: XLA sorts it by that."""
    plain = "np.where(np.isnan({0}), np.asarray(np.nan, {0}.dtype), {0})"
    return _with_statements(case, f"{plain} if np.issubdtype({{0}}.dtype, np.inexact) else {{0}}")


def unlike(wanted: Sequence[np.ndarray], got: Sequence[np.ndarray], tolerance: float, where: str) -> str | None:
    """In words what differs between two lists of arrays, or None."""
    if len(wanted) != len(got):
        return f"{len(got)} results, and {len(wanted)} {where}"
    for i, (x, y) in enumerate(zip(wanted, got, strict=True)):
        y = _widened(y, x.dtype)
        if x.dtype == float0:  # what integers have for a derivative
            continue
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"result {i}: {y.dtype}{list(y.shape)}, and {x.dtype}{list(x.shape)} {where}"
        wrong = ~_close(x, y, tolerance)
        if wrong.any():
            place = np.unravel_index(np.argmax(wrong), x.shape)
            spot = list(map(int, place))
            return f"result {i}{spot}: {y[place]}, and {x[place]} {where}; {wrong.sum()} of {x.size}"
    return None


def spread(meant: Meant) -> list[np.ndarray] | None:
    """How far each result goes under a few draws of rounding errors; infinite where it changes its kind."""
    try:
        draws = [[np.asarray(x, np.float64) for x in meant.evaluate(seed)] for seed in range(_DRAWS)]
    except NO_REFERENCE:
        return None
    off = [np.zeros(x.shape) for x in draws[0]]
    for one in draws[1:]:
        for i, (x, y) in enumerate(zip(draws[0], one, strict=True)):
            apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
            off[i] = np.maximum(off[i], np.where(np.isnan(apart), np.inf, apart))
    return off


def within(wanted: list[np.ndarray], got: list[np.ndarray], off: list[np.ndarray] | None, tolerance: float) -> bool:
    """Whether results are alike but for what rounding errors do to them."""
    if off is None or [x.shape for x in wanted] != [x.shape for x in got]:
        return False
    for x, y, far in zip(wanted, got, off, strict=True):
        if not is_float(x.dtype):
            if not ((x == _widened(y, x.dtype)) | (far > 0)).all():
                return False
            continue
        most = np.max(far[np.isfinite(far)], initial=0.0)
        room = _FACTOR * np.maximum(far, 0.1 * min(most, 1e3))
        near = np.abs(x.astype(np.float64) - y.astype(np.float64)) <= room
        if not (_close(x, y, tolerance) | near | ~np.isfinite(far)).all():
            return False
    return True


def tolerance_of(case: Case, meant: Meant) -> float:
    """How far results may be apart in relation to their size, unless draws of rounding errors go further."""
    dtypes = {str(x.dtype) for x in case.arguments.values() if is_float(x.dtype)}
    dtypes |= {name for name in ("bfloat16", "float16", "float32") if name in case.text()}
    epsilon = max((float(jnp.finfo(name).eps) for name in dtypes), default=1e-15)
    # Errors have either sign: the sum of many grows with the root of their number.
    units = _PER_SERIES if re.search("gamma", case.text()) else _PER_OPERATION
    return min(epsilon * units * np.sqrt(2 + meant.operations()), _MOST_TOLERANCE)


def at_the_ends(case: Case, got: list[np.ndarray]) -> bool:
    """Whether a program has numbers of which products or sums may leave the range of their dtype."""
    for x in (*given(case), *got):
        if is_float(x.dtype):
            size = np.abs(x.astype(np.float64))
            if (~(size < 1e15) | ((size < 1e-15) & (size > 0))).any():
                return True
    return False


def _in_double(case: Case) -> Case | None:
    """The program with float64 for all narrower floats."""
    narrow = r"'(float32|bfloat16|float16)'"
    floats = [x.dtype for x in case.arguments.values() if is_float(x.dtype)]
    statements = tuple((name, re.sub(narrow, "'float64'", text)) for name, text in case.statements)
    if (statements == case.statements and all(x == np.float64 for x in floats)) or "bitcast" in case.text():
        return None
    wide = {name: x.astype(np.float64) if is_float(x.dtype) else x for name, x in case.arguments.items()}
    return replace(case, arguments=wide, statements=statements)


def _in_single(case: Case) -> Case:
    """The program without 64-bit numbers."""
    statements = tuple((name, re.sub(r"'(float|int)64'", r"'\g<1>32'", text)) for name, text in case.statements)
    short = {np.dtype("float64"): "float32", np.dtype("int64"): "int32", np.dtype("uint64"): "uint32"}
    arguments = {name: x.astype(short.get(x.dtype, x.dtype)) for name, x in case.arguments.items()}
    return replace(case, arguments=arguments, statements=statements)


def _widened(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Indices are int32 with tvmfun, and int64 with JAX in 64-bit mode; so are fill values for missing ones."""
    if (x.dtype, dtype) != (np.int32, np.int64):
        return x
    return np.where(x == np.iinfo(np.int32).min, np.iinfo(np.int64).min, x.astype(np.int64))


def _close(x: np.ndarray, y: np.ndarray, tolerance: float) -> np.ndarray:
    """Elementwise, whether two arrays are as near as rounding leaves them."""
    if not is_float(x.dtype):
        return x == y
    smallest = float(jnp.finfo(x.dtype).smallest_normal)
    x, y = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    largest = np.abs(x[finite]).max(initial=0.0)
    scale = np.maximum(np.abs(x), np.abs(y)) + 0.1 * min(largest, 1e3)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(finite, np.abs(x - y) <= tolerance * scale + 4 * smallest, same)
