"""Interpolation in arrays on regular grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tvmfun import dtypes, lax
from tvmfun import numpy as tnp
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.names import missing as _missing
from tvmfun.typing import ArrayLike

__all__ = ["map_coordinates"]


def _mirrored(index: Array, size: int) -> Array:
    last = size - 1
    return tnp.abs((index + last) % max(2 * last, 1) - last)


#: For each mode, the function that maps an index outside of an axis to one inside.
_MODES: dict[str, Callable[[Array, int], Array]] = {
    "constant": lambda index, size: tnp.clip(index, 0, size - 1),
    "nearest": lambda index, size: tnp.clip(index, 0, size - 1),
    "wrap": lambda index, size: index % size,
    "mirror": _mirrored,
    "reflect": lambda index, size: (_mirrored(2 * index + 1, 2 * size + 1) - 1) // 2,
}


def map_coordinates(
    input: ArrayLike, coordinates: Sequence[Any], order: int, mode: str = "constant", cval: ArrayLike = 0.0
) -> Array:
    """Returns the values of an array at coordinates between its elements.

    Args:
        input: the array.
        coordinates: for each axis an array of coordinates, all of one shape, that of the result.
        order: 0 for the nearest element, 1 for linear interpolation.
        mode: the values outside: ``"constant"`` for ``cval``, or elements by ``"nearest"``, ``"wrap"``,
            ``"mirror"`` or ``"reflect"``.
        cval: the constant.

    Raises:
        ArgumentError: for another order or mode.
        ShapeError: if there is not one array of coordinates for each axis.

    >>> map_coordinates(tnp.asarray([0.0, 10.0, 20.0]), [tnp.asarray([0.5, 1.25])], 1).tolist()
    [5.0, 12.5]
    """
    x = tnp.asarray(input)
    positions = [tnp.asarray(c) for c in coordinates]
    if len(positions) != x.ndim:
        got = f"{len(positions)} arrays for {x.aval}"
        raise ShapeError("map_coordinates", "there must be an array of coordinates for each axis", got=got)
    if order not in (0, 1):
        raise ArgumentError("map_coordinates", "the order must be 0 or 1", got=repr(order))
    if mode not in _MODES:
        raise ArgumentError("map_coordinates", f"the mode must be one of {', '.join(_MODES)}", got=repr(mode))
    axes = []
    for position, size in zip(positions, x.shape, strict=True):
        position = position if dtypes.is_float(position.dtype) else tnp.astype(position, "float32")
        if order == 0:
            nodes = [(tnp.astype(lax.round(position), "int32"), tnp.ones_like(position))]
        else:
            low = tnp.floor(position)
            share = position - low
            index = tnp.astype(low, "int32")
            nodes = [(index, 1 - share), (index + 1, share)]
        axes.append([(_MODES[mode](i, size), tnp.logical_and(i >= 0, i < size), weight) for i, weight in nodes])
    total = tnp.zeros((), x.dtype if dtypes.is_float(x.dtype) else "float32")
    for corner in itertools.product(*axes):
        value = x[tuple(index for index, _, _ in corner)]
        if mode == "constant":
            inside = math.prod((tnp.astype(valid, "int32") for _, valid, _ in corner), start=tnp.ones((), "int32"))
            value = tnp.where(inside == 1, value, tnp.asarray(cval, x.dtype))
        for _, _, weight in corner:
            value = value * weight
        total = total + value
    return tnp.astype(total if dtypes.is_float(x.dtype) else lax.round(total), x.dtype)


__getattr__ = _missing(__name__)
publish(globals())
