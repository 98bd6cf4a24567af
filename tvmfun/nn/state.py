"""The states of layers, such as the running statistics of batch normalization."""

from __future__ import annotations

from typing import Any

from tvmfun import tree
from tvmfun.nn.walk import children

__all__ = ["has_state", "init_state"]


def init_state(model: Any) -> Any:
    """The initial states of all layers in a model, in a tree that mirrors the model.

    Args:
        model: a tree of layers: dataclasses, tuples, lists and dicts.

    Returns:
        The result of a layer's ``init_state()``, if it has that method; a tuple for a tuple or list; a dict for a dict;
        for other dataclasses a dict of the states of the fields with a state; and ``()`` for anything without a state.

    >>> from tvmfun import nn, random
    >>> init_state({"first": nn.Linear(2, 3, key=random.key(0)), "norm": nn.BatchNorm(3)})
    {'first': (), 'norm': RunningStatistics(mean=Array([0., 0., 0.], dtype=float32),
                                            var=Array([1., 1., 1.], dtype=float32))}
    """
    if hasattr(type(model), "init_state"):
        return model.init_state()
    if isinstance(model, tuple | list):
        return tuple(init_state(part) for part in model)
    states = {name: init_state(part) for name, part in children(model)}
    if isinstance(model, dict):
        return {key: states[str(key)] for key in model}
    return {name: state for name, state in states.items() if tree.leaves(state)} or ()


def has_state(model: Any) -> bool:
    """Whether any layer in a model has a state."""
    return bool(tree.leaves(init_state(model)))
