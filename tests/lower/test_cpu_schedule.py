"""The CPU schedules against NumPy in float64: every rule, over layouts, odd, unit and empty sizes."""

import os
from contextlib import ExitStack

os.environ.setdefault("TVM_NUM_THREADS", "2")

import ml_dtypes
import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmfun.errors import PerformanceWarning
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
    """Schedule and build the function of `tensors`, inputs first."""
    func = schedule(te.create_prim_func(list(tensors)), target)
    return func.attrs[RULE], tvm.compile(tvm.IRModule({"main": func}), target=target)["main"]


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


# --- contractions ---------------------------------------------------------------------------------------


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


@pytest.mark.quick("13-33-7-nt", "2-2-2-tt", "13-33-7-tt", "13-33-7-tn")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("m,n,k", [(13, 33, 7), (64, 10, 128), (3, 100, 65), (65, 17, 401), (2, 2, 2)])
def test_matmul_in_all_layouts(m, n, k, layout):
    tensors, inputs, reference = matmul(m, n, k, layout)
    check(tensors, inputs, [reference], "contraction")


@pytest.mark.slow
@settings(max_examples=25)
@given(
    m=st.integers(2, 70),
    n=st.integers(2, 90),
    k=st.integers(2, 50),
    layout=st.sampled_from(["nn", "nt", "tn"]),
)
def test_matmul_of_any_size(m, n, k, layout):
    tensors, inputs, reference = matmul(m, n, k, layout)
    check(tensors, inputs, [reference], "contraction")


@pytest.mark.quick("128-512-785", "2000-16-300", "9216-128-64")
@pytest.mark.parametrize("m,n,k", [(64, 9216, 128), (9216, 128, 64), (64, 128, 9216), (128, 512, 785), (2000, 16, 300)])
def test_large_matmul(m, n, k):
    tensors, inputs, reference = matmul(m, n, k)
    check(tensors, inputs, [reference], "contraction")


@pytest.mark.parametrize("m,n,k,rule", [(1, 40, 30, "reduction"), (40, 1, 30, "reduction"), (40, 30, 1, "elementwise")])
def test_degenerate_matmul(m, n, k, rule):
    tensors, inputs, reference = matmul(m, n, k)
    check(tensors, inputs, [reference], rule)


@pytest.mark.parametrize("m,n,k", [(0, 4, 5), (4, 0, 5), (4, 5, 0)])
def test_empty_matmul(m, n, k):
    tensors, inputs, reference = matmul(m, n, k)
    _, kernel = compile_te(tensors)
    np.testing.assert_array_equal(run(kernel, inputs, [((m, n), "float32")])[0], reference)


