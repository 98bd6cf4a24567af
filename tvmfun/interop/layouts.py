"""Channels-last storage of arrays whose axes are (batch, channels, *spatial).

Images of PyTorch, Relay and others have their channels first, and the convolutions here have them last
(docs/decisions/0006). The result of a convolution is stored as it was computed, and its axes are moved only where an
operator asks for their order: a network of convolutions, normalizations and pointwise functions moves them once, at its
first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
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
        """The sizes of the axes, with the channels first."""
        batch, *spatial, channels = self.stored.shape
        return batch, channels, *spatial


def channels_first(value: Any) -> Any:
    """An array with its channels first; other values are returned unchanged."""
    return tnp.moveaxis(value.stored, -1, 1) if isinstance(value, ChannelsLast) else value


def channels_last(value: Any) -> Array:
    """The array of shape (batch, *spatial, channels) for one whose axes are (batch, channels, *spatial)."""
    return value.stored if isinstance(value, ChannelsLast) else tnp.moveaxis(value, 1, -1)


def broadcast_last(value: Any, ndim: int) -> Any:
    """An operand that broadcasts to ``ndim`` axes with channels first, moved so that it does with the channels last."""
    if not isinstance(value, Array) or not value.ndim:
        return value.stored if isinstance(value, ChannelsLast) else value
    return channels_last(tnp.reshape(value, (*(1,) * (ndim - value.ndim), *value.shape)))


def stored_axis(axis: int, ndim: int) -> int:
    """The axis of the stored array for an axis of one with its channels first."""
    axis %= ndim
    return axis if axis == 0 else ndim - 1 if axis == 1 else axis - 1


def pointwise(function: Callable) -> Callable:
    """A function of operands that broadcast, for arrays in either layout."""

    @wraps(function)
    def apply(*operands: Any, **options: Any) -> Any:
        ndims = [x.ndim for x in (*operands, *options.values()) if isinstance(x, ChannelsLast)]
        if not ndims:
            return function(*operands, **options)
        widest = max(x.ndim for x in (*operands, *options.values()) if isinstance(x, ChannelsLast | Array))
        if any(n != widest for n in ndims):  # one broadcasts to more axes than a batch of images has
            return function(*map(channels_first, operands), **{key: channels_first(x) for key, x in options.items()})
        stored = (broadcast_last(x, widest) for x in operands)
        result = function(*stored, **{key: broadcast_last(x, widest) for key, x in options.items()})
        return tuple(map(ChannelsLast, result)) if isinstance(result, tuple) else ChannelsLast(result)

    return apply
