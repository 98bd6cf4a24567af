"""Activations with parameters; the others are functions of :mod:`tvmfun.nn.functional`."""

from __future__ import annotations

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.nn import functional
from tvmfun.nn.layers.parameters import check_positive, float_dtype, layer
from tvmfun.typing import ArrayLike, DTypeLike

__all__ = ["PReLU"]


@layer
class PReLU:
    """A rectified linear unit whose slope for negative numbers is learned.

    Args:
        num_parameters: the number of channels, or 1 to share a slope.
        init: the initial slope.
        dtype: the dtype of the slopes.

    Raises:
        ArgumentError: if the number is not positive.
        DtypeError: if ``dtype`` is not a float.

    Reference: He et al., "Delving Deep into Rectifiers" (2015).

    >>> PReLU()(tnp.asarray([-1.0, 2.0]))
    Array([-0.25,  2.  ], dtype=float32)
    """

    weight: Array

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: DTypeLike = "float32") -> None:
        check_positive("PReLU", num_parameters=num_parameters)
        self.weight = tnp.full((num_parameters,), init, dtype=float_dtype("PReLU", dtype))

    def __call__(self, x: ArrayLike) -> Array:
        """Applies it to an array of shape (..., channels)."""
        return functional.prelu(x, self.weight)
