"""Relax operators of object detection whose results have static sizes."""

from __future__ import annotations

import itertools
import math
from functools import reduce
from operator import add, or_
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.interop.relax.table import reads, refuse
from tvmfun.interop.relax.windows import channels_first, from_channels_first
from tvmfun.nn import functional as nn


@reads("relax.vision.roi_align", limits="if `sample_ratio` is positive")
def _roi_align(
    x: Any,
    rois: Any,
    *,
    pooled_size: tuple,
    spatial_scale: float,
    sample_ratio: int,
    aligned: bool,
    layout: str,
    mode: str,
) -> Any:
    """Means or maxima of bilinear samples, ``sample_ratio`` by ``sample_ratio`` in each bin of a region."""
    if sample_ratio <= 0:
        raise refuse("relax.vision.roi_align", "the number of samples must not depend on data", sample_ratio)
    x = channels_first(x, layout)
    taps = []
    for axis, (n, bins) in enumerate(zip(x.shape[2:], pooled_size, strict=True)):
        begin, end = rois[:, 2 - axis] * spatial_scale, rois[:, 4 - axis] * spatial_scale
        length = end - begin if aligned else tnp.maximum(end - begin, 1)
        steps = (tnp.arange(bins * sample_ratio, dtype=rois.dtype) + 0.5) / sample_ratio
        where = begin[:, None] + steps * (length / bins)[:, None]
        outside = (where < -1) | (where > n)
        where = tnp.clip(where, 0, n - 1)
        base = tnp.floor(where)
        indices = tnp.astype(base, "int32")
        fraction = where - base
        weights = (tnp.where(outside, 0, 1 - fraction), tnp.where(outside, 0, fraction))
        taps.append(((indices, weights[0]), (tnp.minimum(indices + 1, n - 1), weights[1])))
    batch = tnp.astype(rois[:, 0], "int32")[:, None, None]
    last = tnp.moveaxis(x, 1, -1)
    terms = []
    for (rows, row_weights), (columns, column_weights) in itertools.product(*taps):
        found = last[batch, rows[:, :, None], columns[:, None, :]]
        terms.append(found * (row_weights[:, :, None] * column_weights[:, None, :])[..., None].astype(x.dtype))
    height, width = pooled_size
    samples = tnp.reshape(reduce(add, terms), (-1, height, sample_ratio, width, sample_ratio, x.shape[1]))
    pooled = tnp.mean(samples, axis=(2, 4)) if mode == "avg" else tnp.max(samples, axis=(2, 4))
    return from_channels_first(tnp.moveaxis(pooled, -1, 1), layout)


@reads("relax.vision.roi_pool")
def _roi_pool(x: Any, rois: Any, *, pooled_size: tuple, spatial_scale: float) -> Any:
    """The largest element of each bin of a region, and 0 in an empty one."""
    found = x[tnp.astype(rois[:, 0], "int32")]
    lowest = tnp.asarray(-math.inf, dtype=x.dtype)
    empty = []
    for axis, (n, bins) in reversed(list(enumerate(zip(x.shape[2:], pooled_size, strict=True)))):
        begin = tnp.floor(rois[:, 2 - axis] * spatial_scale + 0.5)
        end = tnp.floor(rois[:, 4 - axis] * spatial_scale + 0.5)
        step = (tnp.maximum(end - begin + 1, 1) / bins)[:, None]
        indices = tnp.arange(bins, dtype=rois.dtype)
        first = tnp.clip(tnp.floor(indices * step) + begin[:, None], 0, n)
        last = tnp.clip(tnp.ceil((indices + 1) * step) + begin[:, None], 0, n)
        elements = tnp.arange(n, dtype=rois.dtype)
        member = (elements >= first[..., None]) & (elements < last[..., None])
        # The axis moves to the end for the reduction, its bins take its position.
        moved = tnp.moveaxis(found, 2 + axis, -1)[..., None, :]
        shape = (member.shape[0], *(1,) * (moved.ndim - 3), *member.shape[1:])
        best = tnp.max(tnp.where(tnp.reshape(member, shape), moved, lowest), axis=-1)
        found = tnp.moveaxis(best, -1, 2 + axis)
        none = last <= first
        empty.append(none[:, None, :, None] if axis == 0 else none[:, None, None, :])
    return tnp.where(reduce(or_, empty), 0, found)


@reads("relax.vision.multibox_transform_loc")
def _multibox_transform_loc(
    scores: Any,
    offsets: Any,
    anchors: Any,
    *,
    clip: bool,
    threshold: float,
    variances: tuple,
    keep_background: bool,
    apply_softmax: bool,
) -> Any:
    """Boxes as (top, left, bottom, right) from offsets to anchors, and scores above the threshold."""
    batch, _, count = scores.shape
    x, y, w, h = (tnp.reshape(offsets, (batch, count, 4))[..., i] * variances[i] for i in range(4))
    left, top, right, bottom = (anchors[..., i] for i in range(4))
    height, width = bottom - top, right - left
    center_y, center_x = y * height + (top + bottom) * 0.5, x * width + (left + right) * 0.5
    half_h, half_w = 0.5 * tnp.exp(h) * height, 0.5 * tnp.exp(w) * width
    boxes = tnp.stack([center_y - half_h, center_x - half_w, center_y + half_h, center_x + half_w], axis=-1)
    boxes = tnp.clip(boxes, 0, 1) if clip else boxes
    scores = nn.softmax(scores, axis=1) if apply_softmax else scores
    scores = tnp.where(scores >= threshold, scores, 0)
    if not keep_background:
        scores = tnp.where(tnp.arange(scores.shape[1])[:, None] == 0, 0, scores)
    return boxes, scores


