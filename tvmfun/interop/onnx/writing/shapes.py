"""Spellings of ops that move elements, of reductions, and of sums along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.onnx.writing.builder import Builder, Value, composed, spells

Ints = tuple[int, ...]

spells("reshape")(lambda b, x, *, shape: b.reshape(x, shape))
spells("broadcast_to")(lambda b, x, *, shape: b("Expand", x, b.ints(*shape)))
spells("permute_dims")(lambda b, x, *, axes: b("Transpose", x, perm=list(axes)) if axes else x.name)
spells("concat")(lambda b, *xs, axis: b("Concat", *xs, axis=axis))


def sliced(b: Builder, x: Any, start: Ints, stop: Ints, step: Ints) -> str:
    """The name of a part of a value."""
    if not start:
        return x.name if isinstance(x, Value) else x
    return b("Slice", x, b.ints(*start), b.ints(*stop), b.ints(*range(len(start))), b.ints(*step))


spells("slice")(lambda b, x, *, start, stop, step: sliced(b, x, start, stop, step))


@spells("flip")
def _flip(b: Builder, x: Value, *, axes: Ints) -> str:
    count, least = len(axes), -(1 << 62)
    ends, back = b.ints(*[least] * count), b.ints(*[-1] * count)
    return b("Slice", x, b.ints(*[-1] * count), ends, b.ints(*axes), back) if axes else x.name


def padded(b: Builder, x: Value, value: Any, low: Ints, high: Ints, interior: Ints) -> Value:
    """A value with elements before, after and between its own; negative numbers remove some."""
    name, shape = x.name, list(x.shape)
    for axis, gap in enumerate(interior):
        if gap and shape[axis] > 0:
            # Each element is followed by a gap; the last gap is cut off.
            parts = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
            widths = [0] * len(parts) * 2
            widths[len(parts) + axis + 1] = gap
            spread = b("Pad", b.reshape(name, parts), b.ints(*widths), value)
            shape[axis] *= gap + 1
            name = b.reshape(spread, shape)
            shape[axis] -= gap
            name = sliced(b, name, (0,) * len(shape), tuple(shape), (1,) * len(shape))
    if any((*low, *high)):
        name = b("Pad", name, b.ints(*low, *high), value)
    sizes = tuple(n + before + after for n, before, after in zip(shape, low, high, strict=True))
    return Value(name, sizes, x.dtype)


@spells("pad")
def _pad(b: Builder, x: Value, value: Value, *, low: Ints, high: Ints, interior: Ints) -> str:
    if x.dtype == dtypes.bool_:
        number = Value(b.cast(x, np.uint8), x.shape, dtypes.uint8)
        return b.cast(padded(b, number, b.cast(value, np.uint8), low, high, interior).name, np.bool_)
    return padded(b, x, value, low, high, interior).name


@spells("iota")
def _iota(b: Builder, *, shape: Ints, axis: int, dtype: str) -> str:
    numbers = np.arange(shape[axis]).astype(dtype).reshape(tuple(-1 if i == axis else 1 for i in range(len(shape))))
    return b("Expand", b.constant(numbers), b.ints(*shape))


spells("dim_size")(lambda b, *, size, dtype: b.constant(size, dtype))


# -- reductions --------------------------------------------------------------------------------------------------------


def _reduction(operator: str, of_bools: str) -> Callable:
    def write(b: Builder, x: Value, *, axis: Ints) -> str:
        if not axis:
            return x.name
        if x.dtype == dtypes.bool_:
            wide = b(of_bools, b.cast(x, np.int32), b.ints(*axis), keepdims=0)
            return b.cast(wide, np.bool_)
        return b(operator, x, b.ints(*axis), keepdims=0)

    return write


spells("sum")(_reduction("ReduceSum", "ReduceMax"))
spells("prod")(_reduction("ReduceProd", "ReduceMin"))
spells("max")(_reduction("ReduceMax", "ReduceMax"))
spells("min")(_reduction("ReduceMin", "ReduceMin"))


def _position(operator: str) -> Callable:
    def write(b: Builder, x: Value, *, axis: int) -> str:
        number = b.cast(x, np.int32) if x.dtype == dtypes.bool_ else x
        return b.cast(b(operator, number, axis=axis, keepdims=0), np.int32)

    return write


spells("argmax")(_position("ArgMax"))
spells("argmin")(_position("ArgMin"))


# -- along an axis -----------------------------------------------------------------------------------------------------


@spells("cumsum")
def _cumsum(b: Builder, x: Value, *, axis: int, reverse: bool) -> str:
    return b("CumSum", x, b.constant(axis, np.int64), reverse=int(reverse))


def _accumulated(combine: Callable) -> Callable:
    """The results of combining elements one after the other, as a loop."""

    def run(x: Any, *, axis: int, reverse: bool) -> Any:
        rows = tnp.moveaxis(x, axis, 0)
        if rows.shape[0] < 2:
            return x
        first, rest = (rows[-1], rows[:-1]) if reverse else (rows[0], rows[1:])

        def step(carry: Any, row: Any) -> tuple:
            carry = combine(carry, row)
            return carry, carry

        _, ys = lax.scan(step, first, rest, reverse=reverse)
        parts = [ys, first[None]] if reverse else [first[None], ys]
        return tnp.moveaxis(tnp.concat(parts, axis=0), 0, axis)

    return run


composed("cumprod")(_accumulated(lambda x, y: x * y))
composed("cummax")(_accumulated(tnp.maximum))
composed("cummin")(_accumulated(tnp.minimum))
composed("cumlogsumexp")(_accumulated(tnp.logaddexp))


@composed("linear_recurrence")
def _linear_recurrence(a: Any, b: Any, *, axis: int, reverse: bool) -> Any:
    rows = tnp.moveaxis(a, axis, 0), tnp.moveaxis(b, axis, 0)

    def step(carry: Any, row: tuple) -> tuple:
        carry = row[0] * carry + row[1]
        return carry, carry

    _, ys = lax.scan(step, tnp.zeros(rows[1].shape[1:], dtype=b.dtype), rows, reverse=reverse)
    return tnp.moveaxis(ys, 0, axis)


@composed("cum_arg_extremum")
def _cumulative_place(x: Any, *, axis: int, reverse: bool, largest: bool) -> Any:
    """The running index of the first extremum."""
    if 0 in x.shape:
        return tnp.zeros(x.shape, dtype="int32")
    rows = tnp.moveaxis(x, axis, 0)
    numbers = tnp.arange(rows.shape[0])

    def step(carry: tuple, row: tuple) -> tuple:
        (best, where), (value, i) = carry, row
        is_better = value > best if largest else value < best
        if dtypes.is_float(value.dtype):  # a NaN is the extremum
            is_better = is_better | (tnp.isnan(value) & ~tnp.isnan(best))
        where = tnp.where(is_better, i, where)
        return (tnp.where(is_better, value, best), where), where

    first = rows.shape[0] - 1 if reverse else 0
    start = (rows[first], tnp.full(rows.shape[1:], first, dtype="int32"))
    _, ys = lax.scan(step, start, (rows, numbers), reverse=reverse)
    return tnp.moveaxis(ys, 0, axis)
