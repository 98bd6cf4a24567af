"""Affine maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.nn import functional
from tvmfun.nn.init import Initializer
from tvmfun.nn.layers.parameters import check_positive, set_parameters

__all__ = ["Linear"]


@tree.register_dataclass
@dataclass(frozen=True, init=False, eq=False)
class Linear:
    """An affine map of the last axis: ``x @ weight + bias``.

    The weight has the shape (in_features, out_features). Weight and bias begin uniform between
    ``-1 / sqrt(in_features)`` and ``1 / sqrt(in_features)``, as in PyTorch.

    Args:
        in_features: the size of the last axis of the argument.
        out_features: the size of the last axis of the result.
        key: a key of :mod:`tvmfun.random`.
        bias: whether to add a bias.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the weight, instead of PyTorch's.
        bias_init: one for the bias.

    Raises:
        ArgumentError: if a number of features is not positive.
        DtypeError: if ``dtype`` is not a float.

    >>> from tvmfun import random
    >>> layer = Linear(784, 512, key=random.key(0))
    >>> layer.weight.shape, layer.bias.shape
    ((784, 512), (512,))
    """

    weight: Array
    bias: Array | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        key: Any,
        bias: bool = True,
        dtype: Any = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        check_positive("Linear", in_features=in_features, out_features=out_features)
        shape = (in_features, out_features)
        set_parameters(self, key, shape, in_features, bias, dtype, weight_init, bias_init)

    def __call__(self, x: Any) -> Any:
        """Maps an array of shape (..., in_features) to one of shape (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)
