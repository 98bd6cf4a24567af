"""The largest elements of rows: a kernel for CPUs, and a composition of sorts and gathers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.errors import ShapeError
from tvmfun.ops import formula, reduce
from tvmfun.ops import shape as shapes
from tvmfun.ops.sorting import argsort, key_bits, sort_key, taken
from tvmfun.ops.tir import block, prim_func

# The lanes of a comparison.
_LANES = 16
# The elements of a chunk.
_CHUNK = 64
# The fewest chunks per element of the result.
_FEWEST_CHUNKS = 2
# By dtype without comparisons: the dtype in which its elements are compared.
_COMPARED = {"bfloat16": "float32", "float16": "float32", "bool": "int32"}
# In rows of at least this many elements, only the blocks with the largest maxima are sorted.
_LONG = 1024


def _top_k_shape(x: ShapeDtype, *, k: int) -> ShapeDtype:
    if not x.ndim or k < 1 or not dims.always_le(k, x.shape[-1]):
        raise ShapeError("top_k_indices", f"there are no {k} elements along the last axis", got=repr(x))
    return ShapeDtype((*x.shape[:-1], k), dtypes.int32)


def _top_k(x: ShapeDtype, *, k: int) -> tirx.PrimFunc:
    """The function of the op: a sorted list of the largest elements so far, into which later ones are inserted.

    In a long row only chunks whose maximum is among the ``k`` largest maxima can have elements of the list.
    """
    n, bits, dtype = x.shape[-1], key_bits(x.dtype), dtypes.NAMES[x.dtype]
    uint = "uint64" if bits == 64 else "uint32"
    is_long = isinstance(n, int) and n >= _FEWEST_CHUNKS * k * _CHUNK
    none = tirx.const(0, "int32")

    def row(at: tuple, source: tirx.Buffer, result: tirx.Buffer) -> None:
        local = lambda size, kind: T.sblock_alloc_buffer((size,), kind, scope="local")
        keys, key = local(k, uint), local(1, uint)
        count, position = local(1, "int32"), local(1, "int32")

        def insert(end: Any, store: Callable[[Any], None], move: Callable[[Any], None]) -> None:
            """Inserts ``key`` before smaller ones of the list, which ends at ``end``."""
            T.buffer_store(position, end, [0])
            # The position before the first is never read, but TVM may evaluate both sides.
            before = tirx.max(position[0] - 1, none)
            with T.While(tirx.And(position[0] > 0, keys[before] < key[0])):
                T.buffer_store(keys, keys[before], [position[0]])
                move(before)
                T.buffer_store(position, position[0] - 1, [0])
            T.buffer_store(keys, key[0], [position[0]])
            store(position[0])

        def consider(store: Callable[[Any], None], move: Callable[[Any], None]) -> None:
            """Inserts ``key`` if the list is not full, or it is larger than the last."""
            with T.If(count[0] < k):
                with T.Then():
                    T.buffer_store(count, count[0] + 1, [0])
                    insert(count[0] - 1, store, move)
                with T.Else(), T.If(keys[k - 1] < key[0]), T.Then():
                    insert(tirx.const(k - 1, "int32"), store, move)

        def element(i: Any) -> None:
            T.buffer_store(key, sort_key(source[(*at, i)]), [0])
            consider(
                lambda end: T.buffer_store(result, i, [*at, end]),
                lambda before: T.buffer_store(result, result[(*at, before)], [*at, position[0]]),
            )

        T.buffer_store(count, none, [0])
        if not is_long:
            with T.serial(0, n) as i:
                element(i)
            return
        chunks, rest = divmod(n, _CHUNK)
        maxima, least = local(chunks, uint), local(1, uint)
        largest_of_chunk = _maximum(dtype)
        with T.serial(0, chunks) as chunk:
            load = lambda i: source[(*at, chunk * _CHUNK + i)]
            T.buffer_store(maxima, largest_of_chunk(load), [chunk])
            T.buffer_store(key, maxima[chunk], [0])
            consider(lambda end: None, lambda before: None)
        T.buffer_store(least, keys[k - 1], [0])
        T.buffer_store(count, none, [0])
        with T.serial(0, chunks) as chunk, T.If(maxima[chunk] >= least[0]), T.Then(), T.serial(0, _CHUNK) as j:
            element(chunk * _CHUNK + j)
        with T.serial(0, rest) as j:
            element(chunks * _CHUNK + j)

    def write(sources, result):
        block("top_k", sources, result, x.shape[:-1], lambda at: row(at, *sources, result))

    return prim_func([x], _top_k_shape(x, k=k), write)


def _maximum(dtype: str) -> Callable[[Callable[[Any], Any]], Any]:
    """Allocates memory for the maximum of a chunk, and returns the function that computes its key."""
    wide = _COMPARED.get(dtype, dtype)
    may_be_nan = wide.startswith("float")
    largest = T.sblock_alloc_buffer((_LANES,), wide, scope="local")
    is_nan = T.sblock_alloc_buffer((_LANES,), "int32", scope="local")
    lowest = reduce.lowest(wide)

    def of_chunk(load: Callable[[Any], Any]) -> Any:
        with T.vectorized(0, _LANES) as lane:
            T.buffer_store(largest, lowest, [lane])
            T.buffer_store(is_nan, tirx.const(0, "int32"), [lane])
        with T.serial(0, _CHUNK // _LANES) as j, T.vectorized(0, _LANES) as lane:
            value = load(j * _LANES + lane).astype(wide)
            if may_be_nan:
                T.buffer_store(is_nan, tirx.Select(formula.is_nan(value), tirx.const(1, "int32"), is_nan[lane]), [lane])
            T.buffer_store(largest, tirx.Select(largest[lane] < value, value, largest[lane]), [lane])
        half = _LANES // 2
        while half:
            with T.vectorized(0, half) as lane:
                other = largest[lane + half]
                T.buffer_store(largest, tirx.Select(largest[lane] < other, other, largest[lane]), [lane])
                T.buffer_store(is_nan, is_nan[lane] | is_nan[lane + half], [lane])
            half //= 2
        key = sort_key(largest[0])
        return tirx.Select(is_nan[0] > 0, tirx.max_value(str(key.ty)), key) if may_be_nan else key

    return of_chunk


#: ``top_k_indices(x, k=)``: the indices of the ``k`` largest elements of each row, the largest first. Equal elements
#: keep their order; NaNs are larger than numbers.
top_k_indices = register(
    Op(
        "top_k_indices",
        "opaque",
        _top_k_shape,
        _top_k,
        (None,),
        batch=lambda batched, x, *, k: top_k_indices(x, k=k),
    )
)


def largest_by_sorting(rows: Array, k: int) -> Array:
    """The indices of the ``k`` largest elements of each row, the largest first, without :data:`top_k_indices`.

    They are in the ``k`` blocks whose maxima are largest: the maxima of these come before all elements of the others.
    """
    *lead, size = rows.shape
    last = rows.ndim - 1
    width = _block_size(rows, k)
    if not width:
        # Reversed twice: the largest come first, and among equal elements the original first one.
        order = shapes.flip(argsort(shapes.flip(rows, axes=(last,))), axes=(last,))
        return (size - 1 - order)[..., :k]
    padding = (0,) * last
    lowest = rows.dtype.type(-math.inf if dtypes.is_float(rows.dtype) else np.iinfo(rows.dtype).min)
    filled = shapes.pad(rows, lowest, low=(0,) * rows.ndim, high=(*padding, -size % width), interior=(0,) * rows.ndim)
    blocks = shapes.reshape(filled, shape=(*lead, -(-size // width), width))
    chosen = largest_by_sorting(reduce.max(blocks, axis=(rows.ndim,)), k)
    # In the order of their indices, which decides between equal elements.
    chosen = taken(chosen, argsort(chosen))
    among = shapes.reshape(taken(blocks, chosen), shape=(*lead, k * width))
    position = largest_by_sorting(among, k)
    return taken(chosen, position // width) * np.int32(width) + position % width


def _block_size(rows: Array, k: int) -> int:
    """The size of blocks that minimizes maxima and candidates; 0 if a row should be sorted as a whole."""
    size = rows.shape[-1]
    if dims.is_dynamic(rows.shape) or rows.dtype == dtypes.bool_ or k == 0 or size < _LONG:
        return 0
    width = 1 << max(3, round(math.log2(size / k) / 2))
    return width if size / width + k * width < size / 4 else 0
