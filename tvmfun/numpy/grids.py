"""Grids and joined arrays written as indices: ``mgrid[0:2, 0:3]``, ``r_[1, 2:5]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.numpy.creation import arrays, asarray
from tvmfun.numpy.joining import concat, stack
from tvmfun.numpy.manipulation import expand_dims, moveaxis, reshape
from tvmfun.numpy.ranges import arange, linspace, meshgrid

__all__ = ["c_", "index_exp", "mgrid", "ogrid", "r_", "s_"]


def _numbers(name: str, item: slice) -> Array:
    """The numbers of a slice; an imaginary step is how many there are, with the end."""
    start, step = 0 if item.start is None else item.start, item.step
    if item.stop is None:
        raise ArgumentError(name, "a slice must have an end", got=str(item))
    if isinstance(step, complex):
        return linspace(start, item.stop, int(abs(step)))
    return arange(start, item.stop, 1 if step is None else step)


class _Grid:
    """The coordinates of a grid, each along an axis of its own."""

    def __init__(self, name: str, sparse: bool) -> None:
        self.name = name
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _numbers(self.name, key)
        axes = arrays(self.name, *(_numbers(self.name, item) for item in key))
        grid = meshgrid(*axes, sparse=self.sparse, indexing="ij")
        return grid if self.sparse else stack(grid)

    def __repr__(self) -> str:
        return self.name


#: ``mgrid[0:2, 0:3]``: the coordinates of a grid, one after the other along a new first axis.
mgrid = _Grid("mgrid", sparse=False)
#: ``ogrid[0:2, 0:3]``: the coordinates of a grid as a list of arrays with size 1 along the other axes.
ogrid = _Grid("ogrid", sparse=True)


class _Joined:
    """Arrays, numbers and slices joined along an axis.

    A string in front says how: one to three integers, for the axis along which they are joined, the least number of
    axes, and the axis that vectors get. ``"r"`` and ``"c"`` make a vector a matrix of one row or column.
    """

    def __init__(self, name: str, axis: int, ndim: int, place: int) -> None:
        self.name = name
        self.defaults = (axis, ndim, place)

    def __getitem__(self, key: Any) -> Array:
        items = list(key) if isinstance(key, tuple) else [key]
        axis, ndim, place = self.defaults
        is_matrix = ""
        if items and isinstance(items[0], str):
            text = items.pop(0)
            if text in ("r", "c"):
                is_matrix, axis, ndim = text, -1 if text == "r" else 0, 1
            else:
                axis, ndim, place = self._directions(text)
        parts = []
        for item in items:
            x = _numbers(self.name, item) if isinstance(item, slice) else asarray(item)
            missing = ndim - x.ndim
            if missing > 0:
                rank = x.ndim
                x = reshape(x, (1,) * missing + x.shape)
                if place != -1 and rank:
                    begin = place + ndim + 1 - rank if place < 0 else place
                    x = moveaxis(x, tuple(range(missing, ndim)), tuple(range(begin, begin + rank)))
            parts.append(x)
        result = concat(arrays(self.name, *parts), axis)
        if is_matrix and result.ndim == 1:
            return expand_dims(result, 0 if is_matrix == "r" else 1)
        return result

    def _directions(self, text: str) -> Sequence[int]:
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            raise ArgumentError(self.name, "directions are 'r', 'c' or one to three integers", got=repr(text))
        return [*numbers, *self.defaults[len(numbers) :]]

    def __repr__(self) -> str:
        return self.name


#: ``r_[1, 2:5, x]``: numbers, slices and arrays joined along the first axis.
r_ = _Joined("r_", 0, 1, -1)
#: ``c_[x, y]``: the same along the last axis, vectors as columns.
c_ = _Joined("c_", -1, 2, 0)
#: ``s_[1:2, ...]``: the index itself.
s_ = np.s_
#: ``index_exp[1:2]``: the index itself, always a tuple.
index_exp = np.index_exp
