"""Running sums, products, extrema and the like along one axis, and linear recurrences, their derivatives.

A loop program goes along the axis, in parallel over the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import zeros
from tvmfun.core.expressions import dtype_name
from tvmfun.core.op import Op, register
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import formula, index, reduce
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.tir import block, prim_func

# The number of neighbouring columns that are handled together.
_WIDTH = 32

#: ``step(k, is_first, values) -> result``: takes the elements ``values`` of column ``k`` and returns what to store.
Step = Callable[[Any, Any, list], Any]


#: The attribute of a function with its scan, by which GPUs select their own program.
SCAN = "tvmfun.scan"


@dataclass(frozen=True)
class Scan:
    """An op of this module.

    Args:
        op: its name.
        axis: the axis it goes along.
        reverse: whether it begins at the end of the axis.
        largest: whether ``cum_arg_extremum`` looks for the largest elements.
    """

    op: str
    axis: int
    reverse: bool
    largest: bool = False

    @property
    def text(self) -> str:
        """The scan as the attribute of a function."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, function: tirx.PrimFunc) -> Scan | None:
        """The scan that a function computes; None for a function of another op."""
        text = function.attrs.get(SCAN) if function.attrs else None
        return None if text is None else cls(**json.loads(str(text)))


@dataclass(frozen=True)
class Join:
    """An associative function; a scan stores its result over the elements up to each one.

    Args:
        combine: the function of two numbers, expressions of dtype ``of(dtype)``; the first comes before the second.
        identity: ``identity(dtype) -> expression``, the neutral element.
        of: the dtype of the numbers for elements of a dtype.
    """

    combine: Callable[[Any, Any], Any]
    identity: Callable[[str], Any]
    of: Callable[[str], str]


def _walk(inputs: tuple[ShapeDtype, ...], output: ShapeDtype, scan: Scan, start: Callable[[int], Step]):
    """The loop program of a scan; ``start(width)`` allocates the accumulators of a strip's columns."""
    shape, axis, reverse = output.shape, scan.axis, scan.reverse
    n, rest = shape[axis], shape[axis + 1 :]

    def write(sources, result):
        def strip(point: tuple, first: int, width: int) -> None:
            *outer, number = point
            step = start(width)
            with T.serial(0, n) as i, T.serial(0, width) as k:
                position = n - 1 - i if reverse else i
                at = (*outer[:axis], position, *outer[axis:])
                at = (*at, first + number * width + k) if rest else at
                T.buffer_store(result, step(k, tirx.EQ(i, 0), [x[at] for x in sources]), list(at))

        columns = rest[-1] if rest else 1
        full, tail = divmod(columns, _WIDTH)
        last = (tail, 1) if isinstance(tail, int) else (1, tail)  # one by one, if their number is dynamic
        for first, width, count in ((0, _WIDTH, full), (full * _WIDTH, *last)):
            if width != 0 and count != 0:
                body = lambda point, first=first, width=width: strip(point, first, width)
                block("walk", sources, result, (*shape[:axis], *rest[:-1], count), body)

    return prim_func(inputs, output, write).with_attr(SCAN, scan.text)


def _accumulators(width: int, dtype: str, value: Any) -> tirx.Buffer:
    """One variable per column, with its first value."""
    buffer = T.sblock_alloc_buffer((width,), dtype, scope="local")
    with T.serial(0, width) as k:
        T.buffer_store(buffer, value, [k])
    return buffer


