"""Products by the tiles of AMX: the generated code, and its results on an emulator of the instructions."""

from __future__ import annotations

import math
import re
import threading

import jax
import ml_dtypes
import numpy as np
import pytest
from lower.schedule.test_hot_kernels import basic_blocks
from lower.schedule.test_narrow_dots import LAYOUTS, any_integer, assembly, bound, dot, normal, pair, target
from lower.test_machine import GRANITE_RAPIDS
from support import amx_emulator

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, errors, lax, nn
from tvmfun.export import features, load
from tvmfun.lower import machine
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite import split_products
from tvmfun.lower.settings import ScheduleSettings, using

BFLOAT16 = "bfloat16"
XEON = target("graniterapids")
DTYPES = {
    "tdpbf16ps": (BFLOAT16, BFLOAT16, "float32"),
    "tdpfp16ps": ("float16", "float16", "float32"),
    "tdpbssd": ("int8", "int8", "int32"),
    "tdpbsud": ("int8", "uint8", "int32"),
    "tdpbusd": ("uint8", "int8", "int32"),
    "tdpbuud": ("uint8", "uint8", "int32"),
}
needs_emulator = pytest.mark.skipif(bool(amx_emulator.why_none()), reason=amx_emulator.why_none() or "there is one")


@pytest.fixture
def amx(monkeypatch):
    """This processor with AMX, and the numbers of instructions; every thread has to release its tiles.

    Where the processor has AMX itself, it runs the instructions, and does not count them.
    """
    if amx_emulator.is_needless():
        yield lambda kind: math.inf
        return
    with amx_emulator.installed():
        on = amx_emulator.target()
        monkeypatch.setattr(targets, "host", lambda: on)
        before = amx_emulator.counts()
        yield lambda kind: amx_emulator.counts()[kind] - before[kind]
        after = amx_emulator.counts()
    assert after["configured"] == 0 and after["multiply"] > before["multiply"]
    assert after["release"] - before["release"] <= after["configure"] - before["configure"]


# -- generated code --------------------------------------------------------------------------------------------------


@pytest.mark.quick("tdpbf16ps-(True, False)", "tdpbssd-(False, True)")
@pytest.mark.parametrize("transposed", LAYOUTS, ids=str)
@pytest.mark.parametrize("instruction", DTYPES)
def test_the_innermost_loop_loads_tiles_and_multiplies_them(instruction, transposed):
    x, y, wide = DTYPES[instruction]
    shapes = [(4096, 512) if transposed[0] else (512, 4096), (512, 4096) if transposed[1] else (4096, 512)]
    specs = ShapeDtype(shapes[0], x), ShapeDtype(shapes[1], y)
    code = assembly(lambda x, y: dot(x, y, wide, transposed), *specs, on=XEON)
    hot = [block for block in basic_blocks(code) if any(line.startswith(instruction) for line in block)]
    assert len(hot) == 1 and any(line.startswith("jne") for line in hot[0])
    for name in (instruction, "tileloadd"):
        assert sum(line.startswith(name) for line in hot[0]) == 4
    assert not any(line.startswith(("v", "ldtilecfg", "tilestored", "call")) for line in hot[0])
    # Configured once, before the loops of a task, and released after them.
    assert code.count("\tldtilecfg") == code.count("\ttilerelease") == 1
    assert code.index("ldtilecfg") < code.index(instruction) < code.index("tilerelease")
    assert not re.search(r"\b(vdpbf16ps|vpdp\w+|vpmaddwd|vfmadd\w+)\b", code)


