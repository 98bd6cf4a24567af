"""Errors of transformations that name the function, the tree and the key path."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tvmfun import tree
from tvmfun.boundary import bounded, is_ours
from tvmfun.errors import ArgumentError, DtypeError, ShapeError, TreeError
from tvmfun.optim.base import GradientTransformation, OptState
from tvmfun.typing import PyTree


def named(name: str, made: Any) -> Any:
    """Wraps ``init`` and ``update`` of a transformation, so that their errors have its name."""
    if not isinstance(made, GradientTransformation) or not (callable(made.init) and callable(made.update)):
        return made
    where = f"{name}.update"
    update = bounded(made.update, where)

    @functools.wraps(update)
    def checked(*args: Any, **kwargs: Any) -> tuple:
        try:
            return update(*args, **kwargs)
        except (ArgumentError, DtypeError, KeyError, ShapeError, TreeError) as error:
            if type(error) is not ArgumentError or error.__cause__ is not None:
                _check_trees(where, made, *args, **kwargs)
            if type(error) is KeyError and is_ours(error):
                what = "the state must be one that init returns for such updates"
                raise TreeError(where, what, got=f"one without an element {error}") from error
            raise

    return made._replace(init=bounded(made.init, f"{name}.init"), update=checked)


def _check_trees(
    where: str,
    made: GradientTransformation,
    updates: PyTree = None,
    state: OptState = None,
    params: PyTree = None,
    **extra: Any,
) -> None:
    """Checks that updates, parameters and state fit together."""
    if params is not None:
        tree.check_same_structure(where, params, updates, ("the parameters", "the updates"))
        for (path, parameter), update in zip(tree.leaves_with_path(params), tree.leaves(updates), strict=True):
            if np.shape(parameter) != np.shape(update):
                where_in_tree = tree.keystr(path) or "the root"
                what = f"the update at {where_in_tree} must have the shape {np.shape(parameter)} of its parameter"
                raise ShapeError(where, what, got=str(np.shape(update)))
    try:
        expected = made.init(updates if params is None else params)
    except Exception:  # init checks its own conditions, which are not the error here
        return
    tree.check_same_structure(where, expected, state, ("a state made for these updates", "the state"))
