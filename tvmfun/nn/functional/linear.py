"""Affine and bilinear maps, and embeddings."""

from __future__ import annotations

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, DtypeError, ShapeError
from tvmfun.nn.functional.arguments import add_bias
from tvmfun.sparse import RowTable
from tvmfun.typing import ArrayLike

__all__ = ["bilinear", "embedding", "linear"]


def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Array:
    """An affine map of the last axis: ``x @ weight + bias``.

    Args:
        x: an array of shape (..., in).
        weight: an array of shape (in, out).
        bias: an array of shape (out,), or ``None``.

    Returns:
        An array of shape (..., out).

    Raises:
        ShapeError: if the shapes do not fit.

    >>> linear(tnp.asarray([1.0, 2.0]), tnp.asarray([[3.0], [4.0]]), tnp.asarray([0.5]))
    Array([11.5], dtype=float32)
    """
    x, weight = tnp.asarray(x), tnp.asarray(weight)
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[0]:
        raise ShapeError(
            "linear",
            "the array must be (..., in) and the weight (in, out)",
            got=f"{x.shape} and {weight.shape}",
            hint="x.reshape(batch, -1), or another in_features",
        )
    return add_bias("linear", x @ weight, bias)


def bilinear(x1: ArrayLike, x2: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Array:
    """A bilinear map of the last axes: ``y[k] = sum_ij x1[i] * weight[i, j, k] * x2[j] + bias[k]``.

    Args:
        x1: an array of shape (..., in1).
        x2: an array of shape (..., in2).
        weight: an array of shape (in1, in2, out).
        bias: an array of shape (out,), or ``None``.

    Returns:
        An array of shape (..., out).

    Raises:
        ShapeError: if the shapes do not fit.

    >>> bilinear(tnp.asarray([2.0]), tnp.asarray([3.0, 4.0]), tnp.ones((1, 2, 1)))
    Array([14.], dtype=float32)
    """
    x1, x2, weight = tnp.asarray(x1), tnp.asarray(x2), tnp.asarray(weight)
    fits = weight.ndim == 3 and x1.ndim == x2.ndim > 0 and x1.shape[:-1] == x2.shape[:-1]
    if not fits or (x1.shape[-1], x2.shape[-1]) != weight.shape[:2]:
        raise ShapeError(
            "bilinear",
            "the arrays must be (..., in1) and (..., in2), the weight (in1, in2, out)",
            got=f"{x1.shape}, {x2.shape} and {weight.shape}",
        )
    in1, in2, out = weight.shape
    half = (x1 @ weight.reshape(in1, in2 * out)).reshape(*x1.shape[:-1], in2, out)
    return add_bias("bilinear", tnp.sum(half * x2[..., None], axis=-2), bias)


def embedding(indices: ArrayLike, weight: ArrayLike | RowTable, *, padding_idx: int | None = None) -> Array:
    """The rows of a table, ``tnp.take(weight, indices, axis=0)``.

    An index out of range gives a row of NaN, so that it does not go unnoticed, and no gradient; ``weight[indices]``
    would clamp it.

    Args:
        indices: an array of integers; negative ones count from the end.
        weight: the table, of shape (rows, features), or a :class:`tvmfun.sparse.RowTable` of it.
        padding_idx: a row that gets no gradient.

    Returns:
        An array of shape ``(*indices.shape, features)``.

    Raises:
        DtypeError: if the indices are not integers.
        ShapeError: if the table does not have two axes.
        ArgumentError: if ``padding_idx`` is out of range.

    >>> embedding(tnp.asarray([2, 0]), tnp.asarray([[0.0], [1.0], [2.0]]))
    Array([[2.],
           [0.]], dtype=float32)
    """
    indices, weight = tnp.asarray(indices), tnp.asarray(weight.array if isinstance(weight, RowTable) else weight)
    if not dtypes.is_integer(indices.dtype):
        hint = 'indices.astype("int32")'
        raise DtypeError("embedding", "the indices must be integers", got=str(indices.dtype), hint=hint)
    if weight.ndim != 2:
        raise ShapeError("embedding", "the table must be (rows, features)", got=str(weight.shape))
    rows = tnp.take(weight, indices, axis=0)
    if padding_idx is None:
        return rows
    padding, limits = row_index("embedding", padding_idx, weight.shape[0]), tnp.iinfo(indices.dtype)
    for index in (padding, padding - weight.shape[0]):
        if limits.min <= index <= limits.max:  # others are not indices of this type
            rows = tnp.where((indices == index)[..., None], lax.stop_gradient(rows), rows)
    return rows


def row_index(where: str, padding_idx: int, rows: int) -> int:
    """The index of the row ``padding_idx``, which may count from the end."""
    if not -rows <= padding_idx < rows:
        raise ArgumentError(where, f"padding_idx must be one of {rows} rows", got=str(padding_idx))
    return padding_idx % rows
