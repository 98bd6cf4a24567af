"""Products of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.creation import asarray
from tvmfun.numpy.manipulation import broadcast_to, moveaxis, normalize_axis, reshape
from tvmfun.numpy.promotion import operands
from tvmfun.ops import pointwise
from tvmfun.ops.linalg import dot_general


def _arrays(name: str, x1: Any, x2: Any) -> list[Array]:
    return [asarray(x) for x in operands(name, asarray(x1), asarray(x2))]


def _require_match(name: str, x1: Array, axis1: int, x2: Array, axis2: int) -> None:
    if x1.shape[axis1] != x2.shape[axis2]:
        raise ShapeError(
            name,
            f"axis {axis1} on the left and axis {axis2} on the right must have one size",
            got=f"{x1.aval} and {x2.aval}",
        )


def matmul(x1: Any, x2: Any, /) -> Array:
    """Returns the matrix product over the last axis of ``x1`` and the last but one of ``x2``.

    The other axes broadcast. A vector is a row on the left and a column on the right, and its axis vanishes.

    Raises:
        ShapeError: for 0-d arrays, or if the sizes do not match.

    Source: the array API's ``matmul``.

    >>> matmul([[1, 2], [3, 4]], [1, 1])
    Array([3, 7], dtype=int32)
    """
    x1, x2 = _arrays("matmul", x1, x2)
    if not x1.ndim or not x2.ndim:
        raise ShapeError("matmul", "0-d arrays have no matrix product", got=f"{x1.aval} and {x2.aval}", hint="x1 * x2")
    inner = max(x2.ndim - 2, 0)
    _require_match("matmul", x1, x1.ndim - 1, x2, inner)
    if x2.ndim <= 2:  # one matrix for all: contract at once, whatever axes are in front
        return dot_general(x1, x2, contract=((x1.ndim - 1,), (inner,)), batch=((), ()))
    if x1.ndim == 1:
        return dot_general(x2, x1, contract=((inner,), (0,)), batch=((), ()))
    lead = pointwise.broadcast_shapes("matmul", [x1.shape[:-2], x2.shape[:-2]])
    x1 = broadcast_to(x1, lead + x1.shape[-2:])
    x2 = broadcast_to(x2, lead + x2.shape[-2:])
    shared = tuple(range(len(lead)))
    rank = len(lead) + 2
    return dot_general(x1, x2, contract=((rank - 1,), (rank - 2,)), batch=(shared, shared))


def dot(x1: Any, x2: Any, /) -> Array:
    """Returns the product over the last axis of ``x1`` and the last but one of ``x2``; nothing broadcasts."""
    x1, x2 = _arrays("dot", x1, x2)
    if not x1.ndim or not x2.ndim:
        return pointwise.multiply(x1, x2)
    inner = max(x2.ndim - 2, 0)
    _require_match("dot", x1, x1.ndim - 1, x2, inner)
    return dot_general(x1, x2, contract=((x1.ndim - 1,), (inner,)), batch=((), ()))


def tensordot(x1: Any, x2: Any, /, axes: int | Sequence[Any] = 2) -> Array:
    """Returns the product summed over pairs of axes.

    Args:
        x1: the left array.
        x2: the right array.
        axes: how many, the last of ``x1`` and the first of ``x2``; or the axes of each, ``((0, 1), (1, 0))``.
    """
    x1, x2 = _arrays("tensordot", x1, x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ShapeError("tensordot", f"there are no {axes} axes", got=f"{x1.aval} and {x2.aval}")
        lists = [tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))]
    else:
        lists = [(own,) if isinstance(own, int) else tuple(own) for own in axes]
    if len(lists) != 2 or len(lists[0]) != len(lists[1]):
        raise ArgumentError("tensordot", "there must be as many axes on the left and right", got=str(axes))
    left, right = (
        tuple(normalize_axis("tensordot", axis, x.ndim) for axis in own) for own, x in zip(lists, (x1, x2), strict=True)
    )
    for i, j in zip(left, right, strict=True):
        _require_match("tensordot", x1, i, x2, j)
    return dot_general(x1, x2, contract=(left, right), batch=((), ()))


def vecdot(x1: Any, x2: Any, /, axis: int = -1) -> Array:
    """Returns the dot products along an axis; the other axes broadcast."""
    x1, x2 = _arrays("vecdot", x1, x2)
    _require_match("vecdot", x1, normalize_axis("vecdot", axis, x1.ndim), x2, normalize_axis("vecdot", axis, x2.ndim))
    x1, x2 = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    common = pointwise.broadcast_shapes("vecdot", [x1.shape, x2.shape])
    x1, x2 = broadcast_to(x1, common), broadcast_to(x2, common)
    last = len(common) - 1
    shared = tuple(range(last))
    return dot_general(x1, x2, contract=((last,), (last,)), batch=(shared, shared))


def outer(x1: Any, x2: Any, /) -> Array:
    """Returns all products of an element of ``x1`` and one of ``x2``."""
    x1, x2 = _arrays("outer", x1, x2)
    return pointwise.multiply(reshape(x1, (x1.size, 1)), reshape(x2, (1, x2.size)))
