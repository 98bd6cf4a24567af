"""Sorting rows, and searching sorted rows."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name
from tvmfun.core.op import Op, register
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import formula
from tvmfun.ops import shape as shapes
from tvmfun.ops.index import gather
from tvmfun.ops.tir import block, prim_func

# Rows up to this length are sorted by insertion.
_SHORT = 48
_DIGITS = 256
#: The attribute of a function that sorts rows, by which GPUs select their own program.
ARGSORT = "tvmfun.argsort"


def _argsort_shape(x: ShapeDtype) -> ShapeDtype:
    if not x.ndim:
        raise ShapeError("argsort", "there is no axis to sort along", got=repr(x))
    return ShapeDtype(x.shape, dtypes.int32)


def sort_key(x: Any) -> Any:
    """An unsigned integer for each value, in the order of the values: 0 and -0 equal, NaNs equal and last."""
    dtype = dtype_name(x)
    if dtype == "bool":
        return tirx.Select(x, tirx.const(1, "uint32"), tirx.const(0, "uint32"))
    if formula.is_float(x):
        if dtype != "float64":
            x, dtype = tirx.Cast("float32", x), "float32"
        uint, width = ("uint32", 32) if dtype == "float32" else ("uint64", 64)
        bits = tirx.reinterpret(uint, x)
        sign = tirx.const(1 << (width - 1), uint)
        ordered = tirx.Select(bits < sign, bits | sign, ~bits)
        is_zero = tirx.EQ(bits & tirx.const((1 << (width - 1)) - 1, uint), tirx.const(0, uint))
        return tirx.Select(formula.is_nan(x), tirx.const((1 << width) - 1, uint), tirx.Select(is_zero, sign, ordered))
    width = np.dtype(dtype).itemsize * 8
    if dtype.startswith("int"):
        x = tirx.reinterpret(f"uint{width}", x) ^ tirx.const(1 << (width - 1), f"uint{width}")
    return tirx.Cast("uint64" if width == 64 else "uint32", x)


def key_bits(dtype: np.dtype) -> int:
    """The number of significant bits of a key of :func:`sort_key`."""
    if dtypes.is_float(dtype):
        return max(32, dtype.itemsize * 8)
    return dtype.itemsize * 8


def _argsort(x: ShapeDtype) -> tirx.PrimFunc:
    """Insertion sort of short rows, and of long ones radix sort from the last digit: stable, and linear in time."""
    rows, n = x.shape[:-1], x.shape[-1]
    sort = _sort_short if isinstance(n, int) and n <= _SHORT else _sort_long

    def write(sources, result):
        values = lambda row, i: sort_key(sources[0][(*row, i)])
        block("sort", sources, result, rows, lambda row: sort(values, row, result, n, key_bits(x.dtype)))

    return prim_func([x], _argsort_shape(x), write).with_attr(ARGSORT, True)


def _sort_short(values: Any, row: tuple, order: tirx.Buffer, n: int, bits: int) -> None:
    uint = "uint64" if bits == 64 else "uint32"
    keys = T.sblock_alloc_buffer((max(n, 1),), uint, scope="local")
    key = T.sblock_alloc_buffer((1,), uint, scope="local")
    position = T.sblock_alloc_buffer((1,), "int32", scope="local")
    with T.serial(0, n) as i:
        T.buffer_store(key, values(row, i), [0])
        T.buffer_store(position, i, [0])
        # The position before the first is never read, but TVM may evaluate both sides.
        before = tirx.max(position[0] - 1, tirx.const(0, "int32"))
        with T.While(tirx.And(position[0] > 0, keys[before] > key[0])):
            T.buffer_store(keys, keys[before], [position[0]])
            T.buffer_store(order, order[(*row, before)], [*row, position[0]])
            T.buffer_store(position, position[0] - 1, [0])
        T.buffer_store(keys, key[0], [position[0]])
        T.buffer_store(order, i, [*row, position[0]])


def _sort_long(values: Any, row: tuple, order: tirx.Buffer, n: int, bits: int) -> None:
    uint, passes = ("uint64" if bits == 64 else "uint32"), bits // 8
    keys = T.sblock_alloc_buffer((2, n), uint, scope="local")
    positions = T.sblock_alloc_buffer((2, n), "int32", scope="local")
    counts = T.sblock_alloc_buffer((passes, _DIGITS), "int32", scope="local")
    state = T.sblock_alloc_buffer((3,), "int32", scope="local")  # which half is current, a sum, a digit
    digit = lambda key, k: tirx.Cast("int32", (key >> tirx.const(8 * k, uint)) & tirx.const(_DIGITS - 1, uint))
    with T.serial(0, passes) as k, T.serial(0, _DIGITS) as d:
        T.buffer_store(counts, tirx.const(0, "int32"), [k, d])
    with T.serial(0, n) as i:
        T.buffer_store(keys, values(row, i), [0, i])
        T.buffer_store(positions, i, [0, i])
        for k in range(passes):
            T.buffer_store(state, digit(keys[0, i], k), [2])
            T.buffer_store(counts, counts[k, state[2]] + 1, [k, state[2]])
    T.buffer_store(state, tirx.const(0, "int32"), [0])
    for k in range(passes):
        # Nothing moves if all elements have the same digit, such as the high digits of small integers.
        with T.If(counts[k, digit(keys[state[0], 0], k)] < n), T.Then():
            T.buffer_store(state, tirx.const(0, "int32"), [1])
            with T.serial(0, _DIGITS) as d:
                T.buffer_store(state, counts[k, d], [2])
                T.buffer_store(counts, state[1], [k, d])
                T.buffer_store(state, state[1] + state[2], [1])
            with T.serial(0, n) as i:
                T.buffer_store(state, digit(keys[state[0], i], k), [2])
                T.buffer_store(state, counts[k, state[2]], [1])
                T.buffer_store(counts, state[1] + 1, [k, state[2]])
                T.buffer_store(keys, keys[state[0], i], [1 - state[0], state[1]])
                T.buffer_store(positions, positions[state[0], i], [1 - state[0], state[1]])
            T.buffer_store(state, 1 - state[0], [0])
    with T.serial(0, n) as i:
        T.buffer_store(order, positions[state[0], i], [*row, i])


#: ``argsort(x)``: the stable order of the elements along the last axis; NaNs go last.
argsort = register(Op("argsort", "opaque", _argsort_shape, _argsort, (None,), batch=lambda batched, x: argsort(x)))


def taken(x: Array, order: Array) -> Array:
    """Elements of rows, or rows of matrices, at indices along the last axis of ``order``."""
    indices = shapes.reshape(order, shape=(*order.shape, 1))
    return gather(x, indices, mode="in_bounds", batch=order.ndim - 1)


def _searchsorted_shape(
    x: ShapeDtype, values: ShapeDtype, *, side: Literal["left", "right"], batch: int = 0
) -> ShapeDtype:
    if x.dtype != values.dtype:
        raise DtypeError("searchsorted", "both arrays must have one dtype", got=f"{x} and {values}")
    if batch < 0 or x.ndim != batch + 1 or x.shape[:batch] != values.shape[:batch]:
        raise ShapeError(
            "searchsorted", f"there must be a row for each index of the first {batch} axes", got=f"{x} and {values}"
        )
    return ShapeDtype(values.shape, dtypes.int32)


#: Values from this number on are searched in step.
_MANY_VALUES = 1 << 12


def _searchsorted(x: ShapeDtype, values: ShapeDtype, *, side: str, batch: int = 0) -> tirx.PrimFunc:
    count = x.shape[-1]
    int32 = lambda value: tirx.const(value, "int32")

    def write(sources, result):
        rows, wanted = sources

        def is_before(point, index, key):
            here = sort_key(rows[(*point[:batch], index)])
            return here < key if side == "left" else here <= key

        def search(point):
            # All elements before `low` come before the value, and no elements from `high` on do.
            low = T.sblock_alloc_buffer((1,), "int32", scope="local")
            high = T.sblock_alloc_buffer((1,), "int32", scope="local")
            T.buffer_store(low, int32(0), [0])
            T.buffer_store(high, expressions.scalar(count, "int32"), [0])
            key = sort_key(wanted[point])
            with T.serial(0, count.bit_length() if isinstance(count, int) else 31), T.If(low[0] < high[0]), T.Then():
                middle = tirx.indexdiv(low[0] + high[0], 2)
                with T.If(is_before(point, middle, key)):
                    with T.Then():
                        T.buffer_store(low, middle + 1, [0])
                    with T.Else():
                        T.buffer_store(high, middle, [0])
            T.buffer_store(result, low[0], list(point))

        def search_in_step(point):
            # The same steps for all values, without branches, half of which would be mispredicted: vectors of values
            # are searched together. It takes longer to compile.
            low = T.sblock_alloc_buffer((1,), "int32", scope="local")
            T.buffer_store(low, int32(0), [0])
            key, rest = sort_key(wanted[point]), count
            while rest > 1:
                half = rest // 2
                beyond = is_before(point, low[0] + half - 1, key)
                T.buffer_store(low, tirx.Select(beyond, low[0] + half, low[0]), [0])
                rest -= half
            T.buffer_store(result, low[0] + tirx.Cast("int32", is_before(point, low[0], key)), list(point))

        is_static = not dims.is_dynamic((*x.shape, *values.shape))
        in_step = is_static and count > 0 and math.prod(values.shape) >= _MANY_VALUES
        block("search", sources, result, values.shape, search_in_step if in_step else search)

    return prim_func([x, values], _searchsorted_shape(x, values, side=side, batch=batch), write)


def _searchsorted_batch(batched: tuple[bool, ...], x: Array, values: Array, *, side: str, batch: int = 0) -> Any:
    if not batched[0]:  # more values for each row
        found = searchsorted(x, shapes.move_axis(values, 0, batch), side=side, batch=batch)
        return shapes.move_axis(found, batch, 0)
    x, values = shapes.repeat_unbatched(batched, (x, values))
    return searchsorted(x, values, side=side, batch=batch + 1)


#: ``searchsorted(x, values, side=, batch=0)``: for each value, the number of elements of its sorted row of ``x`` that
#: come before it; with side ``right`` equal ones do so. NaN comes last. The first ``batch`` axes number the rows.
searchsorted = register(
    Op("searchsorted", "opaque", _searchsorted_shape, _searchsorted, (None, None), batch=_searchsorted_batch)
)
