"""Neural networks: layers as immutable trees made with an explicit key, and called as pure functions.

>>> import tvmfun.numpy as tnp
>>> from tvmfun import nn, random
>>> model = nn.Linear(3, 2, key=random.key(0))
>>> model(tnp.ones((4, 3))).shape
(4, 2)
"""

from tvmfun.nn import functional, init, losses
from tvmfun.nn.layers import Conv2d, Dropout, Linear

__all__ = ["Conv2d", "Dropout", "Linear", "functional", "init", "losses"]
