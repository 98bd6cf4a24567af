"""Models in parts: what is trained and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from tvmfun import tree
from tvmfun.errors import ArgumentError

__all__ = ["combine", "partition"]

Where = str | Sequence[str] | Callable[[str, Any], bool]


def partition(model: Any, where: Where) -> tuple[Any, Any]:
    """Splits a tree into what is selected and the rest, with ``None`` for what is in the other part.

    So a part of a model can be trained while the rest stays as it is.

    Args:
        model: a tree.
        where: what to select: the path of a leaf or of a part of the tree, such as ``"layers.0.weight"`` or ``"head"``,
            with ``*`` for any characters; several of them; or a function of the path and the leaf.

    Returns:
        Two trees like ``model``, which :func:`combine` puts together again.

    Raises:
        ArgumentError: if a path is that of no leaf.

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
    """Whether a pattern fits a path or the beginning of one."""
    steps = name.split(".")
    return any(fnmatchcase(".".join(steps[:end]), pattern) for end in range(1, len(steps) + 1))


def combine(*parts: Any) -> Any:
    """Puts the parts of a tree together again: of each leaf the first that is not ``None``.

    Args:
        parts: trees that differ only in what is ``None``, as :func:`partition` makes them.

    Raises:
        TreeError: if they differ otherwise.

    >>> combine({"w": None, "b": 2}, {"w": 1, "b": None})
    {'w': 1, 'b': 2}
    """
    first = lambda *leaves: next((leaf for leaf in leaves if leaf is not None), None)
    return tree.map(first, *parts, is_leaf=lambda part: part is None)
