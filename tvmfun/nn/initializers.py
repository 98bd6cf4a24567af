"""Initializers by the names of ``jax.nn.initializers``: the functions of :mod:`tvmfun.nn.init`."""

from tvmfun.nn.init import *  # noqa: F403
from tvmfun.nn.init import __all__ as __all__
