"""Operators that move elements without arithmetic: views, joins, parts, paddings."""

from __future__ import annotations

import math
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.interop.layouts import ChannelsLast, channels_first, stored_axis
from tvmfun.interop.relax import indexing
from tvmfun.interop.relay.operators.table import (
    DType,
    Family,
    Ints,
    Pairs,
    axis_of,
    check_sizes,
    refuse,
)
from tvmfun.ops import pointwise

relay = Family(__name__)

# -- views -------------------------------------------------------------------------------------------------------------


def _resolved(where: str, shape: tuple, newshape: tuple, allowzero: bool) -> tuple:
    """The sizes of a result, where 0, -2, -3 and -4 stand for sizes of the argument; at most one stays -1."""
    result: list = []
    source = 0
    targets = iter(newshape)
    try:
        for target in targets:
            if target > 0 or (target == 0 and allowzero):
                result.append(target)
                source += 1
            elif target == 0:
                result.append(shape[source])
                source += 1
            elif target == -1:
                result.append(-1)
                source += 1
            elif target == -2:
                result += shape[source:]
                source = len(shape)
            elif target == -3:
                result.append(shape[source] * shape[source + 1])
                source += 2
            elif target == -4:
                first, second = next(targets), next(targets)
                if first == -1:
                    first = shape[source] // second
                result += [first, shape[source] // first if second == -1 else second]
                source += 1
            else:
                raise refuse(where, "a size must be -4 or more", newshape)
    except (IndexError, StopIteration, ZeroDivisionError):
        raise refuse(where, f"the new shape does not fit {shape}", newshape) from None
    if sum(isinstance(size, int) and size == -1 for size in result) > 1:
        raise refuse(where, "at most one size may be -1", newshape)
    check_sizes(where, tuple(size for size in result if not isinstance(size, int) or size != -1))
    return tuple(result)


@relay.reads("reshape")
def _reshape(x: Any, *, newshape: Ints, allowzero: bool = False) -> Any:
    return tnp.reshape(x, _resolved("reshape", x.shape, newshape, allowzero))


@relay.reads("contrib_reverse_reshape")
def _reverse_reshape(x: Any, *, newshape: Ints, allowzero: bool = False) -> Any:
    where = "contrib_reverse_reshape"
    turned = _resolved(where, tuple(reversed(x.shape)), tuple(reversed(newshape)), allowzero)
    return tnp.reshape(x, tuple(reversed(turned)))


@relay.reads("reshape_like", mixed=True)
def _reshape_like(
    x: Any, like: Any, *, lhs_begin: int = 0, lhs_end: int | None = None, rhs_begin: int = 0, rhs_end: int | None = None
) -> Any:
    begin, end, _ = slice(lhs_begin, lhs_end).indices(x.ndim)
    return tnp.reshape(x, (*x.shape[:begin], *like.shape[rhs_begin:rhs_end], *x.shape[max(begin, end) :]))


@relay.reads("nn.batch_flatten")
def _batch_flatten(x: Any) -> Any:
    return tnp.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


@relay.reads("expand_dims")
def _expand_dims(x: Any, *, axis: int, num_newaxis: int = 1) -> Any:
    check_sizes("expand_dims", (num_newaxis,), 32)
    first = axis_of("expand_dims", axis, x.ndim + 1)
    return tnp.reshape(x, (*x.shape[:first], *(1,) * num_newaxis, *x.shape[first:]))


@relay.reads("squeeze")
def _squeeze(x: Any, *, axis: Ints | None = None) -> Any:
    return tnp.squeeze(x, tuple(i for i, size in enumerate(x.shape) if size == 1) if axis is None else axis)


@relay.reads("transpose")
def _transpose(x: Any, *, axes: Ints | None = None) -> Any:
    return tnp.permute_dims(x, axes or tuple(reversed(range(x.ndim))))


@relay.reads("layout_transform")
def _layout_transform(x: Any, *, src_layout: str, dst_layout: str) -> Any:
    if sorted(src_layout) != sorted(dst_layout) or len(src_layout) != x.ndim or not src_layout.isalpha():
        got = f"{src_layout} to {dst_layout}"
        raise refuse("layout_transform", "layouts must be permutations of each other, without blocks", got)
    return tnp.permute_dims(x, [src_layout.index(letter) for letter in dst_layout])


@relay.reads("broadcast_to")
def _broadcast_to(x: Any, *, shape: Ints, dtype: DType | None = None) -> Any:
    check_sizes("broadcast_to", shape)
    return tnp.broadcast_to(x, shape)


@relay.reads("broadcast_to_like", mixed=True)
def _broadcast_to_like(x: Any, like: Any) -> Any:
    return tnp.broadcast_to(x, like.shape)


@relay.reads("collapse_sum_to")
def _collapse_sum_to(x: Any, *, shape: Ints, dtype: DType | None = None) -> Any:
    return pointwise.sum_to(x, shape)


@relay.reads("collapse_sum_like", mixed=True)
def _collapse_sum_like(x: Any, like: Any) -> Any:
    return pointwise.sum_to(x, like.shape)


# -- joining, splitting, repeating -------------------------------------------------------------------------------------


@relay.reads("concatenate", layouts=True)
def _concatenate(arrays: tuple, *, axis: int = 0) -> Any:
    if arrays and all(isinstance(x, ChannelsLast) for x in arrays):
        ndim = arrays[0].ndim
        along = stored_axis(axis_of("concatenate", axis, ndim), ndim)
        return ChannelsLast(tnp.concat([x.stored for x in arrays], axis=along))
    return tnp.concat([tnp.asarray(channels_first(x)) for x in arrays], axis=axis)


@relay.reads("stack")
def _stack(arrays: tuple, *, axis: int = 0) -> Any:
    return tnp.stack([tnp.asarray(x) for x in arrays], axis=axis)


@relay.reads("split")
def _split(x: Any, *, indices_or_sections: int | Ints, axis: int = 0) -> Any:
    axis = axis_of("split", axis, x.ndim)
    if isinstance(indices_or_sections, int):
        check_sizes("split", (indices_or_sections,), 4096)
    return tuple(tnp.split(x, indices_or_sections, axis))


@relay.reads("repeat")
def _repeat(x: Any, *, repeats: int, axis: int | None = None) -> Any:
    check_sizes("repeat", (repeats, *x.shape))
    return tnp.repeat(x, repeats, axis)


@relay.reads("tile")
def _tile(x: Any, *, reps: Ints) -> Any:
    check_sizes("tile", (*reps, *x.shape))
    return tnp.tile(x, reps)


@relay.reads("reverse")
def _reverse(x: Any, *, axis: int | None = None) -> Any:
    return tnp.flip(x, axis=0 if axis is None else axis)


@relay.reads("reverse_sequence", mixed=True)
def _reverse_sequence(x: Any, lengths: Any, *, seq_axis: int = 1, batch_axis: int = 0) -> Any:
    along, batch = (axis_of("reverse_sequence", axis, x.ndim) for axis in (seq_axis, batch_axis))
    return indexing.reverse_sequence(x, lengths, seq_axis=along, batch_axis=batch)


# -- parts -------------------------------------------------------------------------------------------------------------


@relay.reads("strided_slice")
def _strided_slice(
    x: Any,
    *,
    begin: Ints,
    end: Ints,
    strides: Ints | None = None,
    slice_mode: str = "end",
    axes: Ints | None = None,
) -> Any:
    """Slices as NumPy's; if ``slice_mode`` is ``"size"``, ``end`` has sizes, and -1 is the rest."""
    where = "strided_slice"
    axes = tuple(range(len(begin))) if axes is None else axes
    steps = (*(strides or ()), *(1,) * (len(begin) - len(strides or ())))
    if slice_mode not in ("end", "size") or not len(begin) == len(end) == len(axes):
        raise refuse(where, "begin, end and axes must be of one length", (begin, end, axes))
    spans = [slice(None)] * x.ndim
    for axis, first, last, step in zip(axes, begin, end, steps, strict=False):
        axis = axis_of(where, axis, x.ndim)
        if slice_mode == "size":
            first = first + x.shape[axis] if first < 0 else first
            spans[axis] = slice(first, None if last == -1 else first + last)
        elif step == 0:
            raise refuse(where, "a stride must not be 0", strides)
        else:
            spans[axis] = slice(_limit(first, step < 0), _limit(last, step > 0), step)
    return x[tuple(spans)]


def _limit(index: int, is_upper: bool) -> int | None:
    """An index of a slice, which is open where importers write the limits of int32 or int64 for any size."""
    return None if (index >= 2**31 - 1 if is_upper else index <= -(2**31)) else index


@relay.reads("slice_like", mixed=True)
def _slice_like(x: Any, like: Any, *, axes: Ints | None = None) -> Any:
    chosen = range(min(x.ndim, like.ndim)) if not axes else (axis_of("slice_like", axis, x.ndim) for axis in axes)
    spans = [slice(None)] * x.ndim
    for axis in chosen:
        spans[axis] = slice(0, like.shape[axis])
    return x[tuple(spans)]


# -- paddings ----------------------------------------------------------------------------------------------------------


def _widths(where: str, x: Any, widths: tuple) -> tuple:
    if len(widths) != x.ndim or any(len(pair) != 2 for pair in widths):
        raise refuse(where, f"pad_width must have a pair for each of {x.ndim} axes", widths)
    check_sizes(where, tuple(size for pair in widths for size in pair if size))
    return widths


@relay.reads("nn.pad", mixed=True, layouts=True)
def _pad(x: Any, value: Any = None, *, pad_width: Pairs, pad_value: float = 0.0, pad_mode: str = "constant") -> Any:
    """Padding with a number, which was an attribute until 2020 and is an argument since, or with elements."""
    if len(pad_width) != x.ndim or any(len(pair) != 2 for pair in pad_width):
        raise refuse("nn.pad", f"pad_width must have a pair for each of {x.ndim} axes", pad_width)
    if pad_mode == "constant":
        check_sizes("nn.pad", tuple(abs(side) for pair in pad_width for side in pair if side))
        fill = tnp.asarray(pad_value if value is None else value).astype(x.dtype)
        widths = [(low, high, 0) for low, high in pad_width]
        if isinstance(x, ChannelsLast):
            return ChannelsLast(lax.pad(x.stored, fill, [widths[0], *widths[2:], widths[1]]))
        return lax.pad(x, fill, widths)
    if pad_mode not in ("edge", "reflect"):
        raise refuse("nn.pad", "pad_mode must be constant, edge or reflect", pad_mode)
    return tnp.pad(channels_first(x), _widths("nn.pad", x, pad_width), mode=pad_mode)


@relay.reads("nn.mirror_pad")
def _mirror_pad(x: Any, *, pad_width: Pairs, mode: str = "SYMMETRIC") -> Any:
    if mode not in ("SYMMETRIC", "REFLECT"):
        raise refuse("nn.mirror_pad", "mode must be SYMMETRIC or REFLECT", mode)
    return tnp.pad(x, _widths("nn.mirror_pad", x, pad_width), mode=mode.lower())


# -- blocks ------------------------------------------------------------------------------------------------------------


def _blocks(where: str, block_size: int, layout: str, x: Any) -> None:
    if layout not in ("NCHW", "NHWC") or x.ndim != 4:
        raise refuse(where, "the layout must be NCHW or NHWC", layout)
    if block_size < 1:
        raise refuse(where, "the size of a block must be positive", block_size)


@relay.reads("nn.depth_to_space")
def _depth_to_space(x: Any, *, block_size: int = 1, layout: str = "NCHW", mode: str = "DCR") -> Any:
    """Channels become blocks of pixels; the block's index comes before that of the channel if ``mode`` is DCR."""
    _blocks("nn.depth_to_space", block_size, layout, x)
    if mode not in ("DCR", "CRD", "CDR"):
        raise refuse("nn.depth_to_space", "mode must be DCR or CRD", mode)
    x = x if layout == "NCHW" else tnp.permute_dims(x, (0, 3, 1, 2))
    n, c, h, w = x.shape
    b = block_size
    sizes, order = ((n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))
    if mode != "DCR":
        sizes, order = ((n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))
    y = tnp.reshape(tnp.permute_dims(tnp.reshape(x, sizes), order), (n, c // (b * b), h * b, w * b))
    return y if layout == "NCHW" else tnp.permute_dims(y, (0, 2, 3, 1))


@relay.reads("nn.space_to_depth")
def _space_to_depth(x: Any, *, block_size: int = 1, layout: str = "NCHW", mode: str = "DCR") -> Any:
    _blocks("nn.space_to_depth", block_size, layout, x)
    x = x if layout == "NCHW" else tnp.permute_dims(x, (0, 3, 1, 2))
    n, c, h, w = x.shape
    b = block_size
    parts = tnp.permute_dims(tnp.reshape(x, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4))
    y = tnp.reshape(parts, (n, c * b * b, h // b, w // b))
    return y if layout == "NCHW" else tnp.permute_dims(y, (0, 2, 3, 1))


@relay.reads("nn.space_to_batch_nd")
def _space_to_batch(x: Any, *, block_shape: Ints = (1, 1), paddings: Pairs, pad_value: float = 0.0) -> Any:
    rank = len(block_shape)
    rest = x.ndim - 1 - rank
    if len(paddings) != rank or rest < 0 or any(block < 1 for block in block_shape):
        raise refuse("nn.space_to_batch_nd", "there must be a positive block and a padding per axis", block_shape)
    widths = _widths("nn.space_to_batch_nd", x, ((0, 0), *paddings, *((0, 0),) * rest))
    x = tnp.pad(x, widths, constant_values=pad_value)
    sizes = [x.shape[0]]
    for size, block in zip(x.shape[1:], block_shape, strict=False):
        sizes += [size // block, block]
    parts = tnp.reshape(x, (*sizes, *x.shape[1 + rank :]))
    spatial = [1 + 2 * i for i in range(rank)]
    blocks = [2 + 2 * i for i in range(rank)]
    moved = tnp.permute_dims(parts, (*blocks, 0, *spatial, *range(1 + 2 * rank, parts.ndim)))
    return tnp.reshape(moved, (sizes[0] * math.prod(block_shape), *sizes[1::2], *x.shape[1 + rank :]))


@relay.reads("nn.batch_to_space_nd")
def _batch_to_space(x: Any, *, block_shape: Ints = (1, 1), crops: Pairs) -> Any:
    rank, blocks = len(block_shape), math.prod(block_shape)
    if len(crops) != rank or x.ndim < 1 + rank or any(block < 1 for block in block_shape):
        raise refuse("nn.batch_to_space_nd", "there must be a positive block and a crop per axis", block_shape)
    batch, spatial, rest = x.shape[0] // blocks, x.shape[1 : 1 + rank], x.shape[1 + rank :]
    parts = tnp.reshape(x, (*block_shape, batch, *spatial, *rest))
    order = [rank]
    for i in range(rank):
        order += [rank + 1 + i, i]
    moved = tnp.permute_dims(parts, (*order, *range(1 + 2 * rank, parts.ndim)))
    sizes = tuple(size * block for size, block in zip(spatial, block_shape, strict=True))
    y = tnp.reshape(moved, (batch, *sizes, *rest))
    spans = [slice(low, size - high) for (low, high), size in zip(crops, sizes, strict=True)]
    return y[(slice(None), *spans)]


@relay.reads("trilu", mixed=True)
def _trilu(x: Any, k: Any, *, upper: bool = True) -> Any:
    rows = tnp.arange(x.shape[-2])[:, None] + tnp.asarray(k).astype("int32")
    columns = tnp.arange(x.shape[-1])[None, :]
    return tnp.where(columns >= rows if upper else columns <= rows, x, tnp.zeros((), x.dtype))