@pytest.mark.parametrize(
    "rows, depth, columns, blocks, length",
    [
        (512, 768, 3072, 4, 384),
        (512, 4096, 512, 4, 512),
        (512, 4096, 96, 3, 512),
        (512, 320, 448, 1, 160),
        (512, 4096, 64, 1, 512),
        (16, 1024, 4096, 1, 512),
        # A large result of few terms is written in long pieces of its rows.
        (768, 128, 3072, 24, 64),
        (768, 256, 768, 12, 128),
        (50257, 128, 768, 12, 64),
        (256, 256, 1024, 4, 128),
    ],
)
def test_panels_of_tiles_fit_the_caches_of_the_processor(rows, depth, columns, blocks, length):
    """Up to four blocks of 32 columns read the same 64 KB of rows; two cores have equally many panels."""
    specs = ShapeDtype((rows, depth), BFLOAT16), ShapeDtype((depth, columns), BFLOAT16)
    text = tvmfun.jit(tnp.matmul, target=XEON).lower(*specs).compile().as_text()
    assert f"panel = T.alloc_buffer(({blocks}, {length}, {32 if rows > 16 else 64})" in text
    assert f"tvmfun_tdpbf16ps_{'2x2' if rows > 16 else '1x4'}_add" in text


@needs_emulator
def test_a_block_of_terms_has_at_least_those_of_one_instruction(amx, monkeypatch):
    """Also in a panel that the first-level cache cannot hold."""
    monkeypatch.setattr(
        machine.Machine, "cache_bytes", lambda self, level: {1: 4 << 10, 2: 64 << 10, 3: 256 << 10}[level]
    )
    rng = np.random.default_rng(0)
    x, y = rng.integers(-128, 128, (200, 150)).astype("int8"), rng.integers(-128, 128, (150, 400)).astype("int8")
    with using(ScheduleSettings(panel_level=1)):
        result = tvmfun.jit(lambda x, y: tnp.matmul(x.astype("int32"), y.astype("int32")))(x, y)
    np.testing.assert_array_equal(result, x.astype("int32") @ y.astype("int32"))


def test_padded_rows_are_whole_cache_lines_if_that_is_little():
    """A length of 257 words is padded to 272, 16 in each instruction; one of 33 to 33, 11 in each."""
    for depth, line in ((514, 16 * 17), (66, 33)):
        specs = ShapeDtype((512, depth), BFLOAT16), ShapeDtype((depth, 512), BFLOAT16)
        text = tvmfun.jit(tnp.matmul, target=XEON).lower(*specs).compile().as_text()
        assert f"panel = T.alloc_buffer((4, {line}, 32)" in text


@needs_emulator
@pytest.mark.parametrize("transposed", LAYOUTS, ids=str)
def test_long_pieces_of_the_rows_of_a_large_result(amx, transposed):
    """Rows, columns and words of which some are left over, an epilogue, and a batch."""
    rng = np.random.default_rng(0)
    pairs = [pair(rng, (330, 60, 1010), transposed, (BFLOAT16, BFLOAT16), normal) for _ in range(2)]
    given = [np.stack([values[i] for values, _, _ in pairs]) for i in range(2)]
    function = lambda x, y: tnp.maximum(dot(x, y, "float32", transposed), 0.0) + 1.0
    results = [tvmfun.jit(function)(*values) for values, _, _ in pairs]
    batch = np.asarray(tvmfun.jit(tvmfun.vmap(function))(*given))
    for (_, x, y), result, own in zip(pairs, results, batch, strict=True):
        x, y = x.astype("float64"), y.astype("float64")
        assert (abs(np.asarray(result) - (np.maximum(x @ y, 0) + 1)) <= bound(x, y, 2.0**-22)).all()
        np.testing.assert_array_equal(own, result)


def test_panels_of_nearly_equal_width_are_packed_once():
    specs = ShapeDtype((512, 512), BFLOAT16), ShapeDtype((512, 509), BFLOAT16)
    text = tvmfun.jit(tnp.matmul, target=XEON).lower(*specs).compile().as_text()
    assert "for v_i1 in T.parallel(4)" in text


@pytest.mark.parametrize("columns, across", [(16, 1), (40, 3), (64, 4), (80, 3), (512, 4)])
def test_few_rows_are_blocks_of_more_columns(columns, across):
    """One left tile and up to four right ones, which load less for each product."""
    specs = ShapeDtype((16, 4096), BFLOAT16), ShapeDtype((4096, columns), BFLOAT16)
    code = assembly(tnp.matmul, *specs, on=XEON)
    count = lambda block, name: sum(line.startswith(name) for line in block)
    counts = {(count(block, "tdpbf16ps"), count(block, "tileloadd")) for block in basic_blocks(code)}
    products, loads = max(counts)
    assert products * (across + 1) == loads * across > 0


