"""Arrays as matrices: which axes are rows, and which are columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.typing import PyTree


class DimensionNumbers(Protocol):
    """The axes of the rows, and of the columns, of an array of matrices."""

    @property
    def reduction_axis(self) -> int | Sequence[int]:
        """The axis, or axes, of the rows."""
        ...

    @property
    def output_axis(self) -> int | Sequence[int]:
        """The axis, or axes, of the columns."""
        ...


def axes_of(where: str, shape: tuple[int, ...], numbers: DimensionNumbers) -> tuple[tuple[int, ...], ...]:
    """The axes of the batch, the rows and the columns, counted from 0."""
    if len(shape) < 2:
        raise ShapeError(where, "a matrix must have two axes or more", got=str(shape))
    rows, columns = (
        tuple(a % len(shape) for a in ((axes,) if isinstance(axes, int) else axes))
        for axes in (numbers.reduction_axis, numbers.output_axis)
    )
    if {*rows} & {*columns}:
        raise ArgumentError(where, "reduction_axis and output_axis must have no axis in common", got=repr(numbers))
    return tuple(a for a in range(len(shape)) if a not in rows + columns), rows, columns


def fans(where: str, shape: tuple[int, ...], numbers: DimensionNumbers) -> tuple[int, int]:
    """The number of rows and of columns."""
    _, rows, columns = axes_of(where, shape, numbers)
    return math.prod(shape[a] for a in rows), math.prod(shape[a] for a in columns)


def as_matrices(where: str, x: Array, numbers: DimensionNumbers) -> tuple[Array, Callable[[Array], Array]]:
    """Reshapes an array to ``[batch, rows, columns]``; also returns the inverse function."""
    groups = axes_of(where, x.shape, numbers)
    order = [axis for group in groups for axis in group]
    moved = x.transpose(order)
    matrices = moved.reshape([math.prod(x.shape[a] for a in group) for group in groups])
    back = [order.index(axis) for axis in range(x.ndim)]
    return matrices, lambda y: y.reshape(moved.shape).transpose(back)


def for_each_leaf(numbers: PyTree, kind: type, default: Callable[[Array], object], params: PyTree) -> list:
    """The dimension numbers of each leaf: from a tree that begins like the parameters, or a function that makes one."""
    if callable(numbers):
        numbers = numbers(params)
    if numbers is None:
        return [default(leaf) for leaf in tree.leaves(params)]
    spread: list = []
    tree.map(
        lambda n, subtree: spread.extend(n for _ in tree.leaves(subtree)),
        numbers,
        params,
        is_leaf=lambda node: node is None or isinstance(node, kind),
    )
    return spread
