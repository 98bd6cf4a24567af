"""All parameters as one vector."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    with_extra_args_support,
)

__all__ = [
    "flatten",
]


def flatten(inner: GradientTransformation) -> GradientTransformationExtraArgs:
    """Applies a transformation to all parameters as one vector.

    Args:
        inner: the transformation.

    Returns:
        A transformation whose state is that of ``inner`` for the vector.

    >>> from tvmfun.optim import clip_by_block_rms
    >>> transform = flatten(clip_by_block_rms(1.0))
    >>> updates = {"w": tnp.asarray([3.0]), "b": tnp.asarray(-3.0)}
    >>> {k: u.tolist() for k, u in transform.update(updates, transform.init(updates))[0].items()}
    {'w': [1.0], 'b': -1.0}
    """
    inner = with_extra_args_support(inner)

    def join(params: Params) -> Any:
        return tnp.concatenate([tnp.asarray(leaf).reshape((-1,)) for leaf in tree.leaves(params)])

    def init(params: Params) -> OptState:
        return inner.init(join(params))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple:
        joined = None if params is None else join(params)
        vector, state = inner.update(join(updates), state, joined, **extra_args)
        leaves, structure = tree.flatten(updates)
        ends = np.cumsum([tnp.size(leaf) for leaf in leaves])
        parts = tnp.split(vector, [int(end) for end in ends[:-1]])
        shaped = [part.reshape(tnp.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
        return tree.unflatten(structure, shaped), state

    return GradientTransformationExtraArgs(init, update)
