"""Indexing with arrays: gather, its transpose scatter, and sorting.

Indices are int32 or int64 and already non-negative for valid places. Gathering clamps them to the array;
scattering drops updates outside it, as JAX does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, dtype_name, plain, register
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.loops import block, loops


def _check_indices(name: str, indices: ShapeDtype) -> None:
    if not dtypes.is_integer(indices.dtype):
        raise DtypeError(name, "indices must be integers", got=repr(indices), hint="indices.astype('int32')")


def zeros_like(x: Array) -> Array:
    """Zeros of the shape and dtype of ``x``."""
    return shapes.broadcast_to(pw.constant(0, x), shape=x.shape)


def _clamp(index: Any, size: int) -> Any:
    return tirx.max(tirx.min(index, tirx.const(size - 1, dtype_name(index))), tirx.const(0, dtype_name(index)))


def _inside(places: list, sizes: tuple[int, ...]) -> Any:
    return tirx.all(*(tirx.And(p >= 0, p < size) for p, size in zip(places, sizes, strict=False)))


# -- gather: x[indices[..., 0], indices[..., 1], ...] ----------------------------------------------------------


def _gather_shape(x: ShapeDtype, indices: ShapeDtype, *, mode: str) -> ShapeDtype:
    _check_indices("gather", indices)
    depth = indices.shape[-1]
    if depth > x.ndim:
        raise ShapeError("gather", f"{depth} indices are too many", got=repr(x))
    if mode == "clip" and 0 in x.shape[:depth] and 0 not in indices.shape[:-1]:
        raise ShapeError("gather", "there is nothing to take from an axis of size 0", got=repr(x))
    return replace(x, shape=indices.shape[:-1] + x.shape[depth:], weak=False)


def _gather(x: te.Tensor, indices: te.Tensor, *, mode: str) -> te.Tensor:
    depth = plain(indices.shape[-1])
    sizes = plain(tuple(x.shape))
    batch = indices.ndim - 1

    def element(*i):
        places = [indices(*i[:batch], k) for k in range(depth)]
        clamped = [_clamp(p, size) for p, size in zip(places, sizes, strict=False)]
        value = x(*clamped, *i[batch:])
        if mode == "clip" or not depth:
            return value
        return tirx.if_then_else(_inside(places, sizes), value, tirx.const(0, dtype_name(x)))

    if 0 in sizes:
        return te.compute([*indices.shape[:-1], *x.shape[depth:]], lambda *i: tirx.const(0, dtype_name(x)))
    return te.compute([*indices.shape[:-1], *x.shape[depth:]], element)


def _gather_vjp(g: Array, out: Array, x: Array, indices: Array, *, mode: str) -> Array:
    if mode == "clip" and indices.shape[-1]:
        last = np.asarray([max(size - 1, 0) for size in x.shape[: indices.shape[-1]]], indices.dtype)
        indices = pw.maximum(pw.minimum(indices, last), pw.constant(0, indices))
    return scatter(zeros_like(x), indices, g, mode="add")


#: ``gather(x, indices, mode=)``: the last axis of ``indices`` addresses the leading axes of ``x``. Places outside
#: the array are clamped to it (mode ``clip``) or read as 0 (mode ``fill``).
gather = register(Op("gather", "injective", _gather_shape, _gather, (_gather_vjp, None), inexpensive=False))

# -- scatter: x with updates put or added at indices -----------------------------------------------------------

_COMBINE = {"set": lambda old, new: new, "add": lambda old, new: old + new}


def _scatter_shape(x: ShapeDtype, indices: ShapeDtype, updates: ShapeDtype, *, mode: str) -> ShapeDtype:
    _check_indices("scatter", indices)
    depth = indices.shape[-1]
    expected = indices.shape[:-1] + x.shape[depth:]
    if updates.shape != expected:
        raise ShapeError("scatter", f"the updates must have shape {expected}", got=repr(updates))
    if updates.dtype != x.dtype:
        raise DtypeError("scatter", "the updates must have the dtype of the array", got=f"{updates} into {x}")
    return replace(x, weak=False)


def _scatter(x: ShapeDtype, indices: ShapeDtype, updates: ShapeDtype, *, mode: str) -> tirx.PrimFunc:
    depth = indices.shape[-1]
    lead, rest = indices.shape[:-1], x.shape[depth:]

    def write(sources, result):
        old, where, new = sources

        def copy(point):
            T.buffer_store(result, old[point], list(point))

        def update(point):
            at, column = point[: len(lead)], point[len(lead) :]
            places = [where[(*at, k)] for k in range(depth)]
            target = [*(_clamp(p, size) for p, size in zip(places, x.shape, strict=False)), *column]
            with T.If(_inside(places, x.shape)), T.Then():
                T.buffer_store(result, _COMBINE[mode](result[tuple(target)], new[point]), target)

        block("copy", [old], result, x.shape, copy)
        if x.size:
            block("update", [where, new, result], result, rest, update, ordered=lead)

    return loops([x, indices, updates], x, write)


def _scatter_vjp_array(g: Array, out: Array, x: Array, indices: Array, updates: Array, *, mode: str) -> Array:
    return g if mode == "add" else scatter(g, indices, zeros_like(updates), mode="set")


def _scatter_vjp_updates(g: Array, out: Array, x: Array, indices: Array, updates: Array, *, mode: str) -> Array:
    taken = gather(g, indices, mode="fill")
    if mode == "add":
        return taken
    # Of several updates of one place only the last has an influence: number them and see whose number stays.
    lead = indices.shape[:-1]
    flat = shapes.iota(shape=(math.prod(lead),), axis=0, dtype="int32")
    number = shapes.reshape(flat, shape=lead)
    nobody = shapes.broadcast_to(np.int32(-1), shape=x.shape[: indices.shape[-1]])
    winner = gather(scatter(nobody, indices, number, mode="set"), indices, mode="fill")
    won = shapes.reshape(pw.equal(winner, number), shape=lead + (1,) * (g.ndim - indices.shape[-1]))
    return pw.where(won, taken, pw.constant(0, g))


#: ``scatter(x, indices, updates, mode=)``: ``x`` with ``updates`` put (mode ``set``; the last wins) or added (mode
#: ``add``, one after the other) at the places :func:`gather` reads. Updates outside the array are dropped.
scatter = register(Op("scatter", "opaque", _scatter_shape, _scatter, (_scatter_vjp_array, None, _scatter_vjp_updates)))

# -- argsort ---------------------------------------------------------------------------------------------------


def _argsort_shape(x: ShapeDtype) -> ShapeDtype:
    if not x.ndim:
        raise ShapeError("argsort", "there is no axis to sort along", got=repr(x))
    return ShapeDtype(x.shape, dtypes.int32)


def _argsort(x: ShapeDtype) -> tirx.PrimFunc:
    """Merge sort of each row, bottom up: stable, and the same on every device."""
    rows, n = x.shape[:-1], x.shape[-1]
    passes = max(0, (n - 1).bit_length())
    int32 = lambda value: tirx.const(value, "int32")

    def write(sources, result):
        (values,) = sources

        def sort_row(row):
            order = T.sblock_alloc_buffer((2, max(n, 1)), "int32", scope="local")
            state = T.sblock_alloc_buffer((2,), "int32", scope="local")
            with T.serial(0, n) as i:
                T.buffer_store(order, i, [0, i])
            for step in range(passes):
                width, source, target = 1 << step, step % 2, 1 - step % 2
                with T.serial(0, -(-n // (2 * width))) as pair:
                    low = pair * (2 * width)
                    middle = tirx.min(low + width, int32(n))
                    high = tirx.min(low + 2 * width, int32(n))
                    T.buffer_store(state, low, [0])
                    T.buffer_store(state, middle, [1])
                    with T.serial(0, 2 * width) as k, T.If(low + k < high), T.Then():
                        left, right = state[0], state[1]
                        a = values[(*row, order[source, tirx.min(left, int32(n - 1))])]
                        b = values[(*row, order[source, tirx.min(right, int32(n - 1))])]
                        take_left = tirx.And(left < middle, tirx.Or(right >= high, _not_after(a, b)))
                        with T.If(take_left):
                            with T.Then():
                                T.buffer_store(order, order[source, left], [target, low + k])
                                T.buffer_store(state, left + 1, [0])
                            with T.Else():
                                T.buffer_store(order, order[source, right], [target, low + k])
                                T.buffer_store(state, right + 1, [1])
            with T.serial(0, n) as i:
                T.buffer_store(result, order[passes % 2, i], [*row, i])

        block("sort", sources, result, rows, sort_row)

    return loops([x], _argsort_shape(x), write)


def _not_after(a: Any, b: Any) -> Any:
    """Whether ``a`` may stay before ``b``; NaNs go last."""
    if pw.is_float(a):
        return tirx.Or(a <= b, pw.isnan_formula(b))
    return a <= b


#: ``argsort(x)``: the stable order of the elements along the last axis.
argsort = register(Op("argsort", "opaque", _argsort_shape, _argsort, (None,)))
