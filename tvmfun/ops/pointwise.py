"""Pointwise ops: one element of the result from the elements at the same place of the arguments.

Arguments have one dtype and shapes that broadcast. Derivative rules are written as if shapes were equal; the
registration sums cotangents over the axes along which an argument was repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name
from tvmfun.core.op import Op, Precision, SimplifyRule, nothing, register
from tvmfun.core.relax import Spelling, relax_spelling
from tvmfun.core.trace import argument
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops.simplify import Exact, by_numpy, cast, is_number, made_by, number, pointwise_rule, same

ANY = dtypes.ALL
NUMBERS = dtypes.INTEGERS + dtypes.FLOATS
FLOATS = dtypes.FLOATS
INTEGERS = dtypes.INTEGERS
BITS = (dtypes.bool_, *dtypes.INTEGERS)


def broadcast_shapes(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that ``shapes`` broadcast to, or a ``ShapeError`` in the name of op ``name``."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[axis] not in (1, size):
                    raise ShapeError(
                        name,
                        "the shapes do not broadcast",
                        got=" and ".join(map(str, shapes)),
                        hint="sizes that are equal or 1, counted from the last axis",
                    )
                result[axis] = size
    return tuple(result)


def sum_to(g: Array, shape: tuple[int, ...]) -> Array:
    """Sums ``g`` over the axes along which ``shape`` was repeated: the transpose of broadcasting."""
    from tvmfun.ops import reduce
    from tvmfun.ops import shape as shapes

    if g.shape == shape:
        return g
    added = g.ndim - len(shape)
    axes = tuple(range(added)) + tuple(
        added + axis for axis, size in enumerate(shape) if size == 1 and g.shape[added + axis] != 1
    )
    if axes:
        g = reduce.sum(g, axis=axes)
    return g if g.shape == shape else shapes.reshape(g, shape=shape)


def constant(value: float, like: Array) -> np.generic:
    """A scalar of the dtype of ``like``."""
    return like.dtype.type(value)


def _shape_rule(name: str, domain: Sequence[np.dtype], result: np.dtype | None) -> Callable[..., ShapeDtype]:
    def shape(*avals: ShapeDtype) -> ShapeDtype:
        dtype = avals[0].dtype
        if any(aval.dtype != dtype for aval in avals):
            raise DtypeError(
                name, "the arguments must have one dtype", got=", ".join(map(str, avals)), hint="x.astype(y.dtype)"
            )
        if dtype not in domain:
            allowed = ", ".join(dtypes.NAMES[d] for d in domain)
            raise DtypeError(name, "the dtype is not supported", got=dtypes.NAMES[dtype], hint=f"one of {allowed}")
        common = avals[0].shape if len(avals) == 1 else broadcast_shapes(name, [aval.shape for aval in avals])
        return ShapeDtype(common, result or dtype, weak=result is None and all(aval.weak for aval in avals))

    return shape


def _unbroadcasting(argnum: int, rule: Callable[..., Array]) -> Callable[..., Array]:
    def vjp(g: Array, out: Array, *args: Array, **params: Any) -> Array:
        return sum_to(rule(g, out, *args, **params), args[argnum].shape)

    return vjp


def _with_equal_ranks(batched: tuple[bool, ...], args: tuple[Array, ...]) -> list[Array]:
    """Arguments whose batch axes broadcast against each other: axes of size 1 after a batch that has too few."""
    from tvmfun.ops import shape as shapes

    rank = max(np.ndim(x) - flag for flag, x in zip(batched, args, strict=True))
    return [
        shapes.reshape(x, shape=(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:]))
        if flag and x.ndim <= rank
        else x
        for flag, x in zip(batched, args, strict=True)
    ]


def register_pointwise(op: Op, exact: Exact | None = None) -> Op:
    """Registers a pointwise op with the rules that they all share.

    Args:
        op: the record; its simplification rule is what holds for this op only.
        exact: NumPy's version of the op for numbers, where it gives the same bits.
    """

    def batch(batched: tuple[bool, ...], *args: Array, **params: Any) -> Array:
        return completed(*_with_equal_ranks(batched, args), **params)

    rule = pointwise_rule(lambda: completed, op.simplify, exact)
    completed = replace(op, batch=batch, simplify=rule)
    return register(completed)


def pointwise(
    name: str,
    formula: Callable[..., Any],
    vjp: tuple[Callable[..., Array] | None, ...] | None = None,
    *,
    domain: Sequence[np.dtype] = NUMBERS,
    result: np.dtype | None = None,
    spelling: Callable[..., relax.Expr] | Spelling | None = None,
    relax_name: str = "",
    inexpensive: bool | tuple[np.dtype, ...] = True,
    simplify: SimplifyRule | None = None,
    exact: Callable[..., Any] | None = None,
    precision: Precision | None = None,
) -> Op:
    """Registers a pointwise op whose arguments share one dtype out of ``domain``.

    ``simplify`` is a simplification rule of its own, and ``exact`` NumPy's function with the same bits.
    """
    return register_pointwise(
        Op(
            name,
            "pointwise",
            _shape_rule(name, domain, result),
            formula,
            vjp and tuple(rule and _unbroadcasting(i, rule) for i, rule in enumerate(vjp)),
            spelling
            if isinstance(spelling, Spelling) or spelling is None
            else relax_spelling(f"relax.{relax_name or name}", spelling),  # type: ignore[arg-type]
            inexpensive,
            simplify=simplify,
            precision=precision,  # type: ignore[arg-type]
        ),
        by_numpy(exact) if exact else None,
    )


def compute_in_float32(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Half-precision libm calls exist nowhere: compute in float32 and round once."""

    def widened(*xs: Any) -> Any:
        if dtype_name(xs[0]) in ("float16", "bfloat16"):
            return formula(*(tirx.Cast("float32", x) for x in xs)).astype(dtype_name(xs[0]))
        return formula(*xs)

    return widened


