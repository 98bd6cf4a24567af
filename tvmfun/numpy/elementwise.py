"""Elementwise arithmetic, comparisons and elementary functions: operands are promoted to one dtype and broadcast."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.array import Array, DeviceArray
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract
from tvmfun.core.op import Op
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.numpy.dtypes import strongly_typed
from tvmfun.numpy.promotion import array, at_least_float32, no_out, operands
from tvmfun.ops import pointwise as ops
from tvmfun.ops import shape
from tvmfun.typing import ArrayLike

__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "around",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "divide",
    "divmod",
    "equal",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "float_power",
    "floor",
    "floor_divide",
    "fmod",
    "greater",
    "greater_equal",
    "heaviside",
    "hypot",
    "invert",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "positive",
    "pow",
    "power",
    "rad2deg",
    "radians",
    "reciprocal",
    "remainder",
    "right_shift",
    "rint",
    "round",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
]


def named(function: Callable[..., Array], name: str, doc: str) -> Callable[..., Array]:
    """Gives a function its public name and docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def unary(
    name: str,
    op: Op,
    formula: str,
    *,
    floating: bool = False,
    of_bools: Callable[[Array], Array] | None = None,
) -> Callable[..., Array]:
    """A function that applies an op to one operand, of bools another one; integers become floats if ``floating``."""

    def function(x: ArrayLike, /) -> Array:
        (x,) = operands(name, x, floating=floating)
        return of_bools(x) if of_bools and x.dtype == dtypes.bool_ else op(x)

    return named(function, name, f"Returns {formula}, elementwise.")


def binary(
    name: str, op: Op, formula: str, *, floating: bool = False, numeric: bool = False, of_bools: Op | None = None
) -> Callable[..., Array]:
    """A function that applies an op to two operands, of bools another one.

    Integers become floats if ``floating``, and bools int32 if ``numeric``.
    """

    def function(x1: ArrayLike, x2: ArrayLike, /) -> Array:
        x1, x2 = operands(name, x1, x2, floating=floating, numeric=numeric)
        return of_bools(x1, x2) if of_bools and x1.dtype == dtypes.bool_ else op(x1, x2)

    return named(function, name, f"Returns {formula}, elementwise.")


