"""All leaves of a tree as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.leaf import abstract
from tvmfun.optim.base import refuse_row_sparse


def ravel(tree_x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The leaves one after the other, and the function that makes a tree of such a vector, in their dtypes."""
    refuse_row_sparse("flatten", tree_x)
    leaves, structure = tree.flatten(tree_x)
    vector = tnp.concatenate([tnp.asarray(leaf).reshape((-1,)) for leaf in leaves])
    ends = [int(end) for end in np.cumsum([tnp.size(leaf) for leaf in leaves])[:-1]]

    def restore(vector: Any) -> Any:
        parts = tnp.split(vector, ends) if ends else [vector]
        shaped = [p.reshape(tnp.shape(x)).astype(abstract(x).dtype) for p, x in zip(parts, leaves, strict=True)]
        return tree.unflatten(structure, shaped)

    return vector, restore
