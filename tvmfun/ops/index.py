"""Indexing with computed places: gather and its transpose scatter, dynamic slices, and sorting.

Places of ``gather`` and ``scatter`` are already non-negative where they are valid. Gathering clamps the others to
the array; scattering drops their updates, as JAX does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core import dims, expressions
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name, plain
from tvmfun.core.op import Op, register
from tvmfun.core.trace import argument
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.loops import block, loops
from tvmfun.ops.simplify import made_by, number

Ints = tuple[int, ...]


def _check_indices(name: str, indices: ShapeDtype) -> None:
    if not dtypes.is_integer(indices.dtype):
        raise DtypeError(name, "indices must be integers", got=repr(indices), hint="indices.astype('int32')")


def zeros_like(x: Array) -> Array:
    """Zeros of the shape and dtype of ``x``."""
    return shapes.broadcast_to(pw.constant(0, x), shape=x.shape)


def _signed(index: Any) -> Any:
    """An index as int32 or int64, in which sizes can be written; those too large for that stay too large."""
    dtype = dtype_name(index)
    if dtype == "uint64":
        return tirx.Cast("int64", tirx.min(index, tirx.const(2**62, dtype)))
    if dtype in ("int32", "int64"):
        return index
    return tirx.Cast("int64" if dtype == "uint32" else "int32", index)


def _clamp(index: Any, last: int) -> Any:
    return tirx.max(tirx.min(index, expressions.scalar(last, dtype_name(index))), tirx.const(0, dtype_name(index)))


def _inside(places: list, sizes: Ints) -> Any:
    conditions = [tirx.And(p >= 0, p < size) for p, size in zip(places, sizes, strict=True)]
    return tirx.all(*conditions) if conditions else tirx.const(True, "bool")


def _nothing(shape: Ints, dtype: str) -> te.Tensor:
    return te.compute(shape, lambda *i: tirx.const(0, dtype))


# -- gather: x[indices[..., 0], indices[..., 1], ...] ----------------------------------------------------------


def _gather_shape(x: ShapeDtype, indices: ShapeDtype, *, mode: str, batch: int = 0) -> ShapeDtype:
    _check_indices("gather", indices)
    depth = indices.shape[-1]
    if batch + depth > x.ndim:
        raise ShapeError("gather", f"{depth} indices are too many", got=repr(x))
    if x.shape[:batch] != indices.shape[:-1][:batch]:
        raise ShapeError("gather", f"the first {batch} axes must agree", got=f"{x} and {indices}")
    if mode != "fill" and 0 in x.shape[batch : batch + depth] and 0 not in indices.shape[:-1]:
        raise ShapeError("gather", "there is nothing to take from an axis of size 0", got=repr(x))
    return replace(x, shape=indices.shape[:-1] + x.shape[batch + depth :], weak=False)


def _gather(x: te.Tensor, indices: te.Tensor, *, mode: str, batch: int = 0) -> te.Tensor:
    depth = plain(indices.shape[-1])
    shape = plain(tuple(x.shape))
    sizes = shape[batch : batch + depth]
    lead = indices.ndim - 1

    def element(*i):
        places = [_signed(indices(*i[:lead], k)) for k in range(depth)]
        clamped = [_clamp(p, size - 1) for p, size in zip(places, sizes, strict=True)]
        value = x(*i[:batch], *clamped, *i[lead:])
        if mode != "fill" or not depth:
            return value
        return tirx.if_then_else(_inside(places, sizes), value, tirx.const(0, dtype_name(x)))

    if 0 in shape:
        return _nothing((*indices.shape[:-1], *shape[batch + depth :]), dtype_name(x))
    return te.compute([*indices.shape[:-1], *shape[batch + depth :]], element)


def _last_places(sizes: Ints, dtype: np.dtype) -> Any:
    """The last place along axes of the given sizes; one that does not fit the dtype is not needed."""
    most = int(np.iinfo(dtype).max)
    if not dims.is_dynamic(sizes):
        return np.asarray([min(max(size - 1, 0), most) for size in sizes], dtype)
    places = [pw.minimum(shapes.dim_size(size=size - 1, dtype="int64"), np.int64(most)) for size in sizes]
    return shapes.concat(*(shapes.reshape(pw.astype(p, dtype=dtypes.NAMES[dtype]), shape=(1,)) for p in places), axis=0)


def _gather_vjp(g: Array, out: Array, x: Array, indices: Array, *, mode: str, batch: int = 0) -> Array:
    depth = indices.shape[-1]
    if mode == "clip" and depth:
        last = _last_places(x.shape[batch : batch + depth], indices.dtype)
        indices = pw.maximum(pw.minimum(indices, last), pw.constant(0, indices))
    if depth and math.prod(indices.shape[batch:-1]) == 1:
        return _at_one_place(g, x, indices, batch)
    return scatter(zeros_like(x), indices, g, mode="add", batch=batch)


def _at_one_place(g: Array, x: Array, indices: Array, batch: int) -> Array:
    """Zeros but for ``g`` at one place per row: comparisons, which fuse, instead of memory for zeros and a scatter."""
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
    if batched[1]:  # one more axis of places, behind those in common with x
        taken = gather(x, shapes.move_axis(indices, 0, batch), mode=mode, batch=batch)
        return shapes.move_axis(taken, batch, 0)
    # One more axis of what is taken.
    taken = gather(shapes.move_axis(x, 0, batch + indices.shape[-1]), indices, mode=mode, batch=batch)
    return shapes.move_axis(taken, indices.ndim - 1, 0)


#: ``gather(x, indices, mode=, batch=0)``: the last axis of ``indices`` addresses the axes of ``x`` that follow the
#: first ``batch`` ones, which both have in common. Places outside the array are clamped to it (mode ``clip``), read as
#: 0 (``fill``), or there should be none (``in_bounds``): then they are clamped, but no cotangent gets where they lead.
gather = register(
    Op("gather", "injective", _gather_shape, _gather, (_gather_vjp, None), inexpensive=False, batch=_gather_batch)
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
    size: Ints | None = None,
) -> ShapeDtype:
    _check_indices("scatter", indices)
    if mode not in _COMBINE:
        raise ArgumentError("scatter", f"the mode is one of {', '.join(_COMBINE)}", got=repr(mode))
    if size is not None:
        if x.shape:
            raise ShapeError("scatter", "what fills an array is a scalar", got=repr(x))
        x = replace(x, shape=size)
    depth = indices.shape[-1]
    if x.shape[:batch] != indices.shape[:-1][:batch]:
        raise ShapeError("scatter", f"the first {batch} axes must agree", got=f"{x} and {indices}")
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
            places = [_signed(where[(*at, k)]) for k in range(depth)]
            clamped = (_clamp(p, n - 1) for p, n in zip(places, sizes, strict=True))
            target = [*at[:batch], *clamped, *column]
            with T.If(_inside(places, sizes)), T.Then():
                T.buffer_store(result, _COMBINE[mode](result[tuple(target)], new[point]), target)

        block("copy", [old], result, full.shape, copy)
        if full.size != 0 and unique:
            block("update", [where, new, result], result, (*common, *lead, *rest), update)
        elif full.size != 0:
            block("update", [where, new, result], result, (*common, *rest), update, ordered=lead)

    return loops([x, indices, updates], full, write)


def _filled(x: Array, size: Ints | None) -> Array:
    """The array that updates go into."""
    return x if size is None else shapes.broadcast_to(x, shape=size)


def _scatter_simplify(x: Any, indices: Any, updates: Any, *, size: Ints | None = None, **params: Any) -> Any:
    """What is filled with a number is not first written to memory and then copied."""
    if size is None and np.ndim(x) and made_by(x, "broadcast_to") and number(argument(x, 0)) is not None:
        return scatter(number(argument(x, 0)), indices, updates, size=np.shape(x), **params)
    return None


def _chosen(x: Array, extremum: Array) -> Array:
    """1 where ``x`` is the extremum, else 0."""
    return pw.astype(x == extremum, dtype=dtypes.NAMES[x.dtype])


def _chosen_before(x: Array, out: Array) -> Array:
    """1 where an extremum is the element that was there, which may be NaN, else 0."""
    both_nan = pw.isnan(x) & pw.isnan(out)
    return pw.astype((x == out) | both_nan, dtype=dtypes.NAMES[x.dtype])


def _extremum_share(g: Array, out: Array, x: Array, indices: Array, updates: Array, mode: str, batch: int) -> Array:
    """The cotangent of each place, divided by the number of elements that attain its extremum."""
    taken = gather(out, indices, mode="fill", batch=batch)
    count = scatter(_chosen_before(x, out), indices, _chosen(updates, taken), mode="add", batch=batch)
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
    shape, x = x.shape, _filled(x, size)
    if mode == "set":
        g = scatter(g, indices, zeros_like(updates), mode="set", batch=batch, unique=unique)
    elif mode == "mul":
        g = scatter(g, indices, updates, mode="mul", batch=batch, unique=unique)
    elif mode != "add":
        g = _extremum_share(g, out, x, indices, updates, mode, batch) * _chosen_before(x, out)
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
    x = _filled(x, size)
    take = lambda y: gather(y, indices, mode="fill", batch=batch)
    if mode == "add" or (mode == "set" and unique):
        return take(g)
    if mode == "mul":
        return _others(g, x, indices, updates, batch, unique)
    if mode in ("min", "max"):
        share = _extremum_share(g, out, x, indices, updates, mode, batch)
        return take(share) * _chosen(updates, take(out))
    # Of several updates of one place only the last has an influence: number them and see whose number stays.
    lead = indices.shape[:-1]
    flat = shapes.iota(shape=(math.prod(lead),), axis=0, dtype="int32")
    number = shapes.reshape(flat, shape=lead)
    nobody = shapes.broadcast_to(np.int32(-1), shape=x.shape[: batch + indices.shape[-1]])
    winner = take(scatter(nobody, indices, number, mode="set", batch=batch))
    won = shapes.reshape(winner == number, shape=lead + (1,) * (g.ndim - batch - indices.shape[-1]))
    return pw.where(won, take(g), pw.constant(0, g))


def _others(g: Array, x: Array, indices: Array, updates: Array, batch: int, unique: bool) -> Array:
    """The cotangent of each update of a product, which the array and the place's other updates multiply."""
    take = lambda y: gather(y, indices, mode="fill", batch=batch)
    if unique:
        return take(g * x)
    # Divides an update out of the product, and 0 out of a product in which it is left out in the first place.
    is_zero = updates == 0
    safe = pw.where(is_zero, pw.constant(1, updates), updates)
    product = take(g * scatter(x, indices, safe, mode="mul", batch=batch))
    flags = pw.astype(is_zero, dtype="int32")
    # Counted from 1, since 0 is read outside of the array: an update there, even NaN, has no cotangent.
    ones = shapes.broadcast_to(np.int32(1), shape=x.shape)
    zeros = take(scatter(ones, indices, flags, mode="add", batch=batch))
    alone = zeros == flags + 1
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


