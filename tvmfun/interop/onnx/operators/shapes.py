"""Shapes, constants, and operators that move elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun.errors import ProgramError, ShapeError
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.tensors import dtype_of, is_narrow, sized

if TYPE_CHECKING:
    from tvmfun.interop.onnx.graphs import Call

onnx = Family(__name__)

#: The most elements of constants that are made while a function is traced.
MOST_ELEMENTS = 1 << 24


def ints(values: Any) -> list[int]:
    """A list of integers from an attribute, or from an input that is known."""
    return [int(x) for x in np.asarray(values).reshape(-1)]


@onnx.reads("Constant")
def _constant(**values: Any) -> Any:
    (value,) = values.values()
    if isinstance(value, np.ndarray):
        return value
    sample = value[0] if isinstance(value, list) and value else value
    if isinstance(sample, str):
        raise ProgramError("from_onnx", "only arrays of numbers are read", got="a constant of strings")
    is_float = "value_float" in values or "value_floats" in values
    return np.asarray(value, np.float32 if is_float else np.int64)


onnx.reads("Identity", bits=True)(lambda x: x)
onnx.reads("Size", shapes=True)(lambda x: np.asarray(math.prod(x.shape), np.int64))


@onnx.reads("Shape", shapes=True)
def _shape(x: Any, *, start: int = 0, end: int | None = None) -> np.ndarray:
    return np.asarray(x.shape, np.int64)[start:end]


@onnx.reads("ConstantOfShape", static=(0,))
def _constant_of_shape(shape: np.ndarray, *, value: np.ndarray | None = None) -> Any:
    fill = np.zeros(1, np.float32) if value is None else value
    sizes = tuple(ints(shape))
    if sized(sizes, fill.dtype, "the result") <= MOST_ELEMENTS or is_narrow(fill.dtype):
        return np.full(sizes, fill.reshape(())[()], fill.dtype)
    return tnp.full(sizes, fill.item(), dtype=fill.dtype)


@onnx.reads("Reshape", static=(1,), bits=True)
def _reshape(x: Any, shape: Any, *, allowzero: int = 0, consumed_inputs: Any = None) -> Any:
    sizes = [x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(ints(shape))]
    return tnp.reshape(x, tuple(sizes))


@onnx.reads("Flatten", bits=True)
def _flatten(x: Any, *, axis: int = 1) -> Any:
    axis = axis + x.ndim if axis < 0 else axis
    return tnp.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@onnx.reads("Squeeze", static=(1,), bits=True)
def _squeeze(x: Any, axes: Any = None) -> Any:
    return tnp.squeeze(x, tuple(ints(axes)) if axes is not None else None)


@onnx.reads("Unsqueeze", static=(1,), bits=True)
def _unsqueeze(x: Any, axes: Any) -> Any:
    return tnp.expand_dims(x, tuple(ints(axes)))


@onnx.reads("Transpose", bits=True)
def _transpose(x: Any, *, perm: list[int] | None = None) -> Any:
    return tnp.permute_dims(x, tuple(range(x.ndim))[::-1] if perm is None else tuple(perm))


@onnx.reads("Concat", bits=True)
def _concat(*xs: Any, axis: int = 1) -> Any:
    return tnp.concat(xs, axis=axis)


@onnx.reads("Split", static=(1,), context=True)
def _split(call: Call, x: Any, split: Any = None, *, axis: int = 0, num_outputs: int | None = None) -> Any:
    """Parts of given sizes, or equal parts with a last one that may be smaller."""
    count, n = len(call.node.outputs), x.shape[axis]
    each = -(-n // count)
    sizes = ints(split) if split is not None else [max(min(each, n - i * each), 0) for i in range(count)]
    if sum(sizes) != n or min(sizes, default=0) < 0:
        raise ShapeError("Split", "the sizes of the parts must add up", got=f"{sizes} for {n}")
    ends = [int(end) for end in np.cumsum(sizes)[:-1]]
    return np.split(x, ends, axis=axis) if isinstance(x, np.ndarray) else tnp.split(x, ends, axis=axis)


@onnx.reads("Slice", static=(1, 2, 3, 4), bits=True)
def _slice(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    first, last = ints(starts), ints(ends)
    along = ints(axes) if axes is not None else list(range(len(first)))
    by = ints(steps) if steps is not None else [1] * len(first)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        # An end below -n means "up to and with the first" when stepping backwards.
        stop = None if step < 0 and end < -x.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return x[tuple(index)]


@onnx.reads("Expand", static=(1,), bits=True)
def _expand(x: Any, shape: np.ndarray) -> Any:
    return tnp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(ints(shape))))


@onnx.reads("Tile", static=(1, 2), bits=True)
def _tile(x: Any, repeats: np.ndarray, axis: np.ndarray | None = None) -> Any:
    if axis is not None:  # version 1
        counts = [1] * x.ndim
        counts[int(axis.item())] = int(repeats.item())
        return tnp.tile(x, tuple(counts))
    return tnp.tile(x, tuple(ints(repeats)))


@onnx.reads("Pad", static=(1, 3))
def _pad(x: Any, pads: Any = None, value: Any = 0, axes: Any = None, *, mode: str = "constant", paddings: Any = None):
    """Elements before and after each axis; negative numbers remove some."""
    sides = ints(pads if pads is not None else paddings)
    half = len(sides) // 2
    along = [axis % x.ndim for axis in ints(axes)] if axes is not None else list(range(half))
    widths = [(0, 0)] * x.ndim
    for axis, low, high in zip(along, sides[:half], sides[half:], strict=True):
        widths[axis] = (low, high)
    cropped = tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(x.shape, widths, strict=True))
    x, widths = x[cropped], [(max(low, 0), max(high, 0)) for low, high in widths]
    if mode == "constant":
        fill = tnp.astype(tnp.reshape(tnp.asarray(0 if value is None else value), ()), x.dtype)
        return tnp.pad(x, widths, constant_values=fill)
    return tnp.pad(x, widths, mode={"edge": "edge", "reflect": "reflect", "wrap": "wrap"}[mode])


@onnx.reads("DepthToSpace", bits=True)
def _depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    (n, channels, h, w), b = x.shape, blocksize
    depth = channels // b**2
    if mode == "DCR":
        parts = tnp.permute_dims(tnp.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = tnp.permute_dims(tnp.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return tnp.reshape(parts, (n, depth, h * b, w * b))


@onnx.reads("SpaceToDepth", bits=True)
def _space_to_depth(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    b = blocksize
    parts = tnp.reshape(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return tnp.reshape(tnp.permute_dims(parts, order), (n, c * b * b, h // b, w // b))


@onnx.reads("EyeLike", shapes=True)
def _eye_like(x: Any, *, dtype: int | None = None, k: int = 0) -> np.ndarray:
    kind = dtype_of(dtype, "EyeLike") if dtype is not None else x.dtype
    if math.prod(x.shape) > MOST_ELEMENTS:
        raise ShapeError("EyeLike", f"the matrix must have at most {MOST_ELEMENTS} elements", got=str(x.shape))
    return np.eye(*x.shape, k=k).astype(kind)


@onnx.reads("Range", static=(-1,))
def _range(start: np.ndarray, limit: np.ndarray, delta: np.ndarray, *, stash_type: int = 1) -> Any:
    first, step = start.item(), delta.item()
    count = max(math.ceil((limit.item() - first) / step), 0)
    if count > MOST_ELEMENTS:
        return tnp.astype(tnp.arange(sized((count,), start.dtype, "a range")) * step + first, start.dtype)
    return (np.arange(count) * step + first).astype(start.dtype)


@onnx.reads("Trilu", static=(1,), bits=True)
def _trilu(x: Any, k: np.ndarray | None = None, *, upper: int = 1) -> Any:
    diagonal = 0 if k is None else int(k.item())
    return tnp.triu(x, diagonal) if upper else tnp.tril(x, diagonal)


@onnx.reads("CenterCropPad", static=(1,))
def _center_crop_pad(x: Any, shape: np.ndarray, *, axes: list[int] | None = None) -> Any:
    """The middle of each axis, or the axis with zeros around it."""
    for axis, size in zip(range(x.ndim) if axes is None else axes, ints(shape), strict=True):
        n = x.shape[axis]
        if size < n:
            start = (n - size) // 2
            x = tnp.take(x, np.arange(start, start + size), axis=axis)
        elif size > n:
            widths = [(0, 0)] * x.ndim
            widths[axis] = ((size - n) // 2, size - n - (size - n) // 2)
            x = tnp.pad(x, widths)
    return x


@onnx.reads("ReverseSequence")
def _reverse_sequence(x: Any, lengths: Any, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    """Reverses the first elements of each sequence, and keeps the others."""
    moved = tnp.moveaxis(x, (batch_axis, time_axis), (0, 1))
    times = tnp.arange(moved.shape[1], dtype=lengths.dtype)
    index = tnp.where(times < lengths[:, None], lengths[:, None] - 1 - times, times)
    index = tnp.reshape(index, (*index.shape, *(1,) * (moved.ndim - 2)))
    return tnp.moveaxis(tnp.take_along_axis(moved, index, axis=1), (0, 1), (batch_axis, time_axis))
