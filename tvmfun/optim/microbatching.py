"""Microbatches: large batches in parts, with the same result and less memory."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import trace
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.optim.base import refuse_row_sparse
from tvmfun.typing import ArrayLike, PyTree

__all__ = ["AccumulationType", "microbatch"]


class AccumulationType(enum.Enum):
    """The way to combine the results for the parts of a batch."""

    MEAN = enum.auto()
    """Their mean."""
    SUM = enum.auto()
    """Their sum."""
    RUNNING_MEAN = enum.auto()
    """Their mean, also where only some parts are taken."""
    CONCAT = enum.auto()
    """All of them along the first axis, in the order of the batch."""


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: ArrayLike | None = None,
) -> Callable[..., Any]:
    """Applies a function to the parts of a batch, one after the other, and combines the results.

    Part ``i`` of ``n`` has the examples ``i, i + n, i + 2 n, ...``.

    Args:
        fun: a function of arrays with a batch axis.
        argnums: which of its arguments have one.
        microbatch_size: the number of examples in a part; ``None`` for all.
        accumulator: how the results are combined: an ``AccumulationType``, or a tree of them that begins like the
            results.
        argnames: which of its keyword arguments have a batch axis.
        in_axes: the batch axis: one for all, or one for each of ``argnums`` and ``argnames``.
        num_real_microbatches: the number of parts to take, an int or a 0-d integer array; ``None`` for all.

    Returns:
        A function of the same arguments.

    Raises:
        ShapeError: when it is called, if the arguments differ in the batch axis, or its length is not a multiple of
            ``microbatch_size``.
        ArgumentError: when it is called, if the accumulator is not an ``AccumulationType``.

    >>> total = microbatch(lambda x: tnp.sum(x, axis=0), 0, 2)
    >>> float(total(tnp.asarray([1.0, 2.0, 3.0, 4.0])))
    10.0
    """
    if microbatch_size is None:
        return fun
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    axes = (in_axes,) * (len(numbers) + len(names)) if isinstance(in_axes, int) else tuple(in_axes)

    def in_parts(*args: Any, **kwargs: Any) -> Array:
        batched = [args[i] for i in numbers] + [kwargs[name] for name in names]
        lengths = {abstract(x).shape[a] for t, a in zip(batched, axes, strict=True) for x in tree.leaves(t)}
        if len(lengths) != 1 or min(lengths) % microbatch_size:
            raise ShapeError(
                "microbatch",
                f"the batch axis must have one length, a multiple of {microbatch_size}",
                got=", ".join(map(str, sorted(lengths))),
            )
        count = lengths.pop() // microbatch_size

        def part(x: Array, axis: int, index: Array) -> PyTree:
            x = tnp.asarray(x)
            axis %= x.ndim
            split = x.reshape((*x.shape[:axis], microbatch_size, count, *x.shape[axis + 1 :]))
            return tnp.take(split, index, axis=axis + 1)

        def result(index: Array) -> PyTree:
            parts = [tree.map(lambda x, a=a: part(x, a, index), t) for t, a in zip(batched, axes, strict=True)]
            positional = dict(zip(numbers, parts[: len(numbers)], strict=True))
            named = dict(zip(names, parts[len(numbers) :], strict=True))
            return fun(*[positional.get(i, a) for i, a in enumerate(args)], **{**kwargs, **named})

        def of_arrays(index: Array) -> PyTree:
            output = result(index)
            refuse_row_sparse("microbatch", output)
            return output

        program = trace(of_arrays)(tnp.zeros((), dtype="int32"))
        leaves, structure = program.out_avals, program.out_tree
        shapes = tree.unflatten(structure, leaves)
        kinds: list = []
        tree.map(lambda kind, subtree: kinds.extend(kind for _ in tree.leaves(subtree)), accumulator, shapes)
        for kind in kinds:
            if not isinstance(kind, AccumulationType):
                raise ArgumentError("microbatch", "the accumulator must be an AccumulationType", got=repr(kind))

        def start(kind: AccumulationType, spec: Any) -> Any:
            shape = (count, *spec.shape) if kind is AccumulationType.CONCAT else spec.shape
            return tnp.zeros(shape, dtype=spec.dtype)

        def add(kind: AccumulationType, total: Array, value: Any, index: Array) -> Any:
            if kind is AccumulationType.CONCAT:
                return total.at[index].set(value)
            if kind is AccumulationType.RUNNING_MEAN:
                return total + (value - total) / (index + 1).astype(total.dtype)
            return total + value

        def finish(kind: AccumulationType, total: Array) -> Any:
            if kind is AccumulationType.MEAN:
                return total / count
            if kind is AccumulationType.CONCAT:
                return tnp.swapaxes(total, 0, 1).reshape((-1, *total.shape[2:]))
            return total

        def step(index: Array, totals: list) -> list:
            values = tree.leaves(result(index))
            return [add(k, t, v, index).astype(t.dtype) for k, t, v in zip(kinds, totals, values, strict=True)]

        totals = [start(kind, spec) for kind, spec in zip(kinds, leaves, strict=True)]
        real = count if num_real_microbatches is None else num_real_microbatches
        totals = lax.fori_loop(0, real, step, totals)
        return tree.unflatten(structure, [finish(k, t) for k, t in zip(kinds, totals, strict=True)])

    return in_parts
