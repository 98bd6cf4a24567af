"""Matrices as arrays: the checks of linear algebra, and the parts of its derivative rules."""

from __future__ import annotations

from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.dot import dot_general


def check_matrix(name: str, *avals: ShapeDtype) -> None:
    """Raises unless the arguments are float32 or float64 matrices of one dtype with the same leading axes."""
    if any(a.dtype not in (dtypes.float32, dtypes.float64) or a.dtype != avals[0].dtype for a in avals):
        raise DtypeError(
            name,
            "the matrices must be float32 or float64, and of one dtype",
            got=", ".join(map(str, avals)),
            hint="x.astype('float32')",
        )
    if any(a.ndim < 2 for a in avals) or any(a.shape[:-2] != avals[0].shape[:-2] for a in avals):
        raise ShapeError(
            name, "the last two axes are a matrix; all before them must agree", got=", ".join(map(str, avals))
        )


def check_square(name: str, a: ShapeDtype) -> None:
    """Raises unless the matrix is square."""
    if a.shape[-1] != a.shape[-2]:
        raise ShapeError(name, "the matrix must be square", got=repr(a))


def matmul(x: Array, y: Array, *, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    """The matrix product of ``x`` and ``y``, either of them transposed."""
    lead = tuple(range(x.ndim - 2))
    contract = (x.ndim - 2 if transpose_x else x.ndim - 1,), (x.ndim - 1 if transpose_y else x.ndim - 2,)
    return dot_general(x, y, contract=contract, batch=(lead, lead))


def transpose(x: Array) -> Array:
    """The transposed matrix."""
    return shapes.permute_dims(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def row_and_column(x: Array) -> tuple[Array, Array]:
    """The row and the column of each element of a matrix."""
    row, column = (shapes.iota(shape=x.shape[-2:], axis=axis, dtype="int32") for axis in (0, 1))
    return row, column


def tril(x: Array, *, strict: bool = False) -> Array:
    """The lower triangle of ``x``, with zeros above."""
    row, column = row_and_column(x)
    return pw.where(row > column if strict else row >= column, x, pw.constant(0, x))


def triu(x: Array, *, strict: bool = False) -> Array:
    """The upper triangle of ``x``, with zeros below."""
    row, column = row_and_column(x)
    return pw.where(row < column if strict else row <= column, x, pw.constant(0, x))


def with_diagonal(x: Array, value: Any) -> Array:
    """The matrix ``x`` with the diagonal of ``value``, a matrix or a number."""
    row, column = row_and_column(x)
    return pw.where(row == column, value, x)


def columns(x: Array, begin: int, end: int) -> Array:
    """``x[..., begin:end]``."""
    return _slice_along(x, x.ndim - 1, begin, end)


def rows(x: Array, begin: int, end: int) -> Array:
    """``x[..., begin:end, :]``."""
    return _slice_along(x, x.ndim - 2, begin, end)


def _slice_along(x: Array, axis: int, begin: int, end: int) -> Array:
    start = tuple(begin if i == axis else 0 for i in range(x.ndim))
    stop = tuple(end if i == axis else size for i, size in enumerate(x.shape))
    return shapes.slice(x, start=start, stop=stop, step=(1,) * x.ndim)


def halved(x: Array) -> Array:
    """The lower triangle with half the diagonal."""
    return tril(with_diagonal(x, x * 0.5))
