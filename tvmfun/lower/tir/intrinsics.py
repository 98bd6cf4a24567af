"""Transcendental functions as arithmetic that vectorizes, instead of scalar calls into libm.

LLVM cannot vectorize a call of ``expf``, so softmax, GELU or dropout would spend their time in scalar code.
:func:`expand` replaces the calls by polynomials and rational functions of range-reduced arguments. Each function
states its error bound in units in the last place (ulp), measured over random numbers against float64, and in double
precision against numbers of 80 bits. Infinities, NaN, zeros and subnormal numbers give the same results as in C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Bind, BufferStore, For, ForKind, Stmt

from tvmfun.lower.tir.remainders import vectorize_remainders
from tvmfun.lower.tir.walk import called, find, rewrite

# TVM's node classes do not declare their operators in a way that type checkers understand.
Expr = Any

# Binds an intermediate result to a variable, so that it is computed once.
Name = Callable[[Expr], Expr]


def is_heavy(value: Expr) -> bool:
    """Whether an expression contains a call that expands to many instructions."""
    return any(_function(call) in FUNCTIONS for call in find(value, ir.Call))


def expand(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Returns the function with vectorizable arithmetic instead of calls on floats in its stores.

    Half precision is computed in float32 and rounded. Calls on float64 stay unless they are of :data:`IN_DOUBLE`, and
    so do calls in a branch of ``if_then_else``, whose arguments may only be evaluated when that branch is taken.
    """
    func = vectorize_remainders(func)
    func = func.with_body(rewrite(func.body, (tirx.NE, _expand_inequality), (ir.Call, _expand_is_nan)))
    # TVM's legalization of bfloat16 does not widen bound variables, so it runs before there are any.
    if any(str(node.ty) == "bfloat16" for node in find(func.body, tirx.Cast, ir.TensorLoad)):
        func = _with_wide_intermediates(func)
    body = rewrite(func.body, (For, _expand_vectorized))
    return func.with_body(rewrite(body, (BufferStore, _expand_scalar)))


def _with_wide_intermediates(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with float32 arithmetic instead of bfloat16, also in the values of bound variables."""
    wide = tirx.transform.BF16ComputeLegalize()(tvm.IRModule({"main": func}))["main"]
    pairs = zip(*([node.buffer for node in find(f.body, AllocBuffer)] for f in (func, wide)), strict=True)
    widened = {old: new for old, new in pairs if not old.same_as(new)}

    def bits(call: ir.Call) -> Expr:
        """Bits of an intermediate, rounded to bfloat16 first."""
        load = call.args[0] if called(call) == "tirx.reinterpret" else None
        if not isinstance(load, ir.TensorLoad) or load.source not in widened:
            return call
        exact = tirx.reinterpret("uint32", widened[load.source][tuple(load.indices)])
        rounded = exact + _u(0x7FFF) + (exact >> _u(16) & _u(1))
        return tirx.Cast("uint16", rounded >> _u(16))

    return wide.with_body(rewrite(wide.body, (Bind, lambda bind: Bind(bind.var, rewrite(bind.value, (ir.Call, bits))))))


def _expand_inequality(comparison: tirx.NE) -> Expr:
    """``x != x`` as a test for NaN: TVM's simplifier takes floats for real numbers, and would make it false."""
    same = str(comparison.a.ty) in FLOATS and tvm_ffi.structural_equal(comparison.a, comparison.b)
    return _is_nan(comparison.a) if same else comparison


def _expand_is_nan(call: ir.Call) -> Expr:
    return _is_nan(call.args[0]) if called(call) == "tirx.isnan" else call


def _is_nan(x: Expr) -> Expr:
    """Whether x is NaN, by its bits, because ``tirx.isnan`` does not vectorize."""
    if str(x.ty) == "float64":
        return tirx.reinterpret("int64", x) & tirx.const(2**63 - 1, "int64") > tirx.const(0x7FF << 52, "int64")
    return tirx.reinterpret("int32", _cast("float32", x)) & _i(0x7FFFFFFF) > _i(0x7F800000)


def _expand_vectorized(loop: For) -> Stmt:
    if loop.kind != ForKind.VECTORIZED:
        return loop
    registers: list[Stmt] = []
    lane = loop.loop_var - loop.min
    body = rewrite(loop.body, (BufferStore, lambda store: _expand_store(store, int(loop.extent), lane, registers)))
    expanded = For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)
    return tirx.SeqStmt([*registers, expanded]) if registers else expanded


