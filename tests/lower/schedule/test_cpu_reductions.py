"""The CPU schedules of reductions against NumPy in float64: axes, dtypes, NaN, accuracy."""

import os
import re

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from support.te_kernels import HOST, build, check, compile_te, matmul, placeholder, random, run, wide
from tvm import te, tirx, topi

import tvmfun
from tvmfun.lower.schedule.cpu.rules import schedule
from tvmfun.lower.schedule.reduction_passes import along_reduced_axis
from tvmfun.lower.schedule.stages import parse
from tvmfun.lower.tir.walk import find

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


@pytest.mark.quick("sum-False-4x3x7x7-2x3", "min-False-1x1-None", "sum-False-4x6x1x11-1x3", "max-True-7x1x9-0x2")
@pytest.mark.parametrize("shape,axes", REDUCTIONS)
@pytest.mark.parametrize("name,keepdims", [("sum", False), ("sum", True), ("max", True), ("min", False)])
def test_reduction(name, keepdims, shape, axes):
    x = placeholder(shape)
    axes = tuple(range(len(shape))) if axes is None else axes
    out = getattr(topi, name)(x, axis=list(axes), keepdims=keepdims)
    value = random(shape)
    expected = getattr(np, name)(wide(value), axis=axes, keepdims=keepdims)
    is_map = expected.size > 1 and value.size <= 8 * expected.size
    rule = "scalar" if np.prod(shape) == 1 else "elementwise" if is_map else "reduction"
    check((x, out), (value,), [expected], rule)


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
@pytest.mark.parametrize("shape,axis", [((64, 128), 1), ((64, 128), 0), ((5, 19), 1), ((300001,), 0)])
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


def log_of_sums(x):
    return topi.log(topi.sum(topi.exp(x), axis=1))


def difference_to_log_of_sums(x):
    logs = log_of_sums(x)
    return te.compute(x.shape, lambda i, j: x[i, j] - logs[i], "difference")


@pytest.mark.parametrize(
    ("function", "rows", "loops"),
    [(log_of_sums, 4000, 2), (log_of_sums, 100, 1), (difference_to_log_of_sums, 4000, 1)],
)
def test_a_function_of_a_number_per_row_is_computed_in_vectors(function, rows, loops):
    """Unless there are few, or something else is computed for each element of a row."""
    x = placeholder((rows, 27))
    out = function(x)
    text = schedule(te.create_prim_func([x, out]), HOST).script()
    assert len(re.findall(r"^ {8}for ", text, re.MULTILINE)) == loops
    value = random((rows, 27))
    logs = np.log(np.exp(value.astype("float64")).sum(1))
    expected = logs if function is log_of_sums else value - logs[:, None]
    check((x, out), (value,), [expected], "reduction")


def test_maximum_keeps_infinities():
    x = placeholder((40,))
    value = np.full(40, -np.inf, "float32")
    _, kernel = compile_te((x, topi.max(x, axis=0)))
    assert run(kernel, [value], [((), "float32")])[0] <= np.finfo("float32").min


@pytest.mark.quick("False-300x128", "False-5x3", "False-2x3x33")
@pytest.mark.parametrize("shape", [(64, 40), (5, 3), (1, 7), (2, 3, 33), (300, 128)])
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
    check(
        (x, out), (value,), [reference if log else np.exp(reference)], "elementwise" if shape == (5, 3) else "reduction"
    )


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


@pytest.mark.parametrize("name", ["sum", "max"])
@pytest.mark.parametrize("shape", [(37, 130), (4, 33, 70)])
@pytest.mark.parametrize("leading", [True, False], ids=["over rows", "within rows"])
def test_lanes_go_where_no_load_is_a_gather(leading, shape, name):
    """Four vectors are contiguous along one axis, and one array along the other."""
    *axes, width = shape
    along = tuple(axes) if leading else (width,)
    x, factors = placeholder(shape, name="x"), [placeholder(along, name=f"w{i}") for i in range(4)]
    of = lambda w, at: w(*(at[:-1] if leading else at[-1:]))
    formula = lambda *at: of(factors[0], at) * x(*at) * of(factors[1], at) + of(factors[2], at) - of(factors[3], at)
    combine, numpy = (te.sum, np.sum) if name == "sum" else (te.max, np.max)
    reduced = [te.reduce_axis((0, size), f"k{i}") for i, size in enumerate(axes if leading else [width])]
    out = tuple([width] if leading else axes)
    index = (lambda at: (*reduced, *at)) if leading else (lambda at: (*at, *reduced))
    result = te.compute(out, lambda *at: combine(formula(*index(at)), axis=reduced), "result")
    (stage,), _ = parse(te.create_prim_func([x, *factors, result]))
    assert along_reduced_axis(stage) == (not leading)
    y, vectors = random(shape), [random(along, seed=i) for i in range(1, 5)]
    w = [wide(v)[..., None] if leading else wide(v) for v in vectors]
    reference = numpy(w[0] * wide(y) * w[1] + w[2] - w[3], axis=tuple(range(len(axes))) if leading else -1)
    check((x, *factors, result), (y, *vectors), [reference], "reduction")


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


