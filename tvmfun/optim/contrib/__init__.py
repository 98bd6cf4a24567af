"""Optimizers from recent papers, with the names of ``optax.contrib``."""

# ruff: noqa: F403

from types import ModuleType as _ModuleType

from tvmfun.boundary import publish as _publish
from tvmfun.optim.contrib.ademamix import *
from tvmfun.optim.contrib.asynchronous import *
from tvmfun.optim.contrib.betting import *
from tvmfun.optim.contrib.distance import *
from tvmfun.optim.contrib.galore import *
from tvmfun.optim.contrib.madgrad import *
from tvmfun.optim.contrib.momo import *
from tvmfun.optim.contrib.muon import *
from tvmfun.optim.contrib.plateau import *
from tvmfun.optim.contrib.privacy import *
from tvmfun.optim.contrib.sam import *
from tvmfun.optim.contrib.schedule_free import *
from tvmfun.optim.contrib.sophia import *
from tvmfun.optim.naming import named as _named

__all__ = []
__all__ += [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _ModuleType)]

_publish(globals(), _named)
