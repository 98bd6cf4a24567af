"""The CPU schedules of products and convolutions against NumPy: layouts, odd, unit and empty sizes."""

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.te_kernels import (
    HOST,
    check,
    compile_te,
    matmul,
    padded,
    padded_array,
    placeholder,
    random,
    run,
    wide,
    zero,
)
from tvm import te, tirx

from tvmfun.lower.schedule.cpu.rules import schedule


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


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 7, 8, 9])
def test_operands_computed_in_the_loop_over_a_batch(rows):
    """The batch is longer than the rows, and the factor that does not depend on them is kept for one batch only."""
    a, b = placeholder((48, rows, 7), name="a"), placeholder((48, 5, 7), name="b")
    k = te.reduce_axis((0, 7), "k")
    right = te.compute((48, 5, 7), lambda g, j, k: te.exp(b[g, j, k]), "right")
    c = te.compute((48, rows, 5), lambda g, i, j: te.sum(a[g, i, k] * right[g, j, k], axis=k), "c")
    x, y = random((48, rows, 7)), random((48, 5, 7), seed=1)
    check((a, b, c), (x, y), [np.einsum("gik,gjk->gij", wide(x), np.exp(wide(y)))], "contraction")


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
