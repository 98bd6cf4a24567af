"""Lazy updates: optimizers that touch only the rows of a table that a gradient has."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError
from tvmfun.jit import eval_shape
from tvmfun.optim.base import GradientTransformation, OptState, Params, Updates, passing_rows
from tvmfun.optim.conditions import MultiStepsState
from tvmfun.sparse import RowSparse, is_row_sparse, is_table
from tvmfun.typing import ArrayLike

__all__ = [
    "lazy",
]


def lazy(inner: GradientTransformation) -> GradientTransformation:
    """Makes an optimizer touch only those rows of a table, and of its state, that occur in a row-sparse gradient.

    Gradients of a :class:`tvmfun.sparse.RowTable` are :class:`tvmfun.sparse.RowSparse`. The inner optimizer gets their
    rows, and the same rows of the parameters and of its state, as if they were the whole table. So a step takes as
    long for a table of ten million rows as for one of ten thousand. Other parameters are updated as usual.

    Rows that a batch does not look up stay unchanged, which is exact for ``sgd`` and ``adagrad``. Momentum, weight
    decay and second moments of a row wait until it is looked up again, as in PyTorch's ``SparseAdam``; step counts are
    shared by the whole tree. Norms are over the rows of the gradient.

    Args:
        inner: an optimizer that treats each row independently, as all elementwise ones do. It sees arrays instead of
            tables, so masks and labels have a leaf for each table, or are functions. Clipping and scaling of
            gradients belong inside.

    Returns:
        A transformation with the state that ``inner`` has for plain arrays. Updates of tables are row-sparse;
        ``apply_updates`` adds them.

    Raises:
        ArgumentError: when it updates, if the state of ``inner`` has rows of a table elsewhere than along its first
            axis, or ``inner`` accumulates gradients over several steps.

    >>> import tvmfun
    >>> import tvmfun.numpy as tnp
    >>> from tvmfun import optim, sparse
    >>> optimizer = lazy(optim.adam(0.1))
    >>> params = {"table": sparse.RowTable(tnp.zeros((1000, 2))), "scale": tnp.asarray(1.0)}
    >>> loss = lambda params, ids: tnp.sum((params["table"][ids] - 1.0) ** 2) * params["scale"]
    >>> @tvmfun.jit
    ... def step(params, state, ids):
    ...     updates, state = optimizer.update(tvmfun.grad(loss)(params, ids), state, params)
    ...     return optim.apply_updates(params, updates), state
    >>> params, _ = step(params, optimizer.init(params), tnp.asarray([3, 7, 3]))
    >>> tnp.round(params["table"].array[2:5], 4)
    Array([[0. , 0. ],
           [0.1, 0.1],
           [0. , 0. ]], dtype=float32)
    """

    def init(params: Params) -> OptState:
        return inner.init(_arrays(params))

    @passing_rows
    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple:
        nodes, structure = tree.flatten(updates, is_leaf=is_row_sparse)
        _refuse_accumulation(state)
        tables = [node for node in nodes if is_row_sparse(node)]
        owners = _owners(inner, nodes, structure)
        leaves, state_structure = tree.flatten(state)
        rows = [leaf if k is None else _gathered(leaf, tables[k]) for leaf, k in zip(leaves, owners, strict=True)]
        row_updates = tree.unflatten(structure, [node.rows if is_row_sparse(node) else node for node in nodes])
        if params is not None:
            values, _ = tree.flatten(_arrays(params))
            row_params = [
                _gathered(value, node) if is_row_sparse(node) else value
                for value, node in zip(values, nodes, strict=True)
            ]
            params = tree.unflatten(structure, row_params)
        new_updates, new_state = inner.update(row_updates, tree.unflatten(state_structure, rows), params, **extra_args)
        results = [
            RowSparse(node.indices, new, node.num_rows) if is_row_sparse(node) else new
            for node, new in zip(nodes, tree.leaves(new_updates), strict=True)
        ]
        kept = [
            new if k is None else tnp.asarray(old).at[tables[k].indices].set(new, mode="drop", unique_indices=True)
            for old, new, k in zip(leaves, tree.leaves(new_state), owners, strict=True)
        ]
        return tree.unflatten(structure, results), tree.unflatten(state_structure, kept)

    return GradientTransformation(init, update)


def _refuse_accumulation(state: OptState) -> None:
    """Raises for accumulated gradients: their sum has more rows than the last gradient."""
    nodes = tree.leaves(state, is_leaf=lambda node: isinstance(node, MultiStepsState))
    if any(isinstance(node, MultiStepsState) for node in nodes):
        what = "gradients cannot be accumulated over steps that look up different rows"
        raise ArgumentError("optim.lazy", what, got="MultiSteps", hint="one gradient of a larger batch")


def _arrays(params: Params) -> Params:
    """The parameters, with arrays instead of tables."""
    return tree.map(lambda node: node.array if is_table(node) else node, params, is_leaf=is_table)


def _gathered(array: ArrayLike, node: RowSparse) -> Array:
    """Gathers the rows of a gradient from an array; zeros for padding."""
    return tnp.asarray(array).at[node.indices].get(mode="fill", fill_value=0)


def _owners(inner: GradientTransformation, nodes: list, structure: tree.Structure) -> list[int | None]:
    """For each leaf of the state, the index of the table whose rows it has, or None.

    Evaluates the shapes of the state for tables with numbers of rows that occur nowhere else.
    """
    avals = [abstract(node.rows if is_row_sparse(node) else node) for node in nodes]
    unused = 1 + max([size for aval in avals for size in aval.shape if isinstance(size, int)], default=0)
    unused = max([unused, *(node.num_rows for node in nodes if is_row_sparse(node))])
    marks: dict[int, int] = {}
    imagined = []
    for node, aval in zip(nodes, avals, strict=True):
        if is_row_sparse(node):
            unused += 1
            aval = ShapeDtype((unused, *aval.shape[1:]), aval.dtype)
            marks[unused] = len(marks)
        imagined.append(aval)
    owners = []
    for leaf in tree.leaves(eval_shape(inner.init, tree.unflatten(structure, imagined))):
        if any(size in marks for size in leaf.shape[1:]):
            what = "the optimizer must keep the rows of a table along the first axis of its state"
            hint = "another optimizer for tables"
            raise ArgumentError("optim.lazy", what, got=repr(leaf), hint=hint)
        owners.append(marks.get(leaf.shape[0]) if leaf.shape else None)
    return owners
