"""Special functions, linear algebra, statistics and more, with the names and arguments of ``jax.scipy``."""

from tvmfun.scipy import cluster, integrate, linalg, ndimage, signal, special, stats

__all__ = ["cluster", "integrate", "linalg", "ndimage", "signal", "special", "stats"]
