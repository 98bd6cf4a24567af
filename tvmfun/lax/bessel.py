"""The modified Bessel functions of the first kind, scaled so that they do not overflow."""

from __future__ import annotations

from typing import Any

from tvmfun.core.array import Array
from tvmfun.numpy.signal import scaled

__all__ = ["bessel_i0e", "bessel_i1e"]


def bessel_i0e(x: Any) -> Array:
    r"""Returns :math:`e^{-|x|} I_0(x)`, elementwise."""
    return scaled("bessel_i0e", 0, x)


def bessel_i1e(x: Any) -> Array:
    r"""Returns :math:`e^{-|x|} I_1(x)`, elementwise."""
    return scaled("bessel_i1e", 1, x)
