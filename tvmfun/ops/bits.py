"""Random bits: the Threefry-2x32 block function of Salmon et al., "Parallel random numbers" (2011)."""

from __future__ import annotations

from typing import Any, Literal

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops.parameters import Sizes
from tvmfun.ops.shape import ravel_index, repeat_unbatched
from tvmfun.ops.tir import block, prim_func

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _threefry_shape(
    key: ShapeDtype, base: ShapeDtype, *, shape: Sizes, word: Literal["first", "second", "xor"]
) -> ShapeDtype:
    if key.dtype != dtypes.uint32 or base.dtype != dtypes.uint32:
        raise DtypeError(
            "threefry2x32", "keys and counters are uint32", got=f"{key} and {base}", hint="tvmfun.random.key(seed)"
        )
    if key.shape[-1:] != (2,) or key.shape != base.shape:
        raise ShapeError("threefry2x32", "keys and counters are pairs", got=f"{key} and {base}")
    return ShapeDtype((*key.shape[:-1], *shape), dtypes.uint32)


def _plus(*terms: Any) -> Any:
    # Sums wrap around, which TVM's code for 32 bits does not support; LLVM narrows this to one addition.
    return tirx.Cast("uint32", sum(tirx.Cast("uint64", term) for term in terms))


def threefry_block(first: Any, second: Any, counter: Any) -> tuple[Any, Any]:
    """The two words of the block ``counter``, 64 bits, of the key ``(first, second)``; it adds to a loop program."""
    uint = lambda value: tirx.const(value, "uint32")
    # A buffer, because the simplifier would inline let-bound rounds into an exponentially large formula.
    x = T.sblock_alloc_buffer((2,), "uint32", scope="local")
    schedule = (first, second, first ^ second ^ uint(_PARITY))
    T.buffer_store(x, _plus(counter >> tirx.const(32, "uint64"), schedule[0]), [0])
    T.buffer_store(x, _plus(counter, schedule[1]), [1])
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            T.buffer_store(x, _plus(x[0], x[1]), [0])
            rotated = (x[1] << uint(rotation)) | (x[1] >> uint(32 - rotation))
            T.buffer_store(x, rotated ^ x[0], [1])
        T.buffer_store(x, _plus(x[0], schedule[(group + 1) % 3]), [0])
        T.buffer_store(x, _plus(x[1], schedule[(group + 2) % 3], uint(group + 1)), [1])
    return x[0], x[1]


def _threefry(key: ShapeDtype, base: ShapeDtype, *, shape: tuple[int, ...], word: str) -> tirx.PrimFunc:
    def rounds(keys, bases, result, indices):
        batch = indices[: key.ndim - 1]
        position = ravel_index(indices[key.ndim - 1 :], shape) if shape else 0
        position = tirx.convert(position)
        # In 64 bits: the simplifier assumes that narrower additions do not overflow.
        wide = tirx.Cast("uint64", bases[(*batch, 0)]) << tirx.const(32, "uint64")
        counter = (wide | tirx.Cast("uint64", bases[(*batch, 1)])) + tirx.Cast("uint64", position)
        first, second = threefry_block(keys[(*batch, 0)], keys[(*batch, 1)], counter)
        T.buffer_store(result, {"first": first, "second": second, "xor": first ^ second}[word], list(indices))

    output = _threefry_shape(key, base, shape=shape, word=word)

    def write(sources, result):
        block("threefry", sources, result, output.shape, lambda indices: rounds(*sources, result, indices))

    return prim_func([key, base], output, write)


def _threefry_batch(batched: tuple[bool, ...], *args: Array, shape: tuple[int, ...], word: str) -> Array:
    return threefry2x32(*repeat_unbatched(batched, args), shape=shape, word=word)


#: ``threefry2x32(key, base, shape=, word=)``: block ``base + i`` of ``key`` for the i-th element of ``shape``. Keys and
#: counters are pairs of 32-bit words, high word first; ``word`` picks the ``first`` or ``second`` word of a
#: block, or their ``xor``.
threefry2x32 = register(Op("threefry2x32", "opaque", _threefry_shape, _threefry, (None, None), batch=_threefry_batch))
