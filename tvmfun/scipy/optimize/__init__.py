"""Minimization, with the names and arguments of ``jax.scipy.optimize``."""

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.scipy.optimize.minimization import OptimizeResults, minimize

__all__ = ["OptimizeResults", "minimize"]

__getattr__ = _missing(__name__)
_publish(globals())