def test_short_products_use_vectors():
    for shapes in (((4, 512), (512, 512)), ((512, 512), (512, 4)), ((512, 8), (8, 512))):
        specs = (ShapeDtype(shape, BFLOAT16) for shape in shapes)
        code = assembly(tnp.matmul, *specs, on=XEON)
        assert "tdpbf16ps" not in code.replace("vdpbf16ps", "") and "ldtilecfg" not in code


@pytest.mark.quick("dense")
@pytest.mark.parametrize("name", ["dense", "attention", "convolution"])
def test_layers_and_their_gradients_under_amp_use_tiles(name):
    numbers = ("NHWC", "HWIO", "NHWC")
    function, shapes = {
        "dense": (lambda x, w: nn.gelu(x @ w), ((64, 128), (128, 256))),
        "attention": (lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), ((2, 64, 4, 64),) * 3),
        "convolution": (
            lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers),
            ((32, 8, 8, 32), (3, 3, 32, 64)),
        ),
    }[name]
    step = tvmfun.grad(lambda *xs: tnp.sum(function(*xs) ** 2), argnums=(0, 1))
    for run in (function, step):
        code = assembly(tvmfun.amp(run, BFLOAT16), *(ShapeDtype(shape, "float32") for shape in shapes), on=XEON)
        assert "\ttdpbf16ps" in code and "vdpbf16ps" not in code


# -- numbers ---------------------------------------------------------------------------------------------------------


def check(result, x, y):
    """Compares a product with the exact one, by the bound of sums in float32; integers exactly."""
    if np.issubdtype(np.asarray(result).dtype, np.integer):
        np.testing.assert_array_equal(result, (x.astype("int64") @ y.astype("int64")).astype("int32"))
    else:
        x, y = x.astype("float64"), y.astype("float64")
        assert (abs(np.asarray(result).astype("float64") - x @ y) <= bound(x, y, 0)).all()


SIZES = [
    (64, 64, 96),
    (33, 67, 50),
    (100, 130, 35),
    (16, 66, 180),
    (8, 1030, 9),
    (31, 40, 47),
    (129, 34, 17),
    (70, 517, 253),
]


@needs_emulator
@pytest.mark.quick("tdpbf16ps")
@pytest.mark.parametrize("instruction", DTYPES)
def test_tiles_compute_products_of_all_sizes_and_layouts(amx, instruction):
    left, right, wide = DTYPES[instruction]
    draw = any_integer if "int" in left else normal
    # Each instruction meets every layout, and so do all sizes.
    layouts = [LAYOUTS[(i + list(DTYPES).index(instruction)) % len(LAYOUTS)] for i in range(len(SIZES))]
    cases = [
        pair(np.random.default_rng(0), sizes, transposed, (left, right), draw)
        for sizes, transposed in zip(SIZES, layouts, strict=True)
    ]
    products = lambda pairs: [dot(x, y, wide, layout) for (x, y), layout in zip(pairs, layouts, strict=True)]
    for result, (_, x, y) in zip(tvmfun.jit(products)([given for given, _, _ in cases]), cases, strict=True):
        check(result, x, y)


@needs_emulator
def test_sums_of_bytes_wrap_around(amx):
    x = np.full((16, 300_000), -128, "int8")
    result = np.asarray(tvmfun.jit(lambda x: dot(x, x, "int32", (False, True)))(x))
    assert (result == np.int64(300_000 * 128 * 128).astype("int32")).all()


@needs_emulator
@pytest.mark.parametrize("dtype", [BFLOAT16, pytest.param("float16", marks=pytest.mark.slow)])
def test_infinities_and_nans_go_where_they_belong(amx, dtype):
    x, y = np.ones((40, 65), dtype), np.ones((65, 48), dtype)
    x[3, 64], x[5, 1], x[7, 0], y[2, 9] = np.inf, np.nan, -np.inf, np.inf
    x[11, 2] = 0
    with np.errstate(invalid="ignore"):
        expected = x.astype("float32") @ y.astype("float32")
    result = tvmfun.jit(lambda x, y: dot(x, y, "float32"))(x, y)
    np.testing.assert_array_equal(np.asarray(result), expected)


