"""The different elements of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, device_array
from tvmfun.core.trace import Tracer
from tvmfun.numpy.calculus import cumulative_sum
from tvmfun.numpy.creation import arrays, asarray, full, ones, zeros
from tvmfun.numpy.dtypes import astype
from tvmfun.numpy.elementwise import less, logical_and, logical_not, logical_xor, not_equal, where
from tvmfun.numpy.floats import isnan
from tvmfun.numpy.indexing import take
from tvmfun.numpy.promotion import NestedArrayLike
from tvmfun.numpy.reductions import any
from tvmfun.numpy.shapes import append, broadcast_to, concat, known_integer, moveaxis, normalize_axis, ravel, reshape
from tvmfun.numpy.sorting import argsort, flatnonzero, isin, lexsort, searchsorted, sort, unknown_size

__all__ = [
    "intersect1d",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]


class UniqueAll(NamedTuple):
    """Result of :func:`unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Result of :func:`unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Result of :func:`unique_inverse`."""

    values: Array
    inverse_indices: Array


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: NestedArrayLike | None = None,
    sorted: bool = True,
) -> Any:
    """Returns the unique elements, sorted, and on request their indices, inverse and counts.

    Args:
        ar: the array.
        return_index: whether to return the first index of each in the flattened array.
        return_inverse: whether to return, for each element of ``ar``, its index in the result.
        return_counts: whether to return how often each occurs.
        axis: the axis whose slices are compared; by default elements are.
        equal_nan: whether all NaNs are one element.
        size: how many to return, which must be given when ``ar`` is traced; if there are more, the largest are left
            out.
        fill_value: fills the result up to ``size``; by default the smallest element.
        sorted: for JAX: the elements are always sorted.

    Returns:
        The elements, or a tuple of them and of int32 arrays.

    Raises:
        ConcretizationError: for a traced array without ``size``.

    Source: ``jax.numpy.unique``.

    >>> unique([3, 1, 3], return_counts=True)
    (Array([1, 3], dtype=int32), Array([1, 2], dtype=int32))
    """
    ar = asarray(ar)
    wanted = (True, return_index, return_inverse, return_counts)
    size = known_integer(size)
    if size is not None:
        axis = None if axis is None else normalize_axis("unique", axis, ar.ndim)
        results = _sized(ar, axis, size, fill_value, equal_nan)
    else:
        results = _at_once("unique", ar, axis, equal_nan)
    chosen = tuple(result for result, want in zip(results, wanted, strict=True) if want)
    return chosen if len(chosen) > 1 else chosen[0]  # type: ignore[reportGeneralTypeIssues]


def _at_once(name: str, x: Array, axis: int | None, equal_nan: bool) -> list[Array]:
    if isinstance(x, Tracer):
        raise unknown_size(name, x)
    host = x.concrete(name).numpy()
    if x.dtype == dtypes.bfloat16:  # sorting is not defined for it
        host = host.astype(np.float32)
    values, *numbers = np.unique(host, True, True, True, axis, equal_nan=equal_nan)
    numbers[1] = numbers[1].reshape(x.shape) if axis is None else numbers[1].reshape(-1)
    return [device_array(values.astype(x.dtype)), *(device_array(n.astype(np.int32)) for n in numbers)]


def _sized(x: Array, axis: int | None, size: int, fill_value: Any, equal_nan: bool) -> list[Array]:
    slices = ravel(x) if axis is None else moveaxis(x, axis, 0)
    count, rest = slices.shape[0], slices.shape[1:]
    inverse_shape = x.shape if axis is None else (count,)
    back = lambda values: values if axis is None else moveaxis(values, 0, axis)
    if not slices.size:
        nowhere = zeros((size,), dtypes.int32)
        fill = asarray(0 if fill_value is None else fill_value, x.dtype)
        return [back(broadcast_to(fill, (size, *rest))), nowhere, zeros(inverse_shape, dtypes.int32), nowhere]
    rows = reshape(slices, (count, -1))
    order = argsort(rows[:, 0]) if rows.shape[1] == 1 else lexsort(rows.T[::-1])
    rows = take(rows, order, axis=0, mode="promise_in_bounds")
    differs = not_equal(rows[1:], rows[:-1])
    if equal_nan and dtypes.is_float(x.dtype):
        differs = logical_and(differs, logical_not(logical_and(isnan(rows[1:]), isnan(rows[:-1]))))
    is_first = concat([ones((1,), dtypes.bool_), any(differs, axis=1)])
    numbers = cumulative_sum(astype(is_first, dtypes.int32)) - 1
    begins = flatnonzero(is_first, size=size + 1, fill_value=count)
    first = begins[:-1]
    exists = less(first, count)
    index = where(exists, first, 0)
    values = take(rows, index, axis=0, mode="promise_in_bounds")
    if fill_value is not None:
        values = where(exists[:, None], values, asarray(fill_value, x.dtype))
    inverse = reshape(zeros((count,), dtypes.int32).at[order].set(numbers, unique_indices=True), inverse_shape)
    chosen = take(order, index, mode="promise_in_bounds")
    return [back(reshape(values, (size, *rest))), chosen, inverse, begins[1:] - first]


def unique_values(
    x: NestedArrayLike, /, *, size: int | None = None, fill_value: NestedArrayLike | None = None
) -> Array:
    """Returns the different elements, sorted, every NaN as one of its own; see :func:`unique` for ``size``."""
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


def unique_counts(
    x: NestedArrayLike, /, *, size: int | None = None, fill_value: NestedArrayLike | None = None
) -> UniqueCounts:
    """Returns the different elements and how often each occurs; see :func:`unique_values`."""
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_inverse(
    x: NestedArrayLike, /, *, size: int | None = None, fill_value: NestedArrayLike | None = None
) -> UniqueInverse:
    """Returns the different elements and the index of each element of ``x`` among them; see :func:`unique_values`."""
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_all(
    x: NestedArrayLike, /, *, size: int | None = None, fill_value: NestedArrayLike | None = None
) -> UniqueAll:
    """Returns the different elements, their first indices, their indices for each element, and their counts."""
    return UniqueAll(*unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value))


def _host(name: str, *values: Any) -> list[np.ndarray]:
    """The elements of two arrays, of one dtype that NumPy can sort."""
    found = arrays(name, *values)
    for x in found:
        if isinstance(x, Tracer):
            raise unknown_size(name, x)
    wide = np.float32 if found[0].dtype == dtypes.bfloat16 else found[0].dtype
    return [x.concrete(name).numpy().astype(wide) for x in found]


def _is_new(rows: Array) -> Array:
    """Whether each element of a sorted vector differs from the one before it."""
    return concat([ones((min(rows.size, 1),), dtypes.bool_), not_equal(rows[1:], rows[:-1])])


def _selected(rows: Array, mask: Array, size: int, fill_value: Any) -> tuple[Array, Array]:
    """``size`` elements of a sorted vector where a mask is true, and their indices; the size of ``rows`` for none."""
    indices = flatnonzero(mask, size=size, fill_value=rows.size)
    if not rows.size:
        return full((size,), 0 if fill_value is None else fill_value, rows.dtype), indices
    values = take(rows, indices, mode="clip")
    fill = values[:1] if fill_value is None else asarray(fill_value, rows.dtype)
    return where(less(indices, rows.size), values, fill), indices


def union1d(
    ar1: NestedArrayLike, ar2: NestedArrayLike, *, size: int | None = None, fill_value: NestedArrayLike | None = None
) -> Array:
    """Returns the elements of either array, sorted; see :func:`unique` for ``size``."""
    return unique(append(ar1, ar2), size=size, fill_value=fill_value)


def intersect1d(
    ar1: NestedArrayLike,
    ar2: NestedArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: NestedArrayLike | None = None,
) -> Any:
    """Returns the elements of both arrays, sorted.

    Args:
        ar1: an array.
        ar2: another one.
        assume_unique: for NumPy; has no effect.
        return_indices: whether to return also the first index of each result in ``ar1`` and in ``ar2``, flattened.
        size: how many to return, which must be given when an array is traced; if there are more, the largest are left
            out.
        fill_value: fills the result up to ``size``, with the size of the array as index; by default the smallest
            element.

    Raises:
        ConcretizationError: for a traced array without ``size``.

    >>> intersect1d([1, 2, 3], [3, 2, 5])
    Array([2, 3], dtype=int32)
    """
    first, second = (ravel(x) for x in arrays("intersect1d", ar1, ar2))
    if size is None:
        one, two = _host("intersect1d", first, second)
        values, *indices = np.intersect1d(one, two, return_indices=True)
        result = device_array(values.astype(first.dtype))
        return (result, *(device_array(p.astype(np.int32)) for p in indices)) if return_indices else result
    order = argsort(first)
    rows = take(first, order, mode="promise_in_bounds")
    common = logical_and(_is_new(rows), isin(rows, second))
    values, indices = _selected(rows, common, size, fill_value)
    if not return_indices:
        return values
    other = argsort(second)
    exists = less(indices, rows.size)
    here = where(exists, take(order, indices, mode="clip") if rows.size else indices, first.size)
    there = searchsorted(take(second, other, mode="promise_in_bounds"), values)
    there = where(exists, take(other, there, mode="clip") if second.size else there, second.size)
    return values, here, there


def setdiff1d(
    ar1: NestedArrayLike,
    ar2: NestedArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: NestedArrayLike | None = None,
) -> Array:
    """Returns the elements of ``ar1`` that are not in ``ar2``, sorted; the arguments are as for :func:`intersect1d`.

    >>> setdiff1d([1, 2, 3], [2])
    Array([1, 3], dtype=int32)
    """
    first, second = (ravel(x) for x in arrays("setdiff1d", ar1, ar2))
    if size is None:
        one, two = _host("setdiff1d", first, second)
        return device_array(np.setdiff1d(one, two).astype(first.dtype))
    rows = sort(first)
    return _selected(rows, logical_and(_is_new(rows), isin(rows, second, invert=True)), size, fill_value)[0]


def setxor1d(
    ar1: NestedArrayLike,
    ar2: NestedArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: NestedArrayLike | None = None,
) -> Array:
    """Returns the elements of exactly one of the arrays, sorted; the arguments are as for :func:`intersect1d`.

    >>> setxor1d([1, 2], [2, 3])
    Array([1, 3], dtype=int32)
    """
    first, second = (ravel(x) for x in arrays("setxor1d", ar1, ar2))
    if size is None:
        one, two = _host("setxor1d", first, second)
        return device_array(np.setxor1d(one, two).astype(first.dtype))
    rows = sort(concat([first, second]))
    apart = logical_xor(isin(rows, first), isin(rows, second))
    return _selected(rows, logical_and(_is_new(rows), apart), size, fill_value)[0]
