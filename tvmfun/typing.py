"""Types of arguments, by the names of ``jax.typing``."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tvmfun.core.array import Array

__all__ = ["ArrayLike", "DTypeLike"]

#: An array, or a number that stands for one of no axes.
ArrayLike: TypeAlias = Array | np.ndarray | np.generic | bool | int | float
#: A dtype, or what names one: a string, a scalar type, or an object with a ``dtype``.
DTypeLike: TypeAlias = str | type[Any] | np.dtype
