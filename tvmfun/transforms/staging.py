"""Running transformed functions: as a part of the current trace, or traced and compiled as a whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tvmfun import dtypes, tree
from tvmfun.core import trace as tracing
from tvmfun.core.array import device_array
from tvmfun.core.leaf import scalar
from tvmfun.core.trace import is_tracing


def staged(fun: Callable, *args: Any, **kwargs: Any) -> Any:
    """Calls ``fun``: in the current trace, or traced and then compiled as a whole.

    Only arrays are traced; other leaves (flags, names) stay the Python values they are.
    """
    if is_tracing():
        return fun(*args, **kwargs)
    leaves, structure = tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]

    @wraps(fun)
    def of_arrays(*arrays: Any) -> Any:
        full = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            full[i] = array
        args, kwargs = tree.unflatten(structure, full)
        return fun(*args, **kwargs)

    arrays = [leaves[i] for i in places]
    return tracing.trace(of_arrays)(*arrays)(*arrays)


def as_arrays(values: Any) -> Any:
    """The tree with Python numbers as arrays, so that other numbers need no other module."""
    number = scalar if is_tracing() else lambda leaf: device_array(scalar(leaf), weak=True)
    convert = lambda leaf: number(leaf) if dtypes.is_scalar(leaf) else leaf
    return tree.map(convert, values)