#: ``scatter(x, indices, updates, mode=, batch=0, unique=False)``: ``x`` with ``updates`` combined into the places that
#: :func:`gather` reads: put there (mode ``set``; the last wins), added (``add``), multiplied (``mul``), or the smaller
#: or larger kept (``min``, ``max``), one after the other. Updates outside the array are dropped. ``unique`` promises
#: that no place is named twice, so that updates can run in parallel. With ``size``, a shape, ``x`` is a scalar that
#: fills an array.
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

# -- dynamic_slice and dynamic_update_slice: each other's transposes -------------------------------------------


def _check_starts(name: str, x: ShapeDtype, starts: tuple[ShapeDtype, ...], sizes: Ints) -> Ints:
    """The batch axes that an array and its starts have in common."""
    for start in starts:
        _check_indices(name, start)
    batch = starts[0].shape if starts else ()
    fits = all(size <= n for size, n in zip(sizes, x.shape[len(batch) :], strict=False))
    if x.ndim != len(batch) + len(sizes) or len(sizes) != len(starts) or not fits or any(n < 0 for n in sizes):
        raise ShapeError(name, "there must be one start and size per axis, within the array", got=f"{sizes} of {x}")
    if any(start.shape != batch for start in starts) or x.shape[: len(batch)] != batch:
        raise ShapeError(name, "starts are scalars, or arrays over the first axes", got=", ".join(map(str, starts)))
    return batch


