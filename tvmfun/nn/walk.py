"""The layers in a model: how a tree of dataclasses, tuples, lists and dicts is walked by layers rather than leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

__all__ = ["children", "is_layer"]


def children(node: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a node and their names: fields that are not static, elements, items."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        for field in dataclasses.fields(node):
            if not field.metadata.get("static"):
                yield field.name, getattr(node, field.name)
    elif isinstance(node, dict):
        for key in sorted(node):
            yield str(key), node[key]
    elif isinstance(node, tuple | list):
        for number, part in enumerate(node):
            yield str(number), part


def is_layer(node: Any) -> bool:
    """Whether a node of a model is a dataclass that can be called."""
    return dataclasses.is_dataclass(node) and not isinstance(node, type) and callable(node)
