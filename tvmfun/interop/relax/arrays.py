"""Relax operators that make arrays, and that move elements without arithmetic."""

from __future__ import annotations

from typing import Any

from tvm import tirx

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax.table import reads, refuse
from tvmfun.ops import pointwise

_NOTHING = "none: the result does not depend on array elements"

# -- creation ----------------------------------------------------------------------------------------------------------


@reads("relax.full")
def _full(shape: tuple, value: Any, *, result: ShapeDtype) -> Any:
    return tnp.broadcast_to(tnp.astype(tnp.asarray(value), result.dtype), shape)


@reads("relax.full_like")
def _full_like(x: Any, value: Any, *, result: ShapeDtype) -> Any:
    return _full(x.shape, value, result=result)


@reads("relax.ones", _NOTHING)
def _ones(shape: tuple, *, result: ShapeDtype) -> Any:
    return tnp.ones(shape, result.dtype)


@reads("relax.zeros", _NOTHING)
def _zeros(shape: tuple, *, result: ShapeDtype) -> Any:
    return tnp.zeros(shape, result.dtype)


@reads("relax.ones_like", _NOTHING)
def _ones_like(x: Any, *, result: ShapeDtype) -> Any:
    return tnp.ones(x.shape, result.dtype)


@reads("relax.zeros_like", _NOTHING)
def _zeros_like(x: Any, *, result: ShapeDtype) -> Any:
    return tnp.zeros(x.shape, result.dtype)


@reads("relax.eye", _NOTHING)
def _eye(rows: int, columns: int, k: int, *, result: ShapeDtype) -> Any:
    return tnp.eye(rows, columns, k=k, dtype=result.dtype)


@reads("relax.eye_like", _NOTHING)
def _eye_like(x: Any, k: int, *, result: ShapeDtype) -> Any:
    return tnp.eye(*x.shape, k=k, dtype=result.dtype)


@reads("relax.arange", _NOTHING)
def _arange(start: Any, end: Any, step: Any, *, result: ShapeDtype) -> Any:
    return tnp.arange(start, end, step, dtype=result.dtype)


@reads("relax.hamming_window", _NOTHING)
def _hamming_window(size: int, periodic: bool, alpha: float, beta: float, *, result: ShapeDtype) -> Any:
    steps = tnp.arange(size, dtype=result.dtype)
    return alpha - beta * tnp.cos(steps * (2 * tnp.pi / (size if periodic else size - 1)))


@reads("relax.tril")
def _tril(x: Any, k: int) -> Any:
    return tnp.tril(x, k=k)


@reads("relax.triu")
def _triu(x: Any, k: int) -> Any:
    return tnp.triu(x, k=k)


@reads("relax.shape_to_tensor", _NOTHING)
def _shape_to_tensor(shape: tuple) -> Any:
    return tnp.stack([tnp.asarray(size, dtype="int64") for size in shape]) if shape else tnp.zeros((0,), "int64")


@reads("relax.size", _NOTHING)
def _size(x: Any) -> Any:
    return tnp.asarray(x.size, dtype="int64")


# -- shapes ------------------------------------------------------------------------------------------------------------


@reads("relax.reshape")
@reads("relax.flatten")
@reads("relax.nn.batch_flatten")
def _reshape(x: Any, shape: Any = None, *, result: ShapeDtype) -> Any:
    return tnp.reshape(x, result.shape)


@reads("relax.broadcast_to")
def _broadcast_to(x: Any, shape: tuple) -> Any:
    return tnp.broadcast_to(x, shape)


@reads("relax.expand_dims")
def _expand_dims(x: Any, *, axis: tuple) -> Any:
    return lax.expand_dims(x, tuple(a % (x.ndim + len(axis)) for a in axis))


@reads("relax.squeeze")
def _squeeze(x: Any, *, result: ShapeDtype) -> Any:
    return tnp.reshape(x, result.shape)


