"""Calls of a model's blocks: keys for their dropout, recomputation."""

from __future__ import annotations

from collections.abc import Callable

import tvmfun
from tvmfun import random
from tvmfun.core.array import Array
from tvmfun.nn.functional.arguments import training_key
from tvmfun.typing import Key


def dropout_keys(where: str, key: Key | None, train: bool, rate: float, count: int) -> list[Key | None]:
    """Returns a key for each part while training, and None for each where nothing is dropped.

    Raises:
        ArgumentError: if the key is missing while training.
    """
    drops = bool(train and rate)
    key = training_key(where, key, drops)
    if not drops or key is None:
        return [None] * count
    return list(random.split(key, count))


def call_block(
    block: Callable[..., Array], *arguments: object, key: Key | None, train: bool, checkpoint: bool
) -> Array:
    """Calls a block, which with ``checkpoint`` is computed again for its derivative."""

    # A function of arrays alone, since a checkpoint has no static arguments.
    def call(block: Callable[..., Array], key: Key | None, *arguments: object) -> Array:
        return block(*arguments, key=key, train=train)

    return (tvmfun.checkpoint(call) if checkpoint else call)(block, key, *arguments)
