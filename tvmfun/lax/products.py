"""Products of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.lax.control_flow import scan
from tvmfun.numpy.products import check_precision
from tvmfun.numpy.products import dot_general as products_of
from tvmfun.numpy.promotion import NestedArrayLike, operands, require_integer
from tvmfun.numpy.shapes import normalize_axis
from tvmfun.typing import DTypeLike

__all__ = ["batch_matmul", "dot", "dot_general", "ragged_dot"]


def dot_general(
    lhs: NestedArrayLike,
    rhs: NestedArrayLike,
    dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]],
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns the product summed over pairs of contracted axes, for each index of the paired batch axes.

    Args:
        lhs: the left array.
        rhs: the right array, of the same dtype after promotion.
        dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.
        precision: ``"high"`` allows float32 factors to be rounded to 11 bits; see :class:`tvmfun.lax.Precision`.
        preferred_element_type: the dtype to multiply, to sum and to return in; ``None`` for that of the arrays, where
            half precision is summed in float32 and rounded once. Narrow arrays are read as they are: int8 for sums in
            int32, which wrap around, bfloat16 for sums in float32. Both may then have different dtypes.

    Returns:
        An array with the batch axes first, then the other axes of ``lhs``, then those of ``rhs``.

    Source: ``jax.lax.dot_general``.

    >>> x = tnp.full((2, 3), 100, dtype="int8")
    >>> dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type="int32")
    Array([[30000, 30000],
           [30000, 30000]], dtype=int32)
    """
    check_precision("dot_general", precision)
    contract, batch = dimension_numbers
    lhs, rhs = tnp.asarray(lhs), tnp.asarray(rhs)
    if preferred_element_type is None:
        lhs, rhs = (tnp.asarray(x) for x in operands("dot_general", lhs, rhs))
    else:
        lhs, rhs = (tnp.astype(x, preferred_element_type) for x in (lhs, rhs))
    contract, batch = _axes(contract, lhs, rhs), _axes(batch, lhs, rhs)
    return products_of(lhs, rhs, contract=contract, batch=batch, precision=precision)


def _axes(pair: tuple[Sequence[int], Sequence[int]], lhs: Array, rhs: Array) -> tuple:
    """The axes of both sides, counted from the first."""
    if len(pair[0]) != len(pair[1]):
        raise ArgumentError("dot_general", "axes come in pairs", got=str(pair))
    return tuple(
        tuple(normalize_axis("dot_general", axis, x.ndim) for axis in axes)
        for axes, x in zip(pair, (lhs, rhs), strict=True)
    )


def dot(
    lhs: NestedArrayLike,
    rhs: NestedArrayLike,
    *,
    dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]] | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns the product of vectors or matrices, summed over the last axis of ``lhs`` and the first of ``rhs``.

    Args:
        lhs: the left array.
        rhs: the right array.
        dimension_numbers: other axes, of any arrays: see :func:`dot_general`.
        precision: as for :func:`dot_general`.
        preferred_element_type: as for :func:`dot_general`.
    """
    lhs, rhs = tnp.asarray(lhs), tnp.asarray(rhs)
    if dimension_numbers is None:
        if not 1 <= lhs.ndim <= 2 or not 1 <= rhs.ndim <= 2:
            raise ShapeError("dot", "both arrays must be vectors or matrices", got=f"{lhs.aval} and {rhs.aval}")
        dimension_numbers = (((lhs.ndim - 1,), (0,)), ((), ()))
    return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)


def batch_matmul(lhs: NestedArrayLike, rhs: NestedArrayLike, precision: Any = None) -> Array:
    """Returns the matrix products of two stacks of matrices with the same leading axes; see :func:`dot_general`."""
    lhs, rhs = tnp.asarray(lhs), tnp.asarray(rhs)
    if lhs.ndim < 2 or lhs.ndim != rhs.ndim:
        raise ShapeError("batch_matmul", "both arrays must be stacks of matrices", got=f"{lhs.aval} and {rhs.aval}")
    lead = tuple(range(lhs.ndim - 2))
    return dot_general(lhs, rhs, (((lhs.ndim - 1,), (rhs.ndim - 2,)), (lead, lead)), precision)


def ragged_dot(
    lhs: NestedArrayLike,
    rhs: NestedArrayLike,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: Any = None,
) -> Array:
    """Returns the product of groups of rows with a matrix for each group.

    All rows are multiplied by each matrix, one matrix after the other, and those of its group are kept.

    Args:
        lhs: an m x k matrix, the rows of a group one after the other.
        rhs: a k x n matrix for each of g groups.
        group_sizes: how many rows each group has, g integers. Rows after the last group have the result 0.
        precision: as for :func:`dot_general`.
        preferred_element_type: as for :func:`dot_general`.
        group_offset: only None.

    Raises:
        ArgumentError: for a ``group_offset``.
        ShapeError: if the shapes do not fit.

    Source: ``jax.lax.ragged_dot``.

    >>> x, matrices = tnp.ones((3, 1)), tnp.asarray([[[1.0]], [[5.0]]])
    >>> ragged_dot(x, matrices, tnp.asarray([2, 1])).ravel().tolist()
    [1.0, 1.0, 5.0]
    """
    name = "ragged_dot"
    if group_offset is not None:
        raise ArgumentError(name, "all groups are here, so there is no offset", got=f"group_offset={group_offset!r}")
    x, matrices, sizes = tnp.asarray(lhs), tnp.asarray(rhs), tnp.asarray(group_sizes)
    require_integer(name, sizes)
    fits = x.ndim == 2 and matrices.ndim == 3 and sizes.shape == matrices.shape[:1]
    if not fits or x.shape[1] != matrices.shape[1]:
        what = "there must be a matrix, one with as many rows as it has columns for each group, and sizes of the groups"
        raise ShapeError(name, what, got=f"{x.aval}, {matrices.aval} and {sizes.aval}")
    ends = tnp.cumsum(sizes)
    row = tnp.arange(x.shape[0], dtype=ends.dtype)[:, None]

    def step(total: Array, group: tuple) -> tuple[Array, None]:
        matrix, begin, end = group
        product = dot_general(x, matrix, (((1,), (0,)), ((), ())), precision, preferred_element_type)
        return tnp.where((row >= begin) & (row < end), product, total), None

    dtype = tnp.result_type(x, matrices) if preferred_element_type is None else preferred_element_type
    total = tnp.zeros((x.shape[0], matrices.shape[2]), dtype)
    return scan(step, total, (matrices, ends - sizes, ends))[0] if matrices.shape[0] else total
