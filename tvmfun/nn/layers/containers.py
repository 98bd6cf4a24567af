"""Containers: layers in sequence, and with a residual connection."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import lru_cache
from typing import Any

from tvmfun import random, tree
from tvmfun.errors import ArgumentError, TreeError
from tvmfun.nn.layers.parameters import layer
from tvmfun.nn.state import has_state, init_state
from tvmfun.nn.walk import is_layer

__all__ = ["Residual", "Sequential"]


@layer
class Function:
    """A plain function as a layer, in a static field."""

    function: Callable[[Any], Any] = field(metadata={"static": True})

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, x: Any) -> Any:
        return self.function(x)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", None) or repr(self.function)


def _as_layer(where: str, value: Any) -> Any:
    if is_layer(value):
        return value
    if not callable(value):
        what = "there must be layers and functions"
        hint = f"{where}(*layers)" if isinstance(value, list | tuple) else "tree.register_dataclass for a layer"
        raise ArgumentError(where, what, got=type(value).__name__, hint=hint)
    return Function(value)


@lru_cache
def _options(kind: type) -> frozenset[str]:
    """The keyword arguments among ``key`` and ``train`` that a layer's call takes."""
    parameters = inspect.signature(kind.__call__).parameters
    return frozenset(name for name in ("key", "train") if name in parameters)


def _call(where: str, part: Any, x: Any, state: Any, key: Any, train: bool) -> tuple[Any, Any]:
    """Calls a layer with the arguments that it takes; returns its result and its new state."""
    accepted = _options(type(part))
    options = {name: value for name, value in (("key", key), ("train", train)) if name in accepted}
    if tree.leaves(state):
        return part(x, state, **options)
    if has_state(part):
        what = f"{type(part).__name__} needs a state"
        raise ArgumentError(where, what, got="none", hint="y, state = model(x, nn.init_state(model))")
    return part(x, **options), state


def _key_of(key: Any, part: Any, number: int) -> Any:
    return random.fold_in(key, number) if key is not None and "key" in _options(type(part)) else None


@layer
class Sequential:
    """Layers and plain functions in sequence.

    A call without a state returns the result; a call with one, from :func:`init_state`, returns the result and the new
    state. Layers that take ``key`` get one each, folded from the key of the call; layers that take ``train`` get that.

    Args:
        layers: layers, and functions of one argument.

    Raises:
        ArgumentError: if a part is neither.

    >>> import tvmfun.numpy as tnp
    >>> from tvmfun import nn, random
    >>> first, last = random.split(random.key(0))
    >>> dropout = nn.Dropout(0.5)
    >>> model = Sequential(nn.Linear(4, 8, key=first), nn.BatchNorm(8), nn.functional.relu, dropout,
    ...                    nn.Linear(8, 2, key=last))
    >>> model
    Sequential(
      (0): Linear(weight=float32[4,8], bias=float32[8])
      (1): BatchNorm(weight=float32[8], bias=float32[8], num_features=8, eps=1e-05, momentum=0.1, axis_name=None,
           dtype=float32)
      (2): relu
      (3): Dropout(rate=0.5)
      (4): Linear(weight=float32[8,2], bias=float32[2])
    )
    >>> y, state = model(tnp.ones((3, 4)), nn.init_state(model), key=random.key(1), train=True)
    >>> y.shape
    (3, 2)
    """

    layers: tuple

    def __init__(self, *layers: Any) -> None:
        self.layers = tuple(_as_layer("Sequential", part) for part in layers)

    def init_state(self) -> tuple:
        """The initial states of the layers, ``()`` for layers without a state."""
        return tuple(init_state(part) for part in self.layers)

    def __call__(self, x: Any, state: Any = None, *, key: Any = None, train: bool = True) -> Any:
        """Applies the layers in order; with a state it returns the result and the new state.

        Raises:
            ArgumentError: if a layer needs a state or a key and there is none.
            TreeError: if there is not one state per layer.
        """
        states = ((),) * len(self.layers) if state is None else state
        if len(states) != len(self.layers):
            hint = "nn.init_state(model)"
            raise TreeError("Sequential", f"there must be {len(self.layers)} states", got=str(len(states)), hint=hint)
        new = []
        for number, (part, old) in enumerate(zip(self.layers, states, strict=True)):
            x, updated = _call("Sequential", part, x, old, _key_of(key, part, number), train)
            new.append(updated)
        return x if state is None else (x, tuple(new))

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(part.function if isinstance(part, Function) else part for part in self.layers)

    def __getitem__(self, index: int | slice) -> Any:
        parts = list(self)[index]
        return Sequential(*parts) if isinstance(index, slice) else parts

    def __repr__(self) -> str:
        lines = [f"  ({number}): {part!r}".replace("\n", "\n  ") for number, part in enumerate(self.layers)]
        return "\n".join(["Sequential(", *lines, ")"]) if lines else "Sequential()"


@layer
class Residual:
    """The result of a layer added to its argument: ``shortcut(x) + layer(x)``.

    A call without a state returns the result; a call with one, from :func:`init_state`, returns the result and the new
    state.

    Args:
        layer: a layer, or a function of one argument.
        shortcut: a layer or function for the argument, if its shape must change; by default the identity.

    Raises:
        ArgumentError: if a part is neither a layer nor a function.

    Reference: He et al., "Deep Residual Learning for Image Recognition" (2016).

    >>> import tvmfun.numpy as tnp
    >>> Residual(tnp.exp)(tnp.zeros(2))
    Array([1., 1.], dtype=float32)
    """

    layer: Any
    shortcut: Any

    def __init__(self, layer: Any, shortcut: Any = None) -> None:
        self.layer = _as_layer("Residual", layer)
        self.shortcut = None if shortcut is None else _as_layer("Residual", shortcut)

    def __call__(self, x: Any, state: Any = None, *, key: Any = None, train: bool = True) -> Any:
        """Applies the layer; with a state it returns the result and the new state.

        Raises:
            ArgumentError: if a layer needs a state or a key and there is none.
        """
        new = dict(state or {})
        results = []
        for number, name in enumerate(("layer", "shortcut")):
            part = getattr(self, name)
            if part is None:
                results.append(x)
                continue
            y, updated = _call("Residual", part, x, new.get(name, ()), _key_of(key, part, number), train)
            results.append(y)
            if name in new:
                new[name] = updated
        y = results[1] + results[0]
        return y if state is None else (y, new or ())

    def __repr__(self) -> str:
        parts = [("layer", self.layer), ("shortcut", self.shortcut)]
        lines = [f"  ({name}): {part!r}".replace("\n", "\n  ") for name, part in parts if part is not None]
        return "\n".join(["Residual(", *lines, ")"])
