"""Checks of configurations: sizes are positive, and heads divide the width."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tvmfun.errors import ArgumentError


def check_sizes(config: Any) -> None:
    """Checks that all integers of a configuration are positive.

    Raises:
        ArgumentError: if one is not.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        for size in value if isinstance(value, tuple) else (value,):
            if type(size) is int and size < 1:
                raise ArgumentError(type(config).__name__, f"{field.name} must be positive", got=repr(value))


def check_heads(config: Any, heads: str, width: str) -> None:
    """Checks that the number of attention heads divides the width; both are given by the names of their fields.

    Raises:
        ArgumentError: if it does not.
    """
    count, size = getattr(config, heads), getattr(config, width)
    if size % count:
        raise ArgumentError(type(config).__name__, f"{heads} must divide {width}", got=f"{count} and {size}")
