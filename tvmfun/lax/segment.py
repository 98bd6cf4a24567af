"""Reductions of segments: elements with the same number are combined. Names and arguments are those of ``jax.ops``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, DtypeError, ShapeError
from tvmfun.lax.gather_scatter import (
    GatherScatterMode,
    ScatterDimensionNumbers,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
)
from tvmfun.numpy.promotion import NestedArrayLike, require_integer

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]


def _segment(
    name: str,
    data: Any,
    ids: Any,
    count: int | None,
    unique: bool,
    bucket_size: int | None,
    mode: Any,
) -> Array:
    scatter, start, total = _RULES[name]
    data, ids = tnp.asarray(data), tnp.asarray(ids)
    require_integer(name, ids)
    if data.dtype == dtypes.bool_:
        raise DtypeError(name, "the data must be numbers", got=repr(data.aval), hint="x.astype('int32')")
    if not data.ndim:
        data = tnp.broadcast_to(data, ids.shape)
    if not ids.ndim or data.shape[: ids.ndim] != ids.shape:
        raise ShapeError(name, "there must be a segment for each element", got=f"{ids.aval} for {data.aval}")
    if count is None:
        if isinstance(ids, Tracer):
            raise ConcretizationError(
                name, "the number of segments is unknown while they are traced", got=repr(ids.aval), hint="num_segments"
            )
        count = int(np.max(np.asarray(ids), initial=-1)) + 1
    rest = data.shape[ids.ndim :]
    window = tuple(range(ids.ndim, data.ndim))
    numbers = ScatterDimensionNumbers(window, (0,), (0,))
    base = tnp.full((count, *rest), start(data.dtype), data.dtype)

    if isinstance(count, int) and count == 0:  # each element is of a segment that there is not
        return base

    def combined(ids: Array, data: Array) -> Array:
        return scatter(base, tnp.expand_dims(ids, -1), data, numbers, unique_indices=unique, mode=mode)

    size = ids.shape[0]
    if bucket_size is None or bucket_size >= size:
        return combined(ids, data)
    if bucket_size < 1:
        raise ArgumentError(name, "bucket_size must be positive", got=str(bucket_size))
    if math.ceil(size / bucket_size) > _MOST_BUCKETS:
        what = f"there must be no more than {_MOST_BUCKETS} buckets"
        raise ArgumentError(name, what, got=f"{bucket_size} for {size} elements", hint="a larger bucket_size")
    buckets = [slice(i, i + bucket_size) for i in range(0, size, bucket_size)]
    return total(tnp.stack([combined(ids[bucket], data[bucket]) for bucket in buckets]), axis=0)


# Each is a scatter of its own in the Program.
_MOST_BUCKETS = 1024


# How elements come together, what empty segments have, and how buckets come together.
_RULES: dict[str, tuple[Any, Any, Any]] = {
    "segment_sum": (scatter_add, lambda dtype: 0, tnp.sum),
    "segment_prod": (scatter_mul, lambda dtype: 1, tnp.prod),
    "segment_max": (scatter_max, dtypes.lowest, tnp.max),
    "segment_min": (scatter_min, dtypes.highest, tnp.min),
}


def segment_sum(
    data: NestedArrayLike,
    segment_ids: NestedArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the sum of the elements of each segment.

    Args:
        data: numbers; the leading axes are those of ``segment_ids``.
        segment_ids: the number of the segment each element belongs to. Elements with a number that is negative or
            not below ``num_segments`` are left out.
        num_segments: how many segments there are; by default the largest number plus 1, if that is known.
        indices_are_sorted: a promise that is not needed.
        unique_indices: a promise that no number occurs twice.
        bucket_size: how many elements to combine at first, so that many of them round less; by default all.
        mode: ``"drop"``, the default, or ``"clip"`` for numbers outside.

    Raises:
        ConcretizationError: if ``num_segments`` is not given and ``segment_ids`` is traced.

    Source: ``jax.ops.segment_sum``.

    >>> segment_sum(tnp.asarray([1, 2, 3, 4]), tnp.asarray([0, 0, 2, 2]), 3)
    Array([3, 0, 7], dtype=int32)
    """
    return _segment("segment_sum", data, segment_ids, num_segments, unique_indices, bucket_size, mode)


def segment_prod(
    data: NestedArrayLike,
    segment_ids: NestedArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the product of the elements of each segment, 1 for empty ones; see :func:`segment_sum`."""
    return _segment("segment_prod", data, segment_ids, num_segments, unique_indices, bucket_size, mode)


def segment_max(
    data: NestedArrayLike,
    segment_ids: NestedArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the largest element of each segment, the lowest number for empty ones; see :func:`segment_sum`."""
    return _segment("segment_max", data, segment_ids, num_segments, unique_indices, bucket_size, mode)


def segment_min(
    data: NestedArrayLike,
    segment_ids: NestedArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the smallest element of each segment, the highest number for empty ones; see :func:`segment_sum`."""
    return _segment("segment_min", data, segment_ids, num_segments, unique_indices, bucket_size, mode)
