"""Reductions over axes, and cumulative ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.lax import elementwise
from tvmfun.numpy.promotion import NestedArrayLike, convert
from tvmfun.numpy.shapes import normalize_axes, normalize_axis
from tvmfun.ops import cumulative
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce as ops
from tvmfun.ops import shape as shapes
from tvmfun.typing import DTypeLike, PyTree

__all__ = [
    "argmax",
    "argmin",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "reduce",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
]


def _reduction(name: str, op: Op, what: str) -> Callable[[Any, Sequence[int]], Array]:
    def function(operand: Any, axes: Sequence[int]) -> Array:
        operand = tnp.asarray(operand)
        return op(operand, axis=normalize_axes(name, tuple(axes), operand.ndim))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Returns the {what} along ``axes``."
    return function


reduce_sum = _reduction("reduce_sum", ops.sum, "sum")
reduce_prod = _reduction("reduce_prod", ops.prod, "product")
reduce_max = _reduction("reduce_max", ops.max, "largest element")
reduce_min = _reduction("reduce_min", ops.min, "smallest element")


def reduce_and(operand: NestedArrayLike, axes: Sequence[int]) -> Array:
    """Returns the bits, or bools, that all elements along ``axes`` have in common."""
    return _of_bits("reduce_and", elementwise.bitwise_and, operand, axes, True)


def reduce_or(operand: NestedArrayLike, axes: Sequence[int]) -> Array:
    """Returns the bits, or bools, that any element along ``axes`` has."""
    return _of_bits("reduce_or", elementwise.bitwise_or, operand, axes, False)


def reduce_xor(operand: NestedArrayLike, axes: Sequence[int]) -> Array:
    """Returns the bits, or bools, that an odd number of elements along ``axes`` have."""
    return _of_bits("reduce_xor", elementwise.bitwise_xor, operand, axes, False)


def _of_bits(name: str, function: Callable, operand: Any, axes: Sequence[int], unit: bool) -> Array:
    operand = tnp.asarray(operand)
    if dtypes.is_float(operand.dtype):
        raise DtypeError(name, "the elements must be integers or bools", got=repr(operand.aval))
    axis = normalize_axes(name, tuple(axes), operand.ndim)
    if operand.dtype != dtypes.bool_:
        zero = operand.dtype.type(0)
        return reduce(operand, np.invert(zero) if unit else zero, function, axis)
    # Numbers have an op for it.
    flags = tnp.astype(operand, dtypes.int32)
    if name == "reduce_xor":
        return pw.equal(pw.bitwise_and(ops.sum(flags, axis=axis), np.int32(1)), np.int32(1))
    count = ops.sum(flags, axis=axis)
    total = math.prod(operand.shape[i] for i in axis)
    return pw.equal(count, np.int32(total)) if unit else pw.greater(count, np.int32(0))


def reduce(
    operands: PyTree, init_values: PyTree, computation: Callable[[Any, Any], Any], dimensions: Sequence[int]
) -> Any:
    """Returns the elements along axes combined by an associative and commutative function.

    Args:
        operands: an array, or a tree of arrays of one shape.
        init_values: a scalar, or such a tree of them, that changes nothing when it is combined with an element.
        computation: ``(x, y) -> result``, elementwise; x, y and the result are trees as ``operands``. For ``lax.add``,
            ``mul``, ``max`` and ``min`` there is one op; others are applied to halves until one element is left.
        dimensions: the axes.

    Source: ``jax.lax.reduce``.

    >>> reduce(tnp.asarray([[1, 2], [3, 4]]), 0, elementwise.add, (0,))
    Array([4, 6], dtype=int32)
    """
    leaves, structure = tree.flatten(operands)
    arrays = [tnp.asarray(leaf) for leaf in leaves]
    if not arrays or any(x.shape != arrays[0].shape for x in arrays):
        raise ShapeError("reduce", "the arrays must have one shape", got=", ".join(str(x.aval) for x in arrays))
    starts = [convert("reduce", s, x.dtype) for s, x in zip(tree.leaves(init_values), arrays, strict=True)]
    axes = normalize_axes("reduce", tuple(dimensions), arrays[0].ndim)
    combine = lambda x, y: tree.leaves(computation(tree.unflatten(structure, x), tree.unflatten(structure, y)))
    known = _reduction_of(computation)
    count = math.prod(arrays[0].shape[axis] for axis in axes)
    if known is not None and len(arrays) == 1 and arrays[0].dtype != dtypes.bool_ and count:
        return tree.unflatten(structure, combine([known(arrays[0], axis=axes)], starts))
    free = tuple(i for i in range(arrays[0].ndim) if i not in axes)
    shape = tuple(arrays[0].shape[i] for i in free)
    rows = [shapes.reshape(shapes.permute_dims(x, axes=(*free, *axes)), shape=(*shape, count)) for x in arrays]
    while count > 1:
        half = count // 2
        first, second, rest = (
            [row[..., a:b] for row in rows] for a, b in ((0, half), (half, 2 * half), (2 * half, count))
        )
        rows = combine(first, second)
        if count % 2:
            rows = [shapes.concat(row, left, axis=len(shape)) for row, left in zip(rows, rest, strict=True)]
        count = half + count % 2
    if not count:
        return tree.unflatten(structure, [tnp.full(shape, s, x.dtype) for s, x in zip(starts, arrays, strict=True)])
    return tree.unflatten(structure, combine([shapes.reshape(row, shape=shape) for row in rows], starts))


def _reduction_of(function: Callable[[Any, Any], Any]) -> Op | None:
    """The op that reduces by a function, if there is one."""
    # Looked up here because publish() replaces the functions after this module is imported.
    known = {elementwise.add: ops.sum, elementwise.mul: ops.prod, elementwise.max: ops.max, elementwise.min: ops.min}
    return known.get(function)


def _cumulative(op: Op, what: str) -> Callable[..., Array]:
    def function(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
        operand = tnp.asarray(operand)
        return op(operand, axis=normalize_axis(op.name, axis, operand.ndim), reverse=bool(reverse))

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = f"Returns {what} up to each one along an axis, from its end if ``reverse``."
    return function


cumsum = _cumulative(cumulative.cumsum, "the sum of the elements")
cumprod = _cumulative(cumulative.cumprod, "the product of the elements")
cummax = _cumulative(cumulative.cummax, "the largest element, whose first occurrence gets the gradient,")
cummin = _cumulative(cumulative.cummin, "the smallest element, whose first occurrence gets the gradient,")
cumlogsumexp = _cumulative(cumulative.cumlogsumexp, "the logarithm of the sum of the exponentials of the elements")


def argmax(operand: NestedArrayLike, axis: int, index_dtype: DTypeLike = "int32") -> Array:
    """Returns the index of the largest element along an axis, the first of equals; the first NaN if there is one."""
    operand = tnp.asarray(operand)
    return tnp.astype(ops.argmax(operand, axis=normalize_axis("argmax", axis, operand.ndim)), index_dtype)


def argmin(operand: NestedArrayLike, axis: int, index_dtype: DTypeLike = "int32") -> Array:
    """Returns the index of the smallest element along an axis, the first of equals; the first NaN if there is one."""
    operand = tnp.asarray(operand)
    return tnp.astype(ops.argmin(operand, axis=normalize_axis("argmin", axis, operand.ndim)), index_dtype)