@pytest.mark.quick("33-35-17-int64-int64", "33-35-17-bfloat16-bfloat16")
@pytest.mark.parametrize(
    "dtype,out",
    [
        ("float64", "float64"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
        ("int32", "int32"),
        ("int8", "int32"),
        ("int64", "int64"),
    ],
)
@pytest.mark.parametrize("m,n,k", [(33, 35, 17), (65, 64, 700)])
def test_matmul_dtypes(m, n, k, dtype, out):
    tensors, inputs, reference = matmul(m, n, k, "nt", dtype, out)
    check(tensors, inputs, [reference], "contraction")


@pytest.mark.quick("1000")
@pytest.mark.parametrize("k", [30, 1000, 40000])
def test_skinny_matmul_with_epilogues(k):
    """Also split over k: the epilogues must run once, on the finished sums, which are an output too."""
    (a, b, c), inputs, product = matmul(8, 20, k)
    bias = placeholder((20,), name="bias")
    biased = te.compute((8, 20), lambda i, j: c[i, j] + bias[j], "biased")
    relu = te.compute((8, 20), lambda i, j: tirx.max(biased[i, j], zero()), "relu")
    v = random((20,), seed=3)
    total = product + v
    check((a, b, bias, relu), (*inputs, v), [np.maximum(total, 0)], "contraction")
    check((a, b, bias, c, biased, relu), (*inputs, v), [product, total, np.maximum(total, 0)], "contraction")


def test_expensive_prologue_is_not_repeated():
    a, b = placeholder((64, 50), name="a"), placeholder((50, 64), name="b")
    hot = te.compute((64, 50), lambda i, k: tirx.exp(a[i, k]), "hot")
    r = te.reduce_axis((0, 50), "k")
    c = te.compute((64, 64), lambda i, j: te.sum(hot[i, r] * b[r, j], axis=r), "c")
    x, y = random((64, 50)), random((50, 64), seed=1)
    check((a, b, c), (x, y), [np.exp(wide(x)) @ wide(y)], "contraction")
    scheduled = schedule(te.create_prim_func([a, b, c]), HOST)
    assert scheduled.script().count("T.exp(") <= 2  # whole vectors, and the rest of a row


def test_operands_written_inside_the_sum_are_computed_once():
    a, b = placeholder((64, 50), name="a"), placeholder((50, 64), name="b")
    r = te.reduce_axis((0, 50), "k")
    c = te.compute((64, 64), lambda i, j: te.sum(tirx.exp(a[i, r]) * tirx.max(b[r, j], zero()), axis=r), "c")
    x, y = random((64, 50)), random((50, 64), seed=1)
    check((a, b, c), (x, y), [np.exp(wide(x)) @ np.maximum(wide(y), 0)], "contraction")


@pytest.mark.parametrize("transposed", [False, True])
def test_batched_matmul(transposed):
    a = placeholder((6, 20, 30), name="a")
    b = placeholder((6, 25, 30) if transposed else (6, 30, 25), name="b")
    r = te.reduce_axis((0, 30), "k")
    c = te.compute(
        (6, 20, 25),
        lambda g, i, j: te.sum(a[g, i, r] * (b[g, j, r] if transposed else b[g, r, j]), axis=r),
        "c",
    )
    x, y = random((6, 20, 30)), random(tuple(int(s) for s in b.shape), seed=1)
    right = wide(y).transpose(0, 2, 1) if transposed else wide(y)
    check((a, b, c), (x, y), [wide(x) @ right], "contraction")


def test_several_free_and_reduced_axes():
    a, b = placeholder((3, 7, 5, 4), name="a"), placeholder((5, 4, 6, 9), name="b")
    r, s = te.reduce_axis((0, 5), "r"), te.reduce_axis((0, 4), "s")
    c = te.compute((3, 7, 6, 9), lambda i, j, h, e: te.sum(a[i, j, r, s] * b[r, s, h, e], axis=[r, s]), "c")
    x, y = random((3, 7, 5, 4)), random((5, 4, 6, 9), seed=1)
    check((a, b, c), (x, y), [np.einsum("ijrs,rshe->ijhe", wide(x), wide(y))], "contraction")


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


def conv(x, w, stride=1, dilation=1):
    kh, kw, ci, co = (int(size) for size in w.shape)
    n, h, wd, _ = (int(size) for size in x.shape)
    oh, ow = (h - (kh - 1) * dilation - 1) // stride + 1, (wd - (kw - 1) * dilation - 1) // stride + 1
    ky, kx, r = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx"), te.reduce_axis((0, ci), "ci")
    return te.compute(
        (n, oh, ow, co),
        lambda b, i, j, k: te.sum(
            x[b, i * stride + ky * dilation, j * stride + kx * dilation, r] * w[ky, kx, r, k],
            axis=[ky, kx, r],
        ),
        "conv",
    )


def conv_array(x, w, stride=1, dilation=1):
    kh, kw, _, co = w.shape
    oh = (x.shape[1] - (kh - 1) * dilation - 1) // stride + 1
    ow = (x.shape[2] - (kw - 1) * dilation - 1) // stride + 1
    out = np.zeros((x.shape[0], oh, ow, co))
    for i in range(kh):
        for j in range(kw):
            y0, x0 = i * dilation, j * dilation
            part = x[:, y0 : y0 + (oh - 1) * stride + 1 : stride, x0 : x0 + (ow - 1) * stride + 1 : stride]
            out += wide(part) @ wide(w[i, j])
    return out


CONVS = [
    # n, size, ci, co, kernel, stride, dilation, padding
    (2, 28, 1, 32, 3, 1, 1, 0),
    (4, 26, 32, 64, 3, 1, 1, 0),
    (2, 9, 5, 7, 3, 2, 1, 1),
    (1, 7, 3, 17, 5, 1, 1, 2),
    (3, 12, 4, 16, 3, 1, 2, 2),
    (8, 8, 16, 40, 1, 2, 1, 0),
]


@pytest.mark.quick("3-12-4-16-3-1-2-2", "2-28-1-32-3-1-1-0", "2-9-5-7-3-2-1-1")
@pytest.mark.parametrize("n,size,ci,co,kernel,stride,dilation,padding", CONVS)
def test_convolution(n, size, ci, co, kernel, stride, dilation, padding):
    x, w, bias = placeholder((n, size, size, ci)), placeholder((kernel, kernel, ci, co)), placeholder((co,))
    y = conv(padded(x, padding, padding) if padding else x, w, stride, dilation)
    relu = te.compute(y.shape, lambda b, i, j, k: tirx.max(y[b, i, j, k] + bias[k], zero()), "relu")
    arrays = [random(tuple(int(s) for s in t.shape), seed=i) for i, t in enumerate((x, w, bias))]
    reference = conv_array(padded_array(arrays[0], padding, padding), arrays[1], stride, dilation)
    rule = "winograd" if min(ci, co) >= 32 else "contraction"
    check((x, w, bias, relu), arrays, [np.maximum(reference + arrays[2], 0)], rule)


@pytest.mark.quick("16-24-8-33-1", "2-5-3-9-2")
@pytest.mark.parametrize("n,size,ci,co,stride", [(4, 24, 32, 64, 1), (2, 5, 3, 9, 2), (16, 24, 8, 33, 1)])
def test_convolution_input_gradient(n, size, ci, co, stride):
    g, w = placeholder((n, size, size, co), name="g"), placeholder((3, 3, ci, co), name="w")
    flipped = te.compute((3, 3, co, ci), lambda i, j, a, b: w[2 - i, 2 - j, b, a], "flipped")
    dx = conv(padded(g, 2, 2, stride), flipped)
    gv, wv = random((n, size, size, co)), random((3, 3, ci, co), seed=1)
    turned = wv[::-1, ::-1].transpose(0, 1, 3, 2)
    check((g, w, dx), (gv, wv), [conv_array(padded_array(gv, 2, 2, stride), turned)], "contraction")


@pytest.mark.quick("8-26-32-64", "16-6-2-2")
@pytest.mark.parametrize("n,size,ci,co", [(8, 26, 32, 64), (4, 28, 1, 32), (3, 7, 5, 9), (16, 6, 2, 2)])
def test_convolution_weight_gradient(n, size, ci, co):
    out = size - 2
    x, g = placeholder((n, size, size, ci), name="x"), placeholder((n, out, out, co), name="g")
    b, i, j = te.reduce_axis((0, n), "b"), te.reduce_axis((0, out), "i"), te.reduce_axis((0, out), "j")
    dw = te.compute(
        (3, 3, ci, co),
        lambda ky, kx, r, k: te.sum(x[b, i + ky, j + kx, r] * g[b, i, j, k], axis=[b, i, j]),
        "dw",
    )
    xv, gv = random((n, size, size, ci)), random((n, out, out, co), seed=1)
    reference = np.array(
        [
            [np.einsum("nyxi,nyxo->io", wide(xv[:, p : p + out, q : q + out]), wide(gv)) for q in range(3)]
            for p in range(3)
        ]
    )
    check((x, g, dw), (xv, gv), [reference], "winograd" if min(ci, co) >= 32 else "contraction")


# --- reductions -----------------------------------------------------------------------------------------

REDUCTIONS = [
    ((64 * 24 * 24, 64), (0,)),
    ((7, 24, 24, 10), (0, 1, 2)),
    ((33, 65), (1,)),
    ((33, 65), (0,)),
    ((3, 5, 7), (1,)),
    ((7, 1, 9), (0, 2)),
    ((100003,), (0,)),
    ((3, 100001), (1,)),
    ((100001, 3), (0,)),
    ((64, 26, 26, 4), None),
    ((4, 3, 7, 7), (2, 3)),
    ((4, 6, 1, 11), (1, 3)),
    ((1, 1), None),
    ((5,), (0,)),
]


@pytest.mark.quick("sum-4x3x7x7-2x3-False", "max-1x1-None-False", "sum-4x6x1x11-1x3-False", "max-7x1x9-0x2-True")
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape,axes", REDUCTIONS)
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_reduction(name, shape, axes, keepdims):
    x = placeholder(shape)
    axes = tuple(range(len(shape))) if axes is None else axes
    out = getattr(topi, name)(x, axis=list(axes), keepdims=keepdims)
    value = random(shape)
    rule = "scalar" if np.prod(shape) == 1 else "reduction"
    check((x, out), (value,), [getattr(np, name)(wide(value), axis=axes, keepdims=keepdims)], rule)


@pytest.mark.quick("1-float64", "1-float16", "1-int64", "1-int32")
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sum_dtypes(dtype, axis):
    x = placeholder((150, 77), dtype)
    value = random((150, 77), dtype)
    check((x, topi.sum(x, axis=axis)), (value,), [wide(value).sum(axis)], "reduction")


@pytest.mark.parametrize("name", ["any", "all"])
@pytest.mark.parametrize("shape,axis", [((33, 65), 1), ((33, 65), 0), ((3000, 70), 0), ((5,), 0)])
def test_truth_values(name, shape, axis):
    x = placeholder(shape, "bool")
    value = np.random.default_rng(0).random(shape) > (0.97 if name == "any" else 0.03)
    check((x, getattr(topi, name)(x, axis=axis)), (value,), [getattr(np, name)(value, axis=axis)], "reduction")


@pytest.mark.quick("argmax-40x1000-1", "argmax-1x5-1", "argmax-64x10-1", "argmin-1x5-1")
@pytest.mark.parametrize("shape,axis", [((64, 10), 1), ((10, 64), 0), ((1, 5), 1), ((40, 1000), 1)])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argument_of_extremum(name, shape, axis):
    x = placeholder(shape)
    value = random(shape)
    check((x, getattr(topi, name)(x, axis=axis)), (value,), [getattr(np, name)(value, axis=axis)], "reduction")


def test_reduction_of_nothing_is_its_identity():
    x = placeholder((0, 5))
    check((x, topi.sum(x, axis=0)), (random((0, 5)),), [np.zeros(5)], "elementwise")


def is_nan_by_inequality(x):
    return x != x


def is_nan_by_bits(x):
    bits = tirx.reinterpret("uint32", x) & tirx.const(2**31 - 1, "uint32")
    return bits > tirx.const(0xFF << 23, "uint32")


def nan_maximum(is_nan):
    def combine(x, y):
        return tirx.Select(tirx.Or(x > y, is_nan(x)), x, y)

    return te.comm_reducer(combine, lambda dtype: -tirx.infinity(dtype), name="max")


@pytest.mark.parametrize("is_nan", [is_nan_by_inequality, is_nan_by_bits])
@pytest.mark.parametrize("shape,axis", [((64, 128), 1), ((64, 128), 0), ((5, 7), 1), ((300001,), 0)])
def test_maximum_written_out_to_keep_nan(shape, axis, is_nan):
    x = placeholder(shape)
    r = te.reduce_axis((0, shape[axis]), "r")
    free = shape[:axis] + shape[axis + 1 :]
    out = te.compute(free, lambda *i: nan_maximum(is_nan)(x(*i[:axis], r, *i[axis:]) * 2.0, axis=r), "out")
    value = random(shape)
    value[(2,) * len(shape)] = np.nan
    rule, kernel = compile_te((x, out))
    assert rule == "reduction"
    # Vectors mean that the combination was understood.
    assert "T.vectorized" in schedule(te.create_prim_func([x, out]), HOST).script()
    result = run(kernel, [value], [(free, "float32")])[0]
    np.testing.assert_array_equal(result, np.max(value * 2, axis))


def test_maximum_keeps_infinities():
    x = placeholder((40,))
    value = np.full(40, -np.inf, "float32")
    _, kernel = compile_te((x, topi.max(x, axis=0)))
    assert run(kernel, [value], [((), "float32")])[0] <= np.finfo("float32").min


@pytest.mark.quick("False-300x128", "False-5x3", "False-2x3x33")
@pytest.mark.parametrize("shape", [(64, 10), (5, 3), (1, 7), (2, 3, 33), (300, 128)])
@pytest.mark.parametrize("log", [False, True])
def test_softmax(shape, log):
    x = placeholder(shape)
    r, s = te.reduce_axis((0, shape[-1]), "r"), te.reduce_axis((0, shape[-1]), "s")
    top = te.compute(shape[:-1], lambda *i: te.max(x[(*i, r)], axis=r), "top")
    exp = te.compute(shape, lambda *i: tirx.exp(x[i] - top[i[:-1]]), "exp")
    total = te.compute(shape[:-1], lambda *i: te.sum(exp[(*i, s)], axis=s), "total")
    if log:
        out = te.compute(shape, lambda *i: x[i] - top[i[:-1]] - tirx.log(total[i[:-1]]), "out")
    else:
        out = te.compute(shape, lambda *i: exp[i] / total[i[:-1]], "out")
    value = random(shape)
    shifted = wide(value) - value.max(-1, keepdims=True)
    reference = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    check((x, out), (value,), [reference if log else np.exp(reference)], "reduction")


@pytest.mark.parametrize("rows,width", [(1024, 256), (3, 17)])
def test_layer_norm(rows, width):
    x, gain = placeholder((rows, width)), placeholder((width,), name="gain")
    r, s = te.reduce_axis((0, width), "r"), te.reduce_axis((0, width), "s")
    total = te.compute((rows, 1), lambda i, _: te.sum(x[i, r], axis=r), "total")
    mean = te.compute((rows, 1), lambda i, j: total[i, j] / width, "mean")
    spread = te.compute(
        (rows, 1), lambda i, _: te.sum((x[i, s] - mean[i, 0]) * (x[i, s] - mean[i, 0]), axis=s), "spread"
    )
    out = te.compute(
        (rows, width),
        lambda i, j: (x[i, j] - mean[i, 0]) / tirx.sqrt(spread[i, 0] / width + 1e-5) * gain[j],
        "out",
    )
    value, scale = random((rows, width)), random((width,), seed=1)
    centred = wide(value) - wide(value).mean(1, keepdims=True)
    reference = centred / np.sqrt(wide(value).var(1, keepdims=True) + 1e-5) * scale
    check((x, gain, mean, out), (value, scale), [wide(value).mean(1, keepdims=True), reference], "reduction")


def test_batch_statistics_then_normalise():
    """The statistics run over the leading axis, so they cannot share loops with what uses them."""
    x = placeholder((500, 33))
    r, s = te.reduce_axis((0, 500), "r"), te.reduce_axis((0, 500), "s")
    mean = te.compute((33,), lambda j: te.sum(x[r, j] / 500, axis=r), "mean")
    var = te.compute((33,), lambda j: te.sum((x[s, j] - mean[j]) * (x[s, j] - mean[j]) / 500, axis=s), "var")
    out = te.compute((500, 33), lambda i, j: (x[i, j] - mean[j]) / tirx.sqrt(var[j]), "out")
    value = random((500, 33))
    reference = (wide(value) - wide(value).mean(0)) / wide(value).std(0)
    check((x, mean, var, out), (value,), [wide(value).mean(0), wide(value).var(0), reference], "reduction")


@pytest.mark.parametrize("shape,axis", [((1 << 21,), 0), ((1 << 18, 4), 0), ((2, 1 << 20), 1)])
def test_long_sums_are_accurate(shape, axis):
    x = placeholder(shape)
    value = np.random.default_rng(0).random(shape, dtype="float32")
    _, kernel = compile_te((x, topi.sum(x, axis=axis)))
    reference = value.astype("float64").sum(axis)
    result = run(kernel, [value], [(reference.shape, "float32")])[0]
    assert np.abs(result / reference - 1).max() < 3e-6


@pytest.mark.quick("2")
@pytest.mark.parametrize("threads", [2, 7])
def test_results_do_not_depend_on_cores(threads):
    target = tvm.target.Target({"kind": "llvm", "mcpu": str(HOST.attrs["mcpu"]), "num-cores": threads})
    one = tvm.target.Target({"kind": "llvm", "mcpu": str(HOST.attrs["mcpu"]), "num-cores": 1})
    x = placeholder((50000, 5))
    summed = (x, topi.sum(x, axis=[0, 1]))
    product, inputs, _ = matmul(8, 20, 40000)
    for tensors, arrays, shape in ((summed, [random((50000, 5))], ()), (product, inputs, (8, 20))):
        results = [run(compile_te(tensors, t)[1], arrays, [(shape, "float32")])[0] for t in (one, target, target)]
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[1], results[2])