def _expand_scalar(store: BufferStore) -> Stmt:
    registers: list[Stmt] = []
    expanded = _expand_store(store, 1, _i(0), registers)
    return tirx.SeqStmt([*registers, expanded]) if registers else expanded


def _expand_store(store: BufferStore, lanes: int, lane: Expr, registers: list[Stmt]) -> Stmt:
    """Expands the calls in one store; adds allocations for outside the loop over lanes to ``registers``."""
    calls = find(store.value, ir.Call)
    guarded = _guarded_calls(calls)
    expandable = {call for call in calls if _is_expandable(call)} - guarded
    if not expandable:
        return store
    # Intermediate results are bound by statements, because CommonSubexprElim fails on subexpressions that two let
    # expressions have in common.
    bindings: list[Stmt] = []

    # If TVM turns the store into a loop over lanes, bound variables would hold the values of the last lane.
    in_memory = lanes > 1 and any(map(_parts_lanes, calls))

    def name(value: Expr) -> Expr:
        if in_memory:
            return value if isinstance(value, ir.TensorLoad) else keep(value)
        if isinstance(value, ir.Var):
            return value
        var = ir.Var("t", value.ty)
        bindings.append(Bind(var, value))
        return var

    def keep(value: Expr) -> Expr:
        # A buffer, which LLVM turns into a register: TVM's simplifier would substitute a variable by its whole
        # formula wherever it is used, and again in the next formula.
        buffer = tirx.decl_buffer((lanes,), str(value.ty))
        registers.append(AllocBuffer(buffer))
        bindings.append(BufferStore(buffer, value, [lane]))
        return buffer[lane]

    several = len(expandable) > 1
    results: list[tuple[ir.Call, Expr]] = []

    def visit(call: ir.Call) -> Expr:
        if call in guarded or not _is_expandable(call):
            return call
        for known, result in results:
            if tvm_ffi.structural_equal(known, call):
                return result
        argument = call.args[-1]
        if several and not isinstance(argument, ir.TensorLoad):
            argument = keep(argument)
        result = _expand_call(call, argument, name)
        results.append((call, keep(result) if several else result))
        return results[-1][1]

    value = rewrite(store.value, (ir.Call, visit))
    if not bindings:
        return store
    return tirx.SeqStmt([*bindings, BufferStore(store.buffer, value, store.indices)])


def _parts_lanes(call: ir.Call) -> bool:
    """Whether TVM cannot vectorize a call, and turns its statement into a loop instead."""
    if _is_expandable(call):
        return False
    op = call.op
    return not isinstance(op, ir.Op) or not (op.name in VECTORS or op.get_attr("TVectorizable"))


def _is_expandable(call: ir.Call) -> bool:
    dtype = str(call.ty)
    return _function(call) in (IN_DOUBLE if dtype == "float64" else FUNCTIONS) and dtype in FLOATS


def _function(call: ir.Call) -> str | None:
    """The intrinsic that a call is of, also one of libm's function of that name."""
    name = called(call)
    return f"tirx.{call.args[0].value}" if name == "tirx.call_pure_extern" else name


def _guarded_calls(calls: Sequence[ir.Call]) -> set[ir.Call]:
    """The calls inside the branches of ``if_then_else``."""
    choices = [call for call in calls if called(call) in ("prim.if_then_else", "tirx.if_then_else")]
    return {inner for call in choices for branch in call.args[1:] for inner in find(branch, ir.Call)}


def _expand_call(call: ir.Call, argument: Expr, name: Name) -> Expr:
    dtype = str(call.ty)
    result = FUNCTIONS[_function(call)](name(argument if dtype == "float64" else _cast("float32", argument)), name)
    return _cast(dtype, name(result))


def exp(x: Expr, name: Name) -> Expr:
    """e**x, within 1.01 ulp; in double precision within 0.8."""
    own = _FORMATS[str(x.ty)]
    number = own.number
    # At the bounds the result is already 0 or infinite. NaN reaches ``kept``, but not ``safe``, which is converted to
    # an integer. Arithmetic on subnormal numbers is slow, and masks produce many, so results of 0 are selected.
    least, most = map(number, own.exp_bounds)
    kept = name(tirx.Select(x > most, most, tirx.Select(x < least, number(0.0), x)))
    safe = tirx.Select(x >= least, tirx.Select(x < most, x, most), number(0.0))
    n = name(tirx.floor(safe * number(LOG2_E) + number(0.5)))
    r = name(kept - n * number(own.ln2[0]) - n * number(own.ln2[1]))
    # Two factors, because 2**k alone leaves the range before the result does.
    k = name(_cast("int32", n))
    half = name(tirx.shift_right(k, _i(1)))
    rest = name(_horner(r, own.exp) * r * r)
    if own.dtype == "float64":  # adds what the rounding of 1 + r lost
        near = name(own.as_computed(r + number(1.0), name))
        total = near + (number(1.0) - near + r + rest)
    else:
        total = rest + r + number(1.0)
    result = total * own.power_of_two(half) * own.power_of_two(k - half)
    return tirx.Select(x < least, number(0.0), result)


