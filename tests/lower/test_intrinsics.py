"""The vectorizable transcendental functions: their error bounds, special values and narrow types."""

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import math

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvmfun.lower import intrinsics

REFERENCES = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=["float64"]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
ULPS = {"exp": 1.01, "log": 1, "log1p": 3, "tanh": 5, "erf": 6, "sigmoid": 3}
SMALLEST = np.finfo("float32").tiny


def evaluate(name, values, dtype="float32"):
    x = te.placeholder(values.shape, dtype=dtype, name="x")
    out = te.compute(values.shape, lambda i: intrinsics.expand(getattr(tirx, name)(x[i])))
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    kernel = tvm.compile(te.create_prim_func([x, out]), target=target)["main"]
    result = tvm.runtime.tensor(np.zeros_like(values))
    kernel(tvm.runtime.tensor(values), result)
    return result.numpy()


def reference(name, values):
    with np.errstate(all="ignore"):
        return REFERENCES[name](values.astype("float64"))


@pytest.mark.parametrize("name", REFERENCES)
def test_error_bound(name):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 1 << 16, dtype="uint32").view("float32")
    usual = rng.standard_normal(1 << 16) * rng.choice([0.01, 0.1, 1, 10, 50], 1 << 16)
    values = np.concatenate([bits, usual.astype("float32")])
    exact, result = reference(name, values), evaluate(name, values)
    with np.errstate(over="ignore"):
        rounded = exact.astype("float32")
    np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(result), np.isinf(rounded))
    # Below the normal numbers the unit in the last place no longer shrinks.
    floor = np.float32(SMALLEST) if name != "sigmoid" else np.float32(1e-36)
    finite = np.isfinite(rounded)
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), floor)).astype("float64")
    difference = np.abs(result[finite].astype("float64") - exact[finite])
    normal = np.abs(exact[finite]) >= floor if name == "sigmoid" else slice(None)
    assert (difference / unit)[normal].max() <= ULPS[name]


@pytest.mark.parametrize("name", REFERENCES)
def test_special_values(name):
    values = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 1, -1, -2, 3e38, -3e38, 1e-10], "float32"
    )
    exact = reference(name, values).astype("float32")
    result = evaluate(name, values)
    np.testing.assert_allclose(result, exact, rtol=4e-7, atol=0)
    np.testing.assert_array_equal(np.signbit(result[exact == 0]), np.signbit(exact[exact == 0]))


@pytest.mark.parametrize("name", REFERENCES)
def test_narrow_floats_are_computed_in_float32(name):
    values = np.linspace(0.01, 5, 77).astype("float16")
    exact = reference(name, values)
    np.testing.assert_allclose(evaluate(name, values, "float16"), exact, rtol=2e-3)


def test_float64_stays_with_libm():
    x = tirx.Var("x", "float64")
    call = tirx.exp(x)
    assert intrinsics.expand(call).same_as(call)
