"""Elementary and special functions as vector arithmetic: error bounds, special values and narrow types."""

import ctypes
import math
import sys
from itertools import product

import numpy as np
import pytest
import tvm
from support.te_kernels import HOST, build
from tvm import te, tirx

import tvmfun.numpy as tnp
from tvmfun import device_put, grad, jit, lax, vmap
from tvmfun.export import load
from tvmfun.lower import disk_cache
from tvmfun.lower.codegen import native
from tvmfun.lower.schedule.cpu.rules import schedule
from tvmfun.lower.tir.vector_math.table import FUNCTIONS, INLINED, OF_USUAL_ARGUMENTS, ONLY_SINGLE

LIBM = ctypes.CDLL("libm.so.6" if sys.platform == "linux" else None)
SMALLEST = np.finfo("float32").tiny


def of_libm(name):
    """A function of C's math library on the widest floats, element by element."""
    function = getattr(LIBM, f"{name}l")
    function.restype, function.argtypes = ctypes.c_longdouble, [ctypes.c_longdouble]
    return np.vectorize(lambda x: np.longdouble(function(x)), otypes=[np.longdouble])


#: Each function on wider floats, and its error bounds in units in the last place, in single and in double precision.
CASES = {
    "acos": (np.arccos, 0.51, None),
    "asin": (np.arcsin, 0.51, None),
    "atan": (np.arctan, 0.51, None),
    "atan2": (np.arctan2, 0.51, None),
    # Large arguments are left to libm.
    "cos": (np.cos, 0.56, 1),
    "pow": (np.power, 0.55, None),
    "sin": (np.sin, 0.56, 1),
    "tan": (np.tan, 0.75, None),
    "acosh": (np.arccosh, 0.51, 4),
    "asinh": (np.arcsinh, 0.51, 4),
    "atanh": (np.arctanh, 0.51, 4),
    "cosh": (np.cosh, 2, 2),
    "erf": (of_libm("erf"), 6, 2),
    "erfc": (of_libm("erfc"), 5, 5),
    "exp": (np.exp, 1.01, 0.8),
    "exp2": (np.exp2, 1.1, 1.1),
    "expm1": (np.expm1, 1.5, 2),
    "hypot": (np.hypot, 0.51, 1.5),
    "lgamma": (of_libm("lgamma"), 2, None),
    "log": (np.log, 1, 1),
    "log10": (np.log10, 1.5, 1.5),
    "log1p": (np.log1p, 3, 3),
    "log2": (np.log2, 1.5, 1.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3, 3),
    "sinh": (np.sinh, 2, 2),
    "tanh": (np.tanh, 5, 3),
}
BOTH = CASES.keys() - ONLY_SINGLE
OF_TWO = ("atan2", "hypot", "pow")
QUICK = ("exp", "tanh", "expm1", "erfc", "lgamma", "hypot")


def test_every_function_is_tested():
    # Remainders are exact, and tested elsewhere.
    assert CASES.keys() == (FUNCTIONS.keys() | OF_USUAL_ARGUMENTS.keys()) - {"fmod"}
    assert {name for name, (_, _, bound) in CASES.items() if bound} == BOTH


def scheduled(name, dtype, shape, target):
    """The scheduled function of arrays."""
    arrays = [te.placeholder(shape, dtype=dtype, name=f"x{i}") for i in range(1 + (name in OF_TWO))]
    own = getattr(tirx, name, None) if len(arrays) == 1 else None
    called = f"{name}f" if dtype == "float32" else name
    function = own or (lambda *values: tirx.call_pure_extern(dtype, called, *values))
    out = te.compute(shape, lambda i: function(*(array[i] for array in arrays)))
    func = schedule(te.create_prim_func([*arrays, out]), target)
    assert f"T.{name}(" not in func.script() and f'"{called}"' not in func.script()
    return func


def evaluate(name, *arguments):
    kernel = build(scheduled(name, str(arguments[0].dtype), arguments[0].shape, HOST), HOST)
    result = tvm.runtime.tensor(np.zeros_like(arguments[0]))
    kernel(*map(tvm.runtime.tensor, arguments), result)
    return result.numpy()


def arguments_of(name, dtype):
    """Numbers of any bits, and many of usual sizes; near zeros, where a function may cancel; and left of them."""
    rng = np.random.default_rng(0)
    bits = {"float32": "uint32", "float64": "uint64"}[dtype]
    count = 1 << 14
    draw = lambda sizes: rng.standard_normal(count) * rng.choice(sizes, count)
    values = [
        rng.integers(0, np.iinfo(bits).max, count, dtype=bits, endpoint=True).view(dtype),
        draw([1e-12, 1e-5, 0.01, 0.1, 0.5, 1, 3, 10, 50, 100, 600]),
        draw([1e4, 1e6, 1e9]),
        rng.integers(0, 10**6, count) * (math.pi / 2),
        1 + draw([1e-7, 1e-4, 0.01]),
        2 + draw([1e-7, 1e-4, 0.01]),
        draw([1e-6, 1e-3, 0.1]) - rng.integers(0, 12, count),
    ]
    values = np.concatenate([value.astype(dtype) for value in values])
    return [values, np.roll(values, 7)] if name in OF_TWO else [values]


