"""Interpolation of values on grids, with the names and arguments of ``jax.scipy.interpolate``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import numpy as tnp
from tvmfun.boundary import publish
from tvmfun.core.array import Array, DeviceArray
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.names import missing as _missing
from tvmfun.numpy.promotion import operands

__all__ = ["RegularGridInterpolator"]


class RegularGridInterpolator:
    """Interpolates values on a grid of rectangles, whose lines may have any distances.

    Args:
        points: for each axis of the grid the coordinates of its lines, ascending vectors.
        values: the values on the grid; further axes are interpolated together.
        method: ``"linear"`` or ``"nearest"``. Halfway between two lines, the lower one is the nearest.
        bounds_error: only False.
        fill_value: the result outside of the grid; None extrapolates the outermost rectangles.

    Calling it with coordinates returns the interpolated values. They are an array whose last axis has an element for
    each axis of the grid, or a tuple of an array for each axis; a vector has the coordinates of one point after the
    other. ``method=`` may be given there, too. NaN among the coordinates makes NaN for the linear method.

    Raises:
        ArgumentError: for another method, ``bounds_error``, or coordinates that do not ascend.
        ShapeError: if the shapes do not fit.

    >>> interpolate = RegularGridInterpolator(([0.0, 1.0, 3.0],), tnp.asarray([1.0, 2.0, 4.0]))
    >>> interpolate(tnp.asarray([0.5, 2.0, 9.0])).tolist()
    [1.5, 3.0, nan]
    """

    def __init__(
        self,
        points: Sequence[Any],
        values: Any,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: float | None = math.nan,
    ) -> None:
        name = "RegularGridInterpolator"
        _check_method(name, method)
        if bounds_error:
            hint = "fill_value"
            raise ArgumentError(name, "results cannot depend on an error", got="bounds_error=True", hint=hint)
        lines = [tnp.asarray(x) for x in points]
        (self.values,) = (tnp.asarray(x) for x in operands(name, tnp.asarray(values), floating=True))
        if any(x.ndim != 1 for x in lines) or self.values.shape[: len(lines)] != tuple(x.size for x in lines):
            got = f"{', '.join(str(x.aval) for x in lines)} for {self.values.aval}"
            raise ShapeError(name, "there must be a vector of coordinates for each axis, of its size", got=got)
        if not self.values.size:
            raise ShapeError(name, "there must be values", got=repr(self.values.aval))
        self.grid = tuple(tnp.asarray(x) for x in operands(name, *lines, floating=True))
        for line in lines:
            if isinstance(line, DeviceArray) and not np.all(np.diff(np.asarray(line)) > 0):
                raise ArgumentError(name, "the coordinates along an axis must ascend strictly", got=repr(line))
        self.method, self.bounds_error, self.fill_value = method, bounds_error, fill_value

    def __call__(self, xi: Any, method: str | None = None) -> Array:
        """Returns the interpolated values at coordinates."""
        name = "RegularGridInterpolator"
        method = method or self.method
        _check_method(name, method)
        coordinates = self._coordinates(name, xi)
        axes = [_cells(line, x) for line, x in zip(self.grid, coordinates, strict=True)]
        if method == "nearest":
            rounded = tuple(index + tnp.astype(share > 0.5, "int32") for index, share in axes)
            result = self.values[rounded]
        else:
            result = self._linear(axes)
        if self.fill_value is None:
            return result
        inside = tnp.ones((), "bool")
        for line, x in zip(self.grid, coordinates, strict=True):
            # Not `line[0] <= x`: NaN is not outside.
            inside = inside & tnp.logical_not((x < line[0]) | (x > line[-1]))
        return tnp.where(self._beside_values(inside), result, tnp.asarray(self.fill_value, result.dtype))

    def _coordinates(self, name: str, xi: Any) -> list[Array]:
        """The coordinates along each axis of the grid, of one shape."""
        size = len(self.grid)
        if isinstance(xi, tuple) and len(xi) != 1:
            given = tnp.broadcast_arrays(*(tnp.asarray(x) for x in xi))
        else:
            x = tnp.asarray(xi[0] if isinstance(xi, tuple) else xi)
            if x.ndim <= 1 and x.size % size == 0:  # the coordinates of points, one after the other
                x = tnp.reshape(x, (x.size // size, size))
            given = [x[..., axis] for axis in range(x.shape[-1])] if x.ndim else [x]
        if len(given) != size:
            raise ShapeError(name, f"there must be {size} coordinates for each point", got=str(len(given)))
        return [tnp.asarray(operands(name, x, floating=True)[0]) for x in given]

    def _beside_values(self, x: Array) -> Array:
        """An array with an axis of size 1 for each further axis of the values."""
        return tnp.reshape(x, (*x.shape, *(1,) * (self.values.ndim - len(self.grid))))

    def _linear(self, axes: Sequence[tuple[Array, Array]]) -> Array:
        total: Any = 0
        for upper in itertools.product((0, 1), repeat=len(axes)):
            # On an axis of size 1 both neighbours are the same element.
            ends = zip(axes, upper, self.values.shape, strict=False)
            corner = self.values[tuple(tnp.minimum(index + end, size - 1) for (index, _), end, size in ends)]
            for (_, share), end in zip(axes, upper, strict=True):
                corner = corner * self._beside_values(share if end else 1 - share)
            total = total + corner
        return total


def _check_method(name: str, method: Any) -> None:
    if method not in ("linear", "nearest"):
        raise ArgumentError(name, "the method must be 'linear' or 'nearest'", got=repr(method))


def _cells(line: Array, x: Array) -> tuple[Array, Array]:
    """The index of the line below each coordinate, but the last, and the share of the way to the next line."""
    index = tnp.clip(tnp.searchsorted(line, x) - 1, 0, max(line.size - 2, 0))
    if line.size == 1:
        return index, tnp.zeros_like(x)
    low = line[index]
    return index, (x - low) / (line[index + 1] - low)


__getattr__ = _missing(__name__)
publish(globals())
