"""Reductions of sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun import numpy as tnp
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.lax import elementwise
from tvmfun.lax.convolutions import Padding, padding_pairs
from tvmfun.lax.slicing import slice_in_dim
from tvmfun.numpy.promotion import NestedArrayLike, convert
from tvmfun.ops import conv as conv_ops
from tvmfun.ops import pointwise
from tvmfun.ops import shape as shapes
from tvmfun.typing import PyTree

__all__ = ["max_window", "reduce_window", "sum_window"]


def _window(name: str, op: Op, x: Any, window: Sequence[int], strides: Sequence[int] | None, padding: Padding) -> Array:
    x = tnp.asarray(x)
    window = tuple(window)
    stride = tuple(strides or (1,) * len(window))
    if not len(window) == len(stride) == x.ndim:
        raise ShapeError(name, "there must be one size and stride per axis", got=f"{window}, {stride} for {x.aval}")
    pads = padding_pairs(name, padding, x.shape, window, stride)
    if any(side >= max(k, 1) for pair, k in zip(pads, window, strict=True) if pair != (0, 0) for side in pair):
        raise ShapeError(name, "the padding must be smaller than the window", got=f"{pads} for {window}")
    return op(x, window=window, stride=stride, padding=pads)


def max_window(
    x: NestedArrayLike, window: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Returns the maximum of each window; its gradient goes to the first maximum of a window.

    Args:
        x: the array.
        window: the size of the windows along each axis of ``x``.
        strides: the distance between windows along each axis; by default 1.
        padding: ``"SAME"``, ``"VALID"``, or ``(low, high)`` per axis, less than a window; never the maximum.

    >>> max_window([1, 3, 2, 0], (2,), (2,))
    Array([3, 2], dtype=int32)
    """
    return _window("max_window", conv_ops.window_max, x, window, strides, padding)


def sum_window(
    x: NestedArrayLike, window: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Returns the sum of each window; the arguments are as for :func:`max_window`."""
    return _window("sum_window", conv_ops.window_sum, x, window, strides, padding)


def reduce_window(
    operand: PyTree,
    init_value: PyTree,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Returns the elements of each window combined by an associative and commutative function.

    Args:
        operand: an array, or a tree of arrays of one shape.
        init_value: a scalar, or such a tree of them, that changes nothing when it is combined with an element: what
            an array is padded with.
        computation: ``(x, y) -> result``, elementwise; x, y and the result are trees as ``operand``. For ``lax.add``,
            ``max`` and ``min`` on windows without holes there is one op; others are applied along one axis after the
            other.
        window_dimensions: the size of the windows along each axis.
        window_strides: the distance between windows along each axis; by default 1.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or ``(low, high)`` per axis, also negative.
        base_dilation: the distance between adjacent elements of the array; the elements between are padding.
        window_dilation: the distance between adjacent elements of a window.

    Source: ``jax.lax.reduce_window``.

    >>> reduce_window(tnp.asarray([1, 2, 3, 4]), 1, elementwise.mul, (2,))
    Array([ 2,  6, 12], dtype=int32)
    """
    name = "reduce_window"
    leaves, structure = tree.flatten(operand)
    arrays = [tnp.asarray(leaf) for leaf in leaves]
    starts = [convert(name, s, x.dtype) for s, x in zip(tree.leaves(init_value), arrays, strict=True)]
    rank, shape = arrays[0].ndim, arrays[0].shape
    window, ones = tuple(window_dimensions), (1,) * rank
    stride, dilation, holes = (tuple(x or ones) for x in (window_strides, base_dilation, window_dilation))
    if any(x.shape != shape for x in arrays) or not rank == len(window) == len(stride) == len(dilation) == len(holes):
        raise ShapeError(
            name,
            "there must be one size, stride and dilation per axis",
            got=f"{window}, {stride}, {dilation}, {holes} for {arrays[0].aval}",
        )
    if min((*window, *stride, *dilation, *holes, 1)) < 1:
        raise ArgumentError(name, "sizes, strides and dilations are positive", got=f"{window}, {stride}, {dilation}")
    spans = tuple((k - 1) * d + 1 for k, d in zip(window, holes, strict=True))
    paddings = padding_pairs(name, padding, shape, spans, stride)
    low, high = (tuple(pair[side] for pair in paddings) for side in (0, 1))
    interior = tuple(d - 1 for d in dilation)
    padded = arrays
    if any(dims.is_dynamic(size) or size for size in (*low, *high, *interior)):
        padded = [shapes.pad(x, s, low=low, high=high, interior=interior) for x, s in zip(arrays, starts, strict=True)]
    known = _known_window(computation, starts[0]) if rank and len(arrays) == 1 and holes == ones else None
    if known is not None:
        return tree.unflatten(structure, [known(padded[0], window=window, stride=stride, padding=((0, 0),) * rank)])
    combine = lambda x, y: tree.leaves(computation(tree.unflatten(structure, x), tree.unflatten(structure, y)))
    for axis, (k, span, step, hole) in enumerate(zip(window, spans, stride, holes, strict=True)):
        count = max(0, (padded[0].shape[axis] - span) // step + 1)
        length = (count - 1) * step + 1 if count else 0
        parts = [[slice_in_dim(x, i * hole, i * hole + length, step, axis) for x in padded] for i in range(k)]
        padded = reduce(combine, parts)
    return tree.unflatten(structure, padded)


def _known_window(computation: Callable, start: Any) -> Callable[..., Array] | None:
    """The op for a function whose neutral element is ``start``, if there is one."""
    if isinstance(start, Tracer) or start.dtype == dtypes.bool_:
        return None
    value, dtype = np.asarray(start)[()], start.dtype
    is_float = dtypes.is_float(dtype)
    if computation is elementwise.add and value == 0:
        return conv_ops.window_sum
    if computation is elementwise.max and value == (-np.inf if is_float else np.iinfo(dtype).min):
        return conv_ops.window_max
    if computation is elementwise.min and value == (np.inf if is_float else np.iinfo(dtype).max):
        # The opposite order: of the negative numbers, or of all bits inverted.
        turned = pointwise.negative if is_float else pointwise.bitwise_not
        return lambda x, **params: turned(conv_ops.window_max(turned(x), **params))
    return None
