"""The rewriting of calls into arithmetic: where it happens, narrow types, and what stays."""

import re
from itertools import product

import numpy as np
import pytest
import tvm
from lower.schedule.test_hot_kernels import modules
from support.te_kernels import build
from tvm import te, tirx

import tvmfun.numpy as tnp
from tvmfun import dtypes, jit, lax, nn
from tvmfun.lower.schedule.cpu.rules import schedule
from tvmfun.lower.tir import intrinsics


def test_float64_stays_with_libm_where_there_is_no_formula():
    x = te.placeholder((4,), dtype="float64", name="x")
    lgamma = lambda x: tirx.call_pure_extern("float64", "lgamma", x)
    func = te.create_prim_func([x, te.compute((4,), lambda i: lgamma(x[i]) + tirx.exp(x[i]))])
    text = intrinsics.expand(func).script()
    assert '"lgamma"' in text and "T.exp(" not in text


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_is_recognised(dtype):
    x = te.placeholder((21,), dtype=dtype, name="x")
    out = te.compute((21,), lambda i: tirx.Select(tirx.isnan(x[i]), tirx.const(1, dtype), x[i]))
    target = tvm.target.Target({"kind": "llvm"})
    kernel = build(schedule(te.create_prim_func([x, out]), target), target)
    values = np.arange(21).astype(dtype)
    values[[2, 7, 8]] = np.nan, np.inf, -np.inf
    result = tvm.runtime.tensor(np.zeros_like(values))
    kernel(tvm.runtime.tensor(values), result)
    np.testing.assert_array_equal(result.numpy(), np.where(np.isnan(values), 1, values))


def test_guarded_arguments_stay_guarded():
    x = te.placeholder((4,), name="x")
    out = te.compute((8,), lambda i: tirx.if_then_else(i < 4, tirx.exp(x[i]), 0.0) + tirx.exp(x[i % 4]))
    text = intrinsics.expand(te.create_prim_func([x, out])).script()
    assert text.count("T.exp(x[v_i])") == 1
    assert text.count("T.exp(") == 1


def test_functions_of_one_argument_in_several_statements():
    """Subexpressions that expansions share must not upset TVM's common subexpression elimination."""
    x = te.placeholder((8, 128), name="x")
    r = te.reduce_axis((0, 128), "r")
    total = te.compute((8,), lambda i: te.sum(tirx.exp(x[i, r]), axis=r))
    both = te.compute((8, 128), lambda i, j: tirx.exp(x[i, j]) + tirx.sigmoid(x[i, j]) + tirx.log(total[i]))
    more = te.compute((8, 128), lambda i, j: tirx.exp(x[i, j]) * tirx.tanh(tirx.exp(x[i, j])))
    target = tvm.target.Target({"kind": "llvm"})
    kernel = build(schedule(te.create_prim_func([x, both, more]), target), target)
    values = np.linspace(-3, 3, 8 * 128, dtype="float32").reshape(8, 128)
    results = [tvm.runtime.tensor(np.zeros_like(values)) for _ in range(2)]
    kernel(tvm.runtime.tensor(values), *results)
    e = np.exp(values.astype("float64"))
    np.testing.assert_allclose(results[0].numpy(), e + e / (1 + e) + np.log(e.sum(1, keepdims=True)), rtol=1e-6)
    np.testing.assert_allclose(results[1].numpy(), e * np.tanh(e), rtol=1e-6)


EXPANDED = {
    "exp": tnp.exp,
    "log": lambda x: tnp.log(tnp.abs(x) + 1),
    "log1p": lambda x: tnp.log1p(tnp.abs(x)),
    "tanh": tnp.tanh,
    "erf": lax.erf,
    "sigmoid": nn.functional.sigmoid,
}
# TVM makes no vectors of most of these, but loops over the lanes.
OTHERS = {
    **{
        name: getattr(tnp, name)
        for name in ("round", "tan", "sinh", "cosh", "arctan", "arcsinh", "exp2", "expm1", "sin")
    },
    "log2": lambda x: tnp.log2(tnp.abs(x) + 1),
    "log10": lambda x: tnp.log10(tnp.abs(x) + 1),
    "cbrt": lax.cbrt,
    "rsqrt": lambda x: lax.rsqrt(tnp.abs(x) + 1),
    "remainder": lambda x: x % 0.3,
    "floor_divide": lambda x: x // 0.3,
    "fmod": lambda x: tnp.fmod(x, 0.3),
    "arctan2": lambda x: tnp.arctan2(x, 1 + x * x),
    "power": lambda x: tnp.abs(x) ** 1.7,
    "concat": lambda x: tnp.concat([x[:8], x[3:]], axis=0),
    "pad": lambda x: tnp.pad(x, ((3, 2),)),
    "roll": lambda x: tnp.roll(x, 3),
    "set": lambda x: x.at[2:9].set(0.25),
}


