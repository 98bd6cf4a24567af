"""The CPU schedules of windows, elementwise kernels, and what no schedule fits, against NumPy."""

import os
from contextlib import ExitStack

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from support.te_kernels import (
    HOST,
    TARGETS,
    build,
    check,
    matmul,
    padded,
    padded_array,
    placeholder,
    random,
    wide,
    zero,
)
from tvm import te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.errors import PerformanceWarning
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.rules import RULE, schedule


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

    rule = "window" if c == 64 else "elementwise"  # with a few channels they fill no vector
    check((x, top), (value,), [best], rule)
    check((x, g, dx), (value, cotangent), [np.where(value == grow(best), grow(cotangent), 0)], rule)


def test_padded_average_pool():
    x = placeholder((2, 7, 7, 17))
    pad = padded(x, 1, 1)
    a, b = te.reduce_axis((0, 3), "a"), te.reduce_axis((0, 3), "b")
    out = te.compute((2, 7, 7, 17), lambda n, i, j, k: te.sum(pad[n, i + a, j + b, k] / 9, axis=[a, b]), "out")
    value = random((2, 7, 7, 17))
    spread = padded_array(value, 1, 1)
    reference = sum(spread[:, i : i + 7, j : j + 7] for i in range(3) for j in range(3)) / 9
    check((x, out), (value,), [reference], "window")


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
    kernel = build(scheduled)
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


@pytest.mark.parametrize("axis", [0, 1])
def test_strips_of_elements_that_are_apart_have_one_vector(axis):
    """LLVM compiles a load of 64 elements that are apart, one by one, in half a second."""
    x = np.sin(np.arange(130 * 17, dtype="float32")).reshape(130, 17)
    x = x if axis else x.T
    compiled = tvmfun.jit(lambda x: tnp.argmax(x * 2, axis)).lower(x).compile()
    np.testing.assert_array_equal(compiled(x), np.argmax(x, axis))
    lanes = Machine.of(targets.host()).lanes("int32") if axis else 64
    assert f"T.vectorized({lanes})" in compiled.as_text()
