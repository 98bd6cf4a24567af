"""TE functions, scheduled for a CPU, built, run and compared."""

import ctypes

import ml_dtypes
import numpy as np
import tvm
from tvm import ir, te, tirx

from tvmfun.lower import machine
from tvmfun.lower.codegen import native
from tvmfun.lower.schedule.cpu.rules import RULE, schedule

TARGETS = {
    "generic": {"kind": "llvm", "num-cores": 2},
    "avx2": {"kind": "llvm", "mcpu": "haswell", "num-cores": 2},
}
HOST = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-6, "float64": 1e-13}
NUMPY = {"bfloat16": ml_dtypes.bfloat16}


def dtype_of(name):
    return np.dtype(NUMPY.get(name, name))


def random(shape, dtype="float32", seed=0):
    rng = np.random.default_rng([seed, *shape])
    if dtype == "bool":
        return rng.random(shape) > 0.5
    if "int" in dtype:
        return rng.integers(-5, 6, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype_of(dtype))


def placeholder(shape, dtype="float32", name="x"):
    return te.placeholder(shape, dtype=dtype, name=name)


def zero(dtype="float32"):
    return tirx.const(0, dtype)


def compile_te(tensors, target=HOST):
    """Schedule and build the function of `tensors`, inputs first; returns its rule and a call."""
    func = schedule(te.create_prim_func(list(tensors)), target)
    return func.attrs[RULE], build(func, target)


def processor_of(mcpu):
    """A processor with two cores by LLVM's name, with the caches that are known of it, whatever is set for this one."""
    return machine._machine.__wrapped__(
        str(tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})), False, None
    )


def build(func, target=HOST):
    """Build a scheduled function of static sizes as the library does; returns a call of it with TVM's tensors."""
    if func.attrs[RULE] == "fallback":  # TE's externs have offsets, which only TVM's passes bind
        return tvm.compile(tvm.IRModule({"main": func}), target=target)["main"]
    module = native.compiled(target, {ir.GlobalVar("kernel"): func.with_attr("global_symbol", "kernel")})
    kernel = module.get_function("kernel")
    return lambda *arrays: kernel(*(ctypes.c_void_p(array.data_ptr()) for array in arrays))


def run(kernel, inputs, outputs):
    """Call a kernel on copies of the inputs; `outputs` are (shape, dtype)."""
    # Wrong stores must show, so the outputs start out as something unlikely.
    results = [np.full(shape, 77).astype(dtype_of(dtype)) for shape, dtype in outputs]
    arrays = [tvm.runtime.tensor(array) for array in (*inputs, *results)]
    kernel(*arrays)
    return [array.numpy() for array in arrays[len(inputs) :]]


def check(tensors, inputs, references, rule, target=HOST):
    """Compile, run, compare each output with its reference and the chosen rule with the expected one."""
    chosen, kernel = compile_te(tensors, target)
    assert chosen == rule
    outputs = tensors[len(inputs) :]
    kinds = [(tuple(int(size) for size in out.shape), str(out.dtype)) for out in outputs]
    results = run(kernel, inputs, kinds)
    for result, reference, (_, dtype) in zip(results, references, kinds, strict=True):
        reference = np.asarray(reference)
        assert result.shape == reference.shape
        if dtype not in TOLERANCE:
            np.testing.assert_array_equal(result, reference)
            continue
        scale = np.abs(reference).max(initial=0) or 1
        error = np.abs(result.astype("float64") - reference).max(initial=0)
        assert error <= TOLERANCE[dtype] * scale
    return results


def wide(array):
    return array.astype("float64" if array.dtype.kind not in "iub" else "int64")


def matmul(m, n, k, layout="nn", dtype="float32", out=None):
    out = out or dtype
    a_shape = (m, k) if layout[0] == "n" else (k, m)
    b_shape = (k, n) if layout[1] == "n" else (n, k)
    a, b = placeholder(a_shape, dtype, "a"), placeholder(b_shape, dtype, "b")
    r = te.reduce_axis((0, k), "k")

    def element(i, j):
        left = a[i, r] if layout[0] == "n" else a[r, i]
        right = b[r, j] if layout[1] == "n" else b[j, r]
        return te.sum(left.astype(out) * right.astype(out), axis=r)

    x, y = random(a_shape, dtype), random(b_shape, dtype, 1)
    left, right = (wide(v) if kind == "n" else wide(v).T for v, kind in zip((x, y), layout, strict=True))
    return (a, b, te.compute((m, n), element, "c")), (x, y), left @ right


def padded(x, low, high, dilation=1):
    """`x` (NHWC) with zeros around it and, if dilated, between its elements."""
    n, h, w, c = (int(size) for size in x.shape)
    tall, broad = (h - 1) * dilation + 1, (w - 1) * dilation + 1

    def element(b, i, j, k):
        inside = [i >= low, i < tall + low, j >= low, j < broad + low]
        if dilation > 1:
            inside += [(i - low) % dilation == 0, (j - low) % dilation == 0]
        at = x[b, (i - low) // dilation, (j - low) // dilation, k]
        return tirx.if_then_else(tirx.all(*inside), at, zero())

    return te.compute((n, tall + low + high, broad + low + high, c), element, "pad")


def padded_array(x, low, high, dilation=1):
    n, h, w, c = x.shape
    spread = np.zeros((n, (h - 1) * dilation + 1, (w - 1) * dilation + 1, c))
    spread[:, ::dilation, ::dilation] = x
    return np.pad(spread, ((0, 0), (low, high), (low, high), (0, 0)))
