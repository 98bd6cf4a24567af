"""Running sums and products."""

from __future__ import annotations

from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.errors import ArgumentError
from tvmfun.numpy.creation import asarray, full
from tvmfun.numpy.data_types import astype
from tvmfun.numpy.elementwise import isnan, where
from tvmfun.numpy.joining import concat
from tvmfun.numpy.manipulation import normalize_axis, ravel
from tvmfun.numpy.promotion import no_out
from tvmfun.numpy.statistical import accumulated
from tvmfun.ops import cumulative as ops

__all__ = [
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "nancumprod",
    "nancumsum",
]


def _running(name: str, op: Op, x: Any, axis: int | None, dtype: Any) -> Array:
    x = asarray(x)
    if axis is None:
        x, axis = ravel(x), 0
    if dtype is None and x.dtype == dtypes.bool_:
        dtype = dtypes.DEFAULT_INT
    x = x if dtype is None else astype(x, dtype)
    return op(x, axis=normalize_axis(name, axis, x.ndim), reverse=False)


def _with_initial(name: str, op: Op, start: int, x: Any, axis: int | None, dtype: Any, include: bool) -> Array:
    x = asarray(x)
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(name, "an array with several axes needs one to run along", got=repr(x.aval))
        axis = 0
    result = _running(name, op, accumulated(x, dtype), axis, None)
    if not include:
        return result
    axis = normalize_axis(name, axis, x.ndim)
    first = full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), start, result.dtype)
    return concat([first, result], axis)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Returns the sums of all elements up to each one along an axis.

    Args:
        x: the array; narrow integers and bools are summed as 32 bits.
        axis: the axis; may be missing for a vector.
        dtype: in which to sum.
        include_initial: whether 0 comes first.

    >>> cumulative_sum([1, 2, 3], include_initial=True)
    Array([0, 1, 3, 6], dtype=int32)
    """
    return _with_initial("cumulative_sum", ops.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Returns the products of all elements up to each one along an axis.

    Args:
        x: the array; narrow integers and bools are multiplied as 32 bits.
        axis: the axis; may be missing for a vector.
        dtype: in which to multiply.
        include_initial: whether 1 comes first.

    >>> cumulative_prod([1, 2, 3])
    Array([1, 2, 6], dtype=int32)
    """
    return _with_initial("cumulative_prod", ops.cumprod, 1, x, axis, dtype, include_initial)


def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Returns the sums of all elements up to each one along an axis, by default of the flattened array.

    The dtype stays, unless another one is given; bools are summed as int32.
    """
    no_out("cumsum", out)
    return _running("cumsum", ops.cumsum, a, axis, dtype)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Returns the products of all elements up to each one along an axis, by default of the flattened array.

    The dtype stays, unless another one is given; bools are multiplied as int32.
    """
    no_out("cumprod", out)
    return _running("cumprod", ops.cumprod, a, axis, dtype)


def _without_nan(x: Any, otherwise: int) -> Array:
    x = asarray(x)
    return where(isnan(x), otherwise, x) if dtypes.is_float(x.dtype) else x


def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Returns the running sums with NaN as 0; see :func:`cumsum`."""
    no_out("nancumsum", out)
    return cumsum(_without_nan(a, 0), axis, dtype)


def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Returns the running products with NaN as 1; see :func:`cumprod`."""
    no_out("nancumprod", out)
    return cumprod(_without_nan(a, 1), axis, dtype)
