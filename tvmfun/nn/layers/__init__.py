"""Layers: parameters that know what to compute. Each is an immutable tree of arrays and static settings."""

from tvmfun.nn.layers.convolution import Conv2d
from tvmfun.nn.layers.dropout import Dropout
from tvmfun.nn.layers.linear import Linear

__all__ = ["Conv2d", "Dropout", "Linear"]