# --- windows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n,size,c", [(4, 24, 64), (2, 6, 3)])
def test_max_pool_and_its_gradient(n, size, c):
    x, g = placeholder((n, size, size, c), name="x"), placeholder((n, size // 2, size // 2, c), name="g")
    a, b = te.reduce_axis((0, 2), "a"), te.reduce_axis((0, 2), "b")
    half = (n, size // 2, size // 2, c)
    top = te.compute(half, lambda m, i, j, k: te.max(x[m, i * 2 + a, j * 2 + b, k], axis=[a, b]), "top")
    dx = te.compute(
        (n, size, size, c),
        lambda m, i, j, k: tirx.Select(x[m, i, j, k] == top[m, i // 2, j // 2, k], g[m, i // 2, j // 2, k], zero()),
        "dx",
    )
    value, cotangent = random((n, size, size, c)), random(half, seed=1)
    best = value.reshape(n, size // 2, 2, size // 2, 2, c).max((2, 4))

    def grow(array):
        return array.repeat(2, 1).repeat(2, 2)

    check((x, top), (value,), [best], "window")
    check((x, g, dx), (value, cotangent), [np.where(value == grow(best), grow(cotangent), 0)], "window")


def test_padded_average_pool():
    x = placeholder((2, 7, 7, 5))
    pad = padded(x, 1, 1)
    a, b = te.reduce_axis((0, 3), "a"), te.reduce_axis((0, 3), "b")
    out = te.compute((2, 7, 7, 5), lambda n, i, j, k: te.sum(pad[n, i + a, j + b, k] / 9, axis=[a, b]), "out")
    value = random((2, 7, 7, 5))
    spread = padded_array(value, 1, 1)
    reference = sum(spread[:, i : i + 7, j : j + 7] for i in range(3) for j in range(3)) / 9
    check((x, out), (value,), [reference], "window")


# --- maps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (1000, 129), (7,), (4, 1, 33)])
def test_optimizer_update_is_one_loop(shape):
    w, g, a, b = (placeholder(shape, name=name) for name in "wgab")
    a2 = te.compute(shape, lambda *i: a[i] * 0.9 + g[i] * g[i] * 0.1, "a2")
    step = te.compute(shape, lambda *i: tirx.sqrt(b[i] + 1e-6) / tirx.sqrt(a2[i] + 1e-6) * g[i], "step")
    b2 = te.compute(shape, lambda *i: b[i] * 0.9 + step[i] * step[i] * 0.1, "b2")
    w2 = te.compute(shape, lambda *i: w[i] - step[i], "w2")
    wv, gv, av, bv = (np.abs(random(shape, seed=i)) for i in range(4))
    ra = wide(av) * 0.9 + wide(gv) ** 2 * 0.1
    rs = np.sqrt(bv + 1e-6) / np.sqrt(ra + 1e-6) * gv
    references = [ra, wide(bv) * 0.9 + rs**2 * 0.1, wv - rs]
    check((w, g, a, b, a2, b2, w2), (wv, gv, av, bv), references, "elementwise")
    assert schedule(te.create_prim_func([w, g, a, b, a2, b2, w2]), HOST).script().count("T.parallel") <= 1


X = random((50, 33))
INDICES = np.random.default_rng(0).integers(0, 50, (7, 9))


def moved(x):
    yield topi.transpose(x, [1, 0]), X.T
    yield topi.reshape(x, (33, 50)), X.reshape(33, 50)
    yield topi.concatenate([x, x], axis=1), np.concatenate([X, X], 1)
    yield topi.nn.pad(x, [1, 2], [3, 1]), np.pad(X, ((1, 3), (2, 1)))
    yield te.compute((20, 11), lambda i, j: x[i * 2, 32 - j * 3]), X[:40:2, 32::-3]
    yield (
        te.compute((50, 33), lambda i, j: x[i, j] + (i * 33 + j).astype("float32")),
        X + np.arange(1650).reshape(50, 33),
    )
    yield te.compute((50, 33), lambda i, j: x[i, j] > zero()), X > 0
    yield te.compute((4, 50, 33), lambda _, i, j: x[i, j]), np.broadcast_to(X, (4, 50, 33))
    yield te.compute((), lambda: x[3, 4] * 2.0), np.asarray(X[3, 4] * 2)


@pytest.mark.parametrize("case", range(9))
def test_moves(case):
    x = placeholder((50, 33))
    out, reference = list(moved(x))[case]
    check((x, out), (X,), [reference], "elementwise" if reference.ndim else "scalar")


@pytest.mark.parametrize("shape", [(1024, 257), (256, 256), (3, 70, 40)])
def test_transpose(shape):
    x = placeholder(shape)
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    value = random(shape)
    check((x, topi.transpose(x, order)), (value,), [value.transpose(order)], "elementwise")


def test_an_array_next_to_its_transpose():
    x, value = placeholder((37, 37)), random((37, 37))
    total = te.compute((37, 37), lambda i, j: x[i, j] + x[j, i])
    check((x, total), (value,), [value + value.T], "elementwise")


def test_gather():
    x, at = placeholder((50, 33)), placeholder((7, 9), "int64", "at")
    out = te.compute((7, 9, 33), lambda a, b, c: x[at[a, b], c])
    check((x, at, out), (X, INDICES), [X[INDICES]], "elementwise")


def test_mask_and_what_it_selects():
    x = placeholder((50, 33))
    mask = te.compute((50, 33), lambda i, j: tirx.all(x[i, j] > 0.0, x[i, j] < 1.0), "mask")
    out = te.compute((50, 33), lambda i, j: tirx.Select(mask[i, j], x[i, j], zero()), "out")
    inside = (X > 0) & (X < 1)
    check((x, mask, out), (X,), [inside, np.where(inside, X, 0)], "elementwise")


@pytest.mark.parametrize("columns", [4, 33])
def test_truth_values_kept_between_loops(columns):
    x, y = placeholder((3, columns), "float64"), placeholder((columns,), "float64", "y")
    known = te.compute((columns,), lambda j: tirx.all(y[j] > 0.0, tirx.sqrt(y[j]) < 1.0), "known")
    out = te.compute((3, columns), lambda i, j: tirx.Select(tirx.Not(known[j]), x[i, j], zero("float64")))
    a, b = random((3, columns), "float64"), np.abs(random((columns,), "float64"))
    check((x, y, out), (a, b), [np.where((b > 0) & (np.sqrt(b) < 1), 0, a)], "elementwise")


def test_small_work_is_serial():
    x = placeholder((64, 10))
    out = te.compute((64, 10), lambda i, j: x[i, j] * 2.0)
    assert "T.parallel" not in schedule(te.create_prim_func([x, out]), HOST).script()


# --- what does not fit ----------------------------------------------------------------------------------


def test_scatter_add_stays_as_it_is_between_scheduled_stages():
    x, at, by = placeholder((50, 33)), placeholder((50, 33), "int64", "at"), placeholder((50, 33), name="by")
    twice = te.compute((50, 33), lambda i, j: x[i, j] * 2.0 + tirx.exp(x[i, j]), "twice")
    scattered = topi.scatter_elements(twice, at, by, 0, "add")
    out = te.compute((50, 33), lambda i, j: scattered[i, j] + 1.0, "out")
    places, updates = np.random.default_rng(0).integers(0, 50, (50, 33)), random((50, 33), seed=1)
    reference = wide(X) * 2 + np.exp(wide(X))
    np.add.at(reference, (places, np.arange(33)[None, :].repeat(50, 0)), updates)
    check((x, at, by, out), (X, places, updates), [reference + 1], "fallback")


def test_scan_falls_back():
    x = placeholder((50, 33))
    check((x, topi.cumsum(x, axis=1)), (X,), [np.cumsum(wide(X), 1)], "fallback")


def loop_block(inputs, output, ordered, spatial, body):
    """A function of one block, independent along `spatial` and in order along `ordered`."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        sources = [T.arg(f"x{i}", T.Buffer(*kind)) for i, kind in enumerate(inputs)]
        result = T.arg("y", T.Buffer(*output))
        with ExitStack() as stack:
            domain = (*ordered, *spatial)
            loops = [stack.enter_context(T.serial(0, size)) for size in domain]
            stack.enter_context(T.sblock("work"))
            kinds = [T.axis.reduce] * len(ordered) + [T.axis.spatial] * len(spatial)
            at = [kind(size, loop) for kind, size, loop in zip(kinds, domain, loops, strict=True)]
            T.reads()
            T.writes(result[tuple(slice(0, size) for size in result.shape)])
            body(sources, result, at)
    return builder.get()


def run_block(func, inputs, output):
    scheduled = schedule(func, HOST)
    kernel = tvm.compile(tvm.IRModule({"main": scheduled}), target=HOST)["main"]
    arrays = [tvm.runtime.tensor(array) for array in (*inputs, output)]
    kernel(*arrays)
    return scheduled.attrs[RULE], arrays[-1].numpy()


@pytest.mark.parametrize("columns", [3, 100, 1000])
def test_scatter_block_runs_its_updates_in_order(columns):
    def update(sources, result, at):
        i, j = at
        where, new = sources
        with T.If(where[i] >= 0), T.Then():
            T.buffer_store(result, result[where[i], j] * 0.5 + new[i, j], [where[i], j])

    func = loop_block(
        [((40,), "int32"), ((40, columns), "float32")], ((7, columns), "float32"), [40], [columns], update
    )
    where, new = np.random.default_rng(0).integers(-1, 7, 40).astype("int32"), random((40, columns))
    expected = np.ones((7, columns), "float32")
    for place, row in zip(where, new, strict=True):
        if place >= 0:
            expected[place] = expected[place] * np.float32(0.5) + row
    rule, result = run_block(func, [where, new], np.ones((7, columns), "float32"))
    assert rule == "fallback"
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 16, 1000, 40003])
def test_block_with_private_buffers_is_vectorized(size):
    def body(sources, result, at):
        (i,) = at
        state = T.sblock_alloc_buffer((2,), "uint32", scope="local")
        T.buffer_store(state, sources[0][i] + tirx.const(5, "uint32"), [0])
        T.buffer_store(state, state[0] ^ tirx.const(77, "uint32"), [1])
        T.buffer_store(state, state[0] + state[1] * tirx.const(3, "uint32"), [0])
        T.buffer_store(result, state[0], [i])

    func = loop_block([((size,), "uint32")], ((size,), "uint32"), [], [size], body)
    x = np.arange(size, dtype="uint32") * np.uint32(2654435761)
    rule, result = run_block(func, [x], np.zeros(size, "uint32"))
    first = x + np.uint32(5)
    np.testing.assert_array_equal(result, first + (first ^ np.uint32(77)) * np.uint32(3))
    assert rule == ("scalar" if size == 1 else "elementwise")


def test_block_with_inner_loops_and_private_buffers():
    def body(sources, result, at):
        (i,) = at
        total = T.sblock_alloc_buffer((1,), "float32", scope="local")
        T.buffer_store(total, zero(), [0])
        with T.serial(0, 33) as j:
            T.buffer_store(total, total[0] + sources[0][i, j], [0])
            T.buffer_store(result, total[0], [i, j])

    func = loop_block([((50, 33), "float32")], ((50, 33), "float32"), [], [50], body)
    rule, result = run_block(func, [X], np.zeros((50, 33), "float32"))
    assert rule == "fallback"
    np.testing.assert_allclose(result, np.cumsum(X, 1), rtol=1e-4, atol=1e-5)


def test_an_error_in_a_rule_falls_back(monkeypatch):
    def broken(*_):
        raise ValueError("broken on purpose")

    monkeypatch.setattr("tvmfun.lower.schedule.cpu.rules._schedule", broken)
    tensors, inputs, reference = matmul(64, 64, 64)
    with pytest.warns(PerformanceWarning, match=r"^\[schedule\] .* slow: ValueError: broken on purpose"):
        check(tensors, inputs, [reference], "fallback")


def test_attributes_and_signature_survive():
    x = placeholder((4,))
    func = te.create_prim_func([x, topi.exp(x)]).with_attr("op_pattern", 0)
    scheduled = schedule(func, HOST)
    assert int(scheduled.attrs["op_pattern"]) == 0
    assert [str(p.ty) for p in scheduled.params] == [str(p.ty) for p in func.params]


@pytest.mark.parametrize("name", TARGETS)
def test_other_processors(name):
    target = tvm.target.Target(TARGETS[name])
    tensors, inputs, reference = matmul(37, 41, 50, "nt")
    check(tensors, inputs, [reference], "contraction", target)
    x = placeholder((700, 70))
    value = random((700, 70))
    check((x, topi.sum(x, axis=0)), (value,), [wide(value).sum(0)], "reduction", target)


@pytest.mark.parametrize("name", ["aarch64-linux-gnu"])
def test_schedules_for_processors_we_cannot_run(name):
    tensors, _, _ = matmul(37, 41, 50)
    scheduled = schedule(te.create_prim_func(list(tensors)), tvm.target.Target({"kind": "llvm", "mtriple": name}))
    assert scheduled.attrs[RULE] == "contraction"
