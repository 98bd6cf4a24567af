"""Normalizations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax, tree
from tvmfun.core.array import Array

__all__ = ["LayerNorm"]


@tree.register_dataclass
@dataclass(frozen=True, init=False, eq=False)
class LayerNorm:
    """Normalizes over the last axis: ``(x - mean) / sqrt(variance + eps) * weight + bias``.

    Args:
        normalized_shape: the size of the last axis.
        eps: what is added to the variance.
        bias: whether to add a bias.
        dtype: the dtype of the parameters.

    Reference: Ba et al., "Layer Normalization" (2016).

    >>> LayerNorm(2)(tnp.asarray([1.0, 3.0]))
    Array([-0.999995,  0.999995], dtype=float32)
    """

    weight: Array
    bias: Array | None
    eps: float = field(metadata={"static": True})

    def __init__(self, normalized_shape: int, *, eps: float = 1e-5, bias: bool = True, dtype: Any = "float32") -> None:
        object.__setattr__(self, "weight", tnp.ones(normalized_shape, dtype))
        object.__setattr__(self, "bias", tnp.zeros(normalized_shape, dtype) if bias else None)
        object.__setattr__(self, "eps", eps)

    def __call__(self, x: Any) -> Any:
        """Normalizes the last axis."""
        centred = x - tnp.mean(x, axis=-1, keepdims=True)
        variance = tnp.mean(centred * centred, axis=-1, keepdims=True)
        y = centred * lax.rsqrt(variance + self.eps) * self.weight
        return y if self.bias is None else y + self.bias
