"""Folding of batch normalizations into the layers before them, for inference."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax, tree
from tvmfun.nn.layers import (
    BatchNorm,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Linear,
    Sequential,
)
from tvmfun.nn.layers.parameters import with_fields
from tvmfun.nn.walk import children
from tvmfun.typing import PyTree

__all__ = ["fold"]

_AFFINE = (Linear, Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)


def fold(model: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
    """Folds batch normalizations into the layers before them, for inference.

    In every :class:`Sequential` a batch normalization that follows a linear layer or a convolution is multiplied into
    the weight and the bias of that layer. The result computes what ``model`` does with ``train=False``, up to rounding.

    Args:
        model: a tree of layers.
        state: the states of its layers.

    Returns:
        The model, and the states of the layers that are left.

    >>> from tvmfun import nn, random
    >>> model = nn.Sequential(nn.Linear(2, 3, key=random.key(0)), nn.BatchNorm(3), nn.functional.relu)
    >>> fold(model, nn.init_state(model))
    (Sequential(
      (0): Linear(weight=float32[2,3], bias=float32[3])
      (1): relu
    ), ((), ()))
    """
    if not tree.leaves(state):
        return model, state
    if isinstance(model, Sequential):
        layers, states = [], []
        for part, old in zip(model.layers, state, strict=True):
            if isinstance(part, BatchNorm) and layers and isinstance(layers[-1], _AFFINE):
                layers[-1] = _folded(layers[-1], part, old)
                continue
            part, new = fold(part, old)
            layers.append(part)
            states.append(new)
        return with_fields(model, layers=tuple(layers)), tuple(states)
    if hasattr(type(model), "init_state"):
        return model, state
    if isinstance(model, tuple | list):
        parts = [fold(part, old) for part, old in zip(model, state, strict=True)]
        values = [part for part, _ in parts]
        same_kind = type(model)(*values) if hasattr(model, "_fields") else type(model)(values)
        return same_kind, tuple(new for _, new in parts)
    parts = {name: fold(part, state[name]) for name, part in children(model) if name in state}
    values = {name: part for name, (part, _) in parts.items()}
    model = {**model, **values} if isinstance(model, dict) else with_fields(model, **values)
    return model, {name: new for name, (_, new) in parts.items()}


def _folded(layer: Any, norm: BatchNorm, state: Any) -> Any:
    scale = lax.rsqrt(state.var + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    bias = -state.mean if layer.bias is None else layer.bias - state.mean
    bias = bias * scale
    bias = bias if norm.bias is None else bias + norm.bias
    dtype = layer.weight.dtype
    return with_fields(layer, weight=(layer.weight * scale).astype(dtype), bias=tnp.astype(bias, dtype))
