r"""Iterative solvers of linear systems, with the names and arguments of ``jax.scipy.sparse.linalg``.

They only need the function :math:`x \mapsto A x`, so :math:`A` may be larger than memory. Vectors are trees of arrays.
"""

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.scipy.sparse.linalg.solvers import bicgstab, cg, gmres

__all__ = ["bicgstab", "cg", "gmres"]

__getattr__ = _missing(__name__)
_publish(globals())
