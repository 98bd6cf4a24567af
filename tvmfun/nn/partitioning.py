"""Partition of models, such as into trainable and frozen parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from tvmfun import tree
from tvmfun.errors import ArgumentError
from tvmfun.typing import PyTree

__all__ = ["combine", "partition"]

Where = str | Sequence[str] | Callable[[str, Any], bool]


def partition(model: PyTree, where: Where) -> tuple[PyTree, PyTree]:
    """Splits a tree into the selected leaves and the rest, with ``None`` for the leaves of the other part.

    So a part of a model can be trained while the rest is frozen.

    Args:
        model: a tree.
        where: the selection: the path of a leaf or of a subtree, such as ``"layers.0.weight"`` or ``"head"``,
            with ``*`` for any characters; several paths; or a function of the path and the leaf.

    Returns:
        Two trees like ``model``, which :func:`combine` merges again.

    Raises:
        ArgumentError: if a path matches no leaf.

    >>> import tvmfun
    >>> from tvmfun import nn, random
    >>> model = {"body": nn.Linear(3, 4, key=random.key(0)), "head": nn.Linear(4, 2, key=random.key(1))}
    >>> trainable, frozen = partition(model, "head")
    >>> trainable
    {'body': Linear(weight=None, bias=None), 'head': Linear(weight=float32[4,2], bias=float32[2])}
    >>> def loss(trainable, frozen, x):
    ...     model = combine(trainable, frozen)
    ...     return model["head"](model["body"](x)).sum()
    >>> tvmfun.jit(tvmfun.grad(loss))(trainable, frozen, tvmfun.numpy.ones((1, 3)))
    {'body': Linear(weight=None, bias=None), 'head': Linear(weight=float32[4,2], bias=float32[2])}
    """
    leaves, structure = tree.flatten_with_path(model)
    names = [tree.keystr(path, simple=True, separator=".") for path, _ in leaves]
    if callable(where):
        selected = [bool(where(name, leaf)) for name, (_, leaf) in zip(names, leaves, strict=True)]
    else:
        patterns = [where] if isinstance(where, str) else list(where)
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in names):
                close = get_close_matches(pattern, names, n=1, cutoff=0.0)
                what = "a path must be that of a leaf, or of a part with leaves"
                raise ArgumentError("partition", what, got=repr(pattern), hint=", ".join(map(repr, close)))
        selected = [any(_matches(name, pattern) for pattern in patterns) for name in names]
    parts = []
    for wanted in (True, False):
        values = [leaf if flag is wanted else None for flag, (_, leaf) in zip(selected, leaves, strict=True)]
        parts.append(tree.unflatten(structure, values))
    return parts[0], parts[1]


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a path or a prefix of it."""
    steps = name.split(".")
    return any(fnmatchcase(".".join(steps[:end]), pattern) for end in range(1, len(steps) + 1))


def combine(*parts: PyTree) -> PyTree:
    """Merges the parts of a tree: for each leaf, the first that is not ``None``.

    Args:
        parts: trees that differ only in which leaves are ``None``, such as :func:`partition` returns.

    Raises:
        TreeError: if they differ otherwise.

    >>> combine({"w": None, "b": 2}, {"w": 1, "b": None})
    {'w': 1, 'b': 2}
    """
    first = lambda *leaves: next((leaf for leaf in leaves if leaf is not None), None)
    return tree.map(first, *parts, is_leaf=lambda part: part is None)
