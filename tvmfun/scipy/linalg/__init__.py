"""Linear algebra with the names and arguments of ``jax.scipy.linalg``, for float32 and float64.

Missing are ``dft``, ``rsf2csf`` and ``funm``, whose results are complex. Matrices that depend on a size only are
float32.
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
    hessenberg,
    inv,
    lu,
    lu_factor,
    lu_solve,
    qr,
    qr_multiply,
    schur,
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
    fiedler_companion,
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
    "eigh_tridiagonal", "expm", "expm_frechet", "fiedler", "fiedler_companion", "hadamard", "hankel", "helmert",
    "hessenberg", "hilbert", "inv", "invhilbert", "invpascal", "leslie", "lu", "lu_factor", "lu_solve", "pascal",
    "polar", "qr", "qr_multiply", "schur", "solve", "solve_sylvester", "solve_triangular", "sqrtm", "svd", "toeplitz",
]  # fmt: skip

__getattr__ = _missing(__name__)
_publish(globals())
