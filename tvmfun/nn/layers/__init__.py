"""Layers: parameters and a function of them. Each is an immutable tree of arrays and static settings."""

# ruff: noqa: F403

from types import ModuleType as _ModuleType

from tvmfun.nn.layers.activation import *
from tvmfun.nn.layers.attention import *
from tvmfun.nn.layers.containers import *
from tvmfun.nn.layers.convolution import *
from tvmfun.nn.layers.dropout import *
from tvmfun.nn.layers.linear import *
from tvmfun.nn.layers.normalization import *
from tvmfun.nn.layers.pooling import *
from tvmfun.nn.layers.recurrent import *
from tvmfun.nn.layers.recurrent_cells import *
from tvmfun.nn.layers.reparametrization import *
from tvmfun.nn.layers.shapes import *
from tvmfun.nn.layers.stacked import *
from tvmfun.nn.layers.transformer import *
from tvmfun.nn.layers.transformer_layers import *

__all__ = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _ModuleType)]
