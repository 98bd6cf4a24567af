"""Convolution, interpolation, phases and window functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, device_array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.calculus import cumsum, diff
from tvmfun.numpy.creation import arrays, asarray, ones
from tvmfun.numpy.dtypes import finfo
from tvmfun.numpy.elementwise import (
    abs,
    add,
    clip,
    divide,
    equal,
    greater,
    less,
    less_equal,
    logical_and,
    multiply,
    remainder,
    subtract,
    where,
)
from tvmfun.numpy.indexing import take
from tvmfun.numpy.integer_convolution import integer_conv
from tvmfun.numpy.products import factors
from tvmfun.numpy.promotion import NestedArrayLike, operands
from tvmfun.numpy.shapes import concat, flip, normalize_axis, reshape
from tvmfun.numpy.sorting import argsort, searchsorted
from tvmfun.ops import conv
from tvmfun.ops import pointwise as ops
from tvmfun.typing import DTypeLike

__all__ = ["bartlett", "blackman", "convolve", "correlate", "hamming", "hanning", "i0", "interp", "kaiser", "unwrap"]


def _sliding_products(name: str, x: Any, v: Any, mode: str, *, turned: bool, floating: bool) -> Array:
    """The products of all overlaps of two vectors, the second perhaps turned around; of integers as floats or not."""
    x, v = arrays(name, x, v, floating=floating)
    if x.ndim != 1 or v.ndim != 1 or not x.size or not v.size:
        raise ShapeError(name, "both arrays must be vectors with elements", got=f"{x.aval} and {v.aval}")
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(name, "the mode is 'full', 'same' or 'valid'", got=repr(mode))
    swapped = x.size < v.size
    if swapped:
        x, v = v, x
    size = v.size
    kernel = flip(v) if turned else v
    around = {"full": (size - 1, size - 1), "same": (size // 2, (size - 1) // 2), "valid": (0, 0)}[mode]
    plain = {"stride": (1,), "dilation": (1,), "kernel_dilation": (1,), "groups": 1}
    rows, columns = reshape(x, (1, -1, 1)), reshape(kernel, (-1, 1, 1))
    convolution = integer_conv if dtypes.is_integer(x.dtype) else conv.conv
    result = reshape(convolution(rows, columns, padding=(around,), **plain), (-1,))
    return flip(result) if swapped and not turned else result


def convolve(
    a: NestedArrayLike,
    v: NestedArrayLike,
    mode: str = "full",
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    r"""Returns :math:`\sum_k x_k v_{n-k}` for vectors, in floats unless another dtype is asked for, as JAX does.

    Args:
        a: a vector.
        v: another one.
        mode: ``"full"`` for every overlap, ``"same"`` for as many results as the longer vector has elements,
            ``"valid"`` for complete overlaps.
        precision: accepted and without effect: float32 products are always exact float32.
        preferred_element_type: the dtype to multiply, to sum and to return in; by default that of the operands.

    >>> convolve([1, 2, 3], [1, 10])
    Array([ 1., 12., 23., 30.], dtype=float32)
    """
    a, v = factors("convolve", a, v, precision=precision, preferred_element_type=preferred_element_type)
    return _sliding_products("convolve", a, v, mode, turned=True, floating=preferred_element_type is None)


def correlate(
    a: NestedArrayLike,
    v: NestedArrayLike,
    mode: str = "valid",
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    r"""Returns :math:`\sum_k x_{n+k} v_k` for vectors, in floats unless another dtype is asked for.

    The arguments are as for :func:`convolve`.
    """
    a, v = factors("correlate", a, v, precision=precision, preferred_element_type=preferred_element_type)
    return _sliding_products("correlate", a, v, mode, turned=False, floating=preferred_element_type is None)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Array:
    """Returns the values at ``x`` of the piecewise linear function through given points.

    Args:
        x: where.
        xp: the first coordinates of the points, increasing unless there is a period.
        fp: their second coordinates.
        left: the value before the first point; by default the last value.
        right: the value after the last point; by default the last value.
        period: the period of the function.

    >>> interp(2.5, [1.0, 2.0, 3.0], [3.0, 2.0, 0.0])
    Array(1., dtype=float32)
    """
    x, xp, fp = arrays("interp", x, xp, fp, floating=True)
    if xp.shape != fp.shape or xp.ndim != 1 or not xp.size:
        raise ShapeError("interp", "the points must be given by two vectors of one size", got=f"{xp.aval}, {fp.aval}")
    if period is not None:
        period = abs(asarray(period, x.dtype))
        x, xp = remainder(x, period), remainder(xp, period)
        order = argsort(xp)
        xp, fp = take(xp, order, mode="promise_in_bounds"), take(fp, order, mode="promise_in_bounds")
        xp = concat([xp[-1:] - period, xp, xp[:1] + period])
        fp = concat([fp[-1:], fp, fp[:1]])
    index = clip(searchsorted(xp, x, side="right"), 1, max(xp.size - 1, 1))
    x0, x1, f0, f1 = (take(points, p, mode="promise_in_bounds") for points in (xp, fp) for p in (index - 1, index))
    step = subtract(x1, x0)
    same = less_equal(abs(step), float(finfo(x.dtype).smallest_subnormal))
    slope = divide(subtract(f1, f0), where(same, 1, step))
    result = where(same, f0, add(f0, multiply(subtract(x, x0), slope)))
    if period is None:
        result = where(less(x, xp[0]), fp[0] if left is None else left, result)
        result = where(greater(x, xp[-1]), fp[-1] if right is None else right, result)
    return result


def unwrap(p: NestedArrayLike, discont: Any = None, axis: int = -1, period: float = 2 * math.pi) -> Array:
    """Returns angles without jumps: multiples of the period are added where neighbours are more than half of it apart.

    Args:
        p: the angles.
        discont: the smallest difference that is a jump; by default half the period.
        axis: the axis along which they are neighbours.
        period: the period; if it is an integer, angles of int32 and int64 stay integers.

    >>> unwrap([0.0, 3.0, -3.0])
    Array([0.       , 3.       , 3.2831855], dtype=float32)
    """
    p = asarray(p)
    is_whole = p.dtype in (dtypes.int32, dtypes.int64) and not isinstance(period, float)
    (p,) = arrays("unwrap", p, floating=not is_whole)
    axis = normalize_axis("unwrap", axis, p.ndim)
    if not p.shape[axis]:
        return p
    half = period // 2 if is_whole else period / 2
    jump = diff(p, axis=axis)
    short = remainder(jump + half, period) - half
    if half * 2 == period:  # half a period up is half a period down
        short = where(logical_and(equal(short, -half), greater(jump, 0)), half, short)
    moved = where(less(abs(jump), period / 2 if discont is None else discont), 0, short - jump)
    lead = (slice(None),) * axis
    return concat([p[(*lead, slice(0, 1))], p[(*lead, slice(1, None))] + cumsum(moved, axis)], axis)


#: The argument from which on the asymptotic series is summed.
_BORDER = 18.0
#: The terms of the power series.
_TERMS = 38
#: The terms of the asymptotic series.
_ASYMPTOTIC_TERMS = 30


def _horner(coefficients: list[float], x: Any) -> Any:
    real = x.dtype.type
    result: Any = real(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = ops.add(ops.multiply(result, x), real(c))
    return result


def scaled(name: str, order: int, x: Any) -> Array:
    r"""Returns :math:`e^{-|x|} I_n(x)` for the order 0 or 1, elementwise."""
    (x,) = operands(name, x, floating=True)
    own = x.dtype
    if own.itemsize < 4:
        x = ops.astype(x, dtype="float32")
    real = x.dtype.type
    size = ops.abs(x)
    near = ops.less(size, real(_BORDER))
    # Each series gets a harmless argument where the other one counts.
    small, large = ops.where(near, x, real(1)), ops.where(near, real(_BORDER), size)
    half = ops.multiply(small, real(0.5))
    # In a variable up to 1, whose powers do not overflow in derivatives.
    scale = (_BORDER / 2) ** 2
    powers = [scale**k / (math.factorial(k) * math.factorial(k + order)) for k in range(_TERMS)]
    series = _horner(powers, ops.multiply(half, ops.multiply(half, real(1 / scale))))
    # The sign is 0 at 0, where the derivative of the size is 0 then.
    first = ops.multiply(series, ops.exp(ops.negative(ops.multiply(small, ops.sign(small)))))
    terms = [1.0]
    for k in range(1, _ASYMPTOTIC_TERMS):
        terms.append(-terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k * _BORDER))
    second = ops.divide(
        _horner(terms, ops.divide(real(_BORDER), large)), ops.multiply(real(math.sqrt(2 * math.pi)), ops.sqrt(large))
    )
    if order:
        first = ops.multiply(first, half)
        second = ops.where(ops.less(x, real(0)), ops.negative(second), second)
    result = ops.where(near, first, second)
    result = ops.where(ops.isnan(x), x, result)
    return result if own == x.dtype else ops.astype(result, dtype=dtypes.NAMES[own])


def i0(x: NestedArrayLike) -> Array:
    """Returns the modified Bessel function of the first kind of order 0, elementwise.

    >>> i0([0.0, 1.0])
    Array([1.       , 1.2660658], dtype=float32)
    """
    (x,) = arrays("i0", x, floating=True)
    return ops.multiply(scaled("i0", 0, x), ops.exp(ops.abs(x)))


def _count(name: str, M: Any) -> int:
    if not hasattr(M, "__index__"):
        raise ArgumentError(name, "the number of points is an integer", got=repr(M))
    return max(M.__index__(), 0)


def _float_array(values: np.ndarray) -> Array:
    return device_array(np.asarray(values, dtypes.DEFAULT_FLOAT))


def bartlett(M: int) -> Array:
    """Returns the triangular window of ``M`` points, 0 at both ends.

    >>> bartlett(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _float_array(np.bartlett(_count("bartlett", M)))


def blackman(M: int) -> Array:
    r"""Returns the window :math:`0.42 - 0.5 \cos t + 0.08 \cos 2t` of ``M`` points, :math:`0 \le t \le 2\pi`."""
    return _float_array(np.blackman(_count("blackman", M)))


def hamming(M: int) -> Array:
    r"""Returns the window :math:`0.54 - 0.46 \cos t` of ``M`` points, :math:`0 \le t \le 2\pi`."""
    return _float_array(np.hamming(_count("hamming", M)))


def hanning(M: int) -> Array:
    r"""Returns the window :math:`0.5 - 0.5 \cos t` of ``M`` points, :math:`0 \le t \le 2\pi`."""
    return _float_array(np.hanning(_count("hanning", M)))


def kaiser(M: int, beta: Any) -> Array:
    r"""Returns the window :math:`I_0(\beta \sqrt{1 - t^2}) / I_0(\beta)` of ``M`` points, :math:`-1 \le t \le 1`.

    Args:
        M: the number of points.
        beta: how narrow the window is: 0 for a constant one.
    """
    count = _count("kaiser", M)
    if count <= 1:
        return ones((count,))
    t = np.linspace(-1.0, 1.0, count)
    beta = asarray(beta)
    height = asarray(np.sqrt(np.maximum(1 - t * t, 0)), beta.dtype if dtypes.is_float(beta.dtype) else "float32")
    return divide(i0(multiply(height, beta)), i0(beta))
