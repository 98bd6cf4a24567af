"""Resizing, sampling of images at points, and regions of images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.errors import ArgumentError, ProgramError, ShapeError
from tvmfun.interop.onnx.operators.shapes import MOST_ELEMENTS, ints
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.operators.windows import weighted_corners
from tvmfun.interop.onnx.tensors import is_known, lifted

onnx = Family(__name__)

# -- resizing ----------------------------------------------------------------------------------------------------------


def _coordinates(m: int, n: int, scale: float, mode: str, roi: tuple[float, float]) -> np.ndarray:
    """The coordinates of ``m`` new pixels among ``n`` pixels."""
    indices, new = np.arange(m, dtype=np.float64), scale * n
    if mode == "align_corners":
        return indices * 0 if new == 1 else indices * (n - 1) / (new - 1)
    if mode == "asymmetric":
        return indices / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        if new == 1:
            return indices * 0 + (start + end) * (n - 1) / 2
        return start * (n - 1) + indices * (end - start) * (n - 1) / (new - 1)
    if mode == "tf_half_pixel_for_nn":
        return (indices + 0.5) / scale
    if mode not in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        raise ArgumentError("Resize", "the transformation of coordinates is not known", got=mode)
    centres = (indices + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return n / 2 * (1 - m / new) + centres
    return indices * 0 - 0.5 if mode == "pytorch_half_pixel" and new == 1 else centres


def _nearest(where: np.ndarray, mode: str) -> np.ndarray:
    """The pixel that a coordinate is rounded to."""
    if mode == "round_prefer_floor":
        return np.ceil(where - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(where + 0.5)
    if mode not in ("floor", "ceil"):
        raise ArgumentError("Resize", "the rounding of coordinates is not known", got=mode)
    return np.floor(where) if mode == "floor" else np.ceil(where)


def _kernel(distance: np.ndarray, mode: str, a: float) -> np.ndarray:
    """The weight of a pixel at a distance."""
    d = np.abs(distance)
    if mode == "linear":
        return np.clip(1 - d, 0, 1)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _weights(
    where: np.ndarray, n: int, scale: float, mode: str, a: float, antialias: bool, exclude_outside: bool
) -> np.ndarray:
    """The matrix (new pixels, pixels) of an interpolation; pixels outside are those at the edge."""
    squeeze = min(scale, 1.0) if antialias else 1.0
    reach = math.ceil((1 if mode == "linear" else 2) / squeeze)
    offsets = np.arange(-reach, reach + 1)
    if len(where) * max(n, len(offsets)) > MOST_ELEMENTS:
        raise ShapeError("Resize", f"the matrix must have at most {MOST_ELEMENTS} elements", got=f"{len(where)}, {n}")
    base = np.floor(where)[:, None] + offsets
    parts = _kernel((base - where[:, None]) * squeeze, mode, a)
    if exclude_outside:
        parts = np.where((base < 0) | (base >= n), 0, parts)
    if antialias or exclude_outside:
        total = parts.sum(axis=1, keepdims=True)
        parts = parts / np.where(total == 0, 1, total)
    result = np.zeros((len(where), n))
    np.add.at(result, (np.arange(len(where))[:, None], np.clip(base, 0, n - 1).astype(int)), parts)
    return result


@onnx.reads("Resize", static=(1, 2, 3))
def _resize(
    x: Any,
    roi: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Any:
    """Axis by axis: elements that are read, or a product with a matrix of weights."""
    along = [axis % x.ndim for axis in (axes if axes is not None else range(x.ndim))]
    shape = [x.shape[axis] for axis in along]
    if sizes is not None and sizes.size:
        new = ints(sizes)
        factors = [m / n for m, n in zip(new, shape, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            one = min(factors) if keep_aspect_ratio_policy == "not_larger" else max(factors)
            factors = [one] * len(shape)
            new = [int(n * one + 0.5) for n in shape]
    elif scales is not None:
        factors = [float(s) for s in scales]
        new = [math.floor(n * s) for n, s in zip(shape, factors, strict=True)]
    else:
        raise ArgumentError("Resize", "there must be scales or sizes", got="neither")
    regions = [(0.0, 1.0)] * len(along)
    if roi is not None and roi.size:
        regions = list(zip(map(float, roi[: len(along)]), map(float, roi[len(along) :]), strict=True))
    cropped, result, inside = coordinate_transformation_mode == "tf_crop_and_resize", x, np.ones((1,) * x.ndim, bool)
    for axis, n, m, scale, region in zip(along, shape, new, factors, regions, strict=True):
        if m > MOST_ELEMENTS or m < 0:
            raise ShapeError("Resize", f"sizes must be at most {MOST_ELEMENTS}", got=str(new))
        if n == m and scale == 1 and not cropped:
            continue
        where = _coordinates(m, n, scale, coordinate_transformation_mode, region)
        if cropped:
            fits = (where >= 0) & (where <= n - 1)
            inside = inside & fits.reshape(tuple(-1 if i == axis else 1 for i in range(x.ndim)))
        if mode == "nearest":
            index = np.clip(_nearest(where, nearest_mode), 0, n - 1).astype(np.int64)
            result = tnp.take(result, index, axis=axis)
            continue
        weights = _weights(where, n, scale, mode, cubic_coeff_a, bool(antialias), bool(exclude_outside))
        wide = result if dtypes.is_float(result.dtype) else tnp.astype(result, "float32")
        weights = tnp.asarray(weights.astype(wide.dtype))
        result = tnp.moveaxis(tnp.tensordot(wide, weights, axes=((axis,), (1,))), -1, axis)
    if result.dtype != x.dtype:
        limits = tnp.iinfo(x.dtype)
        result = tnp.astype(tnp.clip(tnp.round(result), limits.min, limits.max), x.dtype)
    return result if inside.all() else tnp.where(inside, result, tnp.asarray(extrapolation_value, dtype=x.dtype))


@onnx.reads("Upsample", static=(1,))
def _upsample(x: Any, scales: Any, *, mode: str = "nearest") -> Any:
    factors = np.asarray(scales, np.float32)
    return _resize(
        x,
        None,
        factors,
        coordinate_transformation_mode="asymmetric",
        mode={"bilinear": "linear"}.get(mode, mode),
        nearest_mode="floor",
    )


onnx.reads("Resize", since=10, static=(1,))(_upsample)
onnx.reads("Resize", since=11, static=(1, 2, 3))(_resize)


# -- sampling ----------------------------------------------------------------------------------------------------------


def _reflected(x: Any, low: float, high: float) -> Any:
    """Coordinates reflected at the borders until they are between them."""
    span = high - low
    if span <= 0:
        return tnp.full_like(x, low)
    distance = tnp.abs(x - low)
    turns = tnp.floor(distance / span)
    rest = distance - turns * span
    return tnp.where(turns % 2 == 0, low + rest, high - rest)


@onnx.reads("GridSample")
def _grid_sample(
    x: Any, grid: Any, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Any:
    """Elements at points whose coordinates are from -1 to 1, the last axis first."""
    batch, channels, *sizes = x.shape
    points = tnp.reshape(grid, (batch, -1, len(sizes)))
    borders = [(0.0, n - 1.0) if align_corners else (-0.5, n - 0.5) for n in sizes]
    where = []
    for i, (n, border) in enumerate(zip(sizes, borders, strict=True)):
        c = points[:, :, len(sizes) - 1 - i]
        c = (c + 1) / 2 * (n - 1) if align_corners else ((c + 1) * n - 1) / 2
        c = tnp.round(c) if mode == "nearest" else c
        if padding_mode == "border":
            c = tnp.clip(c, 0, n - 1)
        elif padding_mode == "reflection":
            c = tnp.where((c < border[0]) | (c > border[1]), _reflected(c, *border), c)
        where.append(c)
    if mode == "nearest":
        offsets: Sequence[int] = (0,)
    else:
        offsets = (0, 1) if mode in ("linear", "bilinear") else (-1, 0, 1, 2)
    bases = [tnp.floor(c) for c in where]
    flat = tnp.reshape(x, (batch, channels, math.prod(sizes)))
    result = tnp.zeros((batch, channels, points.shape[1]), dtype=x.dtype)
    for corner in itertools.product(offsets, repeat=len(sizes)):
        index, weight, inside = 0, 1.0, True
        for c, base, offset, n, border in zip(where, bases, corner, sizes, borders, strict=True):
            at = base + offset
            if mode != "nearest":
                weight = weight * _weight(c - at, mode)
            if padding_mode == "reflection":
                at = tnp.trunc(tnp.where((at < border[0]) | (at > border[1]), _reflected(at, *border), at))
            elif padding_mode == "zeros":
                inside = inside & (at >= 0) & (at <= n - 1)
            index = index * n + tnp.astype(tnp.clip(at, 0, n - 1), "int32")
        read = tnp.take_along_axis(flat, tnp.asarray(index)[:, None], axis=2)
        if padding_mode == "zeros":
            read = tnp.where(tnp.asarray(inside)[:, None], read, tnp.zeros_like(read))
        result = result + (read if mode == "nearest" else read * tnp.astype(tnp.asarray(weight), x.dtype)[:, None])
    return tnp.reshape(result, (batch, channels, *grid.shape[1:-1]))


def _weight(distance: Any, mode: str, a: float = -0.75) -> Any:
    d = tnp.abs(distance)
    if mode in ("linear", "bilinear"):
        return tnp.maximum(1 - d, 0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return tnp.where(d <= 1, near, far)


# -- regions -----------------------------------------------------------------------------------------------------------


@onnx.reads("RoiAlign", context=True)
def _roi_align(
    call: Any,
    x: Any,
    rois: Any,
    batch_indices: Any,
    *,
    coordinate_transformation_mode: str | None = None,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    """Means or maxima of points in the cells of each region, read bilinearly."""
    half = "half_pixel" if call.node.version >= 16 else "output_half_pixel"
    shift = 0.5 if (coordinate_transformation_mode or half) == "half_pixel" else 0.0
    counts = (sampling_ratio, sampling_ratio)
    if not sampling_ratio:
        if not is_known(rois):
            what = "regions must be known when the function is traced if sampling_ratio is 0"
            raise ProgramError("from_onnx", what, got="regions that are computed from arguments")
        boxes = rois * spatial_scale
        counts = tuple(
            max(int(np.ceil((boxes[:, k + 2] - boxes[:, k]).max(initial=1) / size)), 1)
            for k, size in ((1, output_height), (0, output_width))
        )
    x, rois, index = lifted(x), lifted(rois), lifted(batch_indices)
    boxes = rois * spatial_scale - shift
    left, top, right, bottom = (boxes[:, k] for k in range(4))
    height, width = bottom - top, right - left
    if not shift:
        height, width = tnp.maximum(height, 1), tnp.maximum(width, 1)

    def points(start: Any, size: Any, cells: int, count: int) -> Any:
        offsets = (np.arange(cells)[:, None] + (np.arange(count) + 0.5) / count).reshape(-1)
        return start[:, None] + size[:, None] / cells * tnp.asarray(offsets.astype(x.dtype))

    ys, xs = points(top, height, output_height, counts[0]), points(left, width, output_width, counts[1])
    rows, columns = x.shape[2:]
    inside_y, inside_x = (ys >= -1) & (ys <= rows), (xs >= -1) & (xs <= columns)
    ys, xs = tnp.clip(ys, 0, rows - 1), tnp.clip(xs, 0, columns - 1)
    images = tnp.take(x, index, axis=0)
    shape = (rois.shape[0], ys.shape[1], xs.shape[1])
    flat = lambda c: tnp.reshape(tnp.broadcast_to(c, shape), (rois.shape[0], -1))
    parts = weighted_corners(images, flat(ys[:, :, None]), flat(xs[:, None, :]))
    inside = flat(inside_y[:, :, None] & inside_x[:, None, :])[:, None]
    # The maximum is that of weighted pixels, not that of the points between them.
    read = reduce(tnp.add if mode == "avg" else tnp.maximum, parts)
    read = tnp.where(inside, read, tnp.zeros_like(read))
    cells = tnp.reshape(read, (*read.shape[:2], output_height, counts[0], output_width, counts[1]))
    return tnp.mean(cells, axis=(3, 5)) if mode == "avg" else tnp.max(cells, axis=(3, 5))


@onnx.reads("NonMaxSuppression", static=(-1,))
def _non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    most: np.ndarray | None = None,
    overlap: np.ndarray | None = None,
    least_score: np.ndarray | None = None,
    *,
    center_point_box: int = 0,
) -> np.ndarray:
    """The rows (batch, class, box) of boxes that overlap none with a higher score by more than a threshold."""
    limit = int(most.item()) if most is not None else 0
    threshold = float(overlap.item()) if overlap is not None else 0.0
    if center_point_box:
        centre, size = boxes[..., :2], boxes[..., 2:]
        corners = np.concatenate([centre - size / 2, centre + size / 2], axis=-1)
    else:
        corners = np.concatenate(
            [np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], axis=-1
        )
    areas = np.prod(corners[..., 2:] - corners[..., :2], axis=-1)
    rows = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        own, area, kept = corners[batch], areas[batch], []
        order = np.argsort(-scores[batch, kind], kind="stable")
        if least_score is not None:
            order = order[scores[batch, kind, order] > float(least_score.item())]
        for i in order:
            if len(kept) >= limit:
                break
            low = np.maximum(own[kept, :2], own[i, :2])
            high = np.minimum(own[kept, 2:], own[i, 2:])
            common = np.prod(np.clip(high - low, 0, None), axis=-1)
            union = area[kept] + area[i] - common
            if not np.any(common > threshold * union):
                kept.append(i)
        rows += [(batch, kind, i) for i in kept]
    return np.asarray(rows, np.int64).reshape(-1, 3)
