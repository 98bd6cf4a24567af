"""What differs between the versions of JAX that the tests run with."""

from contextlib import AbstractContextManager

import jax


def x64(enabled: bool = True) -> AbstractContextManager:
    """JAX with 64-bit numbers."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax.experimental import enable_x64

    return enable_x64(enabled)
