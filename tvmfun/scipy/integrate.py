"""Integrals of sampled functions."""

from __future__ import annotations

from tvmfun import numpy as tnp
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.names import missing as _missing
from tvmfun.typing import ArrayLike

__all__ = ["trapezoid"]


def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1) -> Array:
    """Returns the integral of values by the trapezoidal rule, as :func:`tvmfun.numpy.trapezoid`.

    Args:
        y: the values.
        x: their coordinates: a vector, or of the shape of ``y``.
        dx: their distance, if there are no coordinates.
        axis: the axis to integrate along.

    >>> float(trapezoid(tnp.asarray([1.0, 2.0, 3.0])))
    4.0
    """
    return tnp.trapezoid(y, x, dx, axis)


__getattr__ = _missing(__name__)
publish(globals())