def _float_unary(
    name: str,
    formula: Callable,
    vjp: Callable | None,
    spelling: Callable | None = None,
    precision: Precision | None = None,
) -> Op:
    return pointwise(
        name,
        compute_in_float32(formula),
        (vjp,),
        domain=FLOATS,
        spelling=spelling,
        inexpensive=False,
        precision=precision,
    )


def _one(x: Any) -> Any:
    return tirx.const(1, dtype_name(x))


def opaque(value: float, dtype: str) -> Any:
    """A constant of whose value TVM's simplifier knows nothing, though LLVM does.

    The simplifier takes floats for real numbers and integers for unbounded ones. It would make ``x * 0`` and
    ``0 / x`` 0, also where ``x`` is NaN, ``x + 1 > x`` true, and fail at ``x / 0``.
    """
    kind = np.dtype(dtypes.canonical(dtype))
    other = f"int{kind.itemsize * 8}" if dtype.startswith("uint") else f"uint{kind.itemsize * 8}"
    bits = int(kind.type(value).view(other))
    if dtype.startswith("float") and not bits:  # TVM refuses to reinterpret the integer 0
        return opaque(-0.0, dtype) * tirx.const(-1, dtype)
    return tirx.reinterpret(dtype, tirx.const(bits, other))


def _wrapping(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Integers wrap around, for which TVM's simplifier and generated code do not allow: compute in 64 bits and cut.

    LLVM narrows that to the plain instruction. 64-bit integers have nothing wider and must not overflow.
    """

    def wrapped(*xs: Any) -> Any:
        dtype = dtype_name(xs[0])
        if dtype not in ("int8", "int16", "int32", "uint8", "uint16", "uint32"):
            return formula(*xs)
        wide = "uint64" if dtype.startswith("uint") else "int64"
        return tirx.Cast(dtype, formula(*(tirx.Cast(wide, x) for x in xs)))

    return wrapped


def _subtract(x: Any, y: Any) -> Any:
    dtype = dtype_name(x)
    if dtype in ("float32", "float64"):
        # x - x would be simplified to 0, also where x is infinite; LLVM makes a subtraction of this.
        return x + opaque(-1.0, dtype) * y
    if dtype in ("uint8", "uint16", "uint32"):
        return tirx.Cast(dtype, tirx.Cast("int64", x) - tirx.Cast("int64", y))
    if dtype == "uint64":  # 0 - x would be taken for 0
        return tirx.Select(x >= y, x - y, ~(y - x) + _one(x))
    return _wrapping(lambda x, y: x - y)(x, y)


def _negative(x: Any) -> Any:
    if not dtype_name(x).startswith("uint"):
        return -x
    one = _one(x)
    return tirx.Select(tirx.EQ(x, tirx.const(0, dtype_name(x))), x, ~x + one)  # 0 - x would be taken for 0


# -- arithmetic ------------------------------------------------------------------------------------------------


def _neutral(value: float) -> SimplifyRule:
    """The rule of a commutative op for which ``value`` does nothing, on either side."""
    return lambda x, y: x if is_number(y, value) else y if is_number(x, value) else None


def _multiply_simplify(x: Any, y: Any) -> Any:
    if dtypes.is_integer(x.dtype) and (is_number(x, 0) or is_number(y, 0)):
        return constant(0, x)  # 0 times a float may be -0 or NaN
    return _neutral(1)(x, y)


add = pointwise(
    "add",
    _wrapping(lambda x, y: x + y),
    (lambda g, o, x, y: g, lambda g, o, x, y: g),
    spelling=relax.op.add,
    simplify=_neutral(-0.0),  # -0.0 + 0.0 is 0.0
    exact=np.add,
)
subtract = pointwise(
    "subtract",
    _subtract,
    (lambda g, o, x, y: g, lambda g, o, x, y: -g),
    spelling=relax.op.subtract,
    simplify=lambda x, y: x if is_number(y, 0) else None,
    exact=np.subtract,
)
multiply = pointwise(
    "multiply",
    _wrapping(lambda x, y: x * y),
    (lambda g, o, x, y: g * y, lambda g, o, x, y: g * x),
    spelling=relax.op.multiply,
    simplify=_multiply_simplify,
    exact=np.multiply,
)


def _divide_read(call: relax.Call):
    # Relax divides integers, too: towards 0.
    return (list(call.args), {}) if str(call.ty.dtype.dtype).startswith(("float", "bfloat")) else None


divide = pointwise(
    "divide",
    lambda x, y: tirx.div(x, y),
    (lambda g, o, x, y: g / y, lambda g, o, x, y: -(g * o / y)),
    domain=FLOATS,
    spelling=Spelling("relax.divide", lambda exprs, params: relax.op.divide(*exprs), _divide_read),
    simplify=lambda x, y: x if is_number(y, 1) else None,
    exact=np.divide,
)


def is_float(x: Any) -> bool:
    """Whether a scalar expression is a float."""
    return dtype_name(x).startswith(("float", "bfloat"))


def isnan_formula(x: Any) -> Any:
    """Whether a float is NaN, by its bits: TVM's simplifier takes ``x != x`` for false."""
    if dtype_name(x) in ("float16", "bfloat16"):
        x = tirx.Cast("float32", x)
    uint, magnitude, infinity = {
        "float32": ("uint32", 2**31 - 1, 0xFF << 23),
        "float64": ("uint64", 2**63 - 1, 0x7FF << 52),
    }[dtype_name(x)]
    return (tirx.reinterpret(uint, x) & tirx.const(magnitude, uint)) > tirx.const(infinity, uint)


def _floor_divide(x: Any, y: Any) -> Any:
    if is_float(x):
        return compute_in_float32(_float_floor_divide)(x, y)
    zero = tirx.const(0, dtype_name(y))
    # Division of integers by zero is 0, as in NumPy.
    quotient = tirx.Select(tirx.EQ(y, zero), zero, tirx.floordiv(x, _safe_divisor(y)))
    return (
        tirx.Select(tirx.EQ(y, tirx.const(-1, dtype_name(y))), _wrapping(lambda x: -x)(x), quotient)
        if _is_signed(y)
        else quotient
    )


def _float_floor_divide(x: Any, y: Any) -> Any:
    dtype = dtype_name(x)
    plain = tirx.div(x, y)
    rest = fmod_formula(x, y)
    # Through the remainder: x / y may round up to the next integer.
    whole = tirx.nearbyint(tirx.div(_subtract(x, rest), y))
    whole = tirx.Select(_is_opposite(rest, y), whole - _one(x), whole)
    whole = tirx.Select(tirx.EQ(whole, tirx.const(0, dtype)), plain * opaque(0.0, dtype), whole)  # 0 with its sign
    # Also where the quotient is infinite, or NaN because both are.
    at_once = tirx.Or(tirx.EQ(y, tirx.const(0, dtype)), tirx.abs(x) >= tirx.infinity(dtype))
    return tirx.Select(at_once, plain, whole)


def _is_opposite(rest: Any, y: Any) -> Any:
    """Whether a remainder has another sign than the divisor, and is not 0."""
    zero = tirx.const(0, dtype_name(y))
    return tirx.Or(tirx.And(rest < zero, y > zero), tirx.And(rest > zero, y < zero))


def _is_signed(x: Any) -> bool:
    return dtype_name(x).startswith("int")


def _safe_divisor(y: Any) -> Any:
    """A divisor that cannot trap: 0 traps, and so does -1 under the smallest integer."""
    # The simplifier would drop a plain test for 0 below one that is around the division, which runs in any case.
    turned = y ^ opaque(1, dtype_name(y))
    bad = tirx.EQ(turned, tirx.const(1, dtype_name(y)))
    if _is_signed(y):
        bad = tirx.Or(bad, tirx.EQ(turned, tirx.const(-2, dtype_name(y))))
    return tirx.Select(bad, _one(y), y)


def fmod_formula(x: Any, y: Any) -> Any:
    """C's remainder of a division of floats."""
    if dtype_name(x) == "float64":
        return tirx.call_pure_extern("float64", "fmod", x, y)
    wide = (tirx.Cast("float32", v) for v in (x, y))
    return tirx.call_pure_extern("float32", "fmodf", *wide).astype(dtype_name(x))


def _remainder(x: Any, y: Any) -> Any:
    if is_float(x):
        rest = fmod_formula(x, y)
        zero = tirx.Select(y < tirx.const(0, dtype_name(y)), opaque(-0.0, dtype_name(y)), opaque(0.0, dtype_name(y)))
        nonzero = tirx.Select(_is_opposite(rest, y), rest + y, rest)
        return tirx.Select(tirx.EQ(rest, tirx.const(0, dtype_name(x))), zero, nonzero)
    zero = tirx.const(0, dtype_name(y))
    return tirx.Select(tirx.EQ(y, zero), zero, tirx.floormod(x, _safe_divisor(y)))


# Quotients of floats go through an exact remainder, which is long; those of integers are what indices are made of.
floor_divide = pointwise(
    "floor_divide", _floor_divide, (None, None), spelling=relax.op.floor_divide, inexpensive=INTEGERS
)
remainder = pointwise(
    "remainder",
    _remainder,
    (lambda g, o, x, y: g, lambda g, o, x, y: -(g * (x // y))),
    spelling=relax.op.floor_mod,
    relax_name="floor_mod",
    inexpensive=INTEGERS,
)


def _power_vjp_base(g: Array, out: Array, x: Array, y: Array) -> Array:
    # 0 at x = y = 0, where x**(y-1) is infinite. The product stays where y is 0: it depends on y there.
    # Not `x == 0`, which NumPy would compute where x is a number, also in half precision.
    base = where(equal(x, constant(0, x)) & equal(y, constant(0, y)), constant(1, x), x)
    return g * (y * power(base, y - 1))


def _power_vjp_exponent(g: Array, out: Array, x: Array, y: Array) -> Array:
    # 0 where x is 0, where log(x) is infinite.
    return g * (out * log(where(equal(x, constant(0, x)), constant(1, x), x)))


power = pointwise(
    "power",
    compute_in_float32(tirx.power),
    (_power_vjp_base, _power_vjp_exponent),
    domain=FLOATS,
    spelling=relax.op.power,
    inexpensive=False,
)
negative = pointwise(
    "negative",
    _wrapping(_negative),
    (lambda g, o, x: -g,),
    spelling=relax.op.negative,
    simplify=lambda x: argument(x, 0) if made_by(x, "negative") else None,
    exact=np.negative,
)


def _abs(x: Any) -> Any:
    if not _is_signed(x):
        return tirx.abs(x)
    # That of the smallest integer is negative. Neither LLVM may see an overflow, nor the simplifier a magnitude.
    dtype = dtype_name(x)
    below = x < tirx.const(0, dtype)
    size = tirx.Cast(f"u{dtype}", tirx.Select(below, ~x, x)) + tirx.Cast(f"u{dtype}", below)
    return (tirx.Cast(dtype, size) ^ opaque(1, dtype)) ^ tirx.const(1, dtype)


# The derivative at 0 is that from the right: with 0 there, the square of an absolute value would have no curvature.
abs = pointwise("abs", _abs, (lambda g, o, x: where(x >= 0, g, -g),), spelling=relax.op.abs)


def _sign(x: Any) -> Any:
    zero = tirx.const(0, dtype_name(x))
    if dtype_name(x).startswith("uint"):
        return tirx.Select(x > zero, _one(x), zero)
    neither = tirx.Select(isnan_formula(x), x, zero) if is_float(x) else zero
    return tirx.Select(x > zero, _one(x), tirx.Select(x < zero, tirx.const(-1, dtype_name(x)), neither))


sign = pointwise("sign", _sign, (None,), spelling=relax.op.sign)


def _ties_shared(g: Array, chosen: Array, other: Array, out: Array) -> Array:
    """The cotangent of a maximum or minimum: all to the winner, half to each in a tie."""
    share = where(chosen == other, constant(0.5, g), constant(1, g))
    return where(chosen == out, g * share, constant(0, g))


def _maximum(x: Any, y: Any) -> Any:
    if dtype_name(x) == "bool":
        return tirx.Or(x, y)
    if not is_float(x):
        return tirx.max(x, y)
    return tirx.Select(tirx.Or(x > y, isnan_formula(x)), x, y)  # a NaN wins, wherever it is


def _minimum(x: Any, y: Any) -> Any:
    if dtype_name(x) == "bool":
        return tirx.And(x, y)
    if not is_float(x):
        return tirx.min(x, y)
    return tirx.Select(tirx.Or(x < y, isnan_formula(x)), x, y)


maximum = pointwise(
    "maximum",
    _maximum,
    (lambda g, o, x, y: _ties_shared(g, x, y, o), lambda g, o, x, y: _ties_shared(g, y, x, o)),
    domain=dtypes.ALL,
    spelling=relax.op.maximum,
)
minimum = pointwise(
    "minimum",
    _minimum,
    (lambda g, o, x, y: _ties_shared(g, x, y, o), lambda g, o, x, y: _ties_shared(g, y, x, o)),
    domain=dtypes.ALL,
    spelling=relax.op.minimum,
)
relu = pointwise(
    "relu",
    lambda x: tirx.Select(x <= tirx.const(0, dtype_name(x)), tirx.const(0, dtype_name(x)), x),
    # Through the result, so that the argument need not be kept; 0 at 0, as everybody has it.
    (lambda g, o, x: where(o > 0, g, constant(0, g)),),
    spelling=relax.op.nn.relu,
    relax_name="nn.relu",
)

# -- elementary functions --------------------------------------------------------------------------------------

exp = _float_unary("exp", tirx.exp, lambda g, o, x: g * o, relax.op.exp)
expm1 = _float_unary(
    "expm1",
    # Near 0 exp(x) - 1 cancels; (u - 1) * x / log(u) with u = exp(x) does not (Kahan).
    lambda x: _expm1(x),
    lambda g, o, x: g * (o + 1),
)
log = _float_unary("log", tirx.log, lambda g, o, x: g / x, relax.op.log)
log1p = _float_unary("log1p", tirx.log1p, lambda g, o, x: g / (x + 1))
sqrt = _float_unary("sqrt", tirx.sqrt, lambda g, o, x: g * 0.5 / o, relax.op.sqrt)
rsqrt = _float_unary(
    "rsqrt",
    lambda x: _one(x) / tirx.sqrt(x),
    lambda g, o, x: g * -0.5 * (o / x),
    relax.op.rsqrt,
)
sin = _float_unary("sin", tirx.sin, lambda g, o, x: g * cos(x), relax.op.sin)
cos = _float_unary("cos", tirx.cos, lambda g, o, x: -(g * sin(x)), relax.op.cos)


def _tanh(x: Any) -> Any:
    # TVM's own formula for double precision cancels near 0.
    return tirx.call_pure_extern("float64", "tanh", x) if dtype_name(x) == "float64" else tirx.tanh(x)


tanh = _float_unary(
    "tanh",
    _tanh,
    lambda g, o, x: g * (1 - o * o),
    relax.op.tanh,
    precision="either",
)
sigmoid = _float_unary(
    "sigmoid",
    lambda x: _one(x) / (_one(x) + tirx.exp(-x)),
    lambda g, o, x: g * (o * (1 - o)),
    relax.op.sigmoid,
    precision="either",
)
erf = _float_unary(
    "erf",
    tirx.erf,
    lambda g, o, x: g * (2 / math.sqrt(math.pi) * exp(-(x * x))),
    relax.op.erf,
    precision="either",
)


def _expm1(x: Any) -> Any:
    u = tirx.exp(x)
    one = _one(x)
    near = (u - one) * x / tirx.log(u)
    small = tirx.abs(x) < tirx.const(0.5, dtype_name(x))
    return tirx.Select(u == one, x, tirx.Select(small, near, u - one))


# Giles, "Approximating the erfinv function" (2011): polynomials in w = -log(1 - x*x), highest power first.
_ERF_INV_CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERF_INV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def _erf_inv(x: Any) -> Any:
    def polynomial(coefficients: tuple[float, ...], w: Any) -> Any:
        result = tirx.const(coefficients[0], dtype_name(x))
        for coefficient in coefficients[1:]:
            result = result * w + tirx.const(coefficient, dtype_name(x))
        return result

    one = _one(x)
    # The maximum keeps x * x from being fused into 1 - x * x with another rounding.
    w = -tirx.log1p(tirx.max(-x * x, -one))
    central = polynomial(_ERF_INV_CENTRAL, w - tirx.const(2.5, dtype_name(x)))
    tail = polynomial(_ERF_INV_TAIL, tirx.sqrt(w) - tirx.const(3, dtype_name(x)))
    value = tirx.Select(w < tirx.const(5, dtype_name(x)), central, tail) * x
    if dtype_name(x) == "float64":  # single precision so far; two Newton steps double the digits twice
        slope = tirx.const(math.sqrt(math.pi) / 2, dtype_name(x))
        for _ in range(2):
            value = value - (tirx.erf(value) - x) * slope * tirx.exp(value * value)
    edge = tirx.Select(tirx.EQ(tirx.abs(x), one), x * tirx.infinity(dtype_name(x)), tirx.const(math.nan, dtype_name(x)))
    return tirx.Select(tirx.abs(x) < one, value, edge)


erf_inv = _float_unary(
    "erf_inv",
    _erf_inv,
    lambda g, o, x: g * (math.sqrt(math.pi) / 2 * exp(o * o)),
)


def _step(name: str, formula: Callable, spelling: Callable) -> Op:
    """A piecewise constant function."""
    return pointwise(name, compute_in_float32(formula), (None,), domain=FLOATS, spelling=spelling)


floor = _step("floor", tirx.floor, relax.op.floor)
ceil = _step("ceil", tirx.ceil, relax.op.ceil)
round = _step("round", tirx.nearbyint, relax.op.round)  # half to even
trunc = _step("trunc", tirx.trunc, relax.op.trunc)

# -- comparison and logic --------------------------------------------------------------------------------------


def _comparison(name: str, formula: Callable, spelling: Callable, exact: Callable) -> Op:
    def compare(x: Any, y: Any) -> Any:
        if dtype_name(x) == "bool":  # LLVM has no vectors of bools to compare
            x, y = x.astype("int8"), y.astype("int8")
        return formula(x, y)

    return pointwise(name, compare, domain=ANY, result=dtypes.bool_, spelling=spelling, exact=exact)


def _equal(x: Any, y: Any) -> Any:
    # Code for EQ and NE of floats is right for numbers only, and is simplified as if there were no NaN.
    return tirx.And(tirx.Not(isnan_formula(x)), tirx.EQ(x, y)) if is_float(x) else tirx.EQ(x, y)


def _not_equal(x: Any, y: Any) -> Any:
    return tirx.Or(tirx.Or(isnan_formula(x), isnan_formula(y)), tirx.NE(x, y)) if is_float(x) else tirx.NE(x, y)


equal = _comparison("equal", _equal, relax.op.equal, np.equal)
not_equal = _comparison("not_equal", _not_equal, relax.op.not_equal, np.not_equal)
less = _comparison("less", lambda x, y: x < y, relax.op.less, np.less)
less_equal = _comparison("less_equal", lambda x, y: x <= y, relax.op.less_equal, np.less_equal)
greater = _comparison("greater", lambda x, y: x > y, relax.op.greater, np.greater)
greater_equal = _comparison("greater_equal", lambda x, y: x >= y, relax.op.greater_equal, np.greater_equal)


def _bitwise(name: str, on_bits: Callable, on_bools: Callable, spelling: Callable) -> Op:
    formula = lambda *xs: on_bools(*xs) if dtype_name(xs[0]) == "bool" else on_bits(*xs)
    return pointwise(name, formula, domain=BITS, spelling=spelling)


bitwise_and = _bitwise("bitwise_and", lambda x, y: x & y, tirx.And, relax.op.bitwise_and)
bitwise_or = _bitwise("bitwise_or", lambda x, y: x | y, tirx.Or, relax.op.bitwise_or)
bitwise_xor = _bitwise(
    "bitwise_xor", lambda x, y: x ^ y, lambda x, y: tirx.NE(x.astype("int8"), y.astype("int8")), relax.op.bitwise_xor
)
# Not of a comparison would be simplified to the opposite comparison, which is wrong for NaN.
bitwise_not = _bitwise(
    "bitwise_not", lambda x: ~x, lambda x: tirx.EQ(x.astype("int8"), tirx.const(0, "int8")), relax.op.bitwise_not
)


def _shift(name: str, formula: Callable, signs_fill: bool) -> Op:
    def shifted(x: Any, count: Any) -> Any:
        # Shifting by the width or more is undefined in hardware. As in XLA all bits are gone, and where signs move
        # in from the left, only they are left.
        dtype = dtype_name(x)
        zero, last = tirx.const(0, dtype), tirx.const(np.dtype(dtype).itemsize * 8 - 1, dtype)
        too_far = tirx.Or(count > last, count < zero)
        if signs_fill and _is_signed(x):
            return formula(x, tirx.Select(too_far, last, count))
        return tirx.Select(too_far, zero, formula(x, tirx.Select(too_far, zero, count)))

    return pointwise(name, shifted, domain=INTEGERS)


left_shift = _shift("left_shift", lambda x, n: x << n, signs_fill=False)
right_shift = _shift("right_shift", lambda x, n: x >> n, signs_fill=True)

isnan = pointwise("isnan", isnan_formula, domain=FLOATS, result=dtypes.bool_, spelling=relax.op.isnan)
isfinite = pointwise(
    "isfinite",
    lambda x: tirx.abs(x) < tirx.infinity(dtype_name(x)) if dtype_name(x) != "bfloat16" else _isfinite_bfloat16(x),
    domain=FLOATS,
    result=dtypes.bool_,
    spelling=relax.op.isfinite,
)


def _isfinite_bfloat16(x: Any) -> Any:
    wide = tirx.Cast("float32", x)
    return tirx.abs(wide) < tirx.infinity("float32")


def _where_shape(condition: ShapeDtype, x: ShapeDtype, y: ShapeDtype) -> ShapeDtype:
    if condition.dtype != dtypes.bool_:
        raise DtypeError("where", "the condition must be bool", got=repr(condition), hint="condition != 0")
    if x.dtype != y.dtype:
        raise DtypeError("where", "both branches must have one dtype", got=f"{x} and {y}", hint="x.astype(y.dtype)")
    common = broadcast_shapes("where", [condition.shape, x.shape, y.shape])
    return ShapeDtype(common, x.dtype, weak=x.weak and y.weak)


def _where_simplify(condition: Any, x: Any, y: Any) -> Any:
    if same(x, y):
        known = number(x)
        return x if known is None else known
    chosen = number(condition)
    return None if chosen is None else x if chosen else y


where = register_pointwise(
    Op(
        "where",
        "pointwise",
        _where_shape,
        lambda c, x, y: tirx.Select(c, x, y),
        (
            None,
            _unbroadcasting(1, lambda g, o, c, x, y: where(c, g, constant(0, g))),
            _unbroadcasting(2, lambda g, o, c, x, y: where(c, constant(0, g), g)),
        ),
        relax_spelling("relax.where", relax.op.where),
        simplify=_where_simplify,
        flops=nothing,
    )
)

# -- dtypes and identity ---------------------------------------------------------------------------------------


def _astype_shape(x: ShapeDtype, *, dtype: str) -> ShapeDtype:
    return ShapeDtype(x.shape, dtypes.canonical(dtype))


def _to_integer(x: Any, dtype: str) -> Any:
    """A float as an integer: towards 0, the nearest one there is for what does not fit, and 0 for NaN, as in XLA.

    What does not fit is undefined in LLVM, and would differ between vectors and single elements.
    """
    if dtype_name(x) in ("float16", "bfloat16"):
        x = tirx.Cast("float32", x)
    info = np.iinfo(dtype)
    whole = lambda value: opaque(value, dtype) if info.bits == 64 and value else tirx.const(value, dtype)
    low, end = (tirx.const(float(limit), dtype_name(x)) for limit in (info.min, 2 ** (info.bits - (info.min < 0))))
    outside = tirx.Select(x >= end, whole(info.max), tirx.Select(x < low, whole(info.min), tirx.const(0, dtype)))
    return tirx.Select(tirx.And(x >= low, x < end), x.astype(dtype), outside)


def _astype(x: Any, *, dtype: str) -> Any:
    if dtype == "bool":
        return _not_equal(x, tirx.const(0, dtype_name(x)))
    if dtype_name(x) == "bool":  # LLVM's signed view of true is -1
        return tirx.Select(x, tirx.const(1, dtype), tirx.const(0, dtype))
    if is_float(x) and dtypes.is_integer(dtypes.canonical(dtype)):
        return _to_integer(x, dtype)
    return x.astype(dtype)


def _astype_vjp(g: Array, out: Array, x: Array, *, dtype: str) -> Array:
    return astype(g, dtype=dtypes.NAMES[x.dtype])


def _astype_simplify(x: Any, *, dtype: str) -> Any:
    return x if isinstance(x, Array) and x.dtype == dtype else None


def _astype_exact(x: np.generic, *, dtype: str) -> np.generic | None:
    # To the same dtype it stays an equation: it is how a number gets a dtype that does not give way.
    return None if x.dtype == dtype else cast(x, dtype=dtype)


astype = register_pointwise(
    Op(
        "astype",
        "pointwise",
        _astype_shape,
        _astype,
        (_astype_vjp,),
        Spelling(
            "relax.astype",
            lambda exprs, params: relax.op.astype(*exprs, params["dtype"]),
            lambda call: (list(call.args), {"dtype": str(call.attrs.dtype)}),
        ),
        simplify=_astype_simplify,
        flops=nothing,
    ),
    _astype_exact,
)


def _bitcast_shape(x: ShapeDtype, *, dtype: str) -> ShapeDtype:
    result = dtypes.canonical(dtype)
    if result.itemsize != x.dtype.itemsize or dtypes.bool_ in (x.dtype, result):
        raise DtypeError("bitcast", "both dtypes must have the same number of bits", got=f"{x.dtype} to {result}")
    return ShapeDtype(x.shape, result)


def _bitcast(x: Any, *, dtype: str) -> Any:
    if dtype_name(x) != "bfloat16":
        return tirx.reinterpret(dtype, x)
    # A result of bfloat16 is a float32 that is not rounded yet where it is used in the same kernel.
    return tirx.reinterpret(dtype, (_rounded_bits(x.astype("float32")) >> tirx.const(16, "uint32")).astype("uint16"))


def _rounded_bits(x: Any) -> Any:
    """The bits of a float32, of which the upper half are those of the nearest bfloat16."""
    bits = tirx.reinterpret("uint32", x)
    unsigned = lambda value: tirx.const(value, "uint32")
    return bits + unsigned(0x7FFF) + (bits >> unsigned(16) & unsigned(1))


def rounded_to_bfloat16(x: Any) -> Any:
    """A number as the nearest bfloat16, also where the same kernel goes on with it.

    TVM's legalization computes on bfloat16 in float32, and leaves out a conversion there and back. It makes 0 of a NaN
    whose last bits are ones, by a carry into the sign.
    """
    may_be_nan = is_float(x)
    x = x.astype("float32")
    unsigned = lambda value: tirx.const(value, "uint32")
    bits = _rounded_bits(x)
    if may_be_nan:
        bits = tirx.Select(isnan_formula(x), tirx.reinterpret("uint32", x) | unsigned(0x400000), bits)
    return tirx.reinterpret("float32", bits & unsigned(0xFFFF0000)).astype("bfloat16")


bitcast = register_pointwise(Op("bitcast", "pointwise", _bitcast_shape, _bitcast, precision="high", flops=nothing))
stop_gradient = register_pointwise(Op("stop_gradient", "pointwise", lambda x: x, lambda x: x, (None,), flops=nothing))
