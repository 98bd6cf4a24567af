"""NumPy's functions about complex numbers, of real arrays: there are no others."""

from __future__ import annotations

import math
from typing import Any

from tvmfun.core.array import Array
from tvmfun.numpy.creation import asarray, full, zeros
from tvmfun.numpy.elementwise import less, logical_or, positive, signbit, where
from tvmfun.numpy.promotion import array, operands

__all__ = ["angle", "conj", "conjugate", "imag", "iscomplex", "iscomplexobj", "isreal", "isrealobj", "real"]


def real(val: Any) -> Array:
    """Returns the real part: the array itself."""
    return positive(val)


def imag(val: Any) -> Array:
    """Returns the imaginary part: zeros."""
    val = asarray(val)
    return zeros(val.shape, val.dtype)


def conj(x: Any) -> Array:
    """Returns the complex conjugate: the array itself."""
    return positive(x)


def conjugate(x: Any) -> Array:
    """Returns the complex conjugate: the array itself."""
    return positive(x)


def angle(z: Any, deg: bool = False) -> Array:
    r"""Returns the angle of numbers in the complex plane: 0, and :math:`\pi` (180 degrees) for negative ones.

    >>> angle([2.0, -3.0], deg=True)
    Array([  0., 180.], dtype=float32)
    """
    (z,) = operands("angle", asarray(z), floating=True)
    half = z.dtype.type(180 if deg else math.pi)
    # -0 has the angle of the negative numbers, and NaN none.
    return where(z != z, z, where(logical_or(less(z, 0), signbit(z)), half, z.dtype.type(0)))


def iscomplex(x: Any) -> Array:
    """Returns whether an element has an imaginary part, elementwise: false."""
    return full(asarray(x).shape, False)


def isreal(x: Any) -> Array:
    """Returns whether an element has no imaginary part, elementwise: true."""
    return full(asarray(x).shape, True)


def iscomplexobj(x: Any) -> bool:
    """Returns whether the dtype of an array is complex: False for every array of this library.

    >>> iscomplexobj([1.0]), iscomplexobj(1j)
    (False, True)
    """
    if isinstance(x, complex) or getattr(getattr(x, "dtype", None), "kind", "") == "c":
        return True
    array("iscomplexobj", asarray(x))
    return False


def isrealobj(x: Any) -> bool:
    """Returns whether the dtype of an array is not complex: True for every array of this library."""
    return not iscomplexobj(x)