add = binary("add", ops.add, ":math:`x_1 + x_2`; of bools, whether either is true", of_bools=ops.bitwise_or)
subtract = binary("subtract", ops.subtract, ":math:`x_1 - x_2`")
multiply = binary(
    "multiply", ops.multiply, r":math:`x_1 \cdot x_2`; of bools, whether both are true", of_bools=ops.bitwise_and
)
divide = binary("divide", ops.divide, ":math:`x_1 / x_2`, a float", floating=True)
floor_divide = binary(
    "floor_divide", ops.floor_divide, r":math:`\lfloor x_1 / x_2 \rfloor`; integers divided by 0 give 0", numeric=True
)
remainder = binary(
    "remainder",
    ops.remainder,
    "the remainder of the floor division, with the sign of :math:`x_2`; integers divided by 0 give 0",
    numeric=True,
)
maximum = binary("maximum", ops.maximum, r":math:`\max(x_1, x_2)`, NaN where either is", of_bools=ops.bitwise_or)
minimum = binary("minimum", ops.minimum, r":math:`\min(x_1, x_2)`, NaN where either is", of_bools=ops.bitwise_and)
negative = unary("negative", ops.negative, ":math:`-x`")
abs = unary("abs", ops.abs, ":math:`|x|`; of bools, they themselves", of_bools=lambda x: x)
sign = unary("sign", ops.sign, "-1, 0 or 1 by the sign of :math:`x`")
exp = unary("exp", ops.exp, ":math:`e^x`", floating=True)
expm1 = unary("expm1", ops.expm1, ":math:`e^x - 1`, accurate near 0", floating=True)
log = unary("log", ops.log, r":math:`\ln x`", floating=True)
log1p = unary("log1p", ops.log1p, r":math:`\ln(1 + x)`, accurate near 0", floating=True)
log2 = unary("log2", ops.log2, r":math:`\log_2 x`", floating=True)
log10 = unary("log10", ops.log10, r":math:`\log_{10} x`", floating=True)
sqrt = unary("sqrt", ops.sqrt, r":math:`\sqrt x`", floating=True)
sin = unary("sin", ops.sin, r":math:`\sin x`", floating=True)
cos = unary("cos", ops.cos, r":math:`\cos x`", floating=True)
tan = unary("tan", ops.tan, r":math:`\tan x`", floating=True)
asin = unary("asin", ops.asin, r":math:`\arcsin x`, NaN outside :math:`[-1, 1]`", floating=True)
acos = unary("acos", ops.acos, r":math:`\arccos x`, NaN outside :math:`[-1, 1]`", floating=True)
atan = unary("atan", ops.atan, r":math:`\arctan x`", floating=True)
atan2 = binary(
    "atan2",
    ops.atan2,
    "the angle of the point :math:`(x_2, x_1)`",
    floating=True,
)
sinh = unary("sinh", ops.sinh, r":math:`\sinh x`", floating=True)
cosh = unary("cosh", ops.cosh, r":math:`\cosh x`", floating=True)
tanh = unary("tanh", ops.tanh, r":math:`\tanh x`", floating=True)
asinh = unary("asinh", ops.asinh, r":math:`\operatorname{arsinh} x`", floating=True)
acosh = unary("acosh", ops.acosh, r":math:`\operatorname{arcosh} x`, NaN below 1", floating=True)
atanh = unary("atanh", ops.atanh, r":math:`\operatorname{artanh} x`, NaN outside :math:`[-1, 1]`", floating=True)
logaddexp = binary("logaddexp", ops.logaddexp, r":math:`\ln(e^{x_1} + e^{x_2})` without overflow", floating=True)
hypot = binary("hypot", ops.hypot, r":math:`\sqrt{x_1^2 + x_2^2}` without overflow", floating=True)
equal = binary("equal", ops.equal, "whether :math:`x_1 = x_2`")
not_equal = binary("not_equal", ops.not_equal, r"whether :math:`x_1 \ne x_2`")
less = binary("less", ops.less, "whether :math:`x_1 < x_2`")
less_equal = binary("less_equal", ops.less_equal, r"whether :math:`x_1 \le x_2`")
greater = binary("greater", ops.greater, "whether :math:`x_1 > x_2`")
greater_equal = binary("greater_equal", ops.greater_equal, r"whether :math:`x_1 \ge x_2`")

bitwise_and = binary("bitwise_and", ops.bitwise_and, "the bits that both have")
bitwise_or = binary("bitwise_or", ops.bitwise_or, "the bits that either has")
bitwise_xor = binary("bitwise_xor", ops.bitwise_xor, "the bits that exactly one has")
bitwise_invert = unary("bitwise_invert", ops.bitwise_not, "the other bits")
bitwise_left_shift = binary("bitwise_left_shift", ops.left_shift, r":math:`x_1 \cdot 2^{x_2}`", numeric=True)
bitwise_right_shift = binary(
    "bitwise_right_shift", ops.right_shift, r":math:`\lfloor x_1 / 2^{x_2} \rfloor`", numeric=True
)


def positive(x: ArrayLike, /) -> Array:
    """Returns ``x``."""
    x = array("positive", x)
    return x if isinstance(x, Array) else ops.add(x, x.dtype.type(0))


def _rounding(name: str, op: Op, formula: str) -> Callable[..., Array]:
    def function(x: ArrayLike) -> Array:
        x = array(name, x)
        return op(x) if dtypes.is_float(x.dtype) else positive(x)

    return named(function, name, f"Returns {formula}, elementwise; integers stay as they are.")


floor = _rounding("floor", ops.floor, r":math:`\lfloor x \rfloor`")
ceil = _rounding("ceil", ops.ceil, r":math:`\lceil x \rceil`")
trunc = _rounding("trunc", ops.trunc, ":math:`x` without its fraction")


