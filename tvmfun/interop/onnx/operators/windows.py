"""Windows: their geometry, pooling, and reading between the pixels of an image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.errors import ArgumentError
from tvmfun.interop.onnx.operators.shapes import ints
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.tensors import lifted

if TYPE_CHECKING:
    from tvmfun.interop.onnx.graphs import Call

onnx = Family(__name__)

_MOST_OFFSETS = 1 << 14  # elements of a window that are written out


class Geometry(NamedTuple):
    """The windows of a convolution or a pooling operator.

    Args:
        sizes: of the spatial axes.
        window: the elements of a window along each.
        strides: between windows.
        dilations: between the elements of a window.
        pads: before and after each axis, as the attributes say.
        ceil_mode: whether a last window that begins inside may end outside.
    """

    sizes: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    ceil_mode: bool = False

    @classmethod
    def of(cls, shape: Sequence[int], options: dict[str, Any]) -> Geometry:
        """The geometry of a node's attributes, for an array (batch, channels, *spatial)."""
        unknown = options.keys() - {"kernel_shape", "strides", "dilations", "pads", "auto_pad", "ceil_mode"}
        sizes = tuple(shape[2:])
        rank = len(sizes)
        window = tuple(options.get("kernel_shape", ()))
        strides = tuple(options.get("strides") or (1,) * rank)
        dilations = tuple(options.get("dilations") or (1,) * rank)
        sides = tuple(options.get("pads") or (0,) * (2 * rank))
        if unknown or len(sides) != 2 * rank or not rank == len(window) == len(strides) == len(dilations):
            raise ArgumentError("from_onnx", f"there must be one of each for {rank} spatial axes", got=str(options))
        if min((*window, *strides, *dilations), default=1) < 1:
            raise ArgumentError("from_onnx", "windows, strides and dilations are positive", got=str(options))
        auto, ceil_mode = options.get("auto_pad", "NOTSET"), bool(options.get("ceil_mode"))
        pads = tuple(zip(sides[:rank], sides[rank:], strict=True))
        if auto == "VALID":
            pads = ((0, 0),) * rank
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            totals = [
                max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
                for n, k, s, d in zip(sizes, window, strides, dilations, strict=True)
            ]
            upper = auto == "SAME_UPPER"
            pads = tuple((t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals)
        return cls(sizes, window, strides, dilations, pads, ceil_mode)

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.sizes)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of windows along each axis."""
        result = []
        for n, k, s, d, (low, high) in zip(
            self.sizes, self.window, self.strides, self.dilations, self.pads, strict=True
        ):
            free = n + low + high - (k - 1) * d - 1
            count = (free + (s - 1 if self.ceil_mode else 0)) // s + 1
            # The last window begins inside of the array or of the padding before it.
            result.append(count - 1 if self.ceil_mode and (count - 1) * s >= n + low else count)
        return tuple(max(count, 0) for count in result)

    @property
    def reach(self) -> tuple[tuple[int, int], ...]:
        """The padding that windows reach into: more than was asked for, if counts are rounded up."""
        return tuple(
            (low, max(high, (m - 1) * s + (k - 1) * d + 1 - n - low))
            for n, m, k, s, d, (low, high) in zip(
                self.sizes, self.counts, self.window, self.strides, self.dilations, self.pads, strict=True
            )
        )

    def slices(self) -> list[tuple[slice, ...]]:
        """For each element of a window, where all windows read it in the padded array."""
        if math.prod(self.window) > _MOST_OFFSETS:
            got = f"{self.window}, of more than {_MOST_OFFSETS} elements"
            raise ArgumentError("from_onnx", "windows must have a sensible size", got=got)
        result = []
        for offsets in itertools.product(*map(range, self.window)):
            starts = [offset * d for offset, d in zip(offsets, self.dilations, strict=True)]
            spans = zip(starts, self.counts, self.strides, strict=True)
            result.append((slice(None), slice(None), *(slice(b, b + (n - 1) * s + 1, s) for b, n, s in spans)))
        return result


def _combined(x: Any, geometry: Geometry, fill: Any, combine: Callable) -> Any:
    """The elements of each window combined, with a value that changes nothing around the array."""
    pads, fill = geometry.reach, np.asarray(fill, x.dtype)
    if any(side >= k for pair, k in zip(pads, geometry.window, strict=True) for side in pair):
        x = tnp.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill.item())
        pads = ((0, 0),) * geometry.rank
    g, around = geometry, [(0, 0), (0, 0), *pads]
    window, strides, dilation = ((1, 1, *part) for part in (g.window, g.strides, g.dilations))
    return lax.reduce_window(x, fill, combine, window, strides, around, window_dilation=dilation)


def _least(dtype: np.dtype) -> Any:
    return -math.inf if dtypes.is_float(dtype) else int(tnp.iinfo(dtype).min)


@onnx.reads("MaxPool", context=True)
def _max_pool(call: Call, x: Any, *, storage_order: int = 0, **options: Any) -> Any:
    """The maxima of windows, and, if a node asks for them, their positions in the flattened array."""
    x = lifted(x)
    geometry = Geometry.of(x.shape, options)
    if len(call.node.outputs) < 2 or not call.node.outputs[1]:
        return _combined(x, geometry, _least(x.dtype), lax.max)
    around = [(0, 0), (0, 0), *geometry.reach]
    padded = tnp.pad(x, around, constant_values=_least(x.dtype))
    numbers = tnp.arange(math.prod(x.shape), dtype="int64")
    if storage_order:
        order = (0, 1, *range(x.ndim - 1, 1, -1))
        numbers = tnp.permute_dims(tnp.reshape(numbers, (*x.shape[:2], *geometry.sizes[::-1])), order)
    numbers = tnp.pad(tnp.reshape(numbers, x.shape), around, constant_values=-1)
    first, *rest = geometry.slices()
    best, where = padded[first], numbers[first]
    for place in rest:
        part = padded[place]
        # A later maximum replaces the padding, which is never one.
        where = tnp.where((part > best) | (where < 0), numbers[place], where)
        best = tnp.maximum(best, part)
    return best, where


@onnx.reads("AveragePool")
def _average_pool(x: Any, *, count_include_pad: int = 0, **options: Any) -> Any:
    """The means of windows: of their elements in the array, or also of elements in explicit padding."""
    g = Geometry.of(x.shape, options)
    total = _combined(x, g, 0, lax.add)
    counts = np.ones(g.counts)
    axes = zip(g.sizes, g.counts, g.window, g.strides, g.dilations, g.pads, strict=True)
    for axis, (n, m, k, s, d, (low, high)) in enumerate(axes):
        first, last = (-low, n + high) if count_include_pad else (0, n)
        positions = np.arange(m)[:, None] * s - low + np.arange(k)[None, :] * d
        inside = ((positions >= first) & (positions < last)).sum(axis=1)
        counts = counts * inside.reshape(tuple(-1 if i == axis else 1 for i in range(g.rank)))
    return total / tnp.asarray(np.maximum(counts, 1).astype(x.dtype))


@onnx.reads("LpPool")
def _lp_pool(x: Any, *, p: int = 2, **options: Any) -> Any:
    return _combined(tnp.abs(x) ** p, Geometry.of(x.shape, options), 0, lax.add) ** (1.0 / p)


@onnx.reads("GlobalAveragePool")
def _global_average_pool(x: Any) -> Any:
    return tnp.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True)


@onnx.reads("GlobalMaxPool")
def _global_max_pool(x: Any) -> Any:
    return tnp.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)


@onnx.reads("MaxUnpool", static=(2,))
def _max_unpool(x: Any, positions: Any, output_shape: Any = None, **options: Any) -> Any:
    """Zeros but for the elements at their positions in the flattened result, or in that without a given shape."""
    geometry = Geometry.of(x.shape, options)
    sizes = [
        (n - 1) * s - low - high + k
        for n, k, s, (low, high) in zip(geometry.sizes, geometry.window, geometry.strides, geometry.pads, strict=True)
    ]
    inferred = (*x.shape[:2], *sizes)
    shape = inferred if output_shape is None else tuple(ints(output_shape))
    where = tnp.unravel_index(tnp.ravel(positions), inferred)
    return tnp.zeros(shape, dtype=x.dtype).at[tuple(where)].set(tnp.ravel(x))


# -- reading between pixels --------------------------------------------------------------------------------------------


def pixels(images: Any, rows: Any, columns: Any) -> Any:
    """Pixels of (batch, channels, height, width) at indices (batch, points); zero outside."""
    height, width = images.shape[2:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    flat = tnp.reshape(images, (*images.shape[:2], height * width))
    index = tnp.clip(rows, 0, height - 1) * width + tnp.clip(columns, 0, width - 1)
    read = tnp.take_along_axis(flat, index[:, None], axis=2)
    return tnp.where(inside[:, None], read, tnp.zeros_like(read))


def weighted_corners(images: Any, ys: Any, xs: Any) -> list[Any]:
    """The four pixels around points (batch, points) of images, each times its weight."""
    top, left = tnp.floor(ys), tnp.floor(xs)
    parts = []
    for row, weight_y in ((top, 1 - (ys - top)), (top + 1, ys - top)):
        for column, weight_x in ((left, 1 - (xs - left)), (left + 1, xs - left)):
            read = pixels(images, tnp.astype(row, "int32"), tnp.astype(column, "int32"))
            parts.append(read * tnp.astype(weight_y * weight_x, images.dtype)[:, None])
    return parts


def bilinear(images: Any, ys: Any, xs: Any) -> Any:
    """Images (batch, channels, height, width) at points (batch, points), which may lie between pixels."""
    return reduce(tnp.add, weighted_corners(images, ys, xs))
