"""Decompositions of matrices, the last two axes of an array, with JAX's names and arguments.

All of it is compiled into the module; no linear algebra library is called.
"""

# ruff: noqa: F403

from __future__ import annotations

from tvmfun.boundary import publish as _publish
from tvmfun.lax.linalg import decompositions, householder, schur_form, tridiagonal_systems
from tvmfun.lax.linalg.decompositions import *
from tvmfun.lax.linalg.householder import *
from tvmfun.lax.linalg.schur_form import *
from tvmfun.lax.linalg.tridiagonal_systems import *
from tvmfun.names import missing as _missing

__all__: list[str] = []
__all__ += decompositions.__all__
__all__ += householder.__all__
__all__ += schur_form.__all__
__all__ += tridiagonal_systems.__all__

__getattr__ = _missing(__name__)
_publish(globals())
