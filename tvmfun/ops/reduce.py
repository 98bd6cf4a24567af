"""Reductions: elements combined along axes, and windows that slide over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name, plain
from tvmfun.core.op import Op, register
from tvmfun.core.relax import Spelling
from tvmfun.core.trace import argument
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import formula
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.parameters import Ints, check_axes
from tvmfun.ops.simplify import as_result, index_axis, is_number, made_by

# The most elements of a row for which products leave out each element in turn.
_LONGEST_TABLE = 32


def _with_unit_axes(shape: Ints, axis: Ints) -> Ints:
    """``shape`` with the reduced axes as size 1."""
    return tuple(1 if i in axis else size for i, size in enumerate(shape))


def spread(x: Array, shape: Ints, axis: Ints) -> Array:
    """Repeats a reduced ``x`` along the axes it was reduced over."""
    return shapes.broadcast_to(shapes.reshape(x, shape=_with_unit_axes(shape, axis)), shape=shape)


def _shape(name: str, needs_elements: bool) -> Callable[..., ShapeDtype]:
    def rule(x: ShapeDtype, *, axis: Ints) -> ShapeDtype:
        check_axes(name, x, axis)
        if x.dtype == dtypes.bool_:
            raise DtypeError(name, "bool has no such reduction", got=repr(x), hint="x.astype('int32')")
        if needs_elements and any(x.shape[i] == 0 for i in axis):
            raise ShapeError(name, "there is no result for zero elements", got=repr(x))
        return ShapeDtype(tuple(size for i, size in enumerate(x.shape) if i not in axis), x.dtype)

    return rule


def _along(shape: Ints, axis: Ints, free: tuple, reduced: list) -> tuple:
    """The full index made of the indices of the free and of the reduced axes."""
    free_iter, reduced_iter = iter(free), iter(reduced)
    return tuple(next(reduced_iter) if i in axis else next(free_iter) for i in range(len(shape)))


def _reducer(combine: Callable) -> Callable[..., te.Tensor]:
    def compute(x: te.Tensor, *, axis: Ints) -> te.Tensor:
        shape = plain(tuple(x.shape))
        free_shape = [size for i, size in enumerate(shape) if i not in axis]
        if not axis:
            return te.compute(shape, lambda *i: x(*i))
        reduced = [te.reduce_axis((0, shape[i]), f"k{i}") for i in axis]
        half = dtype_name(x) in ("float16", "bfloat16")
        # Half precision keeps no running total: accumulate in float32 and round once.
        element = lambda *i: x(*_along(shape, axis, i, reduced))
        if not half:
            return te.compute(free_shape, lambda *i: combine(element(*i), axis=reduced))
        total = te.compute(free_shape, lambda *i: combine(element(*i).astype("float32"), axis=reduced))
        return te.compute(free_shape, lambda *i: total(*i).astype(dtype_name(x)))

    return compute


def _spelling(name: str, function: Callable) -> Spelling:
    def read(call: relax.Call):
        if call.attrs.keepdims:
            return None
        rank = len(call.args[0].ty.shape.values)
        axes = plain(call.attrs.axis)
        axes = tuple(range(rank)) if axes is None else tuple(i % rank for i in axes)
        return list(call.args), {"axis": axes}

    return Spelling(name, lambda exprs, params: function(exprs[0], list(params["axis"])), read)


def _sum_vjp(g: Array, out: Array, x: Array, *, axis: Ints) -> Array:
    return spread(g, x.shape, axis)


def _extremum_vjp(g: Array, out: Array, x: Array, *, axis: Ints) -> Array:
    """Divides the cotangent equally among all elements that attain the extremum; none gets it if that is NaN."""
    chosen = pw.astype(x == spread(out, x.shape, axis), dtype=dtypes.NAMES[x.dtype])
    share = g / pw.maximum(sum(chosen, axis=axis), pw.constant(1, x))
    return spread(share, x.shape, axis) * chosen


def _prod_vjp(g: Array, out: Array, x: Array, *, axis: Ints) -> Array:
    order = (*(i for i in range(x.ndim) if i not in axis), *axis)
    free = tuple(x.shape[i] for i in order[: x.ndim - len(axis)])
    rows = shapes.permute_dims(x, axes=order)
    flat = shapes.reshape(rows, shape=(*free, math.prod(x.shape[i] for i in axis)))
    result = _others(flat) * shapes.reshape(g, shape=(*free, 1))
    result = shapes.reshape(result, shape=rows.shape)
    return shapes.permute_dims(result, axes=tuple(map(int, np.argsort(order))))


def _others(x: Array) -> Array:
    """The product of all other elements of a row for each, also where elements are 0.

    In a short row, each element is left out in turn. A long row is cut into pieces: the product of the other pieces
    times the product of the other elements of the same piece.
    """
    *lead, count = x.shape
    last = x.ndim - 1
    if dims.is_dynamic(x.shape) or count <= _LONGEST_TABLE:
        shape = (*lead, count, count)
        table = shapes.broadcast_to(shapes.reshape(x, shape=(*lead, 1, count)), shape=shape)
        at = lambda k: shapes.iota(shape=shape, axis=last + k, dtype="int32")
        return prod(pw.where(at(0) == at(1), pw.constant(1, x), table), axis=(last + 1,))
    width = _LONGEST_TABLE if count > _LONGEST_TABLE**2 else math.isqrt(count - 1) + 1
    number = -(-count // width)
    edges = {"low": (0,) * x.ndim, "interior": (0,) * x.ndim}
    filled = shapes.pad(x, pw.constant(1, x), high=(*(0,) * last, number * width - count), **edges)
    pieces = shapes.reshape(filled, shape=(*lead, number, width))
    of_others = shapes.reshape(_others(prod(pieces, axis=(x.ndim,))), shape=(*lead, number, 1))
    result = shapes.reshape(_others(pieces) * of_others, shape=(*lead, number * width))
    return shapes.slice(result, start=(0,) * x.ndim, stop=x.shape, step=(1,) * x.ndim)


def max_element(*args: Any, axis: list) -> Any:
    """The maximum along reduce axes; NaN if there is one."""
    return _NAN_MAX(*args, axis=axis) if dtype_name(args[0]).startswith("float") else te.max(*args, axis=axis)


def min_element(*args: Any, axis: list) -> Any:
    """The minimum along reduce axes; NaN if there is one."""
    return _NAN_MIN(*args, axis=axis) if dtype_name(args[0]).startswith("float") else te.min(*args, axis=axis)


# `te.max` loses a NaN that comes first; these functions keep it.
_NAN_MAX = te.comm_reducer(formula.maximum, lambda dtype: -tirx.infinity(dtype), name="max")
_NAN_MIN = te.comm_reducer(formula.minimum, lambda dtype: tirx.infinity(dtype), name="min")
_PRODUCT = te.comm_reducer(lambda x, y: x * y, lambda dtype: tirx.const(1, dtype), name="prod")


def _reduction(name: str, combine: Callable, vjp: Callable, relax_function: Callable, needs_elements: bool) -> Op:
    def batch(batched: tuple[bool, ...], x: Array, *, axis: Ints) -> Array:
        return op(x, axis=tuple(i + 1 for i in axis))

    def simplify(x: Any, *, axis: Ints) -> Any:
        return _reduce_simplify(op, x, axis)

    op = register(
        Op(
            name,
            "reduction",
            _shape(name, needs_elements),
            _reducer(combine),
            (vjp,),
            _spelling(f"relax.{name}", relax_function),
            inexpensive=False,
            batch=batch,
            simplify=simplify,
            precision="either" if needs_elements else "high",  # one of the elements, or a combination of them all
        )
    )
    return op


def _reduce_simplify(op: Op, x: Any, axis: Ints) -> Any:
    """Reduces the operand of a repetition instead of the repetitions; empty sums and products are constants."""
    if not axis:
        return x
    if (op is sum or op is prod) and any(not dims.is_dynamic(x.shape[i]) and x.shape[i] == 0 for i in axis):
        # The compiler would fail at a division by the 0 that it then sees.
        return as_result(x.dtype.type(0 if op is sum else 1), op.shape(x.aval, axis=axis))
    if op is sum and dtypes.is_float(x.dtype):
        if made_by(x, "negative"):
            return _never_negative_zero(-sum(argument(x, 0), axis=axis))
        if (one := _one_of_each(x, axis)) is not None:
            return _never_negative_zero(one)
    if not made_by(x, "broadcast_to"):
        return None
    inner = argument(x, 0)
    added = x.ndim - np.ndim(inner)
    own = (1,) * added + np.shape(inner)
    single = [i for i in axis if own[i] == 1]
    count = math.prod(x.shape[i] for i in single)
    if (op is sum and single and not _is_counted(count, x.dtype)) or (op is prod and count != 1):
        return None
    kept = [i for i in range(added, x.ndim) if i not in single]
    rest = tuple(position for position, i in enumerate(kept) if i in axis)
    result = op(shapes.reshape(inner, shape=tuple(own[i] for i in kept)), axis=rest)
    if op is sum and single:
        result = result * np.asarray(count).astype(x.dtype)[()]
        if not rest and dtypes.is_float(x.dtype):
            result = _never_negative_zero(result)
    return shapes.broadcast_to(result, shape=tuple(n for i, n in enumerate(x.shape) if i not in axis))


def _never_negative_zero(x: Any) -> Any:
    """Normalizes a value like a sum: sums of zeros are never -0."""
    return x + 0


def _one_of_each(x: Any, axis: Ints) -> Any:
    """The sum of ``where(iota == index, value, 0)``, the derivative of taking an element: the value, or 0 outside."""
    if len(axis) != 1 or not made_by(x, "where") or not is_number(argument(x, 2), 0):
        return None
    condition, value, (along,) = argument(x, 0), argument(x, 1), axis
    if not made_by(condition, "equal"):
        return None
    counter, index = argument(condition, 0), argument(condition, 1)
    counted, size = index_axis(counter), x.shape[along]
    if counted is None or counted + x.ndim - counter.ndim != along or dims.is_dynamic(x.shape):
        return None
    varies = lambda y: np.ndim(y) >= x.ndim - along and np.shape(y)[along - x.ndim] != 1
    if varies(index) or varies(value) or size > np.iinfo(index.dtype).max:
        return None
    inside = (index >= pw.constant(0, index)) & (index < pw.constant(size, index))
    one = pw.where(inside, value, pw.constant(0, x))
    kept = tuple(1 if i == along else n for i, n in enumerate(x.shape))
    return shapes.reshape(shapes.broadcast_to(one, shape=kept), shape=kept[:along] + kept[along + 1 :])


def _is_counted(count: Any, dtype: np.dtype) -> bool:
    """Whether to sum ``count`` equal values by one product, which rounds once instead of ``count`` times."""
    if dims.is_dynamic(count):
        return False
    with np.errstate(over="ignore"):
        return dtypes.is_integer(dtype) or (count > 0 and float(dtype.type(count)) == count)


sum = _reduction("sum", te.sum, _sum_vjp, relax.op.sum, False)
prod = _reduction("prod", _PRODUCT, _prod_vjp, relax.op.prod, False)
max = _reduction("max", max_element, _extremum_vjp, relax.op.max, True)
min = _reduction("min", min_element, _extremum_vjp, relax.op.min, True)

# -- argmax, argmin --------------------------------------------------------------------------------------------


# TVM's analysis of the loops around a pair of index and value does not end where 32 bits overflow.
_LONGEST = 2**30


def _arg_shape(name: str) -> Callable[..., ShapeDtype]:
    def rule(x: ShapeDtype, *, axis: int) -> ShapeDtype:
        if not 0 <= axis < x.ndim or x.shape[axis] == 0:
            raise ShapeError(name, f"there are no elements along axis {axis}", got=repr(x))
        if not dims.is_dynamic(x.shape[axis]) and x.shape[axis] > _LONGEST:
            raise ShapeError(name, f"an axis must not have more than {_LONGEST:,} elements", got=repr(x))
        return ShapeDtype(x.shape[:axis] + x.shape[axis + 1 :], dtypes.int32)

    return rule


def _comparable(x: Any) -> Any:
    """The value in a dtype that TVM compares: float32 for half precision (bfloat16 by its bits: TVM's cast errs)."""
    if dtype_name(x) == "bool":
        return x.astype("int8")
    if dtype_name(x) == "bfloat16":
        return tirx.reinterpret(
            "float32", tirx.Cast("uint32", tirx.reinterpret("uint16", x)) << tirx.const(16, "uint32")
        )
    return x.astype("float32") if dtype_name(x) == "float16" else x


def _arg_reducer(better: Callable, worst: Callable) -> Callable[..., te.Tensor]:
    def combine(left, right):
        (i, x), (j, y) = left, right
        # The first of equal elements wins, and the first NaN wins over everything.
        nan = formula.is_nan if formula.is_float(x) else (lambda v: tirx.const(False))
        left_wins = tirx.any(
            tirx.all(nan(x), tirx.any(tirx.Not(nan(y)), i < j)),
            tirx.all(tirx.Not(nan(y)), better(x, y)),
            tirx.all(tirx.EQ(x, y), i < j),
        )
        return tirx.Select(left_wins, i, j), tirx.Select(left_wins, x, y)

    def identity(index_dtype, dtype):
        return tirx.const(np.iinfo(np.int32).max, index_dtype), worst(dtype)

    reducer = te.comm_reducer(combine, identity, name="arg")

    def compute(x: te.Tensor, *, axis: int) -> te.Tensor:
        shape = plain(tuple(x.shape))
        free = [size for i, size in enumerate(shape) if i != axis]
        k = te.reduce_axis((0, shape[axis]), "k")
        pair = te.compute(free, lambda *i: reducer((k.var, _comparable(x(*i[:axis], k, *i[axis:]))), axis=k))
        return te.compute(free, lambda *i: pair[0](*i))

    return compute


def lowest(dtype: str) -> Any:
    """The smallest value of a dtype."""
    return -tirx.infinity(dtype) if dtype.startswith("float") else tirx.min_value(dtype)


def highest(dtype: str) -> Any:
    """The largest value of a dtype."""
    return tirx.infinity(dtype) if dtype.startswith("float") else tirx.max_value(dtype)


def _arg_reduction(name: str, better: Callable, worst: Callable) -> Op:
    def batch(batched: tuple[bool, ...], x: Array, *, axis: int) -> Array:
        return op(x, axis=axis + 1)

    op = register(
        Op(
            name,
            "reduction",
            _arg_shape(name),
            _arg_reducer(better, worst),
            inexpensive=False,
            batch=batch,
            precision="either",
        )
    )
    return op


argmax = _arg_reduction("argmax", lambda x, y: x > y, lowest)
argmin = _arg_reduction("argmin", lambda x, y: x < y, highest)
