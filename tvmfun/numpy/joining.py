"""Arrays put together and taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import arrays as promoted
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.manipulation import atleast_2d, atleast_3d, expand_dims, normalize_axis, ravel, reshape
from tvmfun.numpy.promotion import no_out
from tvmfun.ops import shape as ops

__all__ = [
    "append",
    "array_split",
    "block",
    "column_stack",
    "concat",
    "concatenate",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "split",
    "stack",
    "unstack",
    "vsplit",
    "vstack",
]


def _promoted(name: str, arrays: Sequence[Any], dtype: Any = None) -> list[Array]:
    if not len(arrays):
        raise ArgumentError(name, "there must be an array")
    return promoted(name, *arrays) if dtype is None else [astype(asarray(x), dtype) for x in arrays]


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Array:
    """Returns the arrays one after the other along an axis, or flattened if it is None.

    >>> concat([np.ones(1, "int32"), np.zeros(2, "int32")])
    Array([1, 0, 0], dtype=int32)
    """
    values = _promoted("concat", arrays)
    if axis is None:
        values, axis = [ravel(x) for x in values], 0
    if any(x.ndim != values[0].ndim for x in values):
        got = ", ".join(repr(x.aval) for x in values)
        raise ShapeError("concat", "all arrays must have the same number of axes", got=got)
    return ops.concat(*values, axis=normalize_axis("concat", axis, values[0].ndim))


def concatenate(arrays: Sequence[Any], axis: int | None = 0, dtype: Any = None) -> Array:
    """Returns the arrays one after the other along an axis, or flattened if it is None, in a dtype of choice."""
    result = concat(arrays, axis)
    return result if dtype is None else astype(result, dtype)


def append(arr: Any, values: Any, axis: int | None = None) -> Array:
    """Returns the values after the array along an axis, both flattened if it is None."""
    return concat([arr, values], axis)


def stack(arrays: Sequence[Any], axis: int = 0, out: None = None, dtype: Any = None) -> Array:
    """Returns the arrays side by side along a new axis.

    >>> stack([[1, 2], [3, 4]], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    no_out("stack", out)
    values = _promoted("stack", arrays, dtype)
    if len({x.shape for x in values}) > 1:
        got = ", ".join(repr(x.aval) for x in values)
        raise ShapeError("stack", "all arrays must have one shape", got=got)
    axis = normalize_axis("stack", axis, values[0].ndim + 1)
    return concat([expand_dims(x, axis) for x in values], axis)


def vstack(tup: Sequence[Any], dtype: Any = None) -> Array:
    """Returns the arrays stacked as rows."""
    return concat([atleast_2d(x) for x in _promoted("vstack", tup, dtype)], 0)


def hstack(tup: Sequence[Any], dtype: Any = None) -> Array:
    """Returns the arrays side by side along the second axis, vectors along their only one."""
    values = [x if x.ndim else ravel(x) for x in _promoted("hstack", tup, dtype)]
    return concat(values, 0 if values[0].ndim < 2 else 1)


def dstack(tup: Sequence[Any], dtype: Any = None) -> Array:
    """Returns the arrays stacked along the third axis."""
    return concat([atleast_3d(x) for x in _promoted("dstack", tup, dtype)], 2)


def column_stack(tup: Sequence[Any]) -> Array:
    """Returns the arrays side by side as columns of a matrix.

    >>> column_stack([[1, 2], [3, 4]])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    values = _promoted("column_stack", tup)
    return concat([x if x.ndim > 1 else reshape(x, (x.size, 1)) for x in values], 1)


def block(arrays: Any) -> Array:
    """Returns the array made of nested lists of blocks: the innermost lists go along the last axis.

    >>> block([[np.ones((1, 1), "int32"), np.zeros((1, 2), "int32")], [np.ones((1, 3), "int32")]])
    Array([[1, 0, 0],
           [1, 1, 1]], dtype=int32)
    """

    def depth(item: Any) -> int:
        if not isinstance(item, list):
            return 0
        if not item:
            raise ArgumentError("block", "a list must not be empty")
        depths = {depth(inner) for inner in item}
        if len(depths) > 1:
            raise ArgumentError("block", "all blocks must be nested equally deep", got=f"depths {sorted(depths)}")
        return 1 + depths.pop()

    def leaves(item: Any) -> list[Any]:
        return [leaf for inner in item for leaf in leaves(inner)] if isinstance(item, list) else [item]

    levels = depth(arrays)
    blocks = _promoted("block", leaves(arrays))
    rank = max(levels, *(x.ndim for x in blocks))
    in_order = iter(reshape(x, (1,) * (rank - x.ndim) + x.shape) for x in blocks)

    def joined(item: Any, level: int) -> Array:
        if isinstance(item, list):
            return concat([joined(inner, level - 1) for inner in item], rank - level)
        return next(in_order)

    return joined(arrays, levels)


def _parts(name: str, x: Any, sections: int | Sequence[int], axis: int, equal: bool) -> list[Array]:
    """The parts along an axis: ``sections`` of them, or cut at the given places."""
    x = asarray(x)
    axis = normalize_axis(name, axis, x.ndim)
    size = x.shape[axis]
    if isinstance(sections, int | np.integer):
        if sections < 1:
            raise ArgumentError(name, "there must be at least one part", got=str(sections))
        if equal and size % sections != 0:
            raise ShapeError(
                name, f"{size} elements do not make {sections} equal parts", got=repr(x.aval), hint="array_split"
            )
        short, long = divmod(size, int(sections))  # the first `long` parts have one element more
        cuts = [short * i + dims.minimum(i, long) for i in range(1, int(sections))]
    else:
        cuts = [c + size if c < 0 else c for c in map(dims.index, sections)]
        cuts = [dims.minimum(dims.maximum(c, 0), size) for c in cuts]
    lead = (slice(None),) * axis
    return [x[(*lead, slice(a, b))] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def split(ary: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Returns parts along an axis: ``indices_or_sections`` equal ones, or cut at the given places.

    Raises:
        ShapeError: if there are no so many equal parts.
    """
    return _parts("split", ary, indices_or_sections, axis, equal=True)


def array_split(ary: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Returns parts along an axis: ``indices_or_sections`` nearly equal ones, or cut at the given places.

    >>> [len(part) for part in array_split(np.ones(7), 3)]
    [3, 2, 2]
    """
    return _parts("array_split", ary, indices_or_sections, axis, equal=False)


def vsplit(ary: Any, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Returns parts along the first axis; see :func:`split`."""
    return _parts("vsplit", ary, indices_or_sections, 0, equal=True)


def hsplit(ary: Any, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Returns parts along the second axis, of a vector along its only one; see :func:`split`."""
    ary = asarray(ary)
    return _parts("hsplit", ary, indices_or_sections, min(1, ary.ndim - 1), equal=True)


def dsplit(ary: Any, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """Returns parts along the third axis; see :func:`split`."""
    return _parts("dsplit", ary, indices_or_sections, 2, equal=True)


def unstack(x: Any, /, axis: int = 0) -> tuple[Array, ...]:
    """Returns the slices along an axis."""
    x = asarray(x)
    lead = (slice(None),) * normalize_axis("unstack", axis, x.ndim)
    return tuple(x[(*lead, i)] for i in range(x.shape[axis]))
