"""The error function and its complement, the logarithm of the gamma function, and the hypotenuse."""

from __future__ import annotations

import math
from fractions import Fraction

from tvm import tirx

from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.vector_math.exponentials import odd_rational, reduced
from tvmfun.lower.tir.vector_math.formats import Name, cast, estrin, format_of
from tvmfun.lower.tir.vector_math.logarithms import log

# The rational function of Eigen and XLA: erf(x) / x in x**2.
_ERF = (
    (
        0.00022905065861350646,
        0.0034082910107109506,
        0.050955695062380861,
        0.18520832239976145,
        1.128379143519084,
    ),
    (
        -1.1791602954361697e-7,
        0.000023547966471313185,
        0.0010179625278914885,
        0.014070470171167667,
        0.11098505178285362,
        0.49746925110067538,
        1.0,
    ),
)
# erf(x) / x in x**2, for |x| <= 0.64 and <= 1, interpolated at Chebyshev's points, within 3e-10 and 8e-18.
_ERF_NEAR = {
    "float32": (-0.0007167640057, 0.005160783678, -0.02685261302, 0.1128365926, -0.3761263415, 1.128379167),
    "float64": (
        -7.7958988270021422416e-10,
        1.3720064546977685604e-8,
        -1.6208483801871705902e-7,
        1.644742470331736241e-6,
        -0.000014924736907419660338,
        0.00012055294904839707917,
        -0.00085483259753896920806,
        0.0052239776071164227321,
        -0.02686617064323777036,
        0.11283791670945006266,
        -0.37612638903183540438,
        1.1283791670955125665,
    ),
}
# exp(x**2) erfc(x) / t in t - center, with t = 1 / (1 + x / 2), for x from 0.6 to 10.2 and from 0.9 to 27.5,
# interpolated at Chebyshev's points, within 9e-10 and 1e-18.
_ERFC_CENTER = {"float32": 0.5, "float64": 0.375}
_ERFC = {
    "float32": (
        -0.03609267753,
        -0.07255522081,
        0.0576608102,
        0.09812741059,
        -0.103888421,
        -0.1720643873,
        0.1457734722,
        0.5589439722,
        0.6871606592,
        0.510791353,
    ),
    "float64": (
        0.2972903674311093,
        -0.03778476763547349,
        -0.33570063213561363,
        0.15002732810516708,
        0.174171739067692,
        -0.1875302762189907,
        -0.02122386379317315,
        0.14813479492999365,
        -0.06094037166186751,
        -0.0896881755981868,
        0.09154367285282101,
        0.04431901711275686,
        -0.10159295544755889,
        -0.01953496023649243,
        0.11485023618985928,
        0.02039826356983781,
        -0.15185477625782068,
        -0.08913056527266638,
        0.2123459838269184,
        0.49049172063593444,
        0.5554590614502859,
        0.43330656247972915,
    ),
}
# Up to the first argument erfc is 1 - erf; from the second one on it is 0.
_ERFC_BOUNDS = {"float32": (0.61, 10.5), "float64": (0.9, 27.5)}
# Half of the fraction's bits; they are cleared so that the square of the rest is exact.
_LOW_BITS = {"float32": -(2**12), "float64": -(2**27)}

# Stirling's series, in 1 / x**2, highest power first: B(2n) / (2n (2n - 1)).
_BERNOULLI = (
    Fraction(1, 6),
    Fraction(-1, 30),
    Fraction(1, 42),
    Fraction(-1, 30),
    Fraction(5, 66),
    Fraction(-691, 2730),
    Fraction(7, 6),
)
_SHIFT = 8
_STIRLING = tuple(float(b / (2 * n * (2 * n - 1))) for n, b in reversed(list(enumerate(_BERNOULLI, 1))))
# sin(pi x) / x in x**2, for |x| <= 1/2.
_SIN_PI = tuple((-1) ** n * math.pi ** (2 * n + 1) / math.factorial(2 * n + 1) for n in range(10, -1, -1))


def erf(x: Expr, name: Name) -> Expr:
    """The error function, within 6 ulp; in double precision within 2."""
    own = format_of(x)
    number = own.number
    if own.dtype == "float32":
        return odd_rational(x, 3.7439211627767994, _ERF, name)
    size = own.size(x, name)
    square = name(tirx.Select(size < number(1.0), x * x, number(0.0)))
    far = own.signed(number(1.0) - _far_erfc(size, name), x, name)
    return tirx.Select(size >= number(1.0), far, x * estrin(square, _ERF_NEAR["float64"], name))


