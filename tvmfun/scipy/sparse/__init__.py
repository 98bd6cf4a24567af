"""Large systems of equations, with the names and arguments of ``jax.scipy.sparse``."""

from tvmfun.names import missing as _missing
from tvmfun.scipy.sparse import linalg

__all__ = ["linalg"]

__getattr__ = _missing(__name__)
