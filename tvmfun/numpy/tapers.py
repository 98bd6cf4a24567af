"""Window functions for signals: weights that fall off towards both ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, device_array
from tvmfun.errors import ArgumentError
from tvmfun.numpy.bessel import i0
from tvmfun.numpy.creation import asarray, ones
from tvmfun.numpy.elementwise import divide, multiply

__all__ = ["bartlett", "blackman", "hamming", "hanning", "kaiser"]


def _count(name: str, M: Any) -> int:
    if not hasattr(M, "__index__"):
        raise ArgumentError(name, "the number of points is an integer", got=repr(M))
    return max(M.__index__(), 0)


def _made(values: np.ndarray) -> Array:
    return device_array(np.asarray(values, dtypes.DEFAULT_FLOAT))


def bartlett(M: int) -> Array:
    """Returns the triangular window of ``M`` points, 0 at both ends.

    >>> bartlett(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _made(np.bartlett(_count("bartlett", M)))


def blackman(M: int) -> Array:
    r"""Returns the window :math:`0.42 - 0.5 \cos t + 0.08 \cos 2t` of ``M`` points, :math:`0 \le t \le 2\pi`."""
    return _made(np.blackman(_count("blackman", M)))


def hamming(M: int) -> Array:
    r"""Returns the window :math:`0.54 - 0.46 \cos t` of ``M`` points, :math:`0 \le t \le 2\pi`."""
    return _made(np.hamming(_count("hamming", M)))


def hanning(M: int) -> Array:
    r"""Returns the window :math:`0.5 - 0.5 \cos t` of ``M`` points, :math:`0 \le t \le 2\pi`."""
    return _made(np.hanning(_count("hanning", M)))


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