@needs_emulator
def test_float16_below_the_normal_numbers_is_exact(amx):
    """As in float32, which holds the products of the smallest ones."""
    rng = np.random.default_rng(0)
    x, y = ((rng.integers(-15, 16, shape) * 2.0**-24).astype("float16") for shape in ((32, 64), (64, 32)))
    result = tvmfun.jit(lambda x, y: dot(x, y, "float32"))(x, y)
    np.testing.assert_array_equal(np.asarray(result), x.astype("float32") @ y.astype("float32"))


@needs_emulator
def test_batches_and_what_follows_are_one_kernel(amx):
    rng = np.random.default_rng(0)
    x, y, bias = normal(rng, (5, 33, 66), BFLOAT16), normal(rng, (5, 66, 40), BFLOAT16), normal(rng, (40,), BFLOAT16)
    f = lambda ns, nn, x, y, b: nn.gelu(ns.matmul(x, y) + b)
    ours = tvmfun.jit(lambda *a: f(tnp, nn.functional, *a))
    result = np.asarray(ours(x, y, bias)).astype("float32")
    theirs = jax.jit(lambda *a: f(jax.numpy, jax.nn, *a))(x, y, bias)
    scale = abs(x.astype("float32")) @ abs(y.astype("float32"))
    assert (abs(result - np.asarray(theirs).astype("float32")) <= 2.0**-6 * (scale + 1)).all()


@needs_emulator
def test_updates_are_written_over_their_arguments(amx):
    rng = np.random.default_rng(0)
    w, x, g = rng.standard_normal((66, 45)).astype("float32"), *(normal(rng, (70, n), BFLOAT16) for n in (66, 45))
    step = tvmfun.jit(lambda w, x, g: w - 0.1 * dot(x, g, "float32", (True, False)), donate_argnums=0)
    expected = w - 0.1 * (x.astype("float32").T @ g.astype("float32"))
    np.testing.assert_allclose(step(tnp.asarray(w), x, g), expected, rtol=1e-4, atol=1e-3)


@needs_emulator
@pytest.mark.parametrize("instruction", ["tdpbf16ps", pytest.param("tdpbssd", marks=pytest.mark.slow)])
def test_long_sums_are_cut_in_pieces(amx, instruction):
    """Few results and many terms: pieces in parallel. More terms than a panel has: sums are added to those before."""
    left, right, wide = DTYPES[instruction]
    draw = normal if left == BFLOAT16 else any_integer
    for transposed, sizes in (((False, False), (16, 20_002, 24)), ((True, False), (16, 8_192, 24))):
        given, x, y = pair(np.random.default_rng(0), sizes, transposed, (left, right), draw)
        check(tvmfun.jit(lambda x, y: dot(x, y, wide, transposed))(*given), x, y)  # noqa: B023


@needs_emulator
@pytest.mark.quick("tdpbf16ps-(True, False)")
@pytest.mark.parametrize("transposed", LAYOUTS, ids=str)
@pytest.mark.parametrize("instruction", ["tdpbf16ps", "tdpbssd"])
def test_sizes_known_at_call_time_alone(amx, instruction, transposed):
    left, right, wide = DTYPES[instruction]
    draw = normal if left == BFLOAT16 else any_integer
    names = ("m", "k"), ("k", "n")
    axes = [dict(enumerate(pair[::-1] if turned else pair)) for pair, turned in zip(names, transposed, strict=True)]
    f = tvmfun.jit(lambda x, y: dot(x, y, wide, transposed), dynamic_shapes=tuple(axes))
    for sizes in ((64, 64, 64), (33, 67, 50), (1, 1, 1), (47, 7000, 3)):
        given, x, y = pair(np.random.default_rng(0), sizes, transposed, (left, right), draw)
        check(f(*given), x, y)


