"""Gradient transformations: pairs of pure functions, and the types of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.names import missing_attribute
from tvmfun.sparse import is_row_sparse, is_table
from tvmfun.typing import ArrayLike, PyTree, Scalar

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "GradientTransformationExtraArgs",
    "MaskOrFn",
    "OptState",
    "Params",
    "ScalarOrSchedule",
    "Schedule",
    "TransformInitFn",
    "TransformUpdateExtraArgsFn",
    "TransformUpdateFn",
    "Updates",
    "apply_updates",
    "identity",
    "incremental_update",
    "init_empty_state",
    "periodic_update",
    "set_to_zero",
    "stateless",
    "stateless_with_tree_map",
    "with_extra_args_support",
]

Params: TypeAlias = PyTree
Updates: TypeAlias = PyTree
OptState: TypeAlias = PyTree
Schedule: TypeAlias = Callable[[Array], Scalar]
ScalarOrSchedule: TypeAlias = Scalar | Schedule
TransformInitFn: TypeAlias = Callable[[Params], OptState]
TransformUpdateFn: TypeAlias = Callable[..., tuple[Updates, OptState]]
TransformUpdateExtraArgsFn: TypeAlias = Callable[..., tuple[Updates, OptState]]
#: A tree of bools, or a function from the parameters to one.
MaskOrFn: TypeAlias = PyTree | Callable[[Params], PyTree]


class GradientTransformation(NamedTuple):
    """An optimizer, or one step of it, as a pair of pure functions.

    Attributes:
        init: ``init(params) -> state`` makes the state for a tree of parameters.
        update: ``update(updates, state, params=None) -> (updates, state)`` turns gradients, or the
            updates of the previous transformation, into updates.
    """

    init: Callable[[Params], OptState]
    update: Callable[..., tuple[Updates, OptState]]

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute("optimizer", type(self).__name__, name)


class GradientTransformationExtraArgs(GradientTransformation):
    """A transformation whose ``update`` takes further keyword arguments, such as ``value=loss``.

    It ignores unknown ones, so that a chain can pass all of them to each of its parts.
    """


class ParamsPlaceholder(NamedTuple):
    """Placeholder of the parameters, without leaves, to find where a state contains them."""


def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs:
    """Makes a transformation ignore further keyword arguments, unless it takes them already.

    Args:
        tx: any transformation.

    Returns:
        A transformation that does the same.

    >>> with_extra_args_support(identity()).update({"w": 1.0}, EmptyState(), value=0.5)
    ({'w': 1.0}, EmptyState())
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple:
        return tx.update(updates, state, params)

    update.passes_rows = getattr(tx.update, "passes_rows", False)  # type: ignore[attr-defined]
    return GradientTransformationExtraArgs(tx.init, update)


class EmptyState(NamedTuple):
    """The state of a stateless transformation."""


def init_empty_state(params: Params) -> EmptyState:
    """The ``init`` of a stateless transformation.

    Args:
        params: a tree of parameters.

    Returns:
        The empty state.

    >>> init_empty_state({"w": 1.0})
    EmptyState()
    """
    return EmptyState()


def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """Makes a stateless transformation of a function: ``u' = f(u, params)``.

    Args:
        f: takes the updates and the parameters (``None`` if ``update`` got none), and returns updates.

    Returns:
        A transformation with an empty state.

    >>> halve = stateless(lambda updates, params: tree.map(lambda u: u / 2, updates))
    >>> halve.update({"w": 1.0}, halve.init({"w": 0.0}))
    ({'w': 0.5}, EmptyState())
    """

    def update(updates: Updates, state: EmptyState, params: Params | None = None) -> tuple[Updates, EmptyState]:
        refuse_row_sparse("optim", updates)
        return f(updates, params), state

    return GradientTransformation(init_empty_state, update)


def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """Makes a stateless transformation of a function of one leaf: ``u' = f(u, p)`` for each.

    Args:
        f: takes an update and its parameter (``None`` if ``update`` got none), and returns an update.

    Returns:
        A transformation with an empty state.

    >>> halve = stateless_with_tree_map(lambda u, p: u / 2)
    >>> halve.update({"w": 1.0}, EmptyState())[0]
    {'w': 0.5}
    """

    def apply(updates: Updates, params: Params | None) -> Updates:
        if params is None:
            return map_updates(lambda u: f(u, None), updates)
        return map_updates(f, updates, params)

    return stateless(apply)


def set_to_zero() -> GradientTransformation:
    """Drops the updates: ``u' = 0``.

    Returns:
        A transformation with an empty state.

    >>> set_to_zero().update({"w": tnp.asarray(1.0)}, EmptyState())[0]
    {'w': Array(0., dtype=float32)}
    """
    return stateless_with_tree_map(lambda u, p: tnp.zeros_like(u))


def identity() -> GradientTransformation:
    """Returns the updates unchanged: ``u' = u``.

    Returns:
        A transformation with an empty state.

    >>> identity().update({"w": 1.0}, EmptyState())
    ({'w': 1.0}, EmptyState())
    """
    return stateless(lambda updates, params: updates)


def passing_rows(update: Callable) -> Callable:
    """Marks an ``update`` that accepts row-sparse updates."""
    update.passes_rows = True  # type: ignore[attr-defined]
    return update