def log(x: Expr, name: Name) -> Expr:
    """The natural logarithm, within 1 ulp."""
    own = _FORMATS[str(x.ty)]
    number, integer, shift = own.number, own.integer, own.integer(own.fraction)
    tiny = x < number(2.0 ** (1 - own.bias))
    bits = name(tirx.reinterpret(own.bits, name(tirx.Select(tiny, x * number(2.0**own.fraction), x))))
    # x = 2**k * m with m in [sqrt(1/2), sqrt(2)), and r = m - 1.
    exponent = name(tirx.shift_right(bits - integer(own.root_half), shift))
    k = name(_cast(own.dtype, _cast("int32", exponent)) + tirx.Select(tiny, number(-own.fraction), number(0.0)))
    r = name(tirx.reinterpret(own.dtype, name(bits - tirx.shift_left(exponent, shift))) - number(1.0))
    square = name(r * r)
    tail = r * square * own.log(r) + k * number(own.ln2[1]) - number(0.5) * square
    result = tirx.Select(x == number(0.0), number(float("-inf")), r + tail + k * number(own.ln2[0]))
    result = tirx.Select(x < number(0.0), number(float("nan")), result)
    # Infinity and NaN are returned as they are: NaN fails every comparison.
    return tirx.Select(x < number(float("inf")), result, x)


def log1p(x: Expr, name: Name) -> Expr:
    """log(1 + x) without the rounding of 1 + x, within 3 ulp."""
    own = _FORMATS[str(x.ty)]
    one = own.number(1.0)
    u = name(own.as_computed(x + one, name))
    exact = tirx.any(u == one, u == own.number(float("inf")))
    return tirx.Select(exact, x, name(log(u, name)) * (x / (u - one)))


def tanh(x: Expr, name: Name) -> Expr:
    """The hyperbolic tangent, within 5 ulp; in double precision within 3."""
    if str(x.ty) == "float64":
        return _tanh_double(x, name)
    near_zero = tirx.all(x > _f(-4e-4), x < _f(4e-4))
    result = tirx.Select(near_zero, x, _odd_rational(x, 7.90531110763549805, TANH, name))
    # The rational function ends just below 1.
    return tirx.Select(x > _f(9.0), _f(1.0), tirx.Select(x < _f(-9.0), _f(-1.0), result))


def _tanh_double(x: Expr, name: Name) -> Expr:
    """Near zero x + x**3 * p(x**2) / q(x**2), and elsewhere 1 - 2 / (exp(2 * |x|) + 1) with the sign of x."""
    number = _FORMATS["float64"].number
    size = name(tirx.Select(x < number(0.0), number(0.0) - x, x))
    square = name(tirx.Select(size < number(0.625), x * x, number(0.0)))
    ratio = _horner(square, TANH_DOUBLE[0]) / _horner(square, TANH_DOUBLE[1])
    near = tirx.Select(square == number(0.0), x, x + x * square * ratio)
    far = name(number(1.0) - number(2.0) / (exp(name(size + size), name) + number(1.0)))
    # NaN fails the comparison.
    return tirx.Select(size >= number(0.625), tirx.Select(x < number(0.0), number(0.0) - far, far), near)


def erf(x: Expr, name: Name) -> Expr:
    """The error function, within 6 ulp."""
    return _odd_rational(x, 3.7439211627767994, ERF, name)


def sigmoid(x: Expr, name: Name) -> Expr:
    """1 / (1 + exp(-x)), within 3 ulp where that is a normal number."""
    number = _FORMATS[str(x.ty)].number
    return number(1.0) / (number(1.0) + exp(name(number(0.0) - x), name))


def _odd_rational(x: Expr, bound: float, tables: tuple[Sequence[float], Sequence[float]], name: Name) -> Expr:
    """Returns x * p(x**2) / q(x**2), with x clipped to +-bound."""
    numerator, denominator = tables
    kept = name(tirx.Select(x > _f(bound), _f(bound), tirx.Select(x < _f(-bound), _f(-bound), x)))
    square = name(kept * kept)
    return kept * _horner(square, numerator) / _horner(square, denominator)


