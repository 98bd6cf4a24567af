"""Linear algebra on the last two axes of float arrays: triangular systems and decompositions.

Every op is a loop program on one matrix, in parallel over the leading axes, and needs nothing but the compiled module.
A large matrix is a sequence of strips of columns (:mod:`~tvmfun.ops.linalg.strips`), between which most of the work is
products of small matrices; a single one is shared by all threads.
"""

from tvmfun.ops.linalg.cholesky import cholesky
from tvmfun.ops.linalg.eigh import eigh
from tvmfun.ops.linalg.lu import lu
from tvmfun.ops.linalg.qr import qr
from tvmfun.ops.linalg.svd import svd
from tvmfun.ops.linalg.triangular_solve import triangular_solve

__all__ = ["cholesky", "eigh", "lu", "qr", "svd", "triangular_solve"]
