"""Reductions of segments: elements with the same number are combined. Names and arguments are those of ``jax.ops``."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.trace import Tracer
from tvmfun.errors import ConcretizationError, DtypeError, ShapeError
from tvmfun.lax.indexing import (
    GatherScatterMode,
    ScatterDimensionNumbers,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
)
from tvmfun.numpy.promotion import require_integer


def _segment(
    name: str, scatter: Any, start: Any, data: Any, ids: Any, count: int | None, unique: bool, mode: Any
) -> Array:
    data, ids = tnp.asarray(data), tnp.asarray(ids)
    require_integer(name, ids)
    if data.dtype == dtypes.bool_:
        raise DtypeError(name, "the data must be numbers", got=repr(data.aval), hint="x.astype('int32')")
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
    return scatter(base, tnp.expand_dims(ids, -1), data, numbers, unique_indices=unique, mode=mode)


def _lowest(dtype: np.dtype) -> Any:
    return -np.inf if dtypes.is_float(dtype) else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    return np.inf if dtypes.is_float(dtype) else np.iinfo(dtype).max


def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
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
        mode: ``"drop"``, the default, or ``"clip"`` for numbers outside.

    Raises:
        ConcretizationError: if ``num_segments`` is not given and ``segment_ids`` is traced.

    Source: ``jax.ops.segment_sum``.

    >>> segment_sum(tnp.asarray([1, 2, 3, 4]), tnp.asarray([0, 0, 2, 2]), 3)
    Array([3, 0, 7], dtype=int32)
    """
    zero = lambda dtype: 0
    return _segment("segment_sum", scatter_add, zero, data, segment_ids, num_segments, unique_indices, mode)


def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the product of the elements of each segment, 1 for empty ones; see :func:`segment_sum`."""
    one = lambda dtype: 1
    return _segment("segment_prod", scatter_mul, one, data, segment_ids, num_segments, unique_indices, mode)


def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the largest element of each segment, the lowest number for empty ones; see :func:`segment_sum`."""
    return _segment("segment_max", scatter_max, _lowest, data, segment_ids, num_segments, unique_indices, mode)


def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Returns the smallest element of each segment, the highest number for empty ones; see :func:`segment_sum`."""
    return _segment("segment_min", scatter_min, _highest, data, segment_ids, num_segments, unique_indices, mode)