@reads("relax.permute_dims")
def _permute_dims(x: Any, *, axes: tuple | None) -> Any:
    return tnp.permute_dims(x, tuple(reversed(range(x.ndim))) if axes is None else tuple(a % x.ndim for a in axes))


@reads("relax.collapse_sum_to")
def _collapse_sum_to(x: Any, shape: tuple) -> Any:
    return pointwise.sum_to(x, shape)


@reads("relax.collapse_sum_like")
def _collapse_sum_like(x: Any, like: Any) -> Any:
    return pointwise.sum_to(x, like.shape)


# -- joining, splitting, repeating -------------------------------------------------------------------------------------


@reads("relax.concat")
def _concat(arrays: tuple, *, axis: int | None) -> Any:
    return tnp.concat([tnp.asarray(x) for x in arrays], axis=axis)


@reads("relax.stack")
def _stack(arrays: tuple, *, axis: int | None) -> Any:
    return tnp.stack([tnp.asarray(x) for x in arrays], axis=axis or 0)


@reads("relax.split")
def _split(x: Any, *, axis: int, result: Any) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    found = tuple(lax.split(x, [part.shape[axis] for part in parts], axis % x.ndim))
    return found if isinstance(result, tuple) else found[0]


@reads("relax.repeat")
def _repeat(x: Any, *, repeats: int, axis: int | None) -> Any:
    return tnp.repeat(x, repeats, axis)


@reads("relax.tile")
def _tile(x: Any, *, repeats: tuple) -> Any:
    return tnp.tile(x, repeats)


@reads("relax.flip")
def _flip(x: Any, *, axis: int) -> Any:
    return tnp.flip(x, axis=axis)


@reads("relax.meshgrid", limits="for `xy` if the sizes are equal, because Relax infers those of `ij`")
def _meshgrid(arrays: tuple, *, indexing: str | None) -> Any:
    return tuple(tnp.meshgrid(*arrays, indexing=indexing or "ij"))


@reads("relax.nn.pad")
def _pad(x: Any, *, pad_width: tuple, pad_value: float, pad_mode: str) -> Any:
    widths = tuple(zip(pad_width[::2], pad_width[1::2], strict=True))
    if pad_mode == "constant":
        return tnp.pad(x, widths, constant_values=pad_value)
    return tnp.pad(x, widths, mode={"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[pad_mode])


@reads("relax.nn.pixel_shuffle")
def _pixel_shuffle(x: Any, *, upscale_factor: int) -> Any:
    *batch, channels, height, width = x.shape
    r = upscale_factor
    blocks = tnp.reshape(x, (*batch, channels // (r * r), r, r, height, width))
    lead = tuple(range(len(batch) + 1))
    n = len(lead)
    order = (*lead, n + 2, n, n + 3, n + 1)
    return tnp.reshape(tnp.permute_dims(blocks, order), (*batch, channels // (r * r), height * r, width * r))


_ARITHMETIC = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
}


@reads("relax.layout_transform", limits="for index maps made of `+`, `-`, `*`, `//` and `%`")
def _layout_transform(x: Any, *, index_map: Any, pad_value: Any, result: ShapeDtype) -> Any:
    """Puts each element at the index that the index map gives it; unused indices get the padding value."""
    indices = {var: lax.broadcasted_iota("int32", x.shape, axis) for axis, var in enumerate(index_map.initial_indices)}

    def value(expr: Any) -> Any:
        if expr in indices:
            return indices[expr]
        if isinstance(expr, tirx.IntImm):
            return int(expr)
        if isinstance(expr, tirx.Cast):
            return value(expr.value)
        if type(expr) not in _ARITHMETIC:
            raise refuse("relax.layout_transform", "the index map must be made of +, -, *, // and %", str(expr))
        return _ARITHMETIC[type(expr)](value(expr.a), value(expr.b))

    target = tuple(tnp.broadcast_to(tnp.asarray(value(e), dtype="int32"), x.shape) for e in index_map.final_indices)
    return tnp.full(result.shape, pad_value or 0, dtype=x.dtype).at[target].set(x, unique_indices=True)
