"""Searching: where the largest elements are, where a condition holds, where a value belongs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, device_array
from tvmfun.core.op import Op
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, ShapeError
from tvmfun.numpy import elementwise
from tvmfun.numpy.creation import arrays, asarray, full, zeros
from tvmfun.numpy.cumulative import cumulative_sum
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import equal, less, not_equal, subtract
from tvmfun.numpy.indexing import take
from tvmfun.numpy.joining import stack
from tvmfun.numpy.manipulation import Axes, broadcast_to, flip, normalize_axes, normalize_axis, ravel, reshape
from tvmfun.numpy.promotion import no_out, operands
from tvmfun.numpy.ranges import arange
from tvmfun.numpy.sorting import sort
from tvmfun.numpy.statistical import keep, sum
from tvmfun.ops import reduce as ops
from tvmfun.ops.search import searchsorted as search

__all__ = [
    "argmax",
    "argmin",
    "argwhere",
    "count_nonzero",
    "digitize",
    "flatnonzero",
    "isin",
    "nonzero",
    "piecewise",
    "searchsorted",
    "select",
    "where",
]


def _arg(op: Op, x: Any, axis: int | None, keepdims: bool) -> Array:
    x = asarray(x)
    if x.dtype == dtypes.bool_:
        x = astype(x, dtypes.uint8)
    if axis is None:
        if x.size == 0:
            raise ShapeError(op.name, "there is no element", got=repr(x.aval))
        flat = op(reshape(x, (-1,)), axis=0)
        return reshape(flat, (1,) * x.ndim) if keepdims else flat
    place = normalize_axis(op.name, axis, x.ndim)
    return keep(op(x, axis=place), x, (place,), keepdims)


def argmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first largest element, along an axis or of the flattened array.

    Raises:
        ShapeError: if there are no elements.

    >>> argmax([1, 3, 3])
    Array(1, dtype=int32)
    """
    no_out("argmax", out)
    return _arg(ops.argmax, a, axis, keepdims)


def argmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Array:
    """Returns the int32 index of the first smallest element, along an axis or of the flattened array.

    Raises:
        ShapeError: if there are no elements.
    """
    no_out("argmin", out)
    return _arg(ops.argmin, a, axis, keepdims)


