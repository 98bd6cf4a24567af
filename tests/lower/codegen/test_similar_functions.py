"""Merging of similar functions: the same bits as without it, wherever merged kernels are called."""

import shutil

import numpy as np
import pytest
import tvm
from lower.codegen.test_native import bits
from tvm import tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, lax
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native, similar_functions
from tvmfun.lower.tir import build
from tvmfun.lower.tir.walk import find

SIZES = (64, 128, 256)
RNG = np.random.default_rng(0)


@pytest.fixture
def counted(monkeypatch):
    """The numbers of functions before and after, of each compilation with maps."""
    found = []
    merge = similar_functions.merge

    def counting(functions):
        kept, merged = merge(functions)
        if functions:
            found.append((len(functions), len(kept)))
        return kept, merged

    monkeypatch.setattr(native, "merge", counting)
    return found


def arrays(shapes, dtype="float32"):
    return [tnp.asarray((4 * RNG.normal(size=shape)).astype(dtype)) for shape in shapes]


def check(function, *arguments, **options):
    """Compares the bits of results with those without merging."""
    compile = lambda: tvmfun.jit(lambda *given: function(*given), **options)(*arguments)
    got = list(map(np.asarray, tvmfun.tree.leaves(compile())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "merge", lambda functions: (dict(functions), {}))
        tvmfun.execute.clear_caches()
        expected = list(map(np.asarray, tvmfun.tree.leaves(compile())))
    assert bits(got) == bits(expected)
    return got


def normalized(x, factor):
    """Allocates a row, has two results, and a constant that depends on the size."""
    y = (x - tnp.sum(x, axis=0) / x.shape[0]) * factor
    return tnp.maximum(y, 0), y > 0


def test_one_function_for_several_sizes(counted):
    xs = arrays((32768 // n, n) for n in SIZES)
    got = check(lambda *xs: [normalized(x, 0.5) for x in xs], *xs)
    before, after = counted[0]
    assert before - after >= 2
    for x, (y, positive) in zip(xs, zip(got[::2], got[1::2], strict=True), strict=True):
        expected = (np.asarray(x) - np.mean(x, axis=0)) * 0.5
        np.testing.assert_allclose(y, np.maximum(expected, 0), atol=1e-5)
        np.testing.assert_array_equal(positive, y > 0)


def test_long_sums_over_columns_of_several_sizes(counted):
    xs = arrays(((1 << 19) // n, n) for n in (128, 256, 512))
    got = check(lambda *xs: [tnp.sum(tnp.where(x > 0, x, x / 8), axis=0) for x in xs], *xs)
    assert counted[0] == (3, 1)
    for x, y in zip(xs, got, strict=True):
        x = np.asarray(x, "float64")
        np.testing.assert_allclose(y, np.where(x > 0, x, x / 8).sum(0), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constants_become_arguments(dtype, counted):
    constants = [np.asarray(c, dtype) for c in (0.1, -0.0, 3e38, np.inf, 1 / 3)]
    xs = arrays(((n, 64) for n in range(512, 517)), dtype)
    with np.errstate(all="ignore"):
        got = check(lambda *xs: [x / c for x, c in zip(xs, constants, strict=True)], *xs)
        for x, y, c in zip(xs, got, constants, strict=True):
            np.testing.assert_array_equal(y, np.asarray(x) / c)
    assert counted[0] == (5, 1)


def test_different_formulas_stay_apart(counted):
    xs = arrays((32768 // n, n) for n in SIZES[:2])
    check(lambda x, y: (x * 2 + 1, y + 2 * y * y), *xs)
    assert counted[0] == (2, 2)


def test_tails_stay_apart_from_whole_vectors(counted):
    xs = arrays((n, 600) for n in (64, 67)) + arrays((n, 61) for n in (600, 700))
    check(lambda *xs: [(x - 1) * x for x in xs], *xs)
    check(lambda *xs: [(x.T - 1) * x.T for x in xs], *xs)


def test_transposes_of_several_sizes():
    """Their indices have quotients where a parallel loop goes over two axes."""
    xs = arrays([(3, 3, 64, 128), (3, 3, 128, 64), (3, 3, 32, 256), (1, 1, 64, 128), (1, 1, 256, 64)])
    got = check(lambda *xs: [tnp.flip(x, (0, 1)).transpose(0, 1, 3, 2) for x in xs], *xs)
    for x, y in zip(xs, got, strict=True):
        np.testing.assert_array_equal(y, np.asarray(x)[::-1, ::-1].transpose(0, 1, 3, 2))


@pytest.mark.parametrize("n", [0, 1])
def test_empty_and_single_rows(n):
    xs = arrays([(n, 64), (512, 128), (256, 256)])
    check(lambda *xs: [normalized(x, 2.0) if len(x) else x * 2 for x in xs], *xs)


def test_results_written_over_inputs(counted):
    xs = arrays((32768 // n, n) for n in SIZES)
    step = lambda *xs: [x - 0.1 * tnp.sum(x, axis=0) for x in xs]
    kept = [np.asarray(x) for x in xs]
    got = tvmfun.jit(step, donate_argnums=(0, 1, 2))(*(tnp.asarray(x.copy()) for x in kept))
    before, after = counted[0]
    assert before - after >= 2
    expected = tvmfun.jit(step)(*xs)
    assert bits(map(np.asarray, got)) == bits(map(np.asarray, expected))


def test_kernels_of_loops_are_called_by_their_names(counted):
    xs = arrays((32768 // n, n) for n in SIZES)

    def loop(*xs):
        step = lambda i, xs: tuple(tnp.maximum(x - tnp.sum(x, axis=0) / x.shape[0], -i) for x in xs)
        after = lax.fori_loop(0, 3, step, xs)
        return [normalized(x, 0.5) for x in after]

    check(loop, *xs)
    before, after = counted[0]
    assert before - after >= 2


def test_static_kernels_of_a_dynamic_program(counted):
    x, *ws = arrays([(40, 64), *((32768 // n, n) for n in SIZES)])
    got = check(
        lambda x, *ws: (x * 2, [normalized(w, 0.5)[0] for w in ws]),
        x,
        *ws,
        dynamic_shapes=({0: Dim("b")}, None, None, None),
    )
    np.testing.assert_array_equal(got[0], np.asarray(x) * 2)
    before, after = counted[0]
    assert before - after >= 2


def test_second_derivatives_of_several_sizes():
    xs = arrays((8192 // n, n) for n in SIZES)
    loss = lambda xs: sum(tnp.sum(tnp.tanh(normalized(x, 0.5)[0]) ** 2) for x in xs)
    slope = lambda xs: sum(tnp.sum(g**2) for g in tvmfun.grad(loss)(xs))
    check(tvmfun.grad(slope), xs)


def test_batches_of_several_sizes():
    xs = arrays((4, 8192 // n, n) for n in SIZES)
    check(tvmfun.vmap(lambda *xs: [normalized(x, 0.5) for x in xs]), *xs)


@pytest.mark.skipif(not shutil.which("g++"), reason="a shared library needs a C++ compiler to link it")
def test_merged_functions_in_a_library(tmp_path, monkeypatch):
    xs = arrays((32768 // n, n) for n in SIZES)
    function = lambda *xs: [normalized(x, 0.5) for x in xs]
    expected = tvmfun.jit(function)(*xs)
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
    for _ in range(2):
        tvmfun.execute.clear_caches()
        got = tvmfun.jit(function)(*xs)
        assert bits(map(np.asarray, tvmfun.tree.leaves(got))) == bits(map(np.asarray, tvmfun.tree.leaves(expected)))


def test_profiles_keep_kernels_apart():
    xs = arrays((32768 // n, n) for n in SIZES)
    compiled = tvmfun.jit(lambda *xs: [x * 2 + tnp.sum(x, axis=0) for x in xs]).lower(*xs).compile()
    calls = compiled.profile(*xs).calls
    assert len({call.name for call in calls}) == len(calls) == 6


def scheduled(function, *arguments):
    """The scheduled maps of a function, by name."""
    module = pipeline.scheduled_module(tvmfun.trace(function)(*arguments), targets.host())
    return {name: f for name, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}


def test_divisors_of_indices_stay_constants():
    xs = arrays([(3, 3, 64, 128), (3, 3, 128, 64), (3, 3, 64, 256)])
    functions = scheduled(lambda *xs: [tnp.flip(x, (0, 1)).transpose(0, 1, 3, 2) for x in xs], *xs)
    kept, _ = similar_functions.merge(functions)
    quotients = [node for f in kept.values() for node in find(f.body, tirx.FloorDiv, tirx.FloorMod)]
    assert all(isinstance(node.b, tirx.IntImm) for node in quotients)


def test_a_function_that_would_allocate_much_more_stays_apart():
    def of(size):
        x, y, kept = (build.buffer([size], "float32", name) for name in ("x", "y", "kept"))
        i, j = (tirx.Var(name, "int32") for name in "ij")
        first = tirx.For(i, 0, size, tirx.ForKind.SERIAL, tirx.BufferStore(kept, x[i] * 2.0, [i]))
        second = tirx.For(j, 0, size, tirx.ForKind.SERIAL, tirx.BufferStore(y, kept[j] + kept[0], [j]))
        return tirx.PrimFunc([x, y], tirx.SeqStmt([tirx.AllocBuffer(kept), first, second]))

    def left(*sizes):
        return len(similar_functions.merge({tvm.ir.GlobalVar(f"f_{i}"): of(n) for i, n in enumerate(sizes)})[0])

    most = similar_functions._MOST_ALLOCATED // 4
    assert [left(64, 4096), left(64, most), left(64, most + 1), left(most + 1, most + 1)] == [1, 1, 2, 1]


def test_nothing_is_merged_twice():
    """The function that is left can be merged again, with the numbers of others only."""
    xs = arrays((32768 // n, n) for n in SIZES)
    functions = scheduled(lambda *xs: [x * 2 + tnp.sin(x) for x in xs], *xs)
    kept, merged = similar_functions.merge(functions)
    assert len(kept) == 1 and len(merged) == 3
    again, none = similar_functions.merge(kept)
    assert again == kept and not none


def random_map(rng):
    """A map of an array and a row, with constants that depend on the shape, and the shapes to apply it to."""
    unary = [tnp.abs, lambda x: -x, lambda x: x * x, lambda x: tnp.where(x > 0, x, x * 2)]
    unary += [lambda x: x / len(x), lambda x: x * (1 / x.shape[-1])]
    binary = [tnp.add, tnp.subtract, tnp.multiply, lambda x, y: tnp.where(x < y, x, y)]
    firsts, seconds = rng.choice(len(unary), 3), rng.choice(len(binary), 2)
    kind = rng.integers(5)

    def function(x, row):
        for first, second in zip(firsts, seconds, strict=False):
            x = binary[second](unary[first](x), row)
        x = unary[firsts[-1]](x)
        if kind == 1:
            return x, x > row
        if kind == 2:
            return tnp.flip(x, 0), x
        if kind == 3:
            return tnp.sum(x, axis=tuple(range(x.ndim - 1))), x
        return (tnp.swapaxes(x, -1, 0) if kind == 4 else x), row

    widths = rng.choice([(64, 128, 256), (96, 192, 160), (512, 384, 256), (24, 40, 48)])
    leading = [(), (3,), (1,), (2, 5)][rng.integers(4)]
    rows = rng.choice([64, 96, 128, 256], 3)
    return function, [(*leading, int(n), int(width)) for n, width in zip(rows, widths, strict=True)]


@pytest.mark.quick(*map(str, range(6)))
@pytest.mark.parametrize("seed", range(60))
def test_random_maps_of_several_sizes(seed):
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["float32", "float64"]))
    function, shapes = random_map(rng)
    given = arrays([s for shape in shapes for s in (shape, shape[-1:])], dtype)
    with np.errstate(all="ignore"):
        check(lambda *xs: [function(*pair) for pair in zip(xs[::2], xs[1::2], strict=True)], *given)