def _horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial with these coefficients, highest power first."""
    number = _FORMATS[str(x.ty)].number
    total = number(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + number(coefficient)
    return total


def _cast(dtype: str, value: Expr) -> Expr:
    return value if str(value.ty) == dtype else tirx.Cast(dtype, value)


def _f(value: float) -> Expr:
    return tirx.const(value, "float32")


def _i(value: int) -> Expr:
    return tirx.const(value, "int32")


def _u(value: int) -> Expr:
    return tirx.const(value, "uint32")


# Calls that TVM vectorizes although their operators do not say so.
VECTORS = ("tirx.reinterpret",)

FLOATS = ("float16", "bfloat16", "float32", "float64")

LOG2_E = 1.44269504088896341

# exp and log: Cephes (S. Moshier), single precision; log and tanh in double precision, too. exp in double precision:
# the Taylor series, whose rest is below 1e-18 for |r| < log(2) / 2. tanh and erf: the rational functions of Eigen and
# XLA.
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
EXP_DOUBLE = tuple(1 / math.factorial(n) for n in range(14, 1, -1))
LOG_DOUBLE = (
    (
        1.01875663804580931796e-4,
        4.97494994976747001425e-1,
        4.70579119878881725854,
        1.44989225341610930846e1,
        1.79368678507819816313e1,
        7.70838733755885391666,
    ),
    (
        1.0,
        1.12873587189167450590e1,
        4.52279145837532221105e1,
        8.29875266912776603211e1,
        7.11544750618563894466e1,
        2.31251620126765340583e1,
    ),
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
TANH_DOUBLE = (
    (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3),
    (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3),
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


@dataclass(frozen=True)
class _Format:
    """A floating-point format, and the constants of ``exp`` and ``log`` in it.

    Args:
        dtype, bits: its name, and that of the integer of as many bits.
        fraction: the bits of the fraction.
        bias: what is added to exponents.
        root_half: the bits of the square root of 1/2.
        exp_bounds: below the first, ``exp`` is 0, and above the second infinite.
        ln2: log(2) in two parts; the product of the first with any exponent is exact.
        exp: the coefficients of (exp(r) - 1 - r) / r**2.
        log: the function (log(1 + r) - r + r**2 / 2) / r**3.
    """

    dtype: str
    bits: str
    fraction: int
    bias: int
    root_half: int
    exp_bounds: tuple[float, float]
    ln2: tuple[float, float]
    exp: Sequence[float]
    log: Callable[[Expr], Expr]

    def number(self, value: float) -> Expr:
        return tirx.const(value, self.dtype)

    def integer(self, value: int) -> Expr:
        return tirx.const(value, self.bits)

    def as_computed(self, value: Expr, name: Name) -> Expr:
        """A rounded value as its bits, so that TVM does not simplify what depends on it as if it were exact."""
        return tirx.reinterpret(self.dtype, name(tirx.reinterpret(self.bits, value)))

    def power_of_two(self, k: Expr) -> Expr:
        """2**k, for an int32 in the range of exponents."""
        wide = _cast(self.bits, k + _i(self.bias))
        return tirx.reinterpret(self.dtype, tirx.shift_left(wide, self.integer(self.fraction)))


_FORMATS = {
    "float32": _Format(
        dtype="float32",
        bits="int32",
        fraction=23,
        bias=127,
        root_half=0x3F3504F3,
        exp_bounds=(-104.0, 89.5),
        ln2=(0.693359375, -2.12194440e-4),
        exp=EXP,
        log=lambda r: _horner(r, LOG),
    ),
    "float64": _Format(
        dtype="float64",
        bits="int64",
        fraction=52,
        bias=1023,
        root_half=0x3FE6A09E667F3BCD,
        exp_bounds=(-746.0, 710.0),
        ln2=(float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")),
        exp=EXP_DOUBLE,
        log=lambda r: _horner(r, LOG_DOUBLE[0]) / _horner(r, LOG_DOUBLE[1]),
    ),
}

FUNCTIONS: dict[str, Callable[[Expr, Name], Expr]] = {
    "tirx.exp": exp,
    "tirx.log": log,
    "tirx.log1p": log1p,
    "tirx.tanh": tanh,
    "tirx.erf": erf,
    "tirx.sigmoid": sigmoid,
}

#: What is expanded in double precision, too; the others are functions of libm there.
IN_DOUBLE = ("tirx.exp", "tirx.log", "tirx.log1p", "tirx.tanh", "tirx.sigmoid")
