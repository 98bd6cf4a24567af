"""Transcendental functions as arithmetic that vectorizes, in place of scalar calls into libm.

LLVM cannot vectorize a call to `expf`, so softmax, GELU or dropout would spend their time in scalar code.
`expand` replaces the calls by polynomials and rational functions over range-reduced arguments. Each
function here states its bound in units in the last place (ulp), measured against float64 over random
bit patterns; infinities, NaN, zeros and denormal numbers come out as in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx

Expr = ir.Expr


def expand(value):
    """Replace float calls in an expression, statement or function by vectorizable arithmetic.

    float16 and bfloat16 are computed in float32 and rounded; float64 is left to libm.
    """
    return tvm_ffi.structural_map(value, (ir.Call, _expand_call))


def _expand_call(call: ir.Call) -> Expr:
    make = FUNCTIONS.get(getattr(call.op, "name", None))
    dtype = str(call.ty)
    if make is None or dtype not in ("float32", "float16", "bfloat16"):
        return call
    result = make(*(_cast("float32", arg) for arg in call.args))
    return _cast(dtype, result)


def exp(x: Expr) -> Expr:
    """e**x, within 1 ulp."""

    def body(x: Expr) -> Expr:
        # At the bounds the result is already 0 or infinite. Comparisons let NaN through to `kept`, but
        # not to `safe`, which is converted to an integer.
        kept = tirx.Select(x > _f(89.5), _f(89.5), tirx.Select(x < _f(-105.0), _f(-105.0), x))
        safe = tirx.Select(x > _f(-105.0), tirx.Select(x < _f(89.5), x, _f(89.5)), _f(-105.0))
        return _let(tirx.floor(safe * _f(1.44269504088896341) + _f(0.5)), lambda n: reduced(kept, n))

    def reduced(x: Expr, n: Expr) -> Expr:
        rest = x - n * _f(0.693359375) + n * _f(2.12194440e-4)
        return _let(rest, lambda r: _let(_cast("int32", n), lambda k: scaled(r, k)))

    def scaled(r: Expr, k: Expr) -> Expr:
        # Two factors, because 2**k alone leaves the range of float32 before the result does.
        half = tirx.shift_right(k, _i(1))
        return (_horner(r, EXP) * r * r + r + _f(1.0)) * _power_of_two(half) * _power_of_two(k - half)

    return _let(x, body)


def log(x: Expr) -> Expr:
    """The natural logarithm, within 1 ulp."""

    def body(x: Expr) -> Expr:
        tiny = x < _f(1.17549435e-38)
        scaled = tirx.Select(tiny, x * _f(8388608.0), x)
        bits = tirx.reinterpret("int32", scaled)
        finite = _let(bits, lambda bits: split(bits, tirx.Select(tiny, _f(-23.0), _f(0.0))))
        result = tirx.Select(x == _f(0.0), _f(float("-inf")), finite)
        result = tirx.Select(x < _f(0.0), _f(float("nan")), result)
        # Infinity and NaN are themselves; written so that NaN, which fails every comparison, gets here.
        return tirx.Select(x < _f(float("inf")), result, x)

    def split(bits: Expr, shift: Expr) -> Expr:
        # x = 2**k * m with m in [sqrt(1/2), sqrt(2)).
        k = tirx.shift_right(bits - _i(0x3F3504F3), _i(23))
        return _let(k, lambda k: mantissa(bits - tirx.shift_left(k, _i(23)), _cast("float32", k) + shift))

    def mantissa(bits: Expr, k: Expr) -> Expr:
        return _let(tirx.reinterpret("float32", bits) - _f(1.0), lambda r: _let(k, lambda k: series(r, k)))

    def series(r: Expr, k: Expr) -> Expr:
        square = r * r
        tail = r * square * _horner(r, LOG) - k * _f(2.12194440e-4) - _f(0.5) * square
        return r + tail + k * _f(0.693359375)

    return _let(x, body)


def log1p(x: Expr) -> Expr:
    """log(1 + x) without the rounding of 1 + x, within 3 ulp."""

    def body(x: Expr) -> Expr:
        return _let(x + _f(1.0), lambda u: corrected(x, u))

    def corrected(x: Expr, u: Expr) -> Expr:
        exact = tirx.any(u == _f(1.0), u == _f(float("inf")))
        return tirx.Select(exact, x, log(u) * (x / (u - _f(1.0))))

    return _let(x, body)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent, within 5 ulp."""

    def body(x: Expr) -> Expr:
        near_zero = tirx.all(x > _f(-4e-4), x < _f(4e-4))
        return tirx.Select(near_zero, x, _odd_rational(x, 7.90531110763549805, TANH))

    return _let(x, body)


def erf(x: Expr) -> Expr:
    """The error function, within 6 ulp."""
    return _odd_rational(x, 3.7439211627767994, ERF)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)), within 3 ulp where that is a normal number."""
    return _f(1.0) / (_f(1.0) + exp(_f(0.0) - x))


def _odd_rational(x: Expr, bound: float, tables: tuple[Sequence[float], Sequence[float]]) -> Expr:
    """X * p(x**2) / q(x**2), with x held within +-bound."""
    numerator, denominator = tables

    def body(x: Expr) -> Expr:
        kept = tirx.Select(x > _f(bound), _f(bound), tirx.Select(x < _f(-bound), _f(-bound), x))
        return _let(
            kept, lambda x: _let(x * x, lambda s: x * _horner(s, numerator) / _horner(s, denominator))
        )

    return _let(x, body)


def _power_of_two(k: Expr) -> Expr:
    return tirx.reinterpret("float32", tirx.shift_left(k + _i(127), _i(23)))


def _horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial with these coefficients, highest power first."""
    total = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _f(coefficient)
    return total


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """Compute `value` once and use it by name."""
    if isinstance(value, ir.Var):
        return body(value)
    var = ir.Var("t", value.ty)
    return tirx.Let(var, value, body(var))


def _cast(dtype: str, value: Expr) -> Expr:
    return value if str(value.ty) == dtype else tirx.Cast(dtype, value)


def _f(value: float) -> Expr:
    return tirx.const(value, "float32")


def _i(value: int) -> Expr:
    return tirx.const(value, "int32")


# exp and log: Cephes (S. Moshier), single precision. tanh and erf: the rational functions of Eigen and XLA.
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
TANH = (
    (
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)
ERF = (
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

FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "tirx.exp": exp,
    "tirx.log": log,
    "tirx.log1p": log1p,
    "tirx.tanh": tanh,
    "tirx.erf": erf,
    "tirx.sigmoid": sigmoid,
}