@needs_emulator
def test_sizes_known_at_call_time_that_are_0(amx):
    rows, columns = Dim("m", min=0), Dim("n", min=0)
    f = tvmfun.jit(lambda x, y: dot(x, y, "float32"), dynamic_shapes=({0: rows}, {1: columns}))
    for sizes in ((0, 40, 0), (0, 40, 7), (5, 40, 0), (31, 40, 17)):
        given, x, y = pair(np.random.default_rng(0), sizes, (False, False), (BFLOAT16, BFLOAT16), normal)
        check(f(*given), x, y)


@needs_emulator
def test_no_elements(amx):
    for sizes in ((0, 64, 64), (64, 0, 64), (64, 64, 0), (64, 64, 64)):
        given, x, y = pair(np.random.default_rng(0), sizes, (False, False), (BFLOAT16, BFLOAT16), normal)
        check(tvmfun.jit(lambda x, y: dot(x, y, "float32"))(*given), x, y)


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("stride, channels, size", [(1, 32, 12), (2, 32, 15), (1, 17, 19)])
def test_convolutions_and_their_gradients(amx, stride, channels, size, layout):
    rng = np.random.default_rng(0)
    shape = {"N": 3, "H": size, "W": size, "C": channels}
    x = rng.standard_normal([shape[axis] for axis in layout]).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((3, 3, channels, 40)).astype(ml_dtypes.bfloat16)
    numbers = (layout, "HWIO", layout)

    def pieces(ns, x, w, g):
        conv = lambda x, w: ns.lax.conv_general_dilated(x, w, (stride,) * 2, "SAME", dimension_numbers=numbers)
        y, pullback = ns.vjp(conv, x, w)
        return y, *pullback(g(y))

    exact = pieces(jax, x.astype("float32"), w.astype("float32"), jax.numpy.cos)
    g = np.asarray(jax.numpy.cos(exact[0])).astype(ml_dtypes.bfloat16)
    result = tvmfun.jit(lambda x, w, g: pieces(tvmfun, x, w, lambda y: g))(x, w, g)
    for ours, theirs in zip(result, exact, strict=True):
        scale = abs(np.asarray(theirs)).max()
        np.testing.assert_allclose(np.asarray(ours).astype("float32"), theirs, atol=2.0**-6 * scale)


@needs_emulator
@pytest.mark.slow
def test_attention_and_its_gradient_under_amp(amx):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 45, 3, 32)).astype("float32") for _ in range(3))
    loss = lambda ns: lambda q, k, v: (ns.nn.dot_product_attention(q, k, v, is_causal=True) ** 2).sum()
    exact = jax.grad(loss(jax), (0, 1, 2))(q, k, v)
    ours = tvmfun.jit(tvmfun.grad(tvmfun.amp(loss(tvmfun), BFLOAT16), argnums=(0, 1, 2)))(q, k, v)
    for one, other in zip(ours, exact, strict=True):
        np.testing.assert_allclose(one, other, atol=0.03 * abs(np.asarray(other)).max())


@needs_emulator
def test_loops_vmap_and_the_second_derivative(amx):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 20, 32)).astype("float32")
    w = (rng.standard_normal((32, 32)) / 6).astype("float32")

    def loss(ns, narrow, x, w):
        step = lambda i, x: ns.numpy.tanh(narrow(x) @ narrow(w)).astype("float32")
        return (ns.lax.fori_loop(0, 3, step, x) ** 2).sum()

    def pieces(ns, narrow):
        along = lambda w, t: ns.jvp(ns.grad(lambda w: loss(ns, narrow, x[0], w)), (w,), (t,))[1]
        return lambda x, w: (ns.vmap(lambda x: loss(ns, narrow, x, w))(x), along(w, w))

    ours = tvmfun.jit(pieces(tvmfun, lambda x: tnp.astype(x, BFLOAT16)))(x, w)
    for one, other in zip(ours, pieces(jax, lambda x: x)(x, w), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.03, atol=0.03 * abs(np.asarray(other)).max())