def _begins(starts: tuple[te.Tensor, ...], at: tuple, shape: Ints, sizes: Ints) -> list:
    """The clamped first places of a slice, as int32."""
    return [
        tirx.Cast("int32", _clamp(_signed(start(*at)), size - n))
        for start, size, n in zip(starts, shape, sizes, strict=True)
    ]


def _dynamic_slice_shape(x: ShapeDtype, *starts: ShapeDtype, sizes: Ints) -> ShapeDtype:
    batch = _check_starts("dynamic_slice", x, starts, sizes)
    return replace(x, shape=(*batch, *sizes), weak=False)


def _dynamic_slice(x: te.Tensor, *starts: te.Tensor, sizes: Ints) -> te.Tensor:
    lead = x.ndim - len(sizes)
    shape = plain(tuple(x.shape))

    def element(*i):
        begins = _begins(starts, i[:lead], shape[lead:], sizes)
        return x(*i[:lead], *(begin + j for begin, j in zip(begins, i[lead:], strict=True)))

    full = (*shape[:lead], *sizes)
    return _nothing(full, dtype_name(x)) if 0 in full else te.compute(full, element)


def _dynamic_slice_vjp(argnum: int, g: Array, out: Array, x: Array, *starts: Array, sizes: Ints) -> Array:
    return dynamic_update_slice(zeros_like(x), g, *starts)


