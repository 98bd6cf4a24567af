"""Linear algebra: the array API's extension, and NumPy's functions beyond it.

Matrices are float32 or float64, along the last two axes; leading axes are batch axes.
Integers become float32.
"""

# ruff: noqa: F403

from __future__ import annotations

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.numpy.linalg import decompositions, matrices, norms, solvers
from tvmfun.numpy.linalg.decompositions import *
from tvmfun.numpy.linalg.matrices import *
from tvmfun.numpy.linalg.norms import *
from tvmfun.numpy.linalg.solvers import *
from tvmfun.numpy.products import matmul, outer, tensordot, vecdot
from tvmfun.numpy.shapes import matrix_transpose

__all__ = ["matmul", "matrix_transpose", "outer", "tensordot", "vecdot"]
__all__ += decompositions.__all__
__all__ += matrices.__all__
__all__ += norms.__all__
__all__ += solvers.__all__

__getattr__ = _missing(__name__)
_publish(globals())