@needs_emulator
def test_each_thread_configures_its_own_tiles(amx):
    """Those of TVM's pool, and those of the program that call at the same time; others keep their configurations."""
    given, x, y = pair(np.random.default_rng(0), (160, 64, 160), (False, False), (BFLOAT16, BFLOAT16), normal)
    small, a, b = pair(np.random.default_rng(0), (9, 40, 9), (False, False), (BFLOAT16, BFLOAT16), normal)
    run = tvmfun.jit(lambda x, y: dot(x, y, "float32"))
    check(run(*given), x, y)
    check(run(*small), a, b)
    assert amx("configure") > 2
    results: list = []

    def call():
        for _ in range(3):
            results.append((run(*given), x, y))
            results.append((run(*small), a, b))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 18
    for result in results:
        check(*result)


@needs_emulator
@pytest.mark.slow
def test_exported_libraries_compute_by_tiles_on_their_own_threads(amx, monkeypatch, tmp_path):
    """Emulated, they ask the processor for all features but AMX, which it would deny."""
    if amx("multiply") < math.inf:
        known = {name: bit for name, bit in features.FEATURES["x86_64"].items() if not name.startswith("amx")}
        monkeypatch.setitem(features.FEATURES, "x86_64", known)
    given, x, y = pair(np.random.default_rng(0), (100, 130, 165), (False, False), (BFLOAT16, BFLOAT16), normal)
    compiled = tvmfun.jit(lambda x, y: dot(x, y, "float32")).lower(*given).compile()
    compiled.export(tmp_path / "product.so")
    for threads in (1, 2):
        check(load(tmp_path / "product.so", threads=threads)(*given), x, y)


# -- float32 as two bfloat16 -------------------------------------------------------------------------------------------


def high(ns, x, y):
    return ns.numpy.matmul(x, y, precision="high")


def close(result, x, y):
    """Whether a product of rounded factors keeps 16 bits, where bfloat16 keeps 8."""
    x, y = x.astype("float64"), y.astype("float64")
    return (abs(np.asarray(result) - x @ y) <= 2.0**-16 * (abs(x) @ abs(y))).all()


