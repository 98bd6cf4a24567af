"""JAX's functions as functions of tvmfun, read from their jaxprs, and functions of tvmfun as JAX's.

JAX is imported when a function of this package is called.
"""

from tvmfun.boundary import publish
from tvmfun.interop.jax.functions import from_jax, to_jax

__all__ = ["from_jax", "to_jax"]

publish(globals())
