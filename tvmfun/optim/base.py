"""What an optimizer is: a pair of pure functions, and the trees they pass around."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ShapeError
from tvmfun.sparse import is_row_sparse, is_table

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "OptState",
    "Params",
    "ScalarOrSchedule",
    "Schedule",
    "Updates",
    "apply_updates",
    "identity",
    "stateless",
]

Params: TypeAlias = Any
Updates: TypeAlias = Any
OptState: TypeAlias = Any
Schedule: TypeAlias = Callable[[Any], Any]
ScalarOrSchedule: TypeAlias = float | Array | Schedule


class GradientTransformation(NamedTuple):
    """An optimizer, or one step of it, as a pair of pure functions.

    Attributes:
        init: ``init(params) -> state`` makes the state for a tree of parameters.
        update: ``update(updates, state, params=None) -> (updates, state)`` turns gradients, or what the
            transformation before made of them, into updates.
    """

    init: Callable[[Params], OptState]
    update: Callable[..., tuple[Updates, OptState]]


class EmptyState(NamedTuple):
    """The state of a transformation that remembers nothing."""


def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """Makes a transformation of a function that needs no memory: ``u' = f(u, params)``.

    Args:
        f: takes the updates and the parameters (``None`` if ``update`` got none), and returns updates.

    Returns:
        A transformation with an empty state.

    >>> halve = stateless(lambda updates, params: tree.map(lambda u: u / 2, updates))
    >>> halve.update({"w": 1.0}, halve.init({"w": 0.0}))
    ({'w': 0.5}, EmptyState())
    """

    def init(params: Params) -> EmptyState:
        return EmptyState()

    def update(updates: Updates, state: EmptyState, params: Params | None = None) -> tuple[Updates, EmptyState]:
        return f(updates, params), state

    return GradientTransformation(init, update)


def identity() -> GradientTransformation:
    """Leaves the updates as they are: ``u' = u``.

    Returns:
        A transformation with an empty state.

    >>> identity().update({"w": 1.0}, EmptyState())
    ({'w': 1.0}, EmptyState())
    """
    return stateless(lambda updates, params: updates)


def map_updates(f: Callable[..., Any], updates: Updates, *rest: Any) -> Updates:
    """``tree.map`` that passes ``None``, which stands for "no update", by."""
    return tree.map(lambda u, *others: None if u is None else f(u, *others), updates, *rest, is_leaf=_is_none)


def apply_updates(params: Params, updates: Updates) -> Params:
    """Adds updates to parameters: ``p' = p + u``, in the dtype of ``p``.

    Args:
        params: a tree of parameters.
        updates: a tree of the same structure; a parameter whose update is ``None`` stays as it is.

    Returns:
        The new parameters, with the structure, shapes and dtypes of ``params``.

    Raises:
        TreeError: if the trees differ in structure.
        ShapeError: if an update does not broadcast to the shape of its parameter.

    >>> apply_updates({"w": tnp.asarray(1.0), "b": None}, {"w": tnp.asarray(0.5), "b": None})
    {'w': Array(1.5, dtype=float32), 'b': None}
    """
    structures = [tree.structure(t, is_leaf=_is_part) for t in (params, updates)]
    tree.check_same_structure("apply_updates", *structures, names=("the params", "the updates"))

    def apply(path: tree.Path, param: Any, update: Any) -> Any:
        if param is None or update is None:
            return param
        if is_table(param):
            return replace(param, array=_updated(param.array, update))
        param = tnp.asarray(param)
        result = tnp.add(param, update)
        if result.shape != param.shape:
            raise ShapeError(
                "apply_updates",
                f"the update at {tree.keystr(path) or 'the root'} must fit its parameter, {param.aval!r}",
                got=repr(abstract(update)),
            )
        return result.astype(param.dtype)

    return tree.map_with_path(apply, params, updates, is_leaf=_is_part)


def _updated(table: Any, update: Any) -> Any:
    """A table and an update of some rows, or of all."""
    if is_row_sparse(update):
        rows = update.rows.astype(table.dtype)
        return tnp.asarray(table).at[update.indices].add(rows, mode="drop", unique_indices=True)
    return table + (update.array if is_table(update) else update).astype(table.dtype)


def _is_part(node: Any) -> bool:
    return node is None or is_table(node) or is_row_sparse(node)


def _is_none(node: Any) -> bool:
    return node is None
