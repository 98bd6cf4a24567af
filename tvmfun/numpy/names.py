"""NumPy's names of functions that the array API calls something else."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tvmfun.core.array import Array
from tvmfun.numpy import elementwise, mathematical, statistical

__all__ = [
    "absolute",
    "amax",
    "amin",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "around",
    "bitwise_not",
    "degrees",
    "invert",
    "left_shift",
    "mod",
    "power",
    "radians",
    "right_shift",
    "true_divide",
]


def _renamed(function: Callable[..., Array], name: str) -> Callable[..., Array]:
    @wraps(function)
    def renamed(*args: Any, **options: Any) -> Array:
        return function(*args, **options)

    renamed.__name__ = renamed.__qualname__ = name
    renamed.__module__ = __name__
    summary = str(function.__doc__).partition("\n\n")[0]
    renamed.__doc__ = f"{summary} NumPy's name of :func:`{function.__name__}`."
    return renamed


absolute = _renamed(elementwise.abs, "absolute")
amax = _renamed(statistical.max, "amax")
amin = _renamed(statistical.min, "amin")
arccos = _renamed(elementwise.acos, "arccos")
arccosh = _renamed(elementwise.acosh, "arccosh")
arcsin = _renamed(elementwise.asin, "arcsin")
arcsinh = _renamed(elementwise.asinh, "arcsinh")
arctan = _renamed(elementwise.atan, "arctan")
arctan2 = _renamed(elementwise.atan2, "arctan2")
arctanh = _renamed(elementwise.atanh, "arctanh")
around = _renamed(elementwise.round, "around")
bitwise_not = _renamed(elementwise.bitwise_invert, "bitwise_not")
degrees = _renamed(mathematical.rad2deg, "degrees")
invert = _renamed(elementwise.bitwise_invert, "invert")
left_shift = _renamed(elementwise.bitwise_left_shift, "left_shift")
mod = _renamed(elementwise.remainder, "mod")
radians = _renamed(mathematical.deg2rad, "radians")
right_shift = _renamed(elementwise.bitwise_right_shift, "right_shift")
true_divide = _renamed(elementwise.divide, "true_divide")


def power(x1: Any, x2: Any, /) -> Array:
    """Returns :math:`x_1^{x_2}`, elementwise; see :func:`pow`."""
    return elementwise.to_power("power", x1, x2)
