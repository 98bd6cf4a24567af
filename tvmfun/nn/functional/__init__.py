"""Functions that layers apply to their parameters; arrays are (batch, spatial axes, channels)."""

# ruff: noqa: F403

from types import ModuleType as _ModuleType

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.nn.functional.activations import *
from tvmfun.nn.functional.attention import *
from tvmfun.nn.functional.convolution import *
from tvmfun.nn.functional.dropout import *
from tvmfun.nn.functional.linear import *
from tvmfun.nn.functional.normalization import *
from tvmfun.nn.functional.pooling import *
from tvmfun.nn.functional.resizing import *
from tvmfun.nn.functional.rotary import *
from tvmfun.nn.functional.scaled import *
from tvmfun.nn.functional.softmax import *

__all__ = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _ModuleType)]

__getattr__ = _missing(__name__)
_publish(globals())
