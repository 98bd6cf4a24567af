"""Transformations made of transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvmfun import tree
from tvmfun.errors import ArgumentError
from tvmfun.optim.base import GradientTransformation, OptState, Params, Updates

__all__ = ["MaskedNode", "MaskedState", "chain", "masked"]


def chain(*transforms: GradientTransformation) -> GradientTransformation:
    """Applies transformations one after the other: ``u' = t_n(... t_2(t_1(u)))``.

    Args:
        *transforms: the transformations, the first to be applied first.

    Returns:
        A transformation whose state is the tuple of their states.

    Raises:
        ArgumentError: on ``update``, if the state is not one that ``init`` of this chain made.

    >>> from tvmfun.optim import scale
    >>> optimizer = chain(scale(2.0), scale(-0.5))
    >>> optimizer.update({"w": 1.0}, optimizer.init({"w": 0.0}))
    ({'w': -1.0}, (EmptyState(), EmptyState()))
    """

    def init(params: Params) -> OptState:
        return tuple([transform.init(params) for transform in transforms])

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        if not isinstance(state, tuple) or len(state) != len(transforms):
            raise ArgumentError(
                "chain",
                f"the state must be a tuple of {len(transforms)} states",
                got=f"{type(state).__name__} of length {len(state)}" if isinstance(state, tuple) else repr(state),
                hint="the state that init returned",
            )
        states = []
        for transform, inner in zip(transforms, state, strict=True):
            updates, inner = transform.update(updates, inner, params)
            states.append(inner)
        return updates, tuple(states)

    return GradientTransformation(init, update)


class MaskedState(NamedTuple):
    """The state of a masked transformation.

    Attributes:
        inner_state: the state for the part of the parameters that is not masked out.
    """

    inner_state: OptState


class MaskedNode(NamedTuple):
    """Stands in a tree for a part that is masked out; it has no leaves."""


def masked(inner: GradientTransformation, mask: Any | Callable[[Params], Any]) -> GradientTransformation:
    """Applies a transformation to a part of the tree: ``u' = t(u)`` where the mask is true, ``u`` elsewhere.

    Args:
        inner: the transformation; it keeps state only for the parameters it is applied to.
        mask: a tree of Python bools that begins like the parameters (one bool may stand for a whole subtree),
            or a function from the parameters to such a tree.

    Returns:
        A transformation whose state is a ``MaskedState``.

    Raises:
        TreeError: on ``init`` or ``update``, if the parameters do not begin with the structure of the mask.

    >>> from tvmfun.optim import scale
    >>> only_w = masked(scale(-1.0), {"w": True, "b": False})
    >>> only_w.update({"w": 1.0, "b": 1.0}, only_w.init({"w": 0.0, "b": 0.0}))[0]
    {'w': -1.0, 'b': 1.0}
    """
    # A module is callable, too; but as a mask it is a tree of bools.
    is_function = callable(mask) and tree.structure(mask).is_leaf()

    def select(params: Params, mask_tree: Any) -> Any:
        return tree.map(lambda keep, subtree: subtree if keep else MaskedNode(), mask_tree, params)

    def init(params: Params) -> MaskedState:
        return MaskedState(inner.init(select(params, mask(params) if is_function else mask)))

    def update(updates: Updates, state: MaskedState, params: Params | None = None) -> tuple[Updates, MaskedState]:
        mask_tree = mask(updates) if is_function else mask
        chosen = None if params is None else select(params, mask_tree)
        inner_updates, inner_state = inner.update(select(updates, mask_tree), state.inner_state, chosen)
        merged = tree.map(lambda keep, new, old: new if keep else old, mask_tree, inner_updates, updates)
        return merged, MaskedState(inner_state)

    return GradientTransformation(init, update)
