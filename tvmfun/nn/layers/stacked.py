"""Equal layers in a loop, with stacked parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from inspect import signature
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax, random, tree
from tvmfun.errors import ArgumentError
from tvmfun.nn.layers.parameters import layer
from tvmfun.nn.state import has_state
from tvmfun.transforms import checkpoint as rematerialized
from tvmfun.typing import Key, PyTree

__all__ = ["Stacked"]


@layer
class Stacked:
    """Equal layers one after the other, as one layer whose parameters are stacked along a new first axis.

    They run in a loop, so that the Program, its memory plan and the time to compile do not grow with their number.
    That pays from about thirty layers: equal layers share their kernels anyway, and without the loop they run a few
    percent faster.

    Args:
        layers: layers that map an array to one of the same shape and differ only in their parameters.
        checkpoint: whether to keep only each layer's input for the backward pass, and recompute the rest.

    Raises:
        ArgumentError: if there are no layers.
        TreeError: if they differ.

    >>> from tvmfun.nn import Linear
    >>> model = Stacked([Linear(3, 3, key=random.key(i)) for i in range(12)])
    >>> model.layer.weight.shape, model(tnp.ones((2, 3))).shape
    ((12, 3, 3), (2, 3))
    """

    layer: Any
    count: int = field(metadata={"static": True})
    checkpoint: bool = field(metadata={"static": True})

    def __init__(self, layers: Sequence[Any], *, checkpoint: bool = False) -> None:
        if not layers:
            raise ArgumentError("Stacked", "there must be layers", got=repr(layers))
        if has_state(layers[0]):
            what = "layers with a state cannot be stacked"
            raise ArgumentError("Stacked", what, got=type(layers[0]).__name__, hint="nn.Sequential")
        for i, part in enumerate(layers):
            tree.check_same_structure("Stacked", layers[0], part, ("the first layer", f"layer {i}"), exact=True)
        self.layer = tree.map(lambda *leaves: tnp.stack(leaves), *layers)
        self.count = len(layers)
        self.checkpoint = checkpoint

    def __call__(self, x: PyTree, *args: Any, key: Key | None = None, train: bool = True, **settings: Any) -> PyTree:
        """Calls ``layer(x, *args, **settings)`` of each, with a key each and ``train`` if layers take them."""
        parameters = signature(self.layer).parameters
        settings |= {"train": train} if "train" in parameters else {}
        keys = None if key is None or "key" not in parameters else random.split(key, self.count)

        def step(x: PyTree, part: tuple) -> tuple[PyTree, None]:
            layer, key = part
            return layer(x, *args, **({} if key is None else {"key": key}), **settings), None

        return lax.scan(rematerialized(step) if self.checkpoint else step, x, (self.layer, keys))[0]

    def __len__(self) -> int:
        """The number of layers."""
        return self.count

    def __iter__(self) -> Iterator[Any]:
        """The layers one by one."""
        return (tree.map(lambda leaf, i=i: leaf[i], self.layer) for i in range(self.count))
