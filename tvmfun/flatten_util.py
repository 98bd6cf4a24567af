"""All leaves of a tree as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from tvmfun import dtypes, tree
from tvmfun import numpy as tnp
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.names import missing as _missing

__all__ = ["ravel_pytree"]


def ravel_pytree(pytree: Any) -> tuple[Array, Callable[[Any], Any]]:
    """Returns the leaves of a tree as one vector, and a function that turns such a vector back into a tree.

    Args:
        pytree: a tree of arrays and numbers.

    Returns:
        A vector of the leaves' promoted dtype, and ``unravel(vector)``, which restores the shape and dtype of each
        leaf. For a tree without leaves the vector is empty and float32.

    Raises:
        ShapeError: from ``unravel``, if the vector has another number of elements.
        DtypeError: from ``unravel``, if the vector has another dtype.

    Source: follows ``jax.flatten_util.ravel_pytree``.

    >>> vector, unravel = ravel_pytree({"w": tnp.ones((2, 2)), "b": 0.5})
    >>> vector
    Array([0.5, 1. , 1. , 1. , 1. ], dtype=float32)
    >>> unravel(2 * vector)["w"]
    Array([[2., 2.],
           [2., 2.]], dtype=float32)
    """
    leaves, structure = tree.flatten(pytree)
    arrays = [tnp.asarray(leaf) for leaf in leaves]
    if arrays:
        dtype = tnp.result_type(*arrays)
        vector = tnp.concatenate([tnp.astype(tnp.ravel(array), dtype) for array in arrays])
    else:
        dtype = dtypes.DEFAULT_FLOAT
        vector = tnp.zeros(0, dtype)
    avals = [array.aval for array in arrays]
    ends = list(accumulate(aval.size for aval in avals))

    def unravel(vector: Any) -> Any:
        vector = tnp.asarray(vector)
        size = ends[-1] if ends else 0
        if vector.shape != (size,):
            raise ShapeError("ravel_pytree", f"the vector must have the shape ({size},)", got=str(vector.shape))
        if vector.dtype != dtype:
            hint = f'vector.astype("{dtype}")'
            raise DtypeError("ravel_pytree", f"the vector must be {dtype}", got=str(vector.dtype), hint=hint)
        parts = tnp.split(vector, ends[:-1]) if ends else []
        shaped = [tnp.astype(tnp.reshape(p, a.shape), a.dtype) for p, a in zip(parts, avals, strict=True)]
        return tree.unflatten(structure, shaped)

    return vector, unravel


__getattr__ = _missing(__name__)
publish(globals())
