"""Combinations of transformations: chains, masks and partitions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from tvmfun import tree
from tvmfun.boundary import described
from tvmfun.errors import ArgumentError, TreeError
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ParamsPlaceholder,
    Updates,
    apply_part,
    passing_rows,
    ravel,
    set_to_zero,
    with_extra_args_support,
)
from tvmfun.typing import PyTree

__all__ = [
    "MaskedNode",
    "MaskedState",
    "MultiTransformState",
    "PartitionState",
    "chain",
    "flatten",
    "freeze",
    "masked",
    "named_chain",
    "partition",
    "selective_transform",
]


def chain(*transforms: GradientTransformation) -> GradientTransformationExtraArgs:
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
    parts = [with_extra_args_support(transform) for transform in transforms]

    def init(params: Params) -> OptState:
        return tuple([part.init(params) for part in parts])

    @passing_rows
    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple:
        if not isinstance(state, tuple) or len(state) != len(parts):
            raise ArgumentError(
                "chain",
                f"the state must be a tuple of {len(parts)} states",
                got=f"{type(state).__name__} of length {len(state)}" if isinstance(state, tuple) else described(state),
                hint="the state that init returned",
            )
        states = []
        for part, inner in zip(parts, state, strict=True):
            updates, inner = apply_part("chain", part, updates, inner, params, **extra_args)
            states.append(inner)
        return updates, tuple(states)

    return GradientTransformationExtraArgs(init, update)


def named_chain(*transforms: tuple[str, GradientTransformation]) -> GradientTransformationExtraArgs:
    """Applies transformations one after the other, and keeps their states under names.

    Args:
        *transforms: pairs of a name and a transformation, the first to be applied first.

    Returns:
        A transformation whose state is an ``OrderedDict`` of their states.

    Raises:
        ArgumentError: if two have the same name.

    >>> from tvmfun.optim import scale
    >>> optimizer = named_chain(("double", scale(2.0)), ("descend", scale(-0.5)))
    >>> updates, state = optimizer.update({"w": 1.0}, optimizer.init({"w": 0.0}))
    >>> updates, list(state)
    ({'w': -1.0}, ['double', 'descend'])
    """
    parts = OrderedDict((name, with_extra_args_support(transform)) for name, transform in transforms)
    if len(parts) != len(transforms):
        raise ArgumentError("named_chain", "the names must differ", got=str([name for name, _ in transforms]))

    def init(params: Params) -> OptState:
        return OrderedDict((name, part.init(params)) for name, part in parts.items())

    @passing_rows
    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple:
        states = OrderedDict()
        for name, part in parts.items():
            updates, states[name] = apply_part("named_chain", part, updates, state[name], params, **extra_args)
        return updates, states

    return GradientTransformationExtraArgs(init, update)


class MaskedState(NamedTuple):
    """The state of a masked transformation.

    Attributes:
        inner_state: the state for the parameters that are not masked out.
    """

    inner_state: OptState


class MaskedNode(NamedTuple):
    """Placeholder of a masked subtree, without leaves."""


def masked(inner: GradientTransformation, mask: MaskOrFn) -> GradientTransformationExtraArgs:
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
    # A layer is callable as well, but as a mask it is a tree of bools.
    is_function = callable(mask) and tree.structure(mask).is_leaf()
    inner = with_extra_args_support(inner)

    def select(params: Params, mask_tree: PyTree) -> PyTree:
        try:
            return tree.map(lambda keep, subtree: subtree if keep else MaskedNode(), mask_tree, params)
        except TreeError as error:
            what = error.what.replace("tree 2", "the parameters").replace("tree 1", "the mask or the labels")
            raise TreeError("masked", what, got=error.got, hint=error.hint) from None

    def init(params: Params) -> MaskedState:
        if isinstance(params, ParamsPlaceholder):
            return MaskedState(inner.init(params))
        return MaskedState(inner.init(select(params, mask(params) if is_function else mask)))

    @passing_rows
    def update(updates: Updates, state: MaskedState, params: Params | None = None, **extra_args: Any) -> tuple:
        mask_tree = mask(updates) if is_function else mask
        chosen = None if params is None else select(params, mask_tree)
        part = select(updates, mask_tree)
        inner_updates, inner_state = apply_part("masked", inner, part, state.inner_state, chosen, **extra_args)
        merged = tree.map(lambda keep, new, old: new if keep else old, mask_tree, inner_updates, updates)
        return merged, MaskedState(inner_state)

    return GradientTransformationExtraArgs(init, update)


def freeze(mask: MaskOrFn) -> GradientTransformationExtraArgs:
    """Drops the updates of a part of the tree: ``u' = 0`` where the mask is true, ``u`` elsewhere.

    Args:
        mask: which parameters to freeze, as for :func:`masked`.

    Returns:
        A transformation whose state is a ``MaskedState``.

    >>> import tvmfun.numpy as tnp
    >>> transform = freeze({"w": True, "b": False})
    >>> updates = {"w": tnp.asarray(1.0), "b": tnp.asarray(1.0)}
    >>> {k: float(u) for k, u in transform.update(updates, transform.init(updates))[0].items()}
    {'w': 0.0, 'b': 1.0}
    """
    return masked(set_to_zero(), mask)


class PartitionState(NamedTuple):
    """The state of a partition.

    Attributes:
        inner_states: for each label the state of its transformation, a ``MaskedState``.
    """

    inner_states: dict[Hashable, OptState]


#: optax's name for it.
MultiTransformState = PartitionState


def partition(
    transforms: Mapping[Hashable, GradientTransformation], param_labels: PyTree | Callable[[Params], PyTree]
) -> GradientTransformationExtraArgs:
    """Applies to each part of the tree the transformation of its label: ``u' = t_label(u)``.

    Args:
        transforms: a transformation for each label.
        param_labels: a tree of labels that begins like the parameters (one label may stand for a whole subtree), or
            a function from the parameters to such a tree.

    Returns:
        A transformation whose state is a ``PartitionState``.

    Raises:
        ArgumentError: on ``init``, if a label has no transformation.
        TreeError: on ``init`` or ``update``, if the parameters do not begin with the structure of the labels.

    >>> from tvmfun.optim import scale
    >>> optimizer = partition({"fast": scale(-1.0), "slow": scale(-0.5)}, {"w": "fast", "b": "slow"})
    >>> optimizer.update({"w": 1.0, "b": 1.0}, optimizer.init({"w": 0.0, "b": 0.0}))[0]
    {'w': -1.0, 'b': -0.5}
    """
    is_function = callable(param_labels) and tree.structure(param_labels).is_leaf()

    def part(label: Hashable, labels: PyTree) -> GradientTransformationExtraArgs:
        return masked(transforms[label], tree.map(lambda other: other == label, labels))

    def init(params: Params) -> PartitionState:
        if isinstance(params, ParamsPlaceholder):
            return PartitionState({label: MaskedState(inner.init(params)) for label, inner in transforms.items()})
        labels = param_labels(params) if is_function else param_labels
        unknown = set(tree.leaves(labels)) - set(transforms)
        if unknown:
            raise ArgumentError(
                "partition",
                f"the labels must be among {', '.join(sorted(map(repr, transforms)))}",
                got=", ".join(sorted(map(repr, unknown))),
            )
        return PartitionState({label: part(label, labels).init(params) for label in transforms})

    @passing_rows
    def update(updates: Updates, state: PartitionState, params: Params | None = None, **extra_args: Any) -> tuple:
        labels = param_labels(updates) if is_function else param_labels
        states = {}
        for label in transforms:
            inner = state.inner_states[label]
            updates, states[label] = part(label, labels).update(updates, inner, params, **extra_args)
        return updates, PartitionState(states)

    return GradientTransformationExtraArgs(init, update)


def selective_transform(optimizer: GradientTransformation, *, freeze_mask: MaskOrFn) -> GradientTransformationExtraArgs:
    """Applies a transformation to a part of the tree, and drops the updates of the rest.

    Args:
        optimizer: the transformation.
        freeze_mask: a tree of Python bools, true for frozen parameters.

    Returns:
        A transformation whose state is a ``PartitionState`` with the labels ``"train"`` and ``"freeze"``.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun.optim import scale
    >>> transform = selective_transform(scale(-1.0), freeze_mask={"w": False, "b": True})
    >>> updates = {"w": tnp.asarray(1.0), "b": tnp.asarray(1.0)}
    >>> {k: float(u) for k, u in transform.update(updates, transform.init(updates))[0].items()}
    {'w': -1.0, 'b': 0.0}
    """
    labels = tree.map(lambda frozen: "freeze" if frozen else "train", freeze_mask)
    return partition({"train": optimizer, "freeze": set_to_zero()}, labels)


def flatten(inner: GradientTransformation) -> GradientTransformationExtraArgs:
    """Applies a transformation to all parameters, concatenated to one vector.

    Args:
        inner: the transformation.

    Returns:
        A transformation with the state of ``inner`` for the vector.

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