def count_nonzero(a: Any, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Returns the number of elements that are not 0, as int32."""
    a = asarray(a)
    axes = normalize_axes("count_nonzero", axis, a.ndim)
    return sum(not_equal(a, 0), axes, keepdims=keepdims)


def unknown_size(name: str, x: Array) -> ConcretizationError:
    """The error for a result whose shape depends on the elements of a traced array."""
    return ConcretizationError(
        name,
        "the elements of an array that is being traced are not known, but give the result its shape",
        got=repr(x.aval),
        hint="size=, the largest number of results",
    )


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
    """Returns the int32 places of the elements that are not 0, one array for each axis.

    Args:
        a: the array.
        size: how many places to return, which must be given when ``a`` is traced; if there are more, the last are
            left out.
        fill_value: the place that stands for missing ones, or one number for each axis; by default 0.

    Raises:
        ShapeError: for an array without axes.
        ConcretizationError: for a traced array without ``size``.

    Source: ``jax.numpy.nonzero``.

    >>> nonzero([[0, 3], [4, 0]])
    (Array([0, 1], dtype=int32), Array([1, 0], dtype=int32))
    """
    a = asarray(a)
    if not a.ndim:
        raise ShapeError("nonzero", "an array without axes has no places", got=repr(a.aval), hint="atleast_1d")
    if size is None:
        if isinstance(a, Tracer):
            raise unknown_size("nonzero", a)
        found = np.nonzero(a.concrete("nonzero").numpy())
        return tuple(device_array(places.astype(np.int32)) for places in found)
    # The k-th of them is where the running count first reaches k.
    counts = cumulative_sum(astype(ravel(not_equal(a, 0)), dtypes.int32))
    places = searchsorted(counts, arange(1, size + 1))
    exists = less(places, a.size)
    fill = fill_value if isinstance(fill_value, tuple) else (fill_value,) * a.ndim
    flat = [places // math.prod(a.shape[axis + 1 :]) % max(a.shape[axis], 1) for axis in range(a.ndim)]
    return tuple(elementwise.where(exists, p, 0 if f is None else f) for p, f in zip(flat, fill, strict=True))


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Returns the int32 places of the elements of the flattened array that are not 0; see :func:`nonzero`."""
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Returns the int32 places of the elements that are not 0, one row for each; see :func:`nonzero`."""
    a = asarray(a)
    if not a.ndim:
        return nonzero(reshape(a, (1,)), size=size, fill_value=fill_value)[0][:, None][:, :0]
    return stack(nonzero(a, size=size, fill_value=fill_value), 1)


def where(condition: Any, x1: Any = None, x2: Any = None, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Returns ``x1`` where the condition holds and ``x2`` elsewhere; alone, the places where it holds.

    Gradients flow only to the chosen branch, but are NaN if the other one's derivative is infinite there.

    Args:
        condition: an array; elements other than 0 count as true.
        x1: what to take where it holds.
        x2: what to take elsewhere.
        size: as for :func:`nonzero`, for the places.
        fill_value: as for :func:`nonzero`, for the places.

    >>> where(np.asarray([True, False]), 1.0, 2.0)
    Array([1., 2.], dtype=float32)
    """
    if x1 is None and x2 is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x1 is None or x2 is None:
        raise ArgumentError("where", "there must be two branches, or none", got="one")
    return elementwise.where(condition, x1, x2)


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Array:
    """Returns, as int32, where each value of ``v`` belongs in the sorted vector ``a``.

    Args:
        a: the vector; NaNs are last.
        v: the values.
        side: ``"left"`` for the place before equal elements, ``"right"`` for the one behind them.
        sorter: indices that sort ``a``, if it is not sorted.
        method: for JAX: every method has the same result.

    >>> searchsorted([1, 2, 2, 3], 2), searchsorted([1, 2, 2, 3], 2, side="right")
    (Array(1, dtype=int32), Array(3, dtype=int32))
    """
    a, v = arrays("searchsorted", a, v)
    if a.ndim != 1:
        raise ShapeError("searchsorted", "the sorted elements must be a vector", got=repr(a.aval))
    if side not in ("left", "right"):
        raise ArgumentError("searchsorted", "the side is 'left' or 'right'", got=repr(side))
    if sorter is not None:
        a = take(a, sorter, mode="promise_in_bounds")
    return search(a, v, side=side)


def digitize(x: Any, bins: Any, right: bool = False, *, method: Any = None) -> Array:
    """Returns, as int32, the number of the bin each element belongs to.

    Args:
        x: the array.
        bins: the edges, increasing or decreasing.
        right: whether a bin has its right edge, and not its left one.
        method: for JAX: every method has the same result.

    >>> digitize([0.5, 1.0, 2.5], [1.0, 2.0])
    Array([0, 1, 2], dtype=int32)
    """
    x, bins = arrays("digitize", x, bins)
    if bins.ndim != 1:
        raise ShapeError("digitize", "the bins must be a vector", got=repr(bins.aval))
    if not bins.size:
        return zeros(x.shape, dtypes.int32)
    upwards = searchsorted(bins, x, side="left" if right else "right")
    downwards = subtract(bins.size, searchsorted(flip(bins), x, side="right" if right else "left"))
    return elementwise.where(bins[-1] >= bins[0], upwards, downwards)


def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, method: str = "auto"
) -> Array:
    """Returns whether each element is one of ``test_elements``, or with ``invert`` none of them.

    ``assume_unique`` and ``method`` are for JAX and make no difference.

    >>> isin([1, 2, 3], [1, 3])
    Array([ True, False,  True], dtype=bool)
    """
    element, tests = arrays("isin", element, test_elements)
    if not tests.size:
        return full(element.shape, invert)
    known = sort(ravel(tests))
    found = equal(take(known, search(known, element, side="left"), mode="promise_in_bounds"), element)
    return elementwise.logical_not(found) if invert else found


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Array:
    """Returns the choice of the first condition that holds, or the default, elementwise.

    >>> x = np.asarray([-2, 0, 3])
    >>> select([x < 0, x > 0], [-1, 1])
    Array([-1,  0,  1], dtype=int32)
    """
    if len(condlist) != len(choicelist) or not len(condlist):
        got = f"{len(condlist)} and {len(choicelist)}"
        raise ArgumentError("select", "there must be a choice for each condition", got=got)
    result, *choicelist = operands("select", default, *choicelist)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        result = elementwise.where(condition, choice, result)
    return result


def piecewise(x: Any, condlist: Sequence[Any], funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """Returns the function of the last condition that holds of each element.

    Args:
        x: the array.
        condlist: arrays of bools that broadcast to ``x``.
        funclist: a function or a number for each condition, and perhaps one more for where none holds; by default 0.
            Each is applied to all of ``x``, and its gradient is NaN if it has an infinite one anywhere.
        args: more arguments for the functions.
        kw: keyword arguments for the functions.

    >>> piecewise(np.asarray([-1.0, 2.0]), [np.asarray([True, False])], [0, lambda x: x * x])
    Array([0., 4.], dtype=float64)
    """
    x = asarray(x)
    condlist = list(condlist)
    funclist = list(funclist)
    if len(funclist) == len(condlist) + 1:
        default = funclist.pop()
    elif len(funclist) == len(condlist):
        default = 0
    else:
        got = f"{len(funclist)} for {len(condlist)}"
        raise ArgumentError("piecewise", "there must be a function for each condition, or one more", got=got)

    def applied(function: Any) -> Array:
        value = function(x, *args, **kw) if callable(function) else function
        return broadcast_to(asarray(value, x.dtype), x.shape)

    result = applied(default)
    for condition, function in zip(condlist, funclist, strict=True):
        result = elementwise.where(condition, applied(function), result)
    return result
