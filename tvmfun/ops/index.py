"""Indexing with computed indices: gather, and its transpose scatter.

Valid indices are already non-negative. Gathering clamps the others to
the array; scattering drops their updates, as JAX does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import zeros
from tvmfun.core.expressions import dtype_name, plain
from tvmfun.core.op import Op, register
from tvmfun.core.trace import argument, producer
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.formula import hidden
from tvmfun.ops.parameters import Ints, Sizes
from tvmfun.ops.simplify import index_axis, made_by, number
from tvmfun.ops.tir import block, prim_func


def check_indices(name: str, indices: ShapeDtype) -> None:
    """Raises a ``DtypeError`` in the name of op ``name`` unless the indices are integers."""
    if not dtypes.is_integer(indices.dtype):
        raise DtypeError(name, "indices must be integers", got=repr(indices), hint="indices.astype('int32')")


def signed_index(index: Any) -> Any:
    """An index as int32 or int64, which can hold sizes; indices that are too large for these stay too large."""
    dtype = dtype_name(index)
    if dtype == "uint64":
        return tirx.Cast("int64", tirx.min(index, tirx.const(2**62, dtype)))
    if dtype in ("int32", "int64"):
        return index
    return tirx.Cast("int64" if dtype == "uint32" else "int32", index)


def clamp(index: Any, last: int) -> Any:
    """An index moved into the range from 0 to ``last``, also where a condition says that it is there.

    TVM would leave the clamp out behind such a condition, but kernels choose between numbers that they have read.
    """
    index = hidden(index)
    return tirx.max(tirx.min(index, expressions.scalar(last, dtype_name(index))), tirx.const(0, dtype_name(index)))


def is_inside(positions: list, sizes: Ints) -> Any:
    """Whether every index is within the size of its axis."""
    conditions = [tirx.And(p >= 0, p < size) for p, size in zip(positions, sizes, strict=True)]
    return tirx.all(*conditions) if conditions else tirx.const(True, "bool")


def no_elements(shape: Ints, dtype: str) -> te.Tensor:
    """A tensor expression for an array of size 0."""
    return te.compute(shape, lambda *i: tirx.const(0, dtype))


# -- gather: x[indices[..., 0], indices[..., 1], ...] ----------------------------------------------------------


def _depth(name: str, x: ShapeDtype, indices: ShapeDtype, batch: int) -> int:
    """The number of axes that indices address; raises if these or the shared axes do not exist."""
    check_indices(name, indices)
    depth = indices.shape[-1] if indices.ndim else None
    if type(depth) is not int or not 0 <= batch < indices.ndim or batch + depth > x.ndim:
        got = f"{indices} for {x}"
        raise ShapeError(name, f"the last axis of the indices must number axes after the first {batch}", got=got)
    if x.shape[:batch] != indices.shape[:batch]:
        raise ShapeError(name, f"the first {batch} axes must agree", got=f"{x} and {indices}")
    return depth


def _gather_shape(
    x: ShapeDtype, indices: ShapeDtype, *, mode: Literal["clip", "fill", "in_bounds"], batch: int = 0
) -> ShapeDtype:
    depth = _depth("gather", x, indices, batch)
    if mode != "fill" and 0 in x.shape[batch : batch + depth] and 0 not in indices.shape[:-1]:
        raise ShapeError("gather", "there is nothing to take from an axis of size 0", got=repr(x))
    return replace(x, shape=indices.shape[:-1] + x.shape[batch + depth :])


def _gather(x: te.Tensor, indices: te.Tensor, *, mode: str, batch: int = 0) -> te.Tensor:
    depth = plain(indices.shape[-1])
    shape = plain(tuple(x.shape))
    sizes = shape[batch : batch + depth]
    lead = indices.ndim - 1

    def element(*i):
        positions = [signed_index(indices(*i[:lead], k)) for k in range(depth)]
        clamped = [clamp(p, size - 1) for p, size in zip(positions, sizes, strict=True)]
        value = x(*i[:batch], *clamped, *i[lead:])
        if mode != "fill" or not depth:
            return value
        return tirx.if_then_else(is_inside(positions, sizes), value, tirx.const(0, dtype_name(x)))

    if 0 in shape:
        return no_elements((*indices.shape[:-1], *shape[batch + depth :]), dtype_name(x))
    return te.compute([*indices.shape[:-1], *shape[batch + depth :]], element)


def _last_indices(sizes: Ints, dtype: np.dtype) -> Any:
    """The last index along axes of these sizes, or the largest of the dtype if that is smaller."""
    most = int(np.iinfo(dtype).max)
    if not dims.is_dynamic(sizes):
        return np.asarray([min(max(size - 1, 0), most) for size in sizes], dtype)
    positions = [pw.minimum(shapes.dim_size(size=size - 1, dtype="int64"), np.int64(most)) for size in sizes]
    return shapes.concat(
        *(shapes.reshape(pw.astype(p, dtype=dtypes.NAMES[dtype]), shape=(1,)) for p in positions), axis=0
    )


def _gather_vjp(g: Array, out: Array, x: Array, indices: Array, *, mode: str, batch: int = 0) -> Array:
    depth = indices.shape[-1]
    if mode == "clip" and depth:
        last = _last_indices(x.shape[batch : batch + depth], indices.dtype)
        indices = pw.maximum(pw.minimum(indices, last), pw.constant(0, indices))
    if depth and math.prod(indices.shape[batch:-1]) == 1:
        return _at_one_index(g, x, indices, batch)
    return scatter(zeros(x), indices, g, mode="add", batch=batch)


def _at_one_index(g: Array, x: Array, indices: Array, batch: int) -> Array:
    """Zeros with ``g`` at one index per row: comparisons, which fuse, instead of memory for zeros and a scatter."""
    depth, common = indices.shape[-1], indices.shape[:batch]
    rows = shapes.reshape(indices, shape=(*common, depth))
    ones = (1,) * (x.ndim - batch)
    result = shapes.reshape(g, shape=(*common, *(1,) * depth, *x.shape[batch + depth :]))
    for k, size in enumerate(x.shape[batch : batch + depth]):
        part = shapes.slice(rows, start=(*(0,) * batch, k), stop=(*common, k + 1), step=(1,) * (batch + 1))
        counted = (*(1,) * (batch + k), size, *(1,) * (x.ndim - batch - k - 1))
        number = shapes.iota(shape=counted, axis=batch + k, dtype=dtypes.NAMES[indices.dtype])
        here = number == shapes.reshape(part, shape=(*common, *ones))
        result = pw.where(here, result, pw.constant(0, g))
    return result


def _gather_batch(batched: tuple[bool, ...], x: Array, indices: Array, *, mode: str, batch: int = 0) -> Array:
    if all(batched):
        return gather(x, indices, mode=mode, batch=batch + 1)
    if batched[1]:  # one more axis of indices, after those in common with x
        taken = gather(x, shapes.move_axis(indices, 0, batch), mode=mode, batch=batch)
        return shapes.move_axis(taken, batch, 0)
    # Batched `x` and shared indices: the batch axis becomes one more axis of the gathered slices.
    taken = gather(shapes.move_axis(x, 0, batch + indices.shape[-1]), indices, mode=mode, batch=batch)
    return shapes.move_axis(taken, indices.ndim - 1, 0)


def _gather_simplify(x: Any, indices: Any, *, mode: str, batch: int = 0) -> Any:
    """Simplifies ``x[arange(n), i]``, which takes from each row: an index that counts rows becomes a shared axis."""
    if batch and made_by(x, "reshape"):
        return _from_reshaped(argument(x, 0), x, indices, mode, batch)
    equation = producer(indices)
    if equation is None or equation.op is not shapes.concat or equation.params["axis"] != indices.ndim - 1:
        return None
    rows, *columns = (argument(indices, k) for k in range(len(equation.inputs)))
    counts = batch < indices.ndim - 1 and rows.shape[-1] == 1 and index_axis(rows) == batch
    if not counts or rows.shape[batch] != x.shape[batch]:
        return None
    return gather(x, shapes.concat(*columns, axis=indices.ndim - 1), mode=mode, batch=batch + 1)


def _from_reshaped(inner: Any, x: Any, indices: Any, mode: str, batch: int) -> Any:
    """Takes from an array of reshaped rows by taking from the rows and reshaping the fewer elements."""
    common = np.ndim(inner) - (x.ndim - batch)
    if common < 1 or dims.is_dynamic((*inner.shape, *indices.shape)) or inner.shape[common:] != x.shape[batch:]:
        return None
    lead, depth = indices.shape[batch:-1], indices.shape[-1]
    indices = shapes.reshape(indices, shape=(*inner.shape[:common], *lead, depth))
    taken = gather(inner, indices, mode=mode, batch=common)
    return shapes.reshape(taken, shape=(*x.shape[:batch], *lead, *x.shape[batch + depth :]))


#: ``gather(x, indices, mode=, batch=0)``: the last axis of ``indices`` addresses the axes of ``x`` that follow the
#: first ``batch`` ones, which both have in common. Indices outside the array are clamped (mode ``clip``), read 0
#: (``fill``), or are promised not to occur (``in_bounds``): then they are clamped, too, but get no cotangent.
gather = register(
    Op(
        "gather",
        "injective",
        _gather_shape,
        _gather,
        (_gather_vjp, None),
        inexpensive=False,
        batch=_gather_batch,
        simplify=_gather_simplify,
    )
)

# -- scatter: x combined with updates at indices ---------------------------------------------------------------

_COMBINE = {
    "set": lambda old, new: new,
    "add": pw.add.compute,
    "mul": pw.multiply.compute,
    "min": pw.minimum.compute,
    "max": pw.maximum.compute,
}


def _scatter_shape(
    x: ShapeDtype,
    indices: ShapeDtype,
    updates: ShapeDtype,
    *,
    mode: str,
    batch: int = 0,
    unique: bool = False,
    size: Sizes | None = None,
) -> ShapeDtype:
    if mode not in _COMBINE:
        raise ArgumentError("scatter", f"the mode is one of {', '.join(_COMBINE)}", got=repr(mode))
    if size is not None:
        if x.shape:
            raise ShapeError("scatter", "the value that fills an array must be a scalar", got=repr(x))
        x = replace(x, shape=size)
    depth = _depth("scatter", x, indices, batch)
    expected = indices.shape[:-1] + x.shape[batch + depth :]
    if updates.shape != expected:
        raise ShapeError("scatter", f"the updates must have shape {expected}", got=repr(updates))
    if updates.dtype != x.dtype or (x.dtype == dtypes.bool_ and mode != "set"):
        raise DtypeError("scatter", "the updates must have the dtype of the array", got=f"{updates} into {x}")
    return replace(x, weak=False)


def _scatter(
    x: ShapeDtype,
    indices: ShapeDtype,
    updates: ShapeDtype,
    *,
    mode: str,
    batch: int = 0,
    unique: bool = False,
    size: Ints | None = None,
) -> tirx.PrimFunc:
    full = x if size is None else replace(x, shape=size)
    depth = indices.shape[-1]
    sizes = full.shape[batch : batch + depth]
    common, lead, rest = indices.shape[:batch], indices.shape[batch:-1], full.shape[batch + depth :]

    def write(sources, result):
        old, where, new = sources

        def copy(point):
            T.buffer_store(result, old[point if size is None else ()], list(point))

        def update(point):
            if not unique:  # ordered axes come first
                point = (*point[len(lead) : len(lead) + batch], *point[: len(lead)], *point[len(lead) + batch :])
            at, column = point[: batch + len(lead)], point[batch + len(lead) :]
            positions = [signed_index(where[(*at, k)]) for k in range(depth)]
            clamped = (clamp(p, n - 1) for p, n in zip(positions, sizes, strict=True))
            target = [*at[:batch], *clamped, *column]
            with T.If(is_inside(positions, sizes)), T.Then():
                T.buffer_store(result, _COMBINE[mode](result[tuple(target)], new[point]), target)

        block("copy", [old], result, full.shape, copy)
        if full.size != 0 and unique:
            block("update", [where, new, result], result, (*common, *lead, *rest), update)
        elif full.size != 0:
            block("update", [where, new, result], result, (*common, *rest), update, ordered=lead)

    return prim_func([x, indices, updates], full, write)


def _broadcast_operand(x: Array, size: Ints | None) -> Array:
    """The array that updates go into."""
    return x if size is None else shapes.broadcast_to(x, shape=size)


def _scatter_simplify(x: Any, indices: Any, updates: Any, *, size: Ints | None = None, **params: Any) -> Any:
    """Replaces an array filled with a number by ``size`` and a scalar, which saves writing and copying it."""
    if size is None and np.ndim(x) and made_by(x, "broadcast_to") and number(argument(x, 0)) is not None:
        return scatter(number(argument(x, 0)), indices, updates, size=np.shape(x), **params)
    return None


def _is_extremum(x: Array, extremum: Array) -> Array:
    """1 where ``x`` is the extremum, else 0."""
    return pw.astype(x == extremum, dtype=dtypes.NAMES[x.dtype])


def _was_extremum(x: Array, out: Array) -> Array:
    """1 where an extremum is the old element, which may be NaN, else 0."""
    both_nan = pw.isnan(x) & pw.isnan(out)
    return pw.astype((x == out) | both_nan, dtype=dtypes.NAMES[x.dtype])


def _extremum_share(g: Array, out: Array, x: Array, indices: Array, updates: Array, mode: str, batch: int) -> Array:
    """The cotangent of each element, divided by the number of elements that attain its extremum."""
    taken = gather(out, indices, mode="fill", batch=batch)
    count = scatter(_was_extremum(x, out), indices, _is_extremum(updates, taken), mode="add", batch=batch)
    return g / pw.maximum(count, pw.constant(1, count))  # no update is equal to NaN


def _scatter_vjp_array(
    g: Array,
    out: Array,
    x: Array,
    indices: Array,
    updates: Array,
    *,
    mode: str,
    batch: int = 0,
    unique: bool = False,
    size: Ints | None = None,
) -> Array:
    shape, x = x.shape, _broadcast_operand(x, size)
    if mode == "set":
        g = scatter(g, indices, zeros(updates), mode="set", batch=batch, unique=unique)
    elif mode == "mul":
        g = scatter(g, indices, updates, mode="mul", batch=batch, unique=unique)
    elif mode != "add":
        g = _extremum_share(g, out, x, indices, updates, mode, batch) * _was_extremum(x, out)
    return pw.sum_to(g, shape)


def _scatter_vjp_updates(
    g: Array,
    out: Array,
    x: Array,
    indices: Array,
    updates: Array,
    *,
    mode: str,
    batch: int = 0,
    unique: bool = False,
    size: Ints | None = None,
) -> Array:
    x = _broadcast_operand(x, size)
    take = lambda y: gather(y, indices, mode="fill", batch=batch)
    if mode == "add" or (mode == "set" and unique):
        return take(g)
    if mode == "mul":
        return _product_cotangent(g, x, indices, updates, batch, unique)
    if mode in ("min", "max"):
        share = _extremum_share(g, out, x, indices, updates, mode, batch)
        return take(share) * _is_extremum(updates, take(out))
    # Only the last update of an index counts: scatter the numbers of the updates, and keep the updates that survive.
    lead = indices.shape[:-1]
    flat = shapes.iota(shape=(math.prod(lead),), axis=0, dtype="int32")
    number = shapes.reshape(flat, shape=lead)
    no_update = shapes.broadcast_to(np.int32(-1), shape=x.shape[: batch + indices.shape[-1]])
    winner = take(scatter(no_update, indices, number, mode="set", batch=batch))
    won = shapes.reshape(winner == number, shape=lead + (1,) * (g.ndim - batch - indices.shape[-1]))
    return pw.where(won, take(g), pw.constant(0, g))


def _product_cotangent(g: Array, x: Array, indices: Array, updates: Array, batch: int, unique: bool) -> Array:
    """The cotangent of each update of a product: times the array and the other updates of the same index."""
    take = lambda y: gather(y, indices, mode="fill", batch=batch)
    if unique:
        return take(g * x)
    # Divides an update out of the product; an update of 0 is excluded from the product in advance.
    is_zero = updates == 0
    safe = pw.where(is_zero, pw.constant(1, updates), updates)
    product = take(g * scatter(x, indices, safe, mode="mul", batch=batch))
    flags = pw.astype(is_zero, dtype="int32")
    # Counts start at 1, because `fill` reads 0 outside of the array: updates there, even NaN, get no cotangent.
    ones = shapes.broadcast_to(np.int32(1), shape=x.shape)
    zeros_there = take(scatter(ones, indices, flags, mode="add", batch=batch))
    alone = zeros_there == flags + 1
    return pw.where(alone, product / safe, pw.constant(0, g))


def _scatter_batch(
    batched: tuple[bool, ...],
    x: Array,
    indices: Array,
    updates: Array,
    *,
    mode: str,
    batch: int = 0,
    unique: bool = False,
    size: Ints | None = None,
) -> Array:
    if size is not None and not batched[0]:
        rest = shapes.repeat_unbatched(batched[1:], (indices, updates))
        return scatter(x, *rest, mode=mode, batch=batch + 1, unique=unique, size=(rest[0].shape[0], *size))
    if size is not None:
        x = shapes.reshape(x, shape=(x.shape[0], *(1,) * len(size)))
        x = shapes.broadcast_to(x, shape=(x.shape[0], *size))
    full = shapes.repeat_unbatched(batched, (x, indices, updates))
    return scatter(*full, mode=mode, batch=batch + 1, unique=unique)


#: ``scatter(x, indices, updates, mode=, batch=0, unique=False)``: ``x`` with ``updates`` combined into the elements
#: that :func:`gather` reads: replaced (mode ``set``; the last wins), added (``add``), multiplied (``mul``), or the
#: smaller or larger kept (``min``, ``max``), one after the other. Updates outside the array are dropped. ``unique``
#: promises that no index occurs twice, so that updates can run in parallel. With ``size``, a shape, ``x`` is a scalar
#: that fills an array.
#:
#: Ties of ``min`` and ``max`` share the cotangent. The second derivative of ``mul`` is right where no update is 0.
scatter = register(
    Op(
        "scatter",
        "opaque",
        _scatter_shape,
        _scatter,
        (_scatter_vjp_array, None, _scatter_vjp_updates),
        batch=_scatter_batch,
        simplify=_scatter_simplify,
        flops=lambda out, x, indices, updates, *, mode, **params: 0 if mode == "set" else updates.size,
        overwrites=0,
    )
)
