"""Slices that begin at computed indices, read and written: each other's transposes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import zeros
from tvmfun.core.expressions import dtype_name, plain
from tvmfun.core.op import Op, register
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import shape as shapes
from tvmfun.ops.index import check_indices, clamp, is_inside, no_elements, signed_index
from tvmfun.ops.parameters import Ints, Sizes
from tvmfun.ops.tir import block, prim_func


def _check_starts(name: str, x: ShapeDtype, starts: tuple[ShapeDtype, ...], sizes: Ints) -> Ints:
    """The batch axes that an array and its starts have in common."""
    for start in starts:
        check_indices(name, start)
    batch = starts[0].shape if starts else ()
    fits = all(size <= n for size, n in zip(sizes, x.shape[len(batch) :], strict=False))
    if x.ndim != len(batch) + len(sizes) or len(sizes) != len(starts) or not fits or any(n < 0 for n in sizes):
        raise ShapeError(name, "there must be one start and size per axis, within the array", got=f"{sizes} of {x}")
    if any(start.shape != batch for start in starts) or x.shape[: len(batch)] != batch:
        raise ShapeError(name, "starts are scalars, or arrays over the first axes", got=", ".join(map(str, starts)))
    return batch


def _begins(starts: tuple[te.Tensor, ...], at: tuple, shape: Ints, sizes: Ints) -> list:
    """The clamped first indices of a slice, as int32."""
    return [
        tirx.Cast("int32", clamp(signed_index(start(*at)), size - n))
        for start, size, n in zip(starts, shape, sizes, strict=True)
    ]


def _dynamic_slice_shape(x: ShapeDtype, *starts: ShapeDtype, sizes: Sizes) -> ShapeDtype:
    batch = _check_starts("dynamic_slice", x, starts, sizes)
    return replace(x, shape=(*batch, *sizes))


def _dynamic_slice(x: te.Tensor, *starts: te.Tensor, sizes: Ints) -> te.Tensor:
    lead = x.ndim - len(sizes)
    shape = plain(tuple(x.shape))

    def element(*i):
        begins = _begins(starts, i[:lead], shape[lead:], sizes)
        return x(*i[:lead], *(begin + j for begin, j in zip(begins, i[lead:], strict=True)))

    full = (*shape[:lead], *sizes)
    return no_elements(full, dtype_name(x)) if 0 in full else te.compute(full, element)


def _dynamic_slice_vjp(argnum: int, g: Array, out: Array, x: Array, *starts: Array, sizes: Ints) -> Array:
    return dynamic_update_slice(zeros(x), g, *starts)


def _shared_starts(batched: tuple[bool, ...], starts: tuple[Array, ...], size: int) -> tuple[list[Array], bool]:
    """Starts with the batch axis, or with one more start at 0 if they are scalars without it."""
    if not any(batched) and not (starts and np.ndim(starts[0])):
        return [np.int32(0), *starts], True
    repeated = lambda start: shapes.broadcast_to(start, shape=(size, *np.shape(start)))
    return [start if flag else repeated(start) for flag, start in zip(batched, starts, strict=True)], False


def _dynamic_slice_batch(batched: tuple[bool, ...], x: Array, *starts: Array, sizes: Ints) -> Array:
    size = next(a.shape[0] for flag, a in zip(batched, (x, *starts), strict=True) if flag)
    full, is_axis = _shared_starts(batched[1:], starts, size)
    x = x if batched[0] else shapes.broadcast_to(x, shape=(size, *x.shape))
    return dynamic_slice(x, *full, sizes=(size, *sizes) if is_axis else sizes)


#: ``dynamic_slice(x, *starts, sizes=)``: the part of ``x`` of the given sizes that begins at ``starts``, one scalar
#: per axis, moved so that it is inside. Starts with axes are batched: their axes are the first ones of ``x``.
dynamic_slice = register(
    Op(
        "dynamic_slice",
        "injective",
        _dynamic_slice_shape,
        _dynamic_slice,
        _dynamic_slice_vjp,
        batch=_dynamic_slice_batch,
    )
)


def _update_slice_shape(x: ShapeDtype, update: ShapeDtype, *starts: ShapeDtype) -> ShapeDtype:
    batch = starts[0].ndim if starts else 0
    _check_starts("dynamic_update_slice", x, starts, update.shape[batch:])
    if update.shape[:batch] != x.shape[:batch]:
        raise ShapeError("dynamic_update_slice", f"the first {batch} axes must agree", got=f"{x} and {update}")
    if update.dtype != x.dtype:
        raise DtypeError(
            "dynamic_update_slice", "the update must have the dtype of the array", got=f"{update} into {x}"
        )
    return replace(x, weak=False)


def _update_slice(x: te.Tensor, update: te.Tensor, *starts: te.Tensor) -> te.Tensor:
    lead = x.ndim - len(starts)
    shape, sizes = plain(tuple(x.shape)), plain(tuple(update.shape))[lead:]

    def element(*i):
        begins = _begins(starts, i[:lead], shape[lead:], sizes)
        positions = [j - begin for j, begin in zip(i[lead:], begins, strict=True)]
        # An axis that is replaced in full begins at 0.
        partial = [k for k, (size, n) in enumerate(zip(sizes, shape[lead:], strict=True)) if size != n]
        positions = [position if k in partial else i[lead + k] for k, position in enumerate(positions)]
        new = update(*i[:lead], *positions)
        if not partial:
            return new
        return tirx.if_then_else(
            is_inside([positions[k] for k in partial], tuple(sizes[k] for k in partial)), new, x(*i)
        )

    return te.compute(shape, (lambda *i: x(*i)) if 0 in sizes else element)


def _update_slice_vjp(argnum: int, g: Array, out: Array, x: Array, update: Array, *starts: Array) -> Array:
    if argnum == 0:
        return dynamic_update_slice(g, zeros(update), *starts)
    return dynamic_slice(g, *starts, sizes=update.shape[update.ndim - len(starts) :])


def _update_slice_batch(batched: tuple[bool, ...], x: Array, update: Array, *starts: Array) -> Array:
    size = next(a.shape[0] for flag, a in zip(batched, (x, update, *starts), strict=True) if flag)
    full, _ = _shared_starts(batched[2:], starts, size)
    x, update = (
        a if flag else shapes.broadcast_to(a, shape=(size, *np.shape(a)))
        for flag, a in zip(batched[:2], (x, update), strict=True)
    )
    return dynamic_update_slice(x, update, *full)


#: ``dynamic_update_slice(x, update, *starts)``: ``x`` with ``update`` written to where ``dynamic_slice`` reads.
dynamic_update_slice = register(
    Op(
        "dynamic_update_slice",
        "injective",
        _update_slice_shape,
        _update_slice,
        _update_slice_vjp,
        batch=_update_slice_batch,
    )
)


def _written_slice(x: ShapeDtype, update: ShapeDtype, *starts: ShapeDtype) -> tirx.PrimFunc:
    lead = x.ndim - len(starts)

    def write(sources, result):
        old, new, *begins = sources

        def copy(point):
            T.buffer_store(result, old[point], list(point))

        def put(point):
            at = point[:lead]
            sizes = zip(begins, x.shape[lead:], update.shape[lead:], strict=True)
            first = [tirx.Cast("int32", clamp(signed_index(begin[at]), size - n)) for begin, size, n in sizes]
            target = [*at, *(begin + i for begin, i in zip(first, point[lead:], strict=True))]
            T.buffer_store(result, new[point], target)

        block("copy", [old], result, x.shape, copy)
        block("update", [*begins, new], result, update.shape, put)

    return prim_func([x, update, *starts], x, write)


#: The record of :data:`dynamic_update_slice` as loops over the update, which can be written over ``x``. Only lowering
#: knows it.
slice_update = Op("dynamic_update_slice", "opaque", _update_slice_shape, _written_slice, overwrites=0)