def erfc(x: Expr, name: Name) -> Expr:
    """The complement of the error function, 1 - erf(x), within 5 ulp where that is a normal number."""
    own = format_of(x)
    number, bound = own.number, own.number(_ERFC_BOUNDS[own.dtype][0])
    size = own.size(x, name)
    far = name(_far_erfc(size, name))
    near = number(1.0) - x * estrin(name(tirx.Select(size < bound, x * x, number(0.0))), _ERF_NEAR[own.dtype], name)
    # NaN fails the comparisons.
    return tirx.Select(size < bound, near, tirx.Select(x < number(0.0), number(2.0) - far, far))


def _far_erfc(size: Expr, name: Name) -> Expr:
    """The complement of the error function for a number from 0.6 on: exp(-x**2) t p(t) with t = 1 / (1 + x / 2)."""
    own = format_of(size)
    number, bound = own.number, _ERFC_BOUNDS[own.dtype][1]
    kept = name(tirx.Select(size > number(bound), number(bound), size))
    # x**2 = high**2 + (x - high) (x + high): an error of x**2 would be one of the result, relative to it.
    high = name(own.of_integer(name(own.as_integer(kept) & own.integer(_LOW_BITS[own.dtype]))))
    low = name((high - kept) * (high + kept))
    parts = reduced(name(number(0.0) - high * high), (-bound * bound, 0.0), name, low=low)
    t = name(number(1.0) / (number(1.0) + kept * number(0.5)))
    series = estrin(name(t - number(_ERFC_CENTER[own.dtype])), _ERFC[own.dtype], name)
    return parts.scaled(parts.total(name) * t * series, name)


def hypot(x: Expr, y: Expr, name: Name) -> Expr:
    """The square root of x**2 + y**2 without overflow, within 0.51 ulp; in double precision within 1.5."""
    own = format_of(x)
    infinity = own.number(float("inf"))
    sizes = own.size(x, name), own.size(y, name)
    if own.dtype == "float32":
        wide = [name(cast("float64", size)) for size in sizes]
        result = cast("float32", tirx.sqrt(wide[0] * wide[0] + wide[1] * wide[1]))
    else:
        integer = own.integer
        is_first = sizes[0] >= sizes[1]
        most, least = name(tirx.Select(is_first, *sizes)), name(tirx.Select(is_first, *reversed(sizes)))
        # The power of 2 that scales the larger one to about 1, and its inverse; 0 and subnormals have the least power.
        exponent = name(tirx.shift_right(own.as_integer(most), integer(own.fraction)))
        exponent = name(tirx.Select(exponent > integer(2040), integer(2040), exponent))
        exponent = name(tirx.Select(exponent < integer(1), integer(1), exponent))
        down = name(own.of_integer(tirx.shift_left(integer(2 * own.bias) - exponent, integer(own.fraction))))
        up = name(own.of_integer(tirx.shift_left(exponent, integer(own.fraction))))
        a, b = name(most * down), name(least * down)
        result = tirx.sqrt(a * a + b * b) * up
    # The hypotenuse of an infinite side is infinite, also where the other is NaN.
    return tirx.Select(tirx.any(*(size == infinity for size in sizes)), infinity, result)


def lgamma(x: Expr, name: Name) -> Expr:
    """The logarithm of the absolute value of the gamma function, within 2 ulp, in single precision.

    Stirling's series from 8 on; below, ``gamma(x) = gamma(x + 8) / (x (x + 1) ... (x + 7))``. On the left,
    ``gamma(x) gamma(1 - x) = pi / sin(pi x)``.
    """
    wide = name(cast("float64", x))
    number = format_of(wide).number
    is_negative = wide < number(0.0)
    y = name(tirx.Select(is_negative, number(1.0) - wide, wide))
    is_small = y < number(_SHIFT)
    z = name(tirx.Select(is_small, y + number(_SHIFT), y))
    factors = y
    for i in range(1, _SHIFT):
        factors = factors * (y + number(i))
    factors = name(tirx.Select(is_small, factors, number(1.0)))
    inverse = name(number(1.0) / z)
    stirling = (z - number(0.5)) * log(z, name) - z + number(0.5 * math.log(2 * math.pi))
    stirling = name(stirling + inverse * estrin(name(inverse * inverse), _STIRLING, name))
    rest = name(wide - tirx.floor(wide + number(0.5)))
    sine = format_of(wide).size(name(rest * estrin(name(rest * rest), _SIN_PI, name)), name)
    logarithm = name(log(name(tirx.Select(is_negative, factors / sine, factors)), name))
    result = tirx.Select(is_negative, number(math.log(math.pi)) - stirling + logarithm, stirling - logarithm)
    infinity = number(float("inf"))
    result = tirx.Select(tirx.any(wide == number(1.0), wide == number(2.0)), number(0.0), result)
    return cast("float32", tirx.Select(z == infinity, infinity, result))
