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

_INIT = "the state that init returns for these parameters"


def named(name: str, made: Any) -> Any:
    """Wraps ``init`` and ``update`` of a transformation, so that their errors have its name."""
    if not isinstance(made, GradientTransformation) or not (callable(made.init) and callable(made.update)):
        return made
    where = f"{name}.update"
    update = bounded(made.update, where)

    @functools.wraps(update)
    def checked(*args: Any, **kwargs: Any) -> tuple:
        try:
            result = update(*args, **kwargs)
        except (ArgumentError, DtypeError, KeyError, ShapeError, TreeError) as error:
            if type(error) is not ArgumentError or error.__cause__ is not None:
                _check_trees(where, made, *args, **kwargs)
            if type(error) is KeyError and is_ours(error):
                what = "the state must be one that init returns for such updates"
                raise TreeError(where, what, got=f"one without an element {error}") from error
            raise
        _check_shapes(where, result[1], args[1] if len(args) > 1 else kwargs.get("state"))
        return result

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
    try:
        tree.check_same_structure(where, expected, state, ("a state made for these updates", "the state"))
    except TreeError as error:
        is_enough = error.hint.startswith(("adding", "removing"))
        raise TreeError(where, error.what, got=error.got, hint=error.hint if is_enough else _INIT) from None
    _check_shapes(where, expected, state)


def _check_shapes(where: str, expected: OptState, state: OptState) -> None:
    """Checks that the arrays of a state have the shapes of those of another, such as the one that replaces it.

    Moments of other parameters would be broadcast.
    """
    own, others = tree.leaves(state), tree.leaves_with_path(expected)
    if len(own) != len(others):
        return
    for (path, other), array in zip(others, own, strict=True):
        if np.shape(other) != np.shape(array):
            what = f"the state at {tree.keystr(path) or 'the root'} must have the shape {np.shape(other)} of its update"
            raise ShapeError(where, what, got=str(np.shape(array)), hint=_INIT)
