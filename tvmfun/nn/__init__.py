"""Neural networks: layers as immutable trees made with an explicit key, and called as pure functions.

>>> import tvmfun.numpy as tnp
>>> from tvmfun import nn, random
>>> model = nn.Linear(3, 2, key=random.key(0))
>>> model(tnp.ones((4, 3))).shape
(4, 2)

Functions with a name in ``jax.nn`` are here as well as in :mod:`tvmfun.nn.functional`:

>>> float(relu(tnp.asarray(-1.0)))
0.0
"""

# ruff: noqa: F401, F403

from types import ModuleType as _ModuleType

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.nn import functional, init, initializers, losses
from tvmfun.nn.folding import *
from tvmfun.nn.functional import (
    celu,
    dot_product_attention,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    log1mexp,
    log_sigmoid,
    log_softmax,
    logmeanexp,
    logsumexp,
    mish,
    one_hot,
    relu,
    relu6,
    scaled_matmul,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    sparse_plus,
    sparse_sigmoid,
    squareplus,
    standardize,
    swish,
    tanh,
)
from tvmfun.nn.layers import *
from tvmfun.nn.partitioning import *
from tvmfun.nn.state import init_state
from tvmfun.nn.summaries import *

__all__ = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _ModuleType)]
__all__ += ["functional", "init", "initializers", "losses"]

__getattr__ = _missing(__name__)
_publish(globals())