@pytest.mark.parametrize(
    ("shape", "axis", "totals", "panel"),
    [
        ((64, 256, 256), 1, 16, 8),
        ((64, 256, 256), (0, 1), 16 + 4, 8),  # of parts of the rows, and of their sum
        ((4096, 768), 0, 48 + 4, 8),  # of whole rows, and of their sum
        ((2048, 2000), 0, 5, 5),  # of 125 vectors
        ((512, 512), 0, 32 + 4, 8),
        ((4096, 1072), 0, 4 + 3, 4),  # of 67 vectors, a prime
    ],
)
@pytest.mark.parametrize("name", ["sum", "max"])
def test_wide_tiles_read_long_pieces_of_rows(shape, axis, totals, panel, name):
    x = placeholder(shape)
    out = getattr(topi, name)(x, axis=axis)
    wide_vectors = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    scheduled = schedule(te.create_prim_func([x, out]), wide_vectors)
    buffers = [node.buffer for node in find(scheduled.body, tirx.AllocBuffer)]
    assert sum(int(own.shape[0]) for own in buffers if own.name.startswith("total")) == 16 * totals
    # The terms of a block are added up some vectors at a time.
    loops = find(scheduled.body, tirx.For)
    assert max(int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.UNROLLED) == panel
    value = random(shape)
    check((x, out), (value,), [getattr(np, name)(wide(value), axis=axis)], "reduction")


STRIPS = [
    ((600, 8192), (0,), 4096),
    ((3, 1000, 2048), (1,), 1024),
    ((40, 3, 8192), (0, 1), 4096),
    ((65, 1 << 15), (0,), 4096),  # the first block of terms, and one more
    ((300, 12288), (0,), 3072),
]
# Each shape meets both dtypes and both reductions, and these meet.
PAIRS = [(("sum", "float32"), ("max", "int32")), (("sum", "int32"), ("max", "float32"))]


@pytest.mark.quick("sum-float32-600x8192-0-4096", "max-int32-40x3x8192-0x1-4096")
@pytest.mark.parametrize(
    ("name", "dtype", "shape", "axes", "width"),
    [(*pair, *strip) for i, strip in enumerate(STRIPS) for pair in PAIRS[i % 2]],
)
def test_strips_of_columns_have_the_bits_of_tiles(name, dtype, shape, axes, width):
    x, value = placeholder(shape, dtype), random(shape, dtype)
    out = getattr(topi, name)(x, axis=list(axes))
    kind = [(tuple(map(int, out.shape)), dtype)]
    results = {}
    for cores in (1, 2):
        target = tvm.target.Target({**HOST.export(), "num-cores": cores})
        scheduled = schedule(te.create_prim_func([x, out]), target)
        widths = [int(node.buffer.shape[0]) for node in find(scheduled.body, tirx.AllocBuffer)]
        assert (width in widths) == (cores == 2)
        (results[cores],) = run(build(scheduled, target), [value], kind)
    np.testing.assert_array_equal(results[1], results[2])
    reference = getattr(np, name)(wide(value), axis=axes)
    np.testing.assert_allclose(results[2], reference, rtol=0, atol=2e-6 * np.abs(reference).max())


def test_a_row_times_a_matrix_that_is_not_in_the_cache():
    x, y, bias = random((1, 2048)), random((2048, 2048), seed=1), random((2048,), seed=2)
    compiled = tvmfun.jit(lambda x, y, b: tvmfun.numpy.tanh(x @ y / 64) + b, target={"kind": "llvm", "num-cores": 2})
    expected = np.tanh(wide(x) @ wide(y) / 64) + bias
    np.testing.assert_allclose(compiled(x, y, bias), expected, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_strips_in_loops_gradients_batches_and_donating_calls():
    v, w = random((1, 2048)), random((2048, 2048), seed=1) / 45
    layer, exact = lambda v, w: tvmfun.numpy.tanh(v @ w), wide(v)
    for _ in range(3):
        exact = np.tanh(exact @ wide(w))
    looped = tvmfun.jit(lambda v, w: tvmfun.lax.fori_loop(0, 3, lambda i, v: layer(v, w), v))(v, w)
    np.testing.assert_allclose(looped, exact, rtol=0, atol=1e-5)
    step, state = tvmfun.jit(layer, donate_argnums=0), tvmfun.numpy.asarray(v)
    for _ in range(3):
        state = step(state, w)
    np.testing.assert_array_equal(state, looped)
    once = np.tanh(wide(v) @ wide(w))
    batched = tvmfun.jit(tvmfun.vmap(layer, (0, None)))(np.stack([v, v / 2]), w)
    np.testing.assert_allclose(batched[0], once, rtol=0, atol=1e-5)
    of_v, of_w = tvmfun.jit(tvmfun.grad(lambda v, w: tvmfun.numpy.sum(layer(v, w)), argnums=(0, 1)))(v, w)
    np.testing.assert_allclose(of_v, (1 - once**2) @ wide(w).T, rtol=0, atol=1e-4)
    np.testing.assert_allclose(of_w, wide(v).T @ (1 - once**2), rtol=0, atol=1e-5)
    rows = np.random.default_rng(0).integers(0, 2048, 3000)
    summed = tvmfun.jit(lambda w, rows: (tvmfun.numpy.sum(w[rows], 0), tvmfun.numpy.sum(w[::-1, :1024], 0)))(w, rows)
    for ours, expected in zip(summed, (wide(w)[rows].sum(0), wide(w)[:, :1024].sum(0)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