FORMS = {
    "inside": lambda function, other, x: function(other(x)),
    "outside": lambda function, other, x: other(function(x)),
    "sum": lambda function, other, x: tnp.sum(function(other(x))),
}
TOLERANCES = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}
STEPS = {"round", "remainder", "floor_divide", "fmod"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), list(product(EXPANDED, TOLERANCES)))
def test_beside_what_does_not_become_vectors(name, dtype):
    function, tolerance = EXPANDED[name], TOLERANCES[dtype]
    x = np.random.default_rng(0).normal(size=37)
    x[abs(x / 0.3 - np.round(x / 0.3)) < 0.05] = 0.4  # beside a jump roundings decide
    array = tnp.asarray(x.astype("float32")).astype(dtype)
    # Any three of the two functions, the form and the dtype meet.
    first = list(EXPANDED).index(name) + list(TOLERANCES).index(dtype)
    forms = [list(FORMS)[(first + i) % len(FORMS)] for i in range(len(OTHERS))]
    cases = list(zip(OTHERS.items(), forms, strict=True))
    results = jit(lambda x: [FORMS[form](function, other, x) for (_, other), form in cases])(array)
    for got, ((label, other), form) in zip(results, cases, strict=True):
        # Eager ops are separate modules.
        if form == "sum":
            expected = tnp.sum(function(other(array)).astype("float32"))
        else:
            expected = FORMS[form](function, other, array)
        got, expected = np.asarray(got, "float32"), np.asarray(expected, "float32")
        if form == "outside" and label in STEPS:
            assert np.mean(np.abs(got - expected) > tolerance) <= 0.1, label
        else:
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=f"{label} {form}")


@pytest.mark.quick("sigmoid", "tanh")
@pytest.mark.parametrize("name", EXPANDED)
def test_of_numbers_that_are_bfloat16_for_a_moment(name):
    """TVM's legalization of bfloat16 used to lose what the formulas are bound to, and to crash.

    Within a kernel such numbers are float32 that need not be rounded, as in XLA.
    """
    function, rounded = EXPANDED[name], lambda x: x.astype("bfloat16").astype("float32")
    x = tnp.asarray(np.random.default_rng(0).normal(size=37).astype("float32"))
    inside, outside = jit(lambda x: (function(rounded(x)), rounded(function(x) + 0.05)))(x)
    np.testing.assert_allclose(inside, function(rounded(x)), rtol=1e-2)
    np.testing.assert_allclose(outside, rounded(function(x) + 0.05), rtol=1e-2)


def test_the_bits_of_a_sum_of_bfloat16():
    x = tnp.asarray(np.random.default_rng(0).normal(size=(2, 999)).astype("float32")).astype("bfloat16")
    got = jit(lambda x: lax.bitcast_convert_type(x[0] + x[1], "int16"))(x)
    np.testing.assert_array_equal(got, np.asarray(x[0] + x[1]).view("int16"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_rounding_is_an_instruction_for_vectors(dtype):
    """TVM made a loop over the lanes of a statement that rounds."""
    x = (10 * np.random.default_rng(0).normal(size=(3, 43))).astype(dtypes.canonical(dtype))
    x[0, :6] = [0.5, 1.5, -2.5, -0.25, np.inf, np.nan]
    compiled = jit(lambda x: (tnp.round(x), x[1:] // 3)).lower(x).compile()
    for got, expected in zip(compiled(x), (np.round(x), x[1:] // np.float32(3)), strict=True):
        np.testing.assert_array_equal(np.asarray(got, "float64"), np.asarray(expected, "float64"))
    text = "\n".join(module.inspect_source("ll") for module in modules(compiled.executable.module))
    assert re.search(r"call <\d+ x \w+> @llvm\.nearbyint", text)