def wide(values):
    return values.astype("float64" if values.dtype == "float32" else np.longdouble)


def check(name, arguments, bound):
    with np.errstate(all="ignore"):
        exact = CASES[name][0](*map(wide, arguments))
        rounded = exact.astype(arguments[0].dtype)
    result = evaluate(name, *arguments)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(rounded))
    np.testing.assert_array_equal(np.isinf(result), np.isinf(rounded))
    np.testing.assert_array_equal(np.signbit(result[exact == 0]), np.signbit(exact[exact == 0]))
    finite = np.isfinite(rounded)
    # Below the normal numbers the unit in the last place no longer shrinks.
    least = np.finfo(rounded.dtype).tiny
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), least))
    # The last products of these leave the normal numbers before the result does.
    counted = np.abs(rounded[finite]) >= 100 * least if name in ("sigmoid", "erfc") else slice(None)
    assert (np.abs(wide(result[finite]) - exact[finite]) / wide(unit))[counted].max() <= bound


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize("name", CASES)
def test_error_bound(name):
    check(name, arguments_of(name, "float32"), CASES[name][1])


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="there are no wider numbers to compare with")
@pytest.mark.quick("exp", "erfc")
@pytest.mark.parametrize("name", sorted(BOTH))
def test_error_bound_in_double_precision(name):
    check(name, arguments_of(name, "float64"), CASES[name][2])


SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, -3, 0.5, 0.61, 0.9, 10, 20, 27.5, 1000, 1e-10]
OF_FORMAT = {
    "float32": [
        *(1e-45, -1e-45, 1e-39, 3e38, -3e38, SMALLEST, -SMALLEST),
        *(88.7, 88.8, -87.4, -104, 89.4, 89.5, 127.9, 128),
    ],
    # The last results of exp and exp2 that are no subnormal number, no 0 and not infinite, and the next.
    "float64": [
        *(5e-324, -5e-324, 1e-310, sys.float_info.min, -sys.float_info.min, sys.float_info.max, -sys.float_info.max),
        *(-708.396, -708.397, -745.13, -745.14, 709.782, 709.783, 710.47, 710.48, 1e-20, -1e-20, 1023.9, 1024, -1074.5),
    ],
}  # fmt: skip


