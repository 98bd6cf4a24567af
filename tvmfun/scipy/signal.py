"""Convolutions, correlations and trends, computed directly.

Functions of spectra (``fftconvolve``, ``stft``, ``istft``, ``csd``, ``welch``) are missing, because there are
no complex numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.names import missing as _missing
from tvmfun.numpy.promotion import operands
from tvmfun.typing import ArrayLike

__all__ = ["convolve", "convolve2d", "correlate", "correlate2d", "detrend"]


def _convolved(name: str, in1: Any, in2: Any, mode: str, method: str) -> Array:
    x, y = (tnp.asarray(v) for v in operands(name, tnp.asarray(in1), tnp.asarray(in2), floating=True))
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(name, "the mode must be 'full', 'same' or 'valid'", got=repr(mode))
    if method not in ("auto", "direct"):
        raise ArgumentError(name, "the method must be 'auto' or 'direct'", got=repr(method))
    if x.ndim != y.ndim or not x.size or not y.size:
        raise ShapeError(name, "both must have the same number of axes, and elements", got=f"{x.aval} and {y.aval}")
    pairs = list(zip(x.shape, y.shape, strict=True))
    if not (all(m >= n for m, n in pairs) or all(m <= n for m, n in pairs)):
        raise ShapeError(name, "one must be at least as large along every axis", got=f"{x.aval} and {y.aval}")
    wanted = y.shape
    if not all(m >= n for m, n in pairs):
        x, y = y, x
    if not x.ndim:
        return x * y
    padding = {
        "full": [(n - 1, n - 1) for n in y.shape],
        "valid": [(0, 0) for _ in y.shape],
        "same": [(n - 1 - (w - 1) // 2, n - w + (w - 1) // 2) for n, w in zip(y.shape, wanted, strict=True)],
    }[mode]
    return lax.conv_general_dilated(x[None, None], tnp.flip(y)[None, None], (1,) * x.ndim, padding)[0, 0]


def convolve(in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto") -> Array:
    """Returns the convolution of two arrays with the same number of axes.

    Args:
        in1: the first array.
        in2: the second, at most, or at least, as large along every axis.
        mode: ``"full"``, ``"same"`` for the size of the first, ``"valid"`` for what depends on no padding.
        method: ``"auto"`` or ``"direct"``, which are the same.

    Raises:
        ArgumentError: for another mode or method.
        ShapeError: if the shapes do not fit.

    >>> convolve(tnp.asarray([1.0, 2.0]), tnp.asarray([1.0, 1.0])).tolist()
    [1.0, 3.0, 2.0]
    """
    return _convolved("convolve", in1, in2, mode, method)


def correlate(in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto") -> Array:
    """Returns the cross-correlation of two arrays: the convolution with the second one reversed.

    >>> correlate(tnp.asarray([1.0, 2.0]), tnp.asarray([1.0, 3.0])).tolist()
    [3.0, 7.0, 2.0]
    """
    return _convolved("correlate", in1, tnp.flip(tnp.asarray(in2)), mode, method)


def _two_axes(name: str, in1: Any, in2: Any, boundary: str, fillvalue: float) -> None:
    if tnp.ndim(in1) != 2 or tnp.ndim(in2) != 2:
        raise ShapeError(name, "both must have two axes", got=f"{tnp.ndim(in1)} and {tnp.ndim(in2)}")
    if boundary != "fill" or fillvalue != 0:
        raise ArgumentError(name, "beyond the boundary there are zeros", got=f"{boundary!r}, {fillvalue!r}")


def convolve2d(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", boundary: str = "fill", fillvalue: float = 0
) -> Array:
    """Returns the convolution of two matrices; see :func:`convolve`.

    Args:
        in1: the first matrix.
        in2: the second.
        mode: as for :func:`convolve`.
        boundary: only ``"fill"``, as in JAX.
        fillvalue: only 0.

    >>> convolve2d(tnp.ones((2, 2)), tnp.ones((2, 2)), "valid").tolist()
    [[4.0]]
    """
    _two_axes("convolve2d", in1, in2, boundary, fillvalue)
    return _convolved("convolve2d", in1, in2, mode, "auto")


def correlate2d(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", boundary: str = "fill", fillvalue: float = 0
) -> Array:
    """Returns the cross-correlation of two matrices; see :func:`correlate` and :func:`convolve2d`.

    >>> correlate2d(tnp.ones((2, 2)), tnp.ones((2, 2)), "valid").tolist()
    [[4.0]]
    """
    _two_axes("correlate2d", in1, in2, boundary, fillvalue)
    turned = tnp.flip(tnp.asarray(in2))
    if mode != "same":
        return _convolved("correlate2d", in1, turned, mode, "auto")
    # The middle of the full result, which for an even size is one element later than that of a convolution.
    full = _convolved("correlate2d", in1, turned, "full", "auto")
    (rows, columns), (top, left) = np.shape(in1), (size // 2 for size in turned.shape)
    return full[top : top + rows, left : left + columns]


def detrend(data: ArrayLike, axis: int = -1, type: str = "linear", bp: int | Sequence[int] = 0) -> Array:
    """Returns the data less their mean, or their line of least squares, along an axis.

    Args:
        data: an array.
        axis: the axis.
        type: ``"linear"`` or ``"constant"``.
        bp: positions at which another line begins.

    Raises:
        ArgumentError: for another type, or a position outside.

    >>> [abs(round(x, 4)) for x in detrend(tnp.asarray([1.0, 2.0, 3.0])).tolist()]
    [0.0, 0.0, 0.0]
    """
    if type not in ("linear", "constant"):
        raise ArgumentError("detrend", "the type must be 'linear' or 'constant'", got=repr(type))
    x = tnp.asarray(operands("detrend", tnp.asarray(data), floating=True)[0])
    if type == "constant":
        return x - tnp.mean(x, axis=axis, keepdims=True)
    x = tnp.moveaxis(x, axis, -1)
    ends = np.unique(np.concatenate([[0], np.atleast_1d(bp), [x.shape[-1]]])).astype(int)
    if ends[0] < 0 or ends[-1] > x.shape[-1]:
        raise ArgumentError("detrend", f"the positions must be within {x.shape[-1]} elements", got=repr(bp))
    parts = []
    for start, stop in itertools.pairwise(ends):
        part = x[..., start:stop]
        time = np.arange(stop - start) - (stop - start - 1) / 2
        line = (time / max(np.sqrt(np.sum(time * time)), 1e-30)).astype(x.dtype)
        slope = tnp.sum(part * line, axis=-1, keepdims=True)
        parts.append(part - tnp.mean(part, axis=-1, keepdims=True) - slope * line)
    return tnp.moveaxis(tnp.concatenate(parts, axis=-1), -1, axis)


__getattr__ = _missing(__name__)
publish(globals())
