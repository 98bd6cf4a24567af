"""Products of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.manipulation import broadcast_to, moveaxis, normalize_axis, reshape
from tvmfun.numpy.promotion import operands
from tvmfun.ops import pointwise
from tvmfun.ops.linalg import dot_general


def _arrays(name: str, x1: Any, x2: Any) -> list[Array]:
    return [asarray(x) for x in operands(name, asarray(x1), asarray(x2))]


def matmul(x1: Any, x2: Any, /) -> Array:
    """Returns the matrix product over the last axis of ``x1`` and the last but one of ``x2``; the rest broadcasts.

    A vector is a row on the left and a column on the right, and its axis vanishes.

    Raises:
        ShapeError: for 0-d arrays, or if the sizes do not match.

    Source: the array API's ``matmul``.

    >>> matmul([[1, 2], [3, 4]], [1, 1])
    Array([3, 7], dtype=int32)
    """
    x1, x2 = _arrays("matmul", x1, x2)
    if not x1.ndim or not x2.ndim:
        raise ShapeError(
            "matmul", "0-d arrays have no matrix product", got=f"{x1.aval} and {x2.aval}", hint="x1 * x2"
        )
    inner = x2.ndim - 2 if x2.ndim > 1 else 0
    if x1.shape[-1] != x2.shape[inner]:
        raise ShapeError(
            "matmul",
            "the last axis on the left and the last but one on the right must match",
            got=f"{x1.aval} @ {x2.aval}",
        )
    if x2.ndim <= 2:  # one matrix for all: contract at once, whatever axes are in front
        return dot_general(x1, x2, contract=((x1.ndim - 1,), (inner,)), batch=((), ()))
    if x1.ndim == 1:
        product = dot_general(x2, x1, contract=((inner,), (0,)), batch=((), ()))
        return product
    lead = pointwise.broadcast_shapes("matmul", [x1.shape[:-2], x2.shape[:-2]])
    x1 = broadcast_to(x1, lead + x1.shape[-2:])
    x2 = broadcast_to(x2, lead + x2.shape[-2:])
    shared = tuple(range(len(lead)))
    rank = len(lead) + 2
    return dot_general(x1, x2, contract=((rank - 1,), (rank - 2,)), batch=(shared, shared))


def dot(x1: Any, x2: Any, /) -> Array:
    """Returns the product over the last axis of ``x1`` and the last but one of ``x2``, without broadcasting."""
    x1, x2 = _arrays("dot", x1, x2)
    if not x1.ndim or not x2.ndim:
        return pointwise.multiply(x1, x2)
    inner = max(x2.ndim - 2, 0)
    return dot_general(x1, x2, contract=((x1.ndim - 1,), (inner,)), batch=((), ()))


def tensordot(x1: Any, x2: Any, /, *, axes: int | Sequence[Sequence[int]] = 2) -> Array:
    """Returns the product summed over the last axes of ``x1`` and first of ``x2``, or over given pairs of axes."""
    x1, x2 = _arrays("tensordot", x1, x2)
    if isinstance(axes, int):
        left, right = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    else:
        left = tuple(normalize_axis("tensordot", axis, x1.ndim) for axis in axes[0])
        right = tuple(normalize_axis("tensordot", axis, x2.ndim) for axis in axes[1])
    return dot_general(x1, x2, contract=(left, right), batch=((), ()))


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Returns the dot products along an axis."""
    x1, x2 = (moveaxis(x, axis, -1) for x in _arrays("vecdot", x1, x2))
    common = pointwise.broadcast_shapes("vecdot", [x1.shape, x2.shape])
    x1, x2 = broadcast_to(x1, common), broadcast_to(x2, common)
    last = len(common) - 1
    shared = tuple(range(last))
    return dot_general(x1, x2, contract=((last,), (last,)), batch=(shared, shared))


def outer(x1: Any, x2: Any, /) -> Array:
    """Returns all products of an element of ``x1`` and one of ``x2``."""
    x1, x2 = _arrays("outer", x1, x2)
    return pointwise.multiply(reshape(x1, (-1, 1)), reshape(x2, (1, -1)))
