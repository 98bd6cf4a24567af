"""Keys for the dropout of a model's parts."""

from __future__ import annotations

from tvmfun import random
from tvmfun.errors import ArgumentError
from tvmfun.typing import Key


def dropout_keys(where: str, key: Key | None, train: bool, count: int) -> list[Key | None]:
    """Returns a key for each part while training, and None for each otherwise.

    Raises:
        ArgumentError: if the key is missing while training.
    """
    if not train:
        return [None] * count
    if key is None:
        raise ArgumentError(where, "a key is needed for training", got="None", hint="key=random.key(0), or train=False")
    return list(random.split(key, count))
