"""Linear algebra with the names and arguments of ``jax.scipy.linalg``, for float32 and float64.

Missing are functions whose results are complex (``dft``, ``rsf2csf``), those that need a Schur decomposition
(``schur``, ``hessenberg``, ``funm``), ``fiedler_companion`` and ``qr_multiply``. Matrices that depend
on a size only are float32.
"""

from tvmfun.boundary import publish as _publish
from tvmfun.names import missing as _missing
from tvmfun.scipy.linalg.functions import expm, expm_frechet, polar, solve_sylvester, sqrtm
from tvmfun.scipy.linalg.solvers import (
    cho_factor,
    cho_solve,
    cholesky,
    det,
    eigh,
    eigh_tridiagonal,
    inv,
    lu,
    lu_factor,
    lu_solve,
    qr,
    solve,
    solve_triangular,
    svd,
)
from tvmfun.scipy.linalg.special_matrices import (
    block_diag,
    circulant,
    companion,
    convolution_matrix,
    fiedler,
    hadamard,
    hankel,
    helmert,
    hilbert,
    invhilbert,
    invpascal,
    leslie,
    pascal,
    toeplitz,
)

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "companion", "convolution_matrix", "det", "eigh",
    "eigh_tridiagonal", "expm", "expm_frechet", "fiedler", "hadamard", "hankel", "helmert", "hilbert", "inv",
    "invhilbert", "invpascal", "leslie", "lu", "lu_factor", "lu_solve", "pascal", "polar", "qr", "solve",
    "solve_sylvester", "solve_triangular", "sqrtm", "svd", "toeplitz",
]  # fmt: skip

__getattr__ = _missing(__name__)
_publish(globals())