def _shared_starts(batched: tuple[bool, ...], starts: tuple[Array, ...], size: int) -> tuple[list[Array], bool]:
    """Starts with the batch axis, or one more start, at 0, if they are scalars without it."""
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
#: per axis, moved so that it lies inside. Starts with axes of their own are for the first axes of ``x``, one by one.
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
        places = [j - begin for j, begin in zip(i[lead:], begins, strict=True)]
        # An axis that is replaced in full begins at 0.
        partial = [k for k, (size, n) in enumerate(zip(sizes, shape[lead:], strict=True)) if size != n]
        places = [place if k in partial else i[lead + k] for k, place in enumerate(places)]
        new = update(*i[:lead], *places)
        if not partial:
            return new
        return tirx.if_then_else(_inside([places[k] for k in partial], tuple(sizes[k] for k in partial)), new, x(*i))

    return te.compute(shape, (lambda *i: x(*i)) if 0 in sizes else element)


def _update_slice_vjp(argnum: int, g: Array, out: Array, x: Array, update: Array, *starts: Array) -> Array:
    if argnum == 0:
        return dynamic_update_slice(g, zeros_like(update), *starts)
    return dynamic_slice(g, *starts, sizes=update.shape[update.ndim - len(starts) :])


def _update_slice_batch(batched: tuple[bool, ...], x: Array, update: Array, *starts: Array) -> Array:
    size = next(a.shape[0] for flag, a in zip(batched, (x, update, *starts), strict=True) if flag)
    full, _ = _shared_starts(batched[2:], starts, size)
    x, update = (
        a if flag else shapes.broadcast_to(a, shape=(size, *np.shape(a)))
        for flag, a in zip(batched[:2], (x, update), strict=True)
    )
    return dynamic_update_slice(x, update, *full)


#: ``dynamic_update_slice(x, update, *starts)``: ``x`` with ``update`` in place of what ``dynamic_slice`` reads.
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

# -- argsort ---------------------------------------------------------------------------------------------------

# Rows up to this length are sorted by insertion.
_SHORT = 48
_DIGITS = 256


def _argsort_shape(x: ShapeDtype) -> ShapeDtype:
    if not x.ndim:
        raise ShapeError("argsort", "there is no axis to sort along", got=repr(x))
    return ShapeDtype(x.shape, dtypes.int32)


def sort_key(x: Any) -> Any:
    """An unsigned integer for each value, in the order of the values: 0 and -0 equal, NaNs equal and last."""
    dtype = dtype_name(x)
    if dtype == "bool":
        return tirx.Select(x, tirx.const(1, "uint32"), tirx.const(0, "uint32"))
    if pw.is_float(x):
        if dtype != "float64":
            x, dtype = tirx.Cast("float32", x), "float32"
        uint, width = ("uint32", 32) if dtype == "float32" else ("uint64", 64)
        bits = tirx.reinterpret(uint, x)
        sign = tirx.const(1 << (width - 1), uint)
        ordered = tirx.Select(bits < sign, bits | sign, ~bits)
        is_zero = tirx.EQ(bits & tirx.const((1 << (width - 1)) - 1, uint), tirx.const(0, uint))
        return tirx.Select(pw.isnan_formula(x), tirx.const((1 << width) - 1, uint), tirx.Select(is_zero, sign, ordered))
    width = np.dtype(dtype).itemsize * 8
    if dtype.startswith("int"):
        x = tirx.reinterpret(f"uint{width}", x) ^ tirx.const(1 << (width - 1), f"uint{width}")
    return tirx.Cast("uint64" if width == 64 else "uint32", x)