@pytest.mark.quick(*(f"{name}-float32" for name in QUICK))
@pytest.mark.parametrize("dtype", OF_FORMAT)
@pytest.mark.parametrize("name", CASES)
def test_special_values(name, dtype):
    if dtype == "float64" and name not in BOTH:
        pytest.skip("it is a call of libm")
    values = np.array([*SPECIAL, *OF_FORMAT[dtype]], dtype)
    pairs = [np.repeat(values, len(values)), np.tile(values, len(values))] if name in OF_TWO else [values]
    with np.errstate(all="ignore"):
        exact = CASES[name][0](*map(wide, pairs)).astype(dtype)
    result = evaluate(name, *pairs)
    tolerance, least = {"float32": (4e-7, 0), "float64": (6e-16, 5e-324)}[dtype]
    np.testing.assert_allclose(result, exact, rtol=tolerance, atol=least)
    np.testing.assert_array_equal(np.signbit(result[exact == 0]), np.signbit(exact[exact == 0]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_results(dtype):
    """Powers of 2 and of 10, zeros of lgamma, and triangles of integers."""
    powers = np.arange(-126, 128, dtype=dtype)
    np.testing.assert_array_equal(evaluate("exp2", powers), np.ldexp(np.ones_like(powers), powers.astype(int)))
    np.testing.assert_array_equal(evaluate("log2", np.exp2(powers)), powers)
    tens = np.arange({"float32": 11, "float64": 23}[dtype], dtype=dtype)
    np.testing.assert_array_equal(evaluate("log10", (10.0 ** tens.astype("float64")).astype(dtype)), tens)
    sides = np.array([[3, 4, 5], [5, 12, 13], [8, 15, 17], [20, 21, 29]], dtype).T
    np.testing.assert_array_equal(evaluate("hypot", sides[0], sides[1]), sides[2])
    if dtype == "float32":
        np.testing.assert_array_equal(evaluate("lgamma", np.array([1, 2, 0, -1], dtype)), [0, 0, np.inf, np.inf])


@pytest.mark.quick("exp", "tanh", "sigmoid")
@pytest.mark.parametrize(
    "name", [name for name in sorted(INLINED["float32"]) if name != "hypot" and getattr(tirx, name, None)]
)
def test_narrow_floats_are_computed_in_float32(name):
    values = np.linspace(0.01, 5, 77).astype("float16")
    with np.errstate(all="ignore"):
        exact = CASES[name][0](values.astype("float32"))
    np.testing.assert_allclose(evaluate(name, values), exact, rtol=2e-3, equal_nan=True)


def test_results_do_not_depend_on_the_lane():
    """A vector, a tail and a single number give the same bits."""
    values = np.random.default_rng(0).uniform(0.1, 5, 37).astype("float32")
    for name in CASES:
        whole = evaluate(name, *[values] * (1 + (name in OF_TWO)))
        one = [evaluate(name, *[values[i : i + 1]] * (1 + (name in OF_TWO)))[0] for i in (0, 5, 36)]
        np.testing.assert_array_equal(whole[[0, 5, 36]], one, err_msg=name)
        assert math.isfinite(whole[0]) or name in ("acos", "asin", "atanh")


def test_results_do_not_depend_on_a_branch():
    """A call that is made for some elements only gives the bits of a call that is made for all."""
    values = np.random.default_rng(0).uniform(0.1, 5, 37).astype("float32")
    x = te.placeholder((37,), name="x")
    out = te.compute((40,), lambda i: tirx.if_then_else(i < 37, tirx.sin(tirx.cos(x[i])), tirx.const(0, "float32")))
    kernel = build(schedule(te.create_prim_func([x, out]), HOST), HOST)
    result = tvm.runtime.tensor(np.zeros(40, "float32"))
    kernel(tvm.runtime.tensor(values), result)
    np.testing.assert_array_equal(result.numpy()[:37], evaluate("sin", evaluate("cos", values)))
    np.testing.assert_array_equal(result.numpy()[37:], 0)


@pytest.mark.parametrize("transform", [jit, lambda f: jit(vmap(f)), lambda f: lambda x: lax.map(f, x)])
def test_functions_in_loops_batches_and_second_derivatives(transform):
    """The same numbers in a loop, in a batch, and of both derivatives of a sine."""
    x = np.random.default_rng(0).normal(size=(5, 9)).astype("float32")
    sine = lambda x: tnp.sum(tnp.sin(x) * tnp.exp(-x * x))
    second = lambda x: grad(lambda x: tnp.sum(grad(sine)(x)))(x)
    got = transform(second)(x)
    exact = ((4 * x**2 - 3) * np.sin(x) - 4 * x * np.cos(x)) * np.exp(-(x.astype("float64") ** 2))
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=2e-6)


def test_a_sine_over_its_argument():
    """A result that is written over the argument, of which some numbers are left to libm."""
    x = np.linspace(-3e6, 3e6, 1001, dtype="float32")
    given = device_put(x)
    got = jit(lambda x: tnp.sin(x) + 1, donate_argnums=0)(given)
    np.testing.assert_allclose(got, np.sin(x.astype("float64")) + 1, rtol=0, atol=2e-7)


def test_functions_of_a_dynamic_number_of_elements():
    function = jit(lambda x: tnp.arctan2(tnp.sin(x), tnp.cos(x)), dynamic_shapes={"x": {0: "n"}})
    for n in (1, 7, 8, 1001):
        x = np.linspace(-3, 3, n, dtype="float32")
        np.testing.assert_allclose(function(x), x, rtol=2e-6, atol=2e-7)


@pytest.mark.skipif(not disk_cache.has_linker(), reason="there is no C compiler")
def test_an_exported_library_gives_the_same_bits(tmp_path):
    """Functions of vectors, and libm for the numbers that are left to it, are in the library."""
    x = np.linspace(-4e6, 4e6, 1001, dtype="float32")
    function = jit(lambda x: tnp.sin(x) + tnp.abs(x) ** 0.3 + tnp.arctan2(x, 1 + x * x))
    function.lower(x).compile().export(tmp_path / "function.so")
    (got,) = load(tmp_path / "function.so").run([x])
    np.testing.assert_array_equal(got, function(x))


@pytest.mark.quick("x86_64-x86-64")
@pytest.mark.parametrize(
    ("triple", "processor"),
    [("x86_64", "x86-64"), ("x86_64", "sapphirerapids"), ("x86_64", "znver5"), ("aarch64", "neoverse-v2")],
    ids=lambda part: part,
)
def test_machine_code_of_other_processors(triple, processor):
    """Vectors of all sizes, and tails, become machine code without an instruction set of this machine."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": f"{triple}-linux-gnu", "mcpu": processor})
    functions = {}
    for name, dtype, size in product(CASES, ("float32", "float64"), (1, 5, 4096)):
        if dtype == "float32" or name in BOTH:
            symbol = f"{name}_{dtype}_{size}"
            function = scheduled(name, dtype, (size,), target).with_attr("global_symbol", symbol)
            functions[tvm.ir.GlobalVar(symbol)] = function
    code = native.compiled(target, functions).inspect_source("asm")
    assert all(variable.name_hint in code for variable in functions)
