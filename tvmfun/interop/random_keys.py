"""The name of the random key among the keyword arguments of a function that was a model elsewhere."""

from __future__ import annotations

from collections.abc import Container


def random_key_name(inputs: Container[str]) -> str:
    """Returns ``key``, or ``random_key`` for a model with an input ``key``, as attention has.

    >>> random_key_name(["query", "key", "value"])
    'random_key'
    """
    return "random_key" if "key" in inputs else "key"