def _key_bits(dtype: np.dtype) -> int:
    """How many bits of a key of :func:`sort_key` matter."""
    if dtypes.is_float(dtype):
        return max(32, dtype.itemsize * 8)
    return dtype.itemsize * 8


def _argsort(x: ShapeDtype) -> tirx.PrimFunc:
    """Insertion sort of short rows, and of long ones radix sort from the last digit: stable, and linear in time."""
    rows, n = x.shape[:-1], x.shape[-1]
    sort = _sort_short if isinstance(n, int) and n <= _SHORT else _sort_long

    def write(sources, result):
        values = lambda row, i: sort_key(sources[0][(*row, i)])
        block("sort", sources, result, rows, lambda row: sort(values, row, result, n, _key_bits(x.dtype)))

    return loops([x], _argsort_shape(x), write)


def _sort_short(values: Any, row: tuple, order: tirx.Buffer, n: int, bits: int) -> None:
    uint = "uint64" if bits == 64 else "uint32"
    keys = T.sblock_alloc_buffer((max(n, 1),), uint, scope="local")
    key = T.sblock_alloc_buffer((1,), uint, scope="local")
    place = T.sblock_alloc_buffer((1,), "int32", scope="local")
    with T.serial(0, n) as i:
        T.buffer_store(key, values(row, i), [0])
        T.buffer_store(place, i, [0])
        # The place before the first is never read, but TVM may evaluate both sides.
        before = tirx.max(place[0] - 1, tirx.const(0, "int32"))
        with T.While(tirx.And(place[0] > 0, keys[before] > key[0])):
            T.buffer_store(keys, keys[before], [place[0]])
            T.buffer_store(order, order[(*row, before)], [*row, place[0]])
            T.buffer_store(place, place[0] - 1, [0])
        T.buffer_store(keys, key[0], [place[0]])
        T.buffer_store(order, i, [*row, place[0]])


def _sort_long(values: Any, row: tuple, order: tirx.Buffer, n: int, bits: int) -> None:
    uint, passes = ("uint64" if bits == 64 else "uint32"), bits // 8
    keys = T.sblock_alloc_buffer((2, n), uint, scope="local")
    places = T.sblock_alloc_buffer((2, n), "int32", scope="local")
    counts = T.sblock_alloc_buffer((passes, _DIGITS), "int32", scope="local")
    state = T.sblock_alloc_buffer((3,), "int32", scope="local")  # which half is current, a sum, a digit
    digit = lambda key, k: tirx.Cast("int32", (key >> tirx.const(8 * k, uint)) & tirx.const(_DIGITS - 1, uint))
    with T.serial(0, passes) as k, T.serial(0, _DIGITS) as d:
        T.buffer_store(counts, tirx.const(0, "int32"), [k, d])
    with T.serial(0, n) as i:
        T.buffer_store(keys, values(row, i), [0, i])
        T.buffer_store(places, i, [0, i])
        for k in range(passes):
            T.buffer_store(state, digit(keys[0, i], k), [2])
            T.buffer_store(counts, counts[k, state[2]] + 1, [k, state[2]])
    T.buffer_store(state, tirx.const(0, "int32"), [0])
    for k in range(passes):
        # Nothing moves if all have the same digit, as the high ones of small integers do.
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
                T.buffer_store(places, places[state[0], i], [1 - state[0], state[1]])
            T.buffer_store(state, 1 - state[0], [0])
    with T.serial(0, n) as i:
        T.buffer_store(order, places[state[0], i], [*row, i])


#: ``argsort(x)``: the stable order of the elements along the last axis; NaNs go last.
argsort = register(Op("argsort", "opaque", _argsort_shape, _argsort, (None,), batch=lambda batched, x: argsort(x)))
