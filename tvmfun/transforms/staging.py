"""Running transformed functions: within the current trace, or traced and compiled as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.core import trace as tracing
from tvmfun.core.array import device_array
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import scalar
from tvmfun.typing import PyTree


def staged(fun: Callable, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """Calls ``fun`` in the current trace, or traces, compiles and runs it.

    Only arrays are traced; other leaves (numbers, flags, names) stay Python values, so that ``fun`` may ask for their
    types and use them as sizes.
    """
    if is_tracing():
        return fun(*args, **kwargs)
    of_arrays, arrays = over_arrays(fun, args, kwargs)
    return tracing.trace(of_arrays)(*arrays)(*arrays)


def over_arrays(fun: Callable, args: Sequence[PyTree], kwargs: dict[str, PyTree]) -> tuple[Callable, list[Any]]:
    """``fun`` as a function of the arrays among its arguments' leaves, with other leaves fixed, and the arrays."""
    leaves, structure = tree.flatten((tuple(args), kwargs))
    indices = [i for i, leaf in enumerate(leaves) if is_array(leaf)]

    @wraps(fun)
    def of_arrays(*arrays: Any) -> PyTree:
        full = list(leaves)
        for i, array in zip(indices, arrays, strict=True):
            full[i] = array
        args, kwargs = tree.unflatten(structure, full)
        return fun(*args, **kwargs)

    return of_arrays, [leaves[i] for i in indices]


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array or a float of NumPy, and not a number that may be a size or a flag."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.integer | np.bool_)


def as_arrays(values: PyTree) -> PyTree:
    """The tree with Python numbers as arrays, so that a different number does not recompile."""
    number = tracing.traced_number if is_tracing() else lambda leaf: device_array(scalar(leaf), weak=True)
    convert = lambda leaf: number(leaf) if dtypes.is_scalar(leaf) else leaf
    return tree.map(convert, values)
