"""Queries about known values for simplification rules, and the rule that pointwise ops share.

Every rule is exact, NaN, infinities and the sign of zero included; only the sum of a repeated float, now a product,
rounds once instead of at every step. A rule also keeps the type, weakness included, because promotion depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.op import REGISTRY, Op, SimplifyRule
from tvmfun.core.program import Literal
from tvmfun.core.trace import Tracer, argument, producer

_HALF = (dtypes.float16, dtypes.bfloat16)

#: NumPy's version of an op for numbers, or None where it may differ.
Exact = Callable[..., np.generic | None]


def made_by(value: Any, name: str) -> bool:
    """Whether the op of this name made ``value``."""
    equation = producer(value)
    return equation is not None and equation.op.name == name


def number(value: Any) -> np.generic | None:
    """The number that every element of ``value`` is known to equal, or None."""
    if isinstance(value, np.generic):
        return value
    equation = producer(value)
    if equation is None or equation.op.name not in ("broadcast_to", "reshape", "astype"):
        return None
    inner = number(argument(value, 0))
    return inner if inner is None or equation.op.name != "astype" else cast(inner, dtype=equation.params["dtype"])


def is_number(value: Any, expected: float) -> bool:
    """Whether every element of ``value`` is known to be ``expected``; 0.0 and -0.0 differ."""
    known = number(value)
    return known is not None and known.tobytes() == known.dtype.type(expected).tobytes()


def same(x: Any, y: Any) -> bool:
    """Whether two values are known to be the same, element by element."""
    if isinstance(x, Tracer) and isinstance(y, Tracer) and x.atom is y.atom:
        return True
    left, right = number(x), number(y)
    return left is not None and right is not None and left.tobytes() == right.tobytes()


def cast(x: np.generic, *, dtype: str) -> np.generic | None:
    """A number in another dtype, unless that rounds to half precision or does not fit an integer."""
    target = dtypes.canonical(dtype)
    if target == x.dtype:
        return x
    if target in _HALF:
        return None
    if dtypes.is_float(x.dtype) and dtypes.is_integer(target):
        limits = np.iinfo(target)
        # By way of float: int() of a large bfloat16 number overflows.
        if not (np.isfinite(x) and limits.min <= int(float(x)) <= limits.max):
            return None
    with np.errstate(all="ignore"):
        return x.astype(target)


def by_numpy(function: Callable[..., np.generic]) -> Exact:
    """``function`` for numbers; half precision and the kind of a NaN are left to the compiler."""

    def exact(*numbers: np.generic) -> np.generic | None:
        if any(n.dtype in _HALF for n in numbers):
            return None
        with np.errstate(all="ignore"):
            value = function(*numbers)
        return None if np.isnan(value) else value

    return exact


def index_axis(value: Any) -> int | None:
    """The axis along which ``value`` counts 0, 1, 2, ...; None if it is not known to do so."""
    equation = producer(value)
    if equation is None:
        return None
    name, params, shape = equation.op.name, equation.params, np.shape(value)
    if name == "iota":
        size, dtype = shape[params["axis"]], value.dtype
        counts = dtypes.is_integer(dtype) and isinstance(size, int) and size - 1 <= np.iinfo(dtype).max
        return params["axis"] if counts else None
    if name not in ("reshape", "broadcast_to"):
        return None
    inner = argument(value, 0)
    axis, sizes = index_axis(inner), np.shape(inner)
    if axis is None or sizes[axis] == 1:
        return None
    if name == "broadcast_to":
        return axis + len(shape) - len(sizes)
    same_order = [size for size in sizes if size != 1] == [size for size in shape if size != 1]
    before = sum(size != 1 for size in sizes[:axis])
    return [i for i, size in enumerate(shape) if size != 1][before] if same_order else None


def _aval(value: Any) -> ShapeDtype:
    return Literal(value).aval if isinstance(value, np.generic) else value.aval


def _source(value: Any) -> Any:
    """The operand of a broadcast, or ``value`` itself."""
    return argument(value, 0) if made_by(value, "broadcast_to") else value


def as_result(value: Any, aval: ShapeDtype) -> Any:
    """``value`` repeated to the shape of ``aval``, or None if it is weaker or stronger than that."""
    if isinstance(value, np.generic) and not aval.weak:
        value = REGISTRY["astype"](value, dtype=dtypes.NAMES[value.dtype])
    if _aval(value).weak != aval.weak:
        return None
    return value if np.shape(value) == aval.shape else REGISTRY["broadcast_to"](value, shape=aval.shape)


def pointwise_rule(op: Callable[[], Op], own: SimplifyRule | None, exact: Exact | None) -> SimplifyRule:
    """The rule of a pointwise op.

    Args:
        op: returns the op.
        own: the rule for this op only; its result may lack repetitions.
        exact: its version for numbers.

    Returns:
        The rule: numbers are computed right away, and the op is applied before its arguments are repeated. Nothing is
        left to repeat if the other arguments have the shape of the result.
    """

    def simplify(*args: Any, **params: Any) -> Any:
        numbers = [number(x) for x in args]
        value = None
        if exact is not None and all(n is not None for n in numbers):
            value = exact(*numbers, **params)
        if value is None and own is not None:
            value = own(*args, **params)
        sources = [_source(x) for x in args]
        leaner = [source if known is None else known for source, known in zip(sources, numbers, strict=True)]
        if value is None and all(x is y for x, y in zip(leaner, args, strict=True)):
            return None
        aval = op().shape(*map(_aval, args), **params)
        if value is not None and (result := as_result(value, aval)) is not None:
            return result
        for choice in (leaner, sources):
            changed = any(x is not y for x, y in zip(choice, args, strict=True))
            if changed and op().shape(*map(_aval, choice), **params).weak == aval.weak:
                return as_result(op()(*choice, **params), aval)
        return None

    return simplify
