"""GaLore: gradients of matrices projected to a low rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tvmfun.numpy as tnp
from tvmfun import lax, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.optim.adam import scale_by_adam
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
)
from tvmfun.optim.combine import chain
from tvmfun.optim.contrib.matrices import as_matrices, for_each_leaf
from tvmfun.optim.numerics import safe_increment, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.typing import PyTree, Scalar

__all__ = ["GaLoreDimensionNumbers", "GaLoreState", "galore", "scale_by_galore"]


class GaLoreDimensionNumbers(NamedTuple):
    """The view of an array as a matrix: each axis belongs to the rows or to the columns.

    Attributes:
        reduction_axis: the axis, or axes, of the rows: those that a layer sums over.
        output_axis: the axis, or axes, of the columns.
    """

    reduction_axis: int | Sequence[int] = 0
    output_axis: int | Sequence[int] = 1


class GaLoreState(NamedTuple):
    """The state of ``scale_by_galore``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        base_optimizer_state: the state of the optimizer, for the projected gradients.
        projector: for each matrix the singular vectors; an array without elements for other parameters.
    """

    count: Array
    base_optimizer_state: OptState
    projector: Updates


def scale_by_galore(
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: Scalar = 1.0,
    base_optimizer: GradientTransformation | None = None,
    weight_dimension_numbers: PyTree | Callable[[Params], PyTree] = None,
) -> GradientTransformation:
    """Projects the gradients of matrices to few directions, and applies another transformation there.

    ``u' = scale * P t(P^T u)`` where the columns of ``P`` are the first left singular vectors of ``u`` if it has at
    least as many rows as columns; else ``u' = scale * t(u P) P^T`` with the right ones.

    Args:
        rank: the number of directions.
        update_proj_gap: the number of updates between new directions.
        scale: a factor of the updates of matrices.
        base_optimizer: the transformation ``t``, which gets no ``params``; ``None`` for :func:`scale_by_adam`.
        weight_dimension_numbers: a ``GaLoreDimensionNumbers`` for each matrix, ``None`` for other parameters, in a tree
            that begins like the parameters; or a function from the parameters to such a tree, or one for all parameters
            with two axes or more; ``None`` to take all with two axes for matrices.

    Returns:
        A transformation whose state is a ``GaLoreState``.

    Raises:
        ArgumentError: if ``rank`` is less than 1, or on ``init`` if an axis is neither one of the rows nor of the
            columns.
        ShapeError: on ``init``, if a matrix has fewer than two axes.

    Reference: Zhao et al., "GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection" (2024).

    >>> from tvmfun.optim import identity
    >>> transform = scale_by_galore(rank=1, base_optimizer=identity())
    >>> updates, state = transform.update(tnp.asarray([[3.0, 0.0], [0.0, 1.0]]), transform.init(tnp.zeros((2, 2))))
    >>> [[round(float(x), 4) for x in row] for row in updates]
    [[3.0, 0.0], [0.0, 0.0]]
    """
    if rank < 1:
        raise ArgumentError("scale_by_galore", "rank must be at least 1", got=str(rank))
    base = scale_by_adam() if base_optimizer is None else base_optimizer

    def numbers_of(params: Params) -> list:
        if isinstance(weight_dimension_numbers, GaLoreDimensionNumbers):
            return [weight_dimension_numbers if tnp.ndim(p) > 1 else None for p in tree.leaves(params)]
        default = lambda p: GaLoreDimensionNumbers() if tnp.ndim(p) == 2 else None
        return for_each_leaf(weight_dimension_numbers, GaLoreDimensionNumbers, default, params)

    def matrix(x: Array, numbers: GaLoreDimensionNumbers) -> tuple[Array, Callable[[Array], Array]]:
        matrices, back = as_matrices("scale_by_galore", tnp.asarray(x), numbers)
        if matrices.shape[0] != 1:
            raise ArgumentError(
                "scale_by_galore", f"each axis of {tuple(x.shape)} must be one of a matrix", got=repr(numbers)
            )
        return matrices[0], back

    def init(params: Params) -> GaLoreState:
        leaves, structure = tree.flatten(params)
        projectors, projected = [], []
        for p, numbers in zip(leaves, numbers_of(params), strict=True):
            dtype = abstract(p).dtype
            if numbers is None:
                projectors.append(tnp.zeros((0, 0), dtype=dtype))
                projected.append(tnp.zeros_like(p))
                continue
            rows, columns = matrix(p, numbers)[0].shape
            k = min(rank, rows, columns)
            projectors.append(tnp.zeros((max(rows, columns), k), dtype=dtype))
            projected.append(tnp.zeros((k, columns) if rows >= columns else (rows, k), dtype=dtype))
        state = base.init(tree.unflatten(structure, projected))
        return GaLoreState(zero_count(), state, tree.unflatten(structure, projectors))

    def update(updates: Updates, state: GaLoreState, params: Params | None = None) -> tuple[Updates, GaLoreState]:
        refresh = state.count % update_proj_gap == 0
        leaves, structure = tree.flatten(updates)
        numbers = numbers_of(updates)
        projectors, projected = [], []
        for u, projector, n in zip(leaves, tree.leaves(state.projector), numbers, strict=True):
            if n is not None:
                u, _ = matrix(u, n)
                number = projector.shape[1]
                projector = lax.cond(refresh, lambda u, _, k=number: _directions(u, k), lambda _, p: p, u, projector)
                u = projector.T @ u if u.shape[0] >= u.shape[1] else u @ projector
            projectors.append(projector)
            projected.append(u)
        low, base_state = base.update(tree.unflatten(structure, projected), state.base_optimizer_state, None)
        new = []
        for u, original, projector, n in zip(tree.leaves(low), leaves, projectors, numbers, strict=True):
            if n is not None:
                full, back = matrix(original, n)
                u = projector @ u if full.shape[0] >= full.shape[1] else u @ projector.T
                u = scale * back(u[None])
            new.append(u.astype(abstract(original).dtype))
        new_state = GaLoreState(safe_increment(state.count), base_state, tree.unflatten(structure, projectors))
        return tree.unflatten(structure, new), new_state

    return GradientTransformation(init, update)


def _directions(u: Array, number: int) -> Array:
    """The first singular vectors of the longer side, as columns."""
    wide = u.astype("float32") if u.dtype.itemsize < 4 else u
    left, _, right = tnp.linalg.svd(wide, full_matrices=False)
    vectors = left if u.shape[0] >= u.shape[1] else right.T
    return vectors[:, :number].astype(u.dtype)


def galore(
    learning_rate: ScalarOrSchedule,
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: Scalar = 1.0,
    base_optimizer: GradientTransformation | None = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
    weight_dimension_numbers: PyTree | Callable[[Params], PyTree] = None,
) -> GradientTransformationExtraArgs:
    """AdamW, or another optimizer, for matrices of low rank; :func:`scale_by_galore` has the formulas.

    Args: as :func:`scale_by_galore` and :func:`tvmfun.optim.adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: if ``rank`` is less than 1, or on ``update``, if it gets no ``params``.
        ShapeError: on ``init``, if a matrix has fewer than two axes.

    Reference: Zhao et al., "GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection" (2024).

    >>> optimizer = galore(0.5, rank=1)
    >>> params = tnp.zeros((2, 2))
    >>> updates, state = optimizer.update(tnp.asarray([[3.0, 0.0], [0.0, 1.0]]), optimizer.init(params), params)
    >>> round(float(updates[0, 0]), 4)
    -0.5
    """
    return chain(
        scale_by_galore(rank, update_proj_gap, scale, base_optimizer, weight_dimension_numbers),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
