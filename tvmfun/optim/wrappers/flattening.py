"""All parameters as one vector."""

from __future__ import annotations

from typing import Any

from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    with_extra_args_support,
)
from tvmfun.optim.layout import ravel

__all__ = [
    "flatten",
]


def flatten(inner: GradientTransformation) -> GradientTransformationExtraArgs:
    """Applies a transformation to all parameters as one vector.

    Args:
        inner: the transformation.

    Returns:
        A transformation whose state is that of ``inner`` for the vector.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import clip_by_block_rms
    >>> transform = flatten(clip_by_block_rms(1.0))
    >>> updates = {"w": tnp.asarray([3.0]), "b": tnp.asarray(-3.0)}
    >>> {k: u.tolist() for k, u in transform.update(updates, transform.init(updates))[0].items()}
    {'w': [1.0], 'b': -1.0}
    """
    inner = with_extra_args_support(inner)

    def init(params: Params) -> OptState:
        return inner.init(ravel(params)[0])

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple:
        vector, restore = ravel(updates)
        new, state = inner.update(vector, state, None if params is None else ravel(params)[0], **extra_args)
        return restore(new), state

    return GradientTransformationExtraArgs(init, update)