def matrices(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


ROUNDED = {"high": 512, lax.Precision.HIGH: 512, "tensorfloat32": 512}
EXACT = {"highest": 512, None: 512, "high": 320}


@pytest.mark.parametrize("precision, size", [*ROUNDED.items(), *EXACT.items()], ids=str)
def test_high_precision_is_products_of_bfloat16_where_these_are_faster(precision, size):
    specs = [ShapeDtype((size, size), "float32")] * 2
    product = lambda x, y: tnp.matmul(x, y, precision=precision)
    code = assembly(product, *specs, on=XEON)
    assert ("tdpbf16ps" in code) == (ROUNDED.get(precision) == size) == ("vfmadd" not in code)
    vectors = tvmfun.jit(product, target=target("znver4")).lower(*specs).compile().as_text()
    assert "bfloat16" not in vectors


@needs_emulator
def test_high_precision_keeps_sixteen_bits(amx):
    x, y = matrices((420, 200), (200, 400))
    result = tvmfun.jit(lambda x, y: high(tvmfun, x, y))(x, y)
    assert close(result, x, y)
    assert not close(tvmfun.jit(lambda x, y: dot(x.astype(BFLOAT16), y.astype(BFLOAT16), "float32"))(x, y), x, y)


@needs_emulator
def test_high_precision_of_infinities_and_the_largest_floats(amx):
    x, y = matrices((400, 128), (128, 400))
    x[3, 5], x[4, 5], x[7, 7], y[9, 9] = np.inf, -np.inf, np.nan, np.inf
    x[11], y[:, 13] = 0, 1e-3
    x[11, 2] = np.finfo("float32").max
    with np.errstate(all="ignore"):
        expected = x @ y
    result = np.asarray(tvmfun.jit(lambda x, y: high(tvmfun, x, y))(x, y))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    np.testing.assert_array_equal(result[np.isinf(expected)], expected[np.isinf(expected)])
    np.testing.assert_allclose(result[finite], expected[finite], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(result[11, 13], expected[11, 13], rtol=1e-4)


@needs_emulator
@pytest.mark.slow
def test_high_precision_in_loops_batches_derivatives_and_dynamic_sizes(amx, monkeypatch):
    monkeypatch.setattr(split_products, "_LEAST_REUSE", 64)  # large products take the emulator long
    x, w = matrices((2, 140, 140), (140, 140))
    w /= 12

    def loss(ns, x, w):
        return (ns.lax.fori_loop(0, 2, lambda i, x: ns.numpy.tanh(high(ns, x, w)), x) ** 2).sum()

    def pieces(ns):
        along = lambda w, t: ns.jvp(ns.grad(lambda w: loss(ns, x[0], w)), (w,), (t,))[1]
        return lambda x, w: (ns.vmap(lambda x: loss(ns, x, w))(x), along(w, w))

    ours, before = tvmfun.jit(pieces(tvmfun))(x, w), amx("multiply")
    assert before > 0
    for one, other in zip(ours, pieces(jax)(x, w), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * abs(np.asarray(other)).max())
    run = tvmfun.jit(lambda x, w: high(tvmfun, x, w), dynamic_shapes=({0: Dim("n", min=140)}, {}))
    for count in (140, 153, 190):
        (left,) = matrices((count, 140))
        assert close(run(left, w), left, w)


# -- processors that have no tiles -------------------------------------------------------------------------------------


@pytest.mark.skipif(not targets.is_x86(targets.host()), reason="names instructions of x86 processors")
def test_tiles_need_the_permission_of_the_system(monkeypatch):
    """Where Linux refuses it, products use vectors, and code with tiles is refused."""
    flags = "flags : " + " ".join({*machine.system_flags(), *amx_emulator.FLAGS})
    monkeypatch.setattr(machine, "_read", lambda path: flags)
    monkeypatch.setattr(machine, "may_use_tiles", lambda: True)
    assert machine.system_flags.__wrapped__() >= amx_emulator.FLAGS
    monkeypatch.setattr(machine, "may_use_tiles", lambda: False)
    without = machine.system_flags.__wrapped__()
    assert without and without.isdisjoint(amx_emulator.FLAGS)
    monkeypatch.setattr(machine, "system_flags", lambda: without)
    assert not any("amx" in str(feature) for feature in targets.host.__wrapped__().attrs.get("mattr", ()))
    x = np.ones((32, 64), BFLOAT16)
    with pytest.raises(errors.TargetError, match="instructions that this processor lacks, got amx-bf16.*amx-tile"):
        tvmfun.jit(lambda x: x @ x.T, target=amx_emulator.target(cores=3))(x)


@pytest.mark.skipif(not targets.is_x86(targets.host()), reason="names instructions of x86 processors")
@pytest.mark.parametrize("has_float16", [True, False])
def test_tiles_of_float16_are_found_although_linux_does_not_list_them(monkeypatch, has_float16):
    found = {"amx-tile", "amx-bf16", "amx-int8"} | ({"amx-fp16"} if has_float16 else set())
    monkeypatch.setattr(machine, "_read", lambda path: f"flags : {' '.join(GRANITE_RAPIDS)}")
    monkeypatch.setattr(machine, "may_use_tiles", lambda: True)
    monkeypatch.setattr(machine, "features_by_cpuid", lambda: found)
    flags = machine.system_flags.__wrapped__()
    assert "amx_fp16" not in GRANITE_RAPIDS and flags >= GRANITE_RAPIDS
    monkeypatch.setattr(machine, "system_processor", lambda: "graniterapids")
    monkeypatch.setattr(machine, "system_flags", lambda: flags)
    assert ("amx-fp16" in machine.Machine.of(targets.host.__wrapped__()).features) == has_float16
    assert machine.lacking(machine.llvm_features(XEON), flags) == ([] if has_float16 else ["amx-fp16"])


@pytest.mark.skipif(not targets.is_x86(targets.host()), reason="names instructions of x86 processors")
def test_llvm_finds_what_linux_lists():
    listed = machine.llvm_features(targets.host()) & {"sse4.2", "avx2", "fma", "avx512f", "avx512bf16", "amx-tile"}
    assert listed <= machine.features_by_cpuid()


def test_linux_is_asked_once_per_process():
    assert machine.may_use_tiles() == ("amx_tile" in machine.system_flags())
    assert machine.may_use_tiles.cache_info().currsize == 1
