"""Walks over the layers of a model: a tree of dataclasses, tuples, lists and dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

__all__ = ["children", "is_layer"]


def children(node: Any) -> Iterator[tuple[str, Any]]:
    """The children of a node with their names: non-static fields, elements or items."""
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
