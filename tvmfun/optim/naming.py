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
        _check_broadcasting(where, made, result[1], *args, **kwargs)
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
    expected = _initial(made, updates, params)
    if expected is None:
        return
    try:
        tree.check_same_structure(where, expected, state, ("a state made for these updates", "the state"))
    except TreeError as error:
        is_enough = error.hint.startswith(("adding", "removing"))
        raise TreeError(where, error.what, got=error.got, hint=error.hint if is_enough else _INIT) from None
    _check_shapes(where, expected, state, expected)


def _initial(made: GradientTransformation, updates: PyTree, params: PyTree) -> OptState | None:
    """The state that init returns, or None if it fails: its own conditions are not the error here."""
    try:
        return made.init(updates if params is None else params)
    except Exception:
        return None


def _check_broadcasting(
    where: str,
    made: GradientTransformation,
    result: OptState,
    updates: PyTree = None,
    state: OptState = None,
    params: PyTree = None,
    **extra: Any,
) -> None:
    """Checks that no array of a state was broadcast, as moments of other parameters would be."""
    shapes = [[*map(np.shape, tree.leaves(one))] for one in (state, result)]
    if shapes[0] != shapes[1] and len(shapes[0]) == len(shapes[1]):
        expected = _initial(made, updates, params)
        if expected is not None and len(tree.leaves(expected)) == len(shapes[0]):
            _check_shapes(where, expected, state, result)


def _check_shapes(where: str, expected: OptState, state: OptState, result: OptState) -> None:
    """Checks the shapes of a state's arrays, unless the next ones differ from the expected shapes: these may grow."""
    arrays = zip(tree.leaves_with_path(expected), tree.leaves(state), tree.leaves(result), strict=True)
    for (path, other), array, following in arrays:
        if np.shape(following) == np.shape(other) != np.shape(array):
            what = f"the state at {tree.keystr(path) or 'the root'} must have the shape {np.shape(other)} of its update"
            raise ShapeError(where, what, got=str(np.shape(array)), hint=_INIT)
