"""Arguments that are matrices, the last two axes of arrays."""

from __future__ import annotations

from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.numpy.promotion import operands


def matrices(name: str, *values: Any) -> list[Array]:
    """The values as float arrays of one dtype with at least two axes."""
    found = [tnp.asarray(x) for x in operands(name, *map(tnp.asarray, values), floating=True)]
    if any(x.ndim < 2 for x in found):
        raise ShapeError(name, "a matrix has two axes", got=", ".join(str(x.aval) for x in found))
    return found


def square(name: str, value: Any) -> Array:
    """The value as square matrices."""
    (x,) = matrices(name, value)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(name, "the matrix must be square", got=repr(x.aval))
    return x


def vectors(name: str, *values: Any) -> list[Array]:
    """The values as float arrays of one dtype with at least one axis."""
    found = [tnp.asarray(x) for x in operands(name, *map(tnp.asarray, values), floating=True)]
    if any(not x.ndim for x in found):
        raise ShapeError(name, "a vector has an axis", got=", ".join(str(x.aval) for x in found))
    return found
