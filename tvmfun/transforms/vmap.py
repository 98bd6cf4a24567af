"""``vmap``: a function of one example, applied to a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tvmfun import tree
from tvmfun.core.array import ShapeDtype
from tvmfun.core.batching import Axis, batch, move_from_front, move_front, repeat
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import named_axis
from tvmfun.errors import ArgumentError, BatchingError, TreeError
from tvmfun.transforms.staging import is_array, staged
from tvmfun.typing import PyTree


def vmap(
    fun: Callable,
    in_axes: PyTree = 0,
    out_axes: PyTree = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
) -> Callable[..., Any]:
    """Returns a function that applies ``fun`` to every example of a batch, as one program without a loop.

    Args:
        fun: a function of trees of arrays, written for one example.
        in_axes: the batch axis of the positional arguments: an integer, None for arguments that are the same for all
            examples, or a sequence with one such item per argument, or a tree of them that is a prefix of the
            argument's tree. Arguments with None may also be numbers, strings or functions, which ``fun`` gets as they
            are. Keyword arguments are batched along axis 0.
        out_axes: the batch axis of the results, likewise; None for results that are the same for all examples.
        axis_name: a name for the axis, for collectives such as ``lax.psum`` inside ``fun``.
        axis_size: the number of examples, if no argument is batched.
        spmd_axis_name: for JAX, where it names axes of a mesh of devices; has no effect.

    Raises:
        BatchingError: if the sizes of the axes differ, a leaf has no such axis, or an op cannot be batched.
        TreeError: if ``in_axes`` or ``out_axes`` is not a prefix of the arguments or results.

    Source: follows ``jax.vmap``.

    >>> import tvmfun.numpy as tnp
    >>> rows = vmap(lambda v, x: v @ x, in_axes=(0, None))
    >>> rows(tnp.asarray([[1.0, 0.0], [1.0, 1.0]]), tnp.asarray([2.0, 3.0]))
    Array([2., 5.], dtype=float32)
    """
    if not callable(fun):
        raise ArgumentError("vmap", "the first argument must be a function", got=type(fun).__name__)
    name = getattr(fun, "__name__", type(fun).__name__)

    @wraps(fun)
    def mapped(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if isinstance(in_axes, tuple | list) and len(in_axes) != len(args):
            raise ArgumentError(
                "vmap", "in_axes must have one entry per argument", got=f"{len(in_axes)} for {len(args)} arguments"
            )

        def of_arrays(args: tuple, kwargs: dict) -> PyTree:
            leaves, structure = tree.flatten((args, kwargs))
            axes = [
                *_axes("in_axes", in_axes if isinstance(in_axes, int) or in_axes is None else tuple(in_axes), args),
                *_axes("in_axes", 0, kwargs),
            ]
            paths = [path for path, _ in tree.flatten_with_path((args, kwargs))[0]]
            # Numbers, strings and functions that are the same for all examples stay Python values.
            traced = [i for i, leaf in enumerate(leaves) if axes[i] is not None or is_array(leaf)]
            every, leaves = leaves, [leaves[i] for i in traced]
            axes, paths = [axes[i] for i in traced], [paths[i] for i in traced]
            avals = [abstract(leaf, name) for leaf in leaves]
            axes = [
                None if axis is None else _normalized(axis, aval, path)
                for axis, aval, path in zip(axes, avals, paths, strict=True)
            ]
            size = _common_size(axes, avals, paths, axis_size)
            one = [_example(aval, axis) for aval, axis in zip(avals, axes, strict=True)]

            def of_leaves(*leaves: Any) -> PyTree:
                values = dict(zip(traced, leaves, strict=True))
                args, kwargs = tree.unflatten(structure, [values.get(i, leaf) for i, leaf in enumerate(every)])
                return fun(*args, **kwargs)

            with named_axis(axis_name, size):
                program = trace_leaves(of_leaves, one, name)
            values = [leaf if axis is None else move_front(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
            flags = [False] * len(program.captured) + [axis is not None for axis in axes]
            outputs, is_batched = batch(program, [*program.captured, *values], flags, Axis(size, axis_name))
            result = tree.unflatten(program.out_tree, outputs)
            positions = _axes("out_axes", out_axes, result)
            moved = [_move_batch_axis(*item, size) for item in zip(outputs, is_batched, positions, strict=True)]
            return tree.unflatten(program.out_tree, moved)

        return staged(of_arrays, args, kwargs)

    return mapped


def _axes(what: str, axes: PyTree, values: PyTree) -> list[int | None]:
    """One axis per leaf of ``values``, from a tree of axes that is a prefix of its tree."""
    chosen, structure = tree.flatten(axes, is_leaf=lambda x: x is None)
    for axis in chosen:
        if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
            raise ArgumentError("vmap", f"{what} must be made of integers and None", got=repr(axis))
    try:
        parts = structure.flatten_up_to(values)
    except (ValueError, TypeError) as error:
        raise TreeError(
            "vmap", f"{what} must be a prefix of the tree it is for", got=f"{axes!r} for {tree.structure(values)}"
        ) from error
    return [axis for axis, part in zip(chosen, parts, strict=True) for _ in tree.leaves(part)]


def _leaf_name(path: tree.KeyPath) -> str:
    return tree.keystr(path)


def _normalized(axis: int, aval: ShapeDtype, path: tree.KeyPath) -> int:
    if not -aval.ndim <= axis < aval.ndim:
        raise BatchingError(
            "vmap",
            f"leaf {_leaf_name(path)} of (args, kwargs) has no axis {axis}",
            got=repr(aval),
            hint="None in in_axes for arguments that are the same for all examples",
        )
    return axis % aval.ndim


def _common_size(
    axes: Sequence[int | None], avals: Sequence[ShapeDtype], paths: Sequence[tree.KeyPath], size: Any
) -> Any:
    first = None
    for axis, aval, path in zip(axes, avals, paths, strict=True):
        if axis is None:
            continue
        if size is None:
            size = aval.shape[axis]
        elif aval.shape[axis] != size:
            raise BatchingError(
                "vmap",
                f"all batched axes must have one size, {size} as {first or 'axis_size'} has",
                got=f"{aval.shape[axis]} along axis {axis} of leaf {_leaf_name(path)}",
            )
        first = first or f"leaf {_leaf_name(path)} of (args, kwargs)"
    if size is None:
        raise BatchingError("vmap", "at least one argument must be batched", got="in_axes of None", hint="axis_size=")
    return size


def _example(aval: ShapeDtype, axis: int | None) -> ShapeDtype:
    if axis is None:
        return aval
    return ShapeDtype((*aval.shape[:axis], *aval.shape[axis + 1 :]), aval.dtype, weak=aval.weak)


def _move_batch_axis(value: Any, is_batched: bool, axis: int | None, size: Any) -> Any:
    """A result with the batch axis at its position in ``out_axes``."""
    if axis is None:
        if is_batched:
            raise BatchingError(
                "vmap", "a result with out_axes None must be the same for all examples", got="one that differs"
            )
        return value
    if not is_batched:
        value = repeat(value, size)
    if not -value.ndim <= axis < value.ndim:
        raise BatchingError("vmap", f"out_axes {axis} is outside the result", got=repr(value.aval))
    return move_from_front(value, axis % value.ndim)