@reads("relax.vision.get_valid_counts")
def _get_valid_counts(x: Any, *, score_threshold: float, id_index: int, score_index: int) -> Any:
    """The number of boxes above the threshold, and an array with these boxes first and -1 for the others."""
    valid = x[..., score_index] > score_threshold
    valid = valid & (x[..., id_index] >= 0) if id_index >= 0 else valid
    order = tnp.argsort(tnp.astype(~valid, "int32"), axis=1)
    counts = tnp.sum(tnp.astype(valid, "int32"), axis=1)
    kept = lax.broadcasted_iota("int32", valid.shape, 1) < counts[:, None]
    boxes = tnp.take_along_axis(x, order[..., None], axis=1)
    return counts, tnp.where(kept[..., None], boxes, -1), tnp.where(kept, order, -1)


def _overlaps(boxes: Any) -> Any:
    """The area of intersection over that of union, of each box with each other."""
    low, high = tnp.minimum(boxes[..., :2], boxes[..., 2:]), tnp.maximum(boxes[..., :2], boxes[..., 2:])
    sides = tnp.minimum(high[:, :, None], high[:, None]) - tnp.maximum(low[:, :, None], low[:, None])
    common = tnp.prod(tnp.maximum(sides, 0), axis=-1)
    areas = tnp.prod(high - low, axis=-1)
    union = areas[:, :, None] + areas[:, None] - common
    return tnp.where(union > 0, common / tnp.where(union > 0, union, 1), 0)


@reads("relax.vision.non_max_suppression")
def _non_max_suppression(
    x: Any,
    valid_count: Any,
    indices: Any,
    *,
    max_output_size: int,
    iou_threshold: float,
    force_suppress: bool,
    top_k: int,
    coord_start: int,
    score_index: int,
    id_index: int,
    return_indices: bool,
    invalid_to_bottom: bool,
    soft_nms_sigma: float,
    score_threshold: float,
) -> Any:
    """Takes the box with the highest score, again and again, and takes those out, or down, that overlap it."""
    batch, count, _ = x.shape
    soft = soft_nms_sigma > 0
    positions = lax.broadcasted_iota("int32", (batch, count), 1)
    lowest = tnp.asarray(-math.inf, dtype=x.dtype)
    order = tnp.argsort(
        tnp.where(positions < valid_count[:, None], x[..., score_index], lowest), axis=1, descending=True
    ).astype("int32")
    x = tnp.take_along_axis(x, order[..., None], axis=1)
    overlaps = _overlaps(x[..., coord_start : coord_start + 4])
    rivals = tnp.ones((batch, count, count), "bool")
    if id_index >= 0 and not force_suppress:
        rivals = x[:, :, None, id_index] == x[:, None, :, id_index]
    threshold = score_threshold if soft else 0.0
    limit = tnp.minimum(valid_count, top_k) if top_k > 0 else valid_count

    def step(turn: Any, state: tuple) -> tuple:
        scores, alive, picked = state
        eligible = alive & (scores > threshold)
        best = tnp.argmax(tnp.where(eligible, scores, lowest), axis=1).astype("int32")[:, None]
        found = tnp.any(eligible, axis=1, keepdims=True)
        found = found & (turn < max_output_size) if max_output_size > 0 else found
        overlap = tnp.take_along_axis(overlaps, best[..., None], axis=1)[:, 0]
        rival = tnp.take_along_axis(rivals, best[..., None], axis=1)[:, 0] & (positions != best) & found
        if soft:
            decayed = scores * tnp.exp(overlap * overlap * (-0.5 / soft_nms_sigma))
            scores = tnp.where(rival & eligible & (overlap < iou_threshold), decayed, scores)
        alive = alive & ~(rival & (overlap >= iou_threshold)) & ~((positions == best) & found)
        return scores, alive, tnp.where((positions == turn) & found, best, picked)

    start = (x[..., score_index], positions < limit[:, None], tnp.full((batch, count), -1, "int32"))
    scores, _, picked = lax.fori_loop(0, count, step, start)
    taken, safe = picked >= 0, tnp.maximum(picked, 0)
    decayed = x.at[..., score_index].set(scores)
    compact = tnp.where(taken[..., None], tnp.take_along_axis(decayed, safe[..., None], axis=1), -1)
    if not return_indices:
        kept = tnp.any((picked[:, :, None] == positions[:, None]) & taken[:, :, None], axis=1)
        return compact if soft or invalid_to_bottom else tnp.where(kept[..., None], x, -1)
    source = tnp.take_along_axis(order, safe, axis=1)
    chosen = tnp.where(taken, tnp.take_along_axis(tnp.asarray(indices), source, axis=1), -1)
    total = tnp.sum(taken.astype("int32"), axis=1, keepdims=True)
    return (compact, chosen, total) if soft else (chosen, total)
