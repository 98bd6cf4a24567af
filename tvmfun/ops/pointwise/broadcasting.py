"""Shapes that broadcast as in NumPy, and the transpose of broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvmfun.core.array import Array
from tvmfun.core.op import REGISTRY
from tvmfun.errors import ShapeError

__all__ = ["broadcast_shapes", "sum_to", "with_equal_ranks"]


def broadcast_shapes(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that ``shapes`` broadcast to, or a ``ShapeError`` in the name of op ``name``."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[axis] not in (1, size):
                    raise ShapeError(
                        name,
                        "the shapes do not broadcast",
                        got=" and ".join(map(str, shapes)),
                        hint="sizes that are equal or 1, counted from the last axis",
                    )
                result[axis] = size
    return tuple(result)


def sum_to(g: Array, shape: tuple[int, ...]) -> Array:
    """Sums ``g`` over the axes along which ``shape`` was repeated: the transpose of broadcasting."""
    if g.shape == shape:
        return g
    added = g.ndim - len(shape)
    axes = tuple(range(added)) + tuple(
        added + axis for axis, size in enumerate(shape) if size == 1 and g.shape[added + axis] != 1
    )
    if axes:
        g = REGISTRY["sum"](g, axis=axes)
    return g if g.shape == shape else REGISTRY["reshape"](g, shape=shape)


def with_equal_ranks(batched: tuple[bool, ...], args: tuple[Array, ...]) -> list[Array]:
    """Arguments whose batch axes broadcast: batched ones of lower rank get axes of size 1 after the batch axis."""
    rank = max(np.ndim(x) - flag for flag, x in zip(batched, args, strict=True))
    return [
        REGISTRY["reshape"](x, shape=(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:]))
        if flag and x.ndim <= rank
        else x
        for flag, x in zip(batched, args, strict=True)
    ]