def round(a: ArrayLike, decimals: int = 0, out: None = None) -> Array:
    """Returns ``a`` rounded to ``decimals`` decimals, ties to even; integers do not change.

    >>> round(2.5), round(0.126, 2)
    (Array(2., dtype=float32), Array(0.13, dtype=float32))
    """
    no_out("round", out)
    a = array("round", a)
    if not dtypes.is_float(a.dtype):
        if decimals < 0:
            raise ArgumentError("round", "integers have no negative decimals to round to", got=str(decimals))
        return positive(a)
    if decimals == 0:
        return ops.round(a)
    scale = a.dtype.type(10.0 ** builtins.abs(decimals))
    if decimals < 0:
        return ops.multiply(ops.round(ops.divide(a, scale)), scale)
    return ops.divide(ops.round(ops.multiply(a, scale)), scale)


def square(x: ArrayLike, /) -> Array:
    """Returns :math:`x^2`, elementwise."""
    (x,) = operands("square", x, numeric=True)
    return ops.multiply(x, x)


def reciprocal(x: ArrayLike, /) -> Array:
    """Returns :math:`1 / x`, a float, elementwise."""
    (x,) = operands("reciprocal", x, floating=True)
    return ops.divide(x.dtype.type(1), x)


def pow(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Returns :math:`x_1^{x_2}`, elementwise.

    A Python integer as the exponent is computed by multiplications: float64 up to the eighth power, float32 up to
    the 1024th, of which powers above the eighth are rounded once. Integers to a negative power are 0 unless the base
    is 1 or -1.

    Raises:
        DtypeError: for an integer base with a negative Python integer as the exponent.

    >>> pow(np.asarray([1, 2, 3]), 3)
    Array([ 1,  8, 27], dtype=int64)
    """
    return to_power("pow", x1, x2)


def to_power(name: str, x1: ArrayLike, x2: ArrayLike) -> Array:
    """:func:`pow` in the name of the function ``name``."""
    if isinstance(x2, int | np.integer) and not isinstance(x2, bool):
        x, x2 = array(name, x1), int(x2)
        if x.dtype == dtypes.bool_:
            x = ops.astype(x, dtype=dtypes.NAMES[dtypes.DEFAULT_INT])
        if builtins.abs(x2) <= 8 or not dtypes.is_float(x.dtype):
            return _static_power(name, x, x2)
    elif isinstance(x2, float) and x2 in (1, 2, 3, -1) and dtypes.is_float(abstract(x1, name).dtype):
        return _static_power(name, array(name, x1), int(x2))
    base, exponent = operands(name, x1, x2, numeric=True)
    if not dtypes.is_float(base.dtype):
        return strongly_typed(_integer_power(name, base, exponent))
    result = ops.power(base, exponent)
    kind = abstract(x2, name)
    # As in JAX, an exponent of integers is not converted to the weak dtype of the base.
    return result if kind.weak or dtypes.is_float(kind.dtype) else strongly_typed(result)


def _static_power(name: str, x: Any, exponent: int) -> Array:
    if exponent < 0:
        if not dtypes.is_float(x.dtype):
            raise DtypeError(name, "an integer to a negative power is not an integer", got=str(exponent), hint="floats")
        return reciprocal(x) if exponent == -1 else ops.integer_power(x, exponent=exponent)
    if exponent == 0:
        ones = shape.broadcast_to(x.dtype.type(1), shape=x.shape)
        return ones if getattr(x, "weak_type", False) else strongly_typed(ones)
    result: Any = None
    while True:
        if exponent & 1:
            result = x if result is None else ops.multiply(result, x)
        exponent >>= 1
        if not exponent:
            return positive(result)
        x = ops.multiply(x, x)


def _integer_power(name: str, base: Any, exponent: Any) -> Array:
    """The power by repeated squaring, one bit of the exponent at a time."""
    dtype = base.dtype
    bits = dtype.itemsize * 8 - (dtype in dtypes.SIGNED)
    if not is_tracing() and isinstance(exponent, DeviceArray | np.generic):
        bits = int(np.max(np.asarray(exponent), initial=0)).bit_length()
    zero, one = dtype.type(0), dtype.type(1)
    if isinstance(base, np.generic) and base == 2:
        return ops.left_shift(one, exponent)  # 0 for exponents below 0, and from the number of bits on
    result, factor = one, base
    for bit in range(bits):
        is_set = ops.not_equal(ops.bitwise_and(exponent, dtype.type(1 << bit)), zero)
        result = ops.where(is_set, ops.multiply(result, factor), result)
        if bit + 1 < bits:
            factor = ops.multiply(factor, factor)
    if dtype in dtypes.SIGNED:
        minus = dtype.type(-1)
        odd = ops.not_equal(ops.bitwise_and(exponent, one), zero)
        by_sign = ops.where(ops.equal(base, one), one, ops.where(odd, minus, one))
        unit = ops.bitwise_or(ops.equal(base, one), ops.equal(base, minus))
        result = ops.where(ops.less(exponent, zero), ops.where(unit, by_sign, zero), result)
    common = ops.broadcast_shapes(name, [base.shape, exponent.shape])
    return shape.broadcast_to(result, shape=common) if result.shape != common else positive(result)


def _truth(name: str, x: ArrayLike) -> Any:
    x = array(name, x)
    return x if x.dtype == dtypes.bool_ else ops.not_equal(x, x.dtype.type(0))


def logical_not(x: ArrayLike, /) -> Array:
    """Returns whether an element is 0 or false, elementwise."""
    return ops.bitwise_not(_truth("logical_not", x))


def _logical(name: str, op: Op, formula: str) -> Callable[..., Array]:
    def function(x1: ArrayLike, x2: ArrayLike, /) -> Array:
        return op(_truth(name, x1), _truth(name, x2))

    return named(function, name, f"Returns whether {formula} non-zero, elementwise.")


logical_and = _logical("logical_and", ops.bitwise_and, "both are")
logical_or = _logical("logical_or", ops.bitwise_or, "either is")
logical_xor = _logical("logical_xor", ops.bitwise_xor, "exactly one is")


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """Returns ``x1`` where the condition holds and ``x2`` elsewhere.

    Gradients flow only to the chosen branch, but are NaN if the other one's derivative is infinite there.

    >>> where(np.asarray([True, False]), 1.0, 2.0)
    Array([1., 2.], dtype=float32)
    """
    return ops.where(_truth("where", condition), *operands("where", x1, x2))


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """Returns ``x`` limited to ``[min, max]``; either bound may be missing.

    >>> clip(np.arange(5), 1, 3)
    Array([1, 1, 2, 3, 3], dtype=int64)
    """
    result = positive(x) if min is None else maximum(x, _representable(x, min))
    return result if max is None else minimum(result, _representable(x, max))


def _representable(x: ArrayLike, bound: ArrayLike) -> ArrayLike:
    """A Python bound outside the range of an integer dtype as the end of that range."""
    dtype = abstract(x, "clip").dtype
    if isinstance(bound, int) and dtypes.is_integer(dtype):
        limits = np.iinfo(dtype)
        return builtins.min(builtins.max(bound, int(limits.min)), int(limits.max))
    return bound


cbrt = unary("cbrt", ops.cbrt, r":math:`\sqrt[3]{x}`", floating=True)
rint = unary("rint", ops.round, "the nearest integer, the even one of two, as a float", floating=True)
exp2 = unary("exp2", ops.exp2, ":math:`2^x`", floating=True)


def fabs(x: ArrayLike) -> Array:
    """Returns :math:`|x|`, a float, elementwise."""
    return ops.abs(*operands("fabs", x, floating=True))


def logaddexp2(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    r"""Returns :math:`\log_2(2^{x_1} + 2^{x_2})` without overflow, elementwise."""
    x1, x2 = operands("logaddexp2", x1, x2, floating=True)
    dtype = x1.dtype
    x1, x2 = at_least_float32(x1), at_least_float32(x2)  # near a result of 0 the scaled terms cancel
    scale = x1.dtype.type(math.log(2))
    result = ops.divide(ops.logaddexp(ops.multiply(x1, scale), ops.multiply(x2, scale)), scale)
    return ops.astype(result, dtype=dtypes.NAMES[dtype])


def deg2rad(x: ArrayLike, /) -> Array:
    r"""Returns :math:`\frac{\pi}{180} x`, elementwise."""
    (x,) = operands("deg2rad", x, floating=True)
    return ops.multiply(x, x.dtype.type(math.pi / 180))


def rad2deg(x: ArrayLike, /) -> Array:
    r"""Returns :math:`\frac{180}{\pi} x`, elementwise."""
    (x,) = operands("rad2deg", x, floating=True)
    return ops.multiply(x, x.dtype.type(180 / math.pi))


def float_power(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Returns :math:`x_1^{x_2}`, a float, elementwise."""
    return ops.power(*operands("float_power", x1, x2, floating=True))


def sinc(x: ArrayLike, /) -> Array:
    r"""Returns :math:`\frac{\sin(\pi x)}{\pi x}`, and 1 at 0, elementwise."""
    (x,) = operands("sinc", x, floating=True)
    real = x.dtype.type
    y = ops.multiply(x, real(math.pi))
    # Near 0 the Taylor series, whose derivatives are right as well.
    near = ops.less(ops.abs(y), real(0.5))
    # Each formula gets a harmless argument where the other one counts: 0 times an infinite derivative would be NaN.
    small, large = ops.where(near, y, real(0)), ops.where(near, real(1), y)
    square = ops.multiply(small, small)
    series = real(0)
    for k in range(7, 0, -1):
        series = ops.multiply(square, ops.add(series, real((-1) ** k / math.factorial(2 * k + 1))))
    return ops.where(near, ops.add(series, real(1)), ops.divide(ops.sin(large), large))


def heaviside(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Returns 0 where ``x1`` is negative, 1 where it is positive and ``x2`` where it is 0, elementwise."""
    x1, x2 = operands("heaviside", x1, x2, floating=True)
    zero, one = x1.dtype.type(0), x1.dtype.type(1)
    at_zero = ops.where(ops.equal(x1, zero), x2, x1)
    return ops.where(ops.less(x1, zero), zero, ops.where(ops.greater(x1, zero), one, at_zero))


def fmod(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Returns the remainder of the division rounded towards zero, with the sign of :math:`x_1`, elementwise."""
    x1, x2 = operands("fmod", x1, x2, numeric=True)
    if dtypes.is_float(x1.dtype):
        return ops.fmod(x1, x2)
    rest = ops.remainder(x1, x2)
    if x1.dtype in dtypes.UNSIGNED:
        return rest
    zero = x1.dtype.type(0)
    apart = ops.bitwise_xor(ops.less(x1, zero), ops.less(x2, zero))
    wrong = ops.bitwise_and(ops.not_equal(rest, zero), apart)
    return ops.where(wrong, ops.subtract(rest, x2), rest)


def divmod(x1: ArrayLike, x2: ArrayLike, /) -> tuple[Array, Array]:
    """Returns the floor division and its remainder, elementwise."""
    return floor_divide(x1, x2), remainder(x1, x2)


def renamed(function: Callable[..., Array], name: str) -> Callable[..., Array]:
    @wraps(function)
    def renamed(*args: Any, **options: Any) -> Array:
        return function(*args, **options)

    renamed.__name__ = renamed.__qualname__ = name
    summary = str(function.__doc__).partition("\n\n")[0]
    renamed.__doc__ = f"{summary} NumPy's name of :func:`{function.__name__}`."
    return renamed


bitwise_not = renamed(bitwise_invert, "bitwise_not")
invert = renamed(bitwise_invert, "invert")
left_shift = renamed(bitwise_left_shift, "left_shift")
right_shift = renamed(bitwise_right_shift, "right_shift")
absolute = renamed(abs, "absolute")
arccos = renamed(acos, "arccos")
arccosh = renamed(acosh, "arccosh")
arcsin = renamed(asin, "arcsin")
arcsinh = renamed(asinh, "arcsinh")
arctan = renamed(atan, "arctan")
arctan2 = renamed(atan2, "arctan2")
arctanh = renamed(atanh, "arctanh")
around = renamed(round, "around")
degrees = renamed(rad2deg, "degrees")
mod = renamed(remainder, "mod")
radians = renamed(deg2rad, "radians")
true_divide = renamed(divide, "true_divide")


def power(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Returns :math:`x_1^{x_2}`, elementwise; see :func:`pow`."""
    return to_power("power", x1, x2)
