"""Arithmetic on trees of arrays, and the values in the state of an optimizer by name."""

# ruff: noqa: F403

from tvmfun.boundary import publish as _publish
from tvmfun.optim.tree import arithmetic, arrays, state
from tvmfun.optim.tree.arithmetic import *
from tvmfun.optim.tree.arrays import *
from tvmfun.optim.tree.state import *

__all__ = []
__all__ += arithmetic.__all__
__all__ += arrays.__all__
__all__ += state.__all__

_publish(globals())
