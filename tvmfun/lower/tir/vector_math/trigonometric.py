"""Trigonometric functions and their inverses.

In single precision they are computed in double precision and rounded, so there is hardly an error but the last
rounding. The functions' error bounds are for arguments that are not left to libm.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tvm import tirx

from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.vector_math.formats import Format, Name, cast, estrin, format_of, horner

# pi / 2 in parts of 33 bits, whose products with integers below 2**20 are exact, and the rest.
_HALF_PI = tuple(
    map(float.fromhex, ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2ep-69", "0x1.b839a252049c1p-104"))
)
# The largest arguments whose quotient by pi / 2 is below 2**20.
_BOUND = 1.6e6
# For |x| <= pi / 4 in x**2, interpolated at Chebyshev's points: (sin(x) - x) / x**3 within 3e-11 and 2e-20, and
# (cos(x) - 1 + x**2 / 2) / x**4 within 3e-12 and 2e-18.
_SIN = {
    "float32": (2.724962008007533e-06, -0.00019840084376422702, 0.008333331870341349, -0.16666666663844049),
    "float64": (
        -7.586636882825159e-13,
        1.6058530596645953e-10,
        -2.50521062259944e-08,
        2.755731921932058e-06,
        -0.0001984126984126504,
        0.008333333333333331,
        -0.16666666666666666,
    ),
}
_COS = {
    "float32": (-2.730070403808665e-07, 2.480059840835012e-05, -0.0013888887668370663, 0.041666666664311826),
    "float64": (
        -1.138254464534925e-11,
        2.087614504941318e-09,
        -2.755731726587808e-07,
        2.48015872987544e-05,
        -0.0013888888888887389,
        0.041666666666666664,
    ),
}
# (atan(x) - x) / x**3 in x**2, for |x| <= 1, within 4e-10.
_ATAN = (
    -0.0009362994719496015,
    0.00620725453378005,
    -0.019261081322765883,
    0.038327445983064846,
    -0.05760716083128117,
    0.0741749696430051,
    -0.09036742342070782,
    0.1110470678864422,
    -0.14285317963907304,
    0.19999990275947271,
    -0.33333333293301176,
)
# (asin(x) - x) / x**3 in x**2, for |x| <= 1/2, within 2e-11.
_ASIN = (
    0.02931732560480542,
    0.005433409887231671,
    0.0193093461897726,
    0.022131964555376638,
    0.030397671953511674,
    0.04464235707939134,
    0.07500000600759216,
    0.1666666666549084,
)


class _Angle(NamedTuple):
    """An angle as ``n pi / 2 + r``: the sine and the cosine of ``r`` in double precision, and ``n``, an int32."""

    sine: Expr
    cosine: Expr
    n: Expr

    def at(self, quarters: int, own: Format, name: Name) -> Expr:
        """The sine of the angle plus some quarters of a turn."""
        n = name(self.n + own.int32(quarters)) if quarters else self.n
        is_odd = (n & own.int32(1)) != own.int32(0)
        value = name(tirx.Select(is_odd, self.cosine, self.sine))
        return tirx.Select((n & own.int32(2)) != own.int32(0), value * format_of(value).number(-1.0), value)


def _angle(x: Expr, is_usual: Expr, name: Name) -> _Angle:
    own = format_of(x)
    # An infinite number or NaN has no integer part.
    x = name(tirx.Select(is_usual, x, own.number(0.0)))
    wide = name(cast("float64", x))
    number = format_of(wide).number
    n = name(tirx.floor(wide * number(2 / math.pi) + number(0.5)))
    r = name(wide - n * number(_HALF_PI[0]))
    quarters = name(cast("int32", n))
    if own.dtype == "float32":
        r = name(r - n * number(sum(_HALF_PI[1:])))
        square = name(r * r)
        sine = r + r * square * horner(square, _SIN["float32"])
        cosine = number(1.0) - square * number(0.5) + square * square * horner(square, _COS["float32"])
        return _Angle(name(sine), name(cosine), quarters)
    r, first = _sum(r, name(n * number(-_HALF_PI[1])), name)
    r, second = _sum(r, name(n * number(-_HALF_PI[2])), name)
    low = name(first + second - n * number(_HALF_PI[3]))
    high = name(r + low)
    low = name(low - name(high - r))
    # As in FreeBSD's libm: the terms are added the smallest first, and with the rest of the angle.
    square = name(high * high)
    cube = name(square * high)
    series = estrin(square, _SIN["float64"][:-1], name)
    sine = high - (name(square * (number(0.5) * low - cube * series) - low) - cube * number(_SIN["float64"][-1]))
    half = name(number(0.5) * square)
    near = name(number(1.0) - half)
    rest = name(square * square * estrin(square, _COS["float64"], name) - high * low)
    cosine = near + (name(name(number(1.0) - near) - half) + rest)
    return _Angle(name(sine), name(cosine), quarters)


def _sum(a: Expr, b: Expr, name: Name) -> tuple[Expr, Expr]:
    """The sum of two numbers, rounded, and its rounding error (Knuth)."""
    total = name(a + b)
    of_b = name(total - a)
    of_a = name(total - of_b)
    return total, name(name(a - of_a) + name(b - of_b))


def _is_usual(x: Expr, name: Name) -> Expr:
    own = format_of(x)
    return own.size(x, name) < own.number(_BOUND)


def sin(x: Expr, name: Name) -> tuple[Expr, Expr]:
    """The sine, within 0.51 ulp; in double precision within 1."""
    own, is_usual = format_of(x), _is_usual(x, name)
    value = cast(own.dtype, _angle(x, is_usual, name).at(0, own, name))
    return tirx.Select(x == own.number(0.0), x, value), is_usual


def cos(x: Expr, name: Name) -> tuple[Expr, Expr]:
    """The cosine, within 0.51 ulp; in double precision within 1."""
    own, is_usual = format_of(x), _is_usual(x, name)
    return cast(own.dtype, _angle(x, is_usual, name).at(1, own, name)), is_usual


def tan(x: Expr, name: Name) -> tuple[Expr, Expr]:
    """The tangent, within 0.51 ulp, in single precision."""
    own, is_usual = format_of(x), _is_usual(x, name)
    angle = _angle(x, is_usual, name)
    is_odd = (angle.n & own.int32(1)) != own.int32(0)
    numerator = name(tirx.Select(is_odd, angle.cosine * format_of(angle.cosine).number(-1.0), angle.sine))
    value = cast(own.dtype, numerator / name(tirx.Select(is_odd, angle.sine, angle.cosine)))
    return tirx.Select(x == own.number(0.0), x, value), is_usual


def _arc(share: Expr, name: Name) -> Expr:
    """The arc tangent of a float64 between 0 and 1, with the digits of a float32."""
    square = name(share * share)
    return share + share * square * estrin(square, _ATAN, name)


def atan(x: Expr, name: Name) -> Expr:
    """The arc tangent, within 0.51 ulp, in single precision."""
    own = format_of(x)
    size = name(cast("float64", own.size(x, name)))
    number = format_of(size).number
    is_steep = size > number(1.0)
    arc = _arc(name(tirx.Select(is_steep, number(1.0) / size, size)), name)
    return own.signed(name(cast("float32", tirx.Select(is_steep, number(math.pi / 2) - arc, arc))), x, name)


def atan2(y: Expr, x: Expr, name: Name) -> Expr:
    """The angle of the point (x, y), within 0.51 ulp, in single precision."""
    own = format_of(x)
    width, height = (name(cast("float64", own.size(side, name))) for side in (x, y))
    number = format_of(width).number
    infinity = number(float("inf"))
    is_steep = height > width
    most, least = name(tirx.Select(is_steep, height, width)), name(tirx.Select(is_steep, width, height))
    # The quotients of two zeros and of two infinite sides are 0 and 1.
    share = tirx.Select(most == number(0.0), number(0.0), tirx.Select(least == infinity, number(1.0), least / most))
    arc = _arc(name(share), name)
    angle = name(tirx.Select(is_steep, number(math.pi / 2) - arc, arc))
    is_left = own.as_integer(x) < own.integer(0)
    angle = name(tirx.Select(is_left, number(math.pi) - angle, angle))
    are_numbers = tirx.all(width <= infinity, height <= infinity)
    angle = tirx.Select(are_numbers, angle, number(float("nan")))
    return own.signed(name(cast("float32", angle)), y, name)


def asin(x: Expr, name: Name) -> Expr:
    """The arc sine, within 0.51 ulp, in single precision."""
    own = format_of(x)
    size = name(cast("float64", own.size(x, name)))
    number = format_of(size).number
    is_large, arc = _arc_sine(size, name)
    return own.signed(name(cast("float32", tirx.Select(is_large, number(math.pi / 2) - arc - arc, arc))), x, name)


def acos(x: Expr, name: Name) -> Expr:
    """The arc cosine, within 0.51 ulp, in single precision."""
    own = format_of(x)
    size = name(cast("float64", own.size(x, name)))
    number = format_of(size).number
    is_large, arc = _arc_sine(size, name)
    is_left = x < own.number(0.0)
    near = number(math.pi / 2) + tirx.Select(is_left, arc, arc * number(-1.0))
    far = tirx.Select(is_left, number(math.pi) - arc - arc, arc + arc)
    return cast("float32", tirx.Select(is_large, far, near))


def _arc_sine(size: Expr, name: Name) -> tuple[Expr, Expr]:
    """Whether a number is above 1/2, and the arc sine of it or then of ``sqrt((1 - size) / 2)``."""
    number = format_of(size).number
    is_large = size > number(0.5)
    square = name(tirx.Select(is_large, (number(1.0) - size) * number(0.5), size * size))
    root = name(tirx.Select(is_large, tirx.sqrt(square), size))
    return is_large, name(root + root * square * horner(square, _ASIN))