def apply_part(where: str, part: GradientTransformation, updates: Updates, *args: Any, **extra_args: Any) -> tuple:
    """Calls the ``update`` of a part; raises for row-sparse updates that it does not accept."""
    if not getattr(part.update, "passes_rows", False):
        refuse_row_sparse(where, updates)
    return part.update(updates, *args, **extra_args)


def refuse_row_sparse(where: str, *updates: Updates) -> None:
    """Raises if an update is row-sparse: row indices cannot be transformed arithmetically.

    Raises:
        ArgumentError: if there are row-sparse gradients.
    """
    if any(map(is_row_sparse, tree.leaves(updates, is_leaf=is_row_sparse))):
        hint = "optim.lazy around the whole optimizer, such as lazy(chain(...))"
        raise ArgumentError(where, "row-sparse gradients need a lazy optimizer", got="a RowSparse", hint=hint)


def map_updates(f: Callable[..., Any], updates: Updates, *rest: PyTree) -> Updates:
    """``tree.map`` that keeps ``None``, which means "no update"."""
    refuse_row_sparse("optim", updates)
    return tree.map(lambda u, *others: None if u is None else f(u, *others), updates, *rest, is_leaf=_is_none)


def apply_updates(params: Params, updates: Updates) -> Params:
    """Adds updates to parameters: ``p' = p + u``, in the dtype of ``p``.

    Args:
        params: a tree of parameters.
        updates: a tree of the same structure; a parameter whose update is ``None`` does not change.

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

    def apply(path: tree.KeyPath, param: Any, update: Any) -> Any:
        if param is None or update is None:
            return param
        if is_table(param):
            return replace(param, array=_updated(param.array, update))
        param = tnp.asarray(param)
        try:
            result = tnp.add(param, update)
        except ShapeError:
            result = None
        if result is None or result.shape != param.shape:
            raise ShapeError(
                "apply_updates",
                f"the update at {tree.keystr(path) or 'the root'} must fit its parameter, {param.aval!r}",
                got=repr(abstract(update)),
            )
        return result.astype(param.dtype)

    return tree.map_with_path(apply, params, updates, is_leaf=_is_part)


def _updated(table: Array, update: Any) -> Array:
    """Adds an update of some rows, or of all, to a table."""
    if is_row_sparse(update):
        rows = update.rows.astype(table.dtype)
        return tnp.asarray(table).at[update.indices].add(rows, mode="drop", unique_indices=True)
    return table + (update.array if is_table(update) else update).astype(table.dtype)


def _is_part(node: Any) -> bool:
    return node is None or is_table(node) or is_row_sparse(node)


def incremental_update(new_tensors: Params, old_tensors: Params, step_size: Scalar) -> Params:
    """Moves one tree towards another: ``old + step_size * (new - old)``.

    Args:
        new_tensors: a tree of arrays; ``None`` stays ``None``.
        old_tensors: a tree of the same structure.
        step_size: the weight of the new tree, a number or a 0-d array.

    Returns:
        A tree of the same structure.

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging" (1992).

    >>> incremental_update({"w": 4.0}, {"w": 0.0}, 0.25)
    {'w': 1.0}
    """
    return map_updates(lambda new, old: step_size * new + (1.0 - step_size) * old, new_tensors, old_tensors)


def periodic_update(new_tensors: Params, old_tensors: Params, steps: Scalar, update_period: int) -> Params:
    """Takes the new tree at every ``update_period``-th step, and the old one at the others.

    Args:
        new_tensors: a tree of arrays.
        old_tensors: a tree of the same structure.
        steps: the number of steps so far, a 0-d array of integers.
        update_period: the number of steps between updates.

    Returns:
        A tree of the same structure.

    Reference: Grill et al., "Bootstrap your own latent" (2020).

    >>> [float(periodic_update(tnp.asarray(1.0), tnp.asarray(0.0), step, 2)) for step in (2, 3)]
    [1.0, 0.0]
    """
    return select(tnp.asarray(steps) % update_period == 0, new_tensors, old_tensors)


def select(condition: ArrayLike, true_tree: PyTree, false_tree: PyTree) -> PyTree:
    """``tree.map`` of ``where`` with one condition, in the dtypes of ``false_tree``."""

    def choose(a: Array, b: Array) -> Array:
        b = tnp.asarray(b)
        return tnp.where(condition, a, b).astype(b.dtype)

    return tree.map(choose, true_tree, false_tree)


def _is_none(node: Any) -> bool:
    return node is None


def ravel(tree_x: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """Concatenates all leaves to a vector; also returns the inverse function."""
    refuse_row_sparse("flatten", tree_x)
    leaves, structure = tree.flatten(tree_x)
    vector = tnp.concatenate([tnp.asarray(leaf).reshape((-1,)) for leaf in leaves])
    ends = [int(end) for end in np.cumsum([tnp.size(leaf) for leaf in leaves])[:-1]]

    def restore(vector: Array) -> PyTree:
        parts = tnp.split(vector, ends) if ends else [vector]
        shaped = [p.reshape(tnp.shape(x)).astype(abstract(x).dtype) for p, x in zip(parts, leaves, strict=True)]
        return tree.unflatten(structure, shaped)

    return vector, restore
