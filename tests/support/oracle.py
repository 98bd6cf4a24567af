"""Differences between the versions of JAX that the tests run with."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache

import jax


def x64(enabled: bool = True) -> AbstractContextManager:
    """JAX with 64-bit numbers."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax.experimental import enable_x64

    return enable_x64(enabled)


@cache
def quick_options() -> dict[str, int]:
    """Options by which XLA compiles without optimizations."""
    options = {"xla_backend_optimization_level": 0}
    more = options | {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x + 1, compiler_options=more)(0)
    except Exception:  # older versions do not know it, and say so in different ways
        return options
    return more


def quick_jit(fun: Callable) -> Callable:
    """``jax.jit`` without optimizations, for programs that run once."""
    return jax.jit(fun, compiler_options=quick_options())