def _wide(dtype: str) -> str:
    """The dtype of a running result: half precision would lose too many digits."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _check_axis(name: str, x: ShapeDtype, axis: int) -> None:
    if not 0 <= axis < x.ndim:
        raise ShapeError(name, f"{axis} is not an axis of the argument", got=repr(x))


def _of_sums(dtype: str) -> str:
    """The dtype of a running sum: after n float32 numbers of similar size, the error would be n / 2 units."""
    return "float64" if dtype == "float32" else _wide(dtype)


def _cumulative(name: str, vjp: Callable, floats: bool = False) -> Op:
    join = JOINS[name]

    def shape(x: ShapeDtype, *, axis: int, reverse: bool) -> ShapeDtype:
        _check_axis(name, x, axis)
        if x.dtype == dtypes.bool_ or (floats and not dtypes.is_float(x.dtype)):
            kind = "a float" if floats else "a number"
            raise DtypeError(name, f"the argument must be {kind}", got=repr(x), hint="x.astype('float32')")
        return replace(x, weak=False)

    def compute(x: ShapeDtype, *, axis: int, reverse: bool) -> tirx.PrimFunc:
        dtype = dtypes.NAMES[x.dtype]
        wide = join.of(dtype)

        def start(width: int) -> Step:
            total = _accumulators(width, wide, join.identity(wide))
            value = _accumulators(width, wide, tirx.const(0, wide))

            def step(k: Any, is_first: Any, values: list) -> Any:
                T.buffer_store(value, values[0].astype(wide), [k])
                T.buffer_store(total, join.combine(total[k], value[k]), [k])
                return total[k].astype(dtype)

            return step

        return _walk((x,), x, Scan(name, axis, reverse), start)

    def batch(batched: tuple[bool, ...], x: Array, *, axis: int, reverse: bool) -> Array:
        return op(x, axis=axis + 1, reverse=reverse)

    flops = lambda out, *args, **params: out.size
    op = register(Op(name, "opaque", shape, compute, (vjp,), batch=batch, flops=flops))
    return op


def _earlier(x: Array, axis: int, reverse: bool, fill: float) -> Array:
    """The element before each one in the direction of the walk, ``fill`` for the first."""
    low = tuple((-1 if reverse else 1) if i == axis else 0 for i in range(x.ndim))
    if x.size == 0:
        return x
    return shapes.pad(x, pw.constant(fill, x), low=low, high=tuple(-n for n in low), interior=(0,) * x.ndim)


# -- linear_recurrence -----------------------------------------------------------------------------------------


def _recurrence_shape(a: ShapeDtype, b: ShapeDtype, *, axis: int, reverse: bool) -> ShapeDtype:
    _check_axis("linear_recurrence", a, axis)
    if a.dtype != b.dtype or not dtypes.is_float(a.dtype):
        raise DtypeError("linear_recurrence", "both arrays must have one float dtype", got=f"{a} and {b}")
    if a.shape != b.shape:
        raise ShapeError("linear_recurrence", "both arrays must have one shape", got=f"{a} and {b}")
    return replace(b, weak=False)


def _recurrence(a: ShapeDtype, b: ShapeDtype, *, axis: int, reverse: bool) -> tirx.PrimFunc:
    dtype = dtypes.NAMES[b.dtype]
    wide = _wide(dtype)

    def start(width: int) -> Step:
        state = _accumulators(width, wide, tirx.const(0, wide))

        def step(k: Any, is_first: Any, values: list) -> Any:
            factor, new = (value.astype(wide) for value in values)
            T.buffer_store(state, tirx.Select(is_first, new, factor * state[k] + new), [k])
            return state[k].astype(dtype)

        return step

    return _walk((a, b), b, Scan("linear_recurrence", axis, reverse), start)


def _recurrence_vjp_factor(g: Array, out: Array, a: Array, b: Array, *, axis: int, reverse: bool) -> Array:
    return _adjoint(g, a, axis, reverse) * _earlier(out, axis, reverse, 0)


def _recurrence_vjp_term(g: Array, out: Array, a: Array, b: Array, *, axis: int, reverse: bool) -> Array:
    return _adjoint(g, a, axis, reverse)


def _adjoint(g: Array, factors: Array, axis: int, reverse: bool) -> Array:
    """``s[i] = g[i] + factors[i + 1] * s[i + 1]``: the effect of a change of element ``i`` on all later ones."""
    return linear_recurrence(_earlier(factors, axis, not reverse, 0), g, axis=axis, reverse=not reverse)


def _recurrence_batch(batched: tuple[bool, ...], a: Array, b: Array, *, axis: int, reverse: bool) -> Array:
    return linear_recurrence(*shapes.repeat_unbatched(batched, (a, b)), axis=axis + 1, reverse=reverse)


#: ``linear_recurrence(a, b, axis=, reverse=)``: ``y[i] = a[i] * y[i - 1] + b[i]`` along an axis, from its end if
#: ``reverse``; the first element of ``a`` is not used.
linear_recurrence = register(
    Op(
        "linear_recurrence",
        "opaque",
        _recurrence_shape,
        _recurrence,
        (_recurrence_vjp_factor, _recurrence_vjp_term),
        batch=_recurrence_batch,
        flops=lambda out, *args, **params: 2 * out.size,
    )
)

# -- cumsum, cumprod, cumlogsumexp -----------------------------------------------------------------------------


def _cumsum_vjp(g: Array, out: Array, x: Array, *, axis: int, reverse: bool) -> Array:
    return cumsum(g, axis=axis, reverse=not reverse)


def _cumprod_vjp(g: Array, out: Array, x: Array, *, axis: int, reverse: bool) -> Array:
    # Without a division, so that it is correct if elements are 0.
    return _earlier(out, axis, reverse, 1) * _adjoint(g, x, axis, reverse)


def _add_logs(x: Any, y: Any) -> Any:
    dtype = dtype_name(x)
    largest = pw.maximum.compute(x, y)
    apart = tirx.Select(x > y, y + formula.opaque(-1.0, dtype) * x, x + formula.opaque(-1.0, dtype) * y)
    # The difference of infinities is NaN.
    infinite = tirx.abs(largest) >= tirx.infinity(dtype)
    return tirx.Select(infinite, largest, largest + tirx.log1p(tirx.exp(apart)))


def _cumlogsumexp_vjp(g: Array, out: Array, x: Array, *, axis: int, reverse: bool) -> Array:
    # exp(x[i]) * sum of g[k] / exp(out[k]) over k >= i, with factors that are at most 1.
    decay = _ratio(_earlier(out, axis, reverse, -math.inf), out)
    return _ratio(x, out) * _adjoint(g, decay, axis, reverse)


def _ratio(x: Array, total: Array) -> Array:
    """``exp(x - total)``; 1 where both are the same infinity."""
    alike = (x == total) & ~pw.isfinite(total)
    return pw.exp(pw.where(alike, pw.constant(0, x), x - total))


#: The associative function of each scan with one argument.
JOINS = {
    "cumsum": Join(pw.add.compute, lambda dtype: tirx.const(0, dtype), _of_sums),
    "cumprod": Join(pw.multiply.compute, lambda dtype: tirx.const(1, dtype), _wide),
    "cumlogsumexp": Join(_add_logs, reduce.lowest, _wide),
    "cummax": Join(pw.maximum.compute, reduce.lowest, _wide),
    "cummin": Join(pw.minimum.compute, reduce.highest, _wide),
}

#: ``cumsum(x, axis=, reverse=)``: the sum of all elements up to each one, from the end of the axis if ``reverse``.
cumsum = _cumulative("cumsum", _cumsum_vjp)
#: ``cumprod(x, axis=, reverse=)``: the product of all elements up to each one.
cumprod = _cumulative("cumprod", _cumprod_vjp)
#: ``cumlogsumexp(x, axis=, reverse=)``: the logarithm of the sum of the exponentials of all elements up to each one.
cumlogsumexp = _cumulative("cumlogsumexp", _cumlogsumexp_vjp, floats=True)

# -- cummax, cummin --------------------------------------------------------------------------------------------


def _arg_extremum_shape(x: ShapeDtype, *, axis: int, reverse: bool, largest: bool) -> ShapeDtype:
    _check_axis("cum_arg_extremum", x, axis)
    if x.dtype == dtypes.bool_:
        raise DtypeError("cum_arg_extremum", "the argument must be a number", got=repr(x), hint="x.astype('int8')")
    return ShapeDtype(x.shape, dtypes.int32)


def _arg_extremum(x: ShapeDtype, *, axis: int, reverse: bool, largest: bool) -> tirx.PrimFunc:
    dtype = dtypes.NAMES[x.dtype]
    wide = _wide(dtype)
    n = x.shape[axis]

    def start(width: int) -> Step:
        zero, none = tirx.const(0, wide), tirx.const(0, "int32")
        best, value = _accumulators(width, wide, zero), _accumulators(width, wide, zero)
        position, count = _accumulators(width, "int32", none), _accumulators(width, "int32", none)

        def step(k: Any, is_first: Any, values: list) -> Any:
            T.buffer_store(value, values[0].astype(wide), [k])
            better = value[k] > best[k] if largest else value[k] < best[k]
            if formula.is_float(value[k]):  # the first NaN stays
                better = tirx.Or(better, formula.is_nan(value[k]))
                better = tirx.And(better, tirx.Not(formula.is_nan(best[k])))
            better = tirx.Or(is_first, better)
            here = n - 1 - count[k] if reverse else count[k]
            T.buffer_store(position, tirx.Select(better, here, position[k]), [k])
            T.buffer_store(best, tirx.Select(better, value[k], best[k]), [k])
            T.buffer_store(count, count[k] + 1, [k])
            return position[k]

        return step

    output = _arg_extremum_shape(x, axis=axis, reverse=reverse, largest=largest)
    return _walk((x,), output, Scan("cum_arg_extremum", axis, reverse, largest), start)


def _arg_extremum_batch(batched: tuple[bool, ...], x: Array, *, axis: int, reverse: bool, largest: bool) -> Array:
    return cum_arg_extremum(x, axis=axis + 1, reverse=reverse, largest=largest)


#: ``cum_arg_extremum(x, axis=, reverse=, largest=)``: where along the axis the largest or smallest element up to each
#: one is, the first in the direction of the walk.
cum_arg_extremum = register(
    Op("cum_arg_extremum", "opaque", _arg_extremum_shape, _arg_extremum, (None,), batch=_arg_extremum_batch)
)


def _extremum_vjp(largest: bool) -> Callable[..., Array]:
    def rule(g: Array, out: Array, x: Array, *, axis: int, reverse: bool) -> Array:
        position = cum_arg_extremum(x, axis=axis, reverse=reverse, largest=largest)
        last = x.ndim - 1
        rows, positions = (shapes.move_axis(y, axis, last) for y in (g, position))
        positions = shapes.reshape(positions, shape=(*positions.shape, 1))
        summed = index.scatter(zeros(rows), positions, rows, mode="add", batch=last)
        return shapes.move_axis(summed, last, axis)

    return rule


#: ``cummax(x, axis=, reverse=)``: the largest element up to each one. The gradient goes to the first of equal ones.
cummax = _cumulative("cummax", _extremum_vjp(True))
#: ``cummin(x, axis=, reverse=)``: the smallest element up to each one. The gradient goes to the first of equal ones.
cummin = _cumulative("cummin", _extremum_vjp(False))
