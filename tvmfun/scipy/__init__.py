"""Special functions, linear algebra, statistics and more, with the names and arguments of ``jax.scipy``.

It is imported at its first use, or by ``from tvmfun.scipy import stats``. There is no ``fft`` and
``spatial`` yet.
"""

from tvmfun.names import missing as _missing
from tvmfun.scipy import cluster, integrate, interpolate, linalg, ndimage, optimize, signal, sparse, special, stats

__all__ = [
    "cluster",
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "sparse",
    "special",
    "stats",
]

__getattr__ = _missing(__name__)
