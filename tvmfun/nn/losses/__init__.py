"""Losses of predictions and targets.

``nll_loss``, ``cross_entropy`` and ``mse_loss`` reduce over a batch; all others are optax's, with its names, arguments
and numbers, and return the loss of each element or example.
"""

# ruff: noqa: F403

from types import ModuleType as _ModuleType

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.nn.losses.classification import *
from tvmfun.nn.losses.ctc import *
from tvmfun.nn.losses.distributions import *
from tvmfun.nn.losses.embeddings import *
from tvmfun.nn.losses.likelihood import *
from tvmfun.nn.losses.regression import *
from tvmfun.nn.losses.segmentation import *

__all__ = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _ModuleType)]

__getattr__ = _missing(__name__)
_publish(globals())
