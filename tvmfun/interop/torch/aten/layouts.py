"""Channels-last storage of arrays whose axes are (batch, channels, *spatial).

PyTorch's images have their channels first, and the convolutions here have them last (docs/decisions/0006). The
result of a convolution is stored as it was computed, and its axes are moved only where an operator asks for PyTorch's
order: a network of convolutions, normalizations and pointwise functions moves them once, at its first layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import Array


@dataclass(frozen=True)
class ChannelsLast:
    """An array with axes (batch, channels, *spatial), stored as (batch, *spatial, channels)."""

    stored: Array

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.stored.ndim

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.stored.dtype

    @property
    def shape(self) -> tuple:
        """The sizes of the axes, in PyTorch's order."""
        batch, *spatial, channels = self.stored.shape
        return batch, channels, *spatial


def channels_first(value: Any) -> Any:
    """An array with its axes in PyTorch's order; other values are returned as they are."""
    return tnp.moveaxis(value.stored, -1, 1) if isinstance(value, ChannelsLast) else value


def channels_last(value: Any) -> Array:
    """The array of shape (batch, *spatial, channels) for one whose axes are (batch, channels, *spatial)."""
    return value.stored if isinstance(value, ChannelsLast) else tnp.moveaxis(value, 1, -1)


def broadcast_last(value: Any, ndim: int) -> Any:
    """An operand that broadcasts to ``ndim`` axes in PyTorch's order, moved so that it does with the channels last."""
    if not isinstance(value, Array) or not value.ndim:
        return value.stored if isinstance(value, ChannelsLast) else value
    return channels_last(tnp.reshape(value, (*(1,) * (ndim - value.ndim), *value.shape)))


def stored_axis(axis: int, ndim: int) -> int:
    """The axis of the stored array for an axis in PyTorch's order."""
    axis %= ndim
    return axis if axis == 0 else ndim - 1 if axis == 1 else axis - 1
