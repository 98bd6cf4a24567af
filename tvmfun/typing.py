"""Types of arguments and results, by the names of ``jax.typing`` where it has them."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

from tvmfun.core.array import Array

__all__ = ["ArrayLike", "DType", "DTypeLike", "Key", "PyTree", "Scalar", "Shape"]

#: An array, or a number that stands for an array without axes.
ArrayLike: TypeAlias = Array | np.ndarray | np.generic | bool | int | float
#: A number, or an array without axes, to compute with.
Scalar: TypeAlias = float | Array
#: A dtype.
DType: TypeAlias = np.dtype


class SupportsDType(Protocol):
    """An object with a dtype, such as an array."""

    @property
    def dtype(self) -> DType:
        """Its dtype."""
        ...


#: A dtype, its name, or a scalar type.
DTypeLike: TypeAlias = str | type[Any] | np.dtype | SupportsDType
#: A key of :mod:`tvmfun.random`.
Key: TypeAlias = Array | np.ndarray
#: Nested containers (see :mod:`tvmfun.tree`) with arrays, or other values, as leaves.
PyTree: TypeAlias = Any
#: The sizes of the axes of an array; a size may be a dynamic :class:`tvmfun.Dim`.
Shape: TypeAlias = tuple[Any, ...]
