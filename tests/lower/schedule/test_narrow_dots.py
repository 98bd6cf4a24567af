"""Products of bfloat16, float16 and small integers: the instruction for each processor, and its results."""

from __future__ import annotations

import re

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lower.schedule.test_hot_kernels import basic_blocks, modules, operands

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax
from tvmfun.lower import machine
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine

X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"
BFLOAT16, INTEGERS = "bfloat16", ("int8", "uint8", "int16")
TINY = 2.0**-126


def target(mcpu, triple=X86, mattr=()):
    options = {"kind": "llvm", "mcpu": mcpu, "mtriple": triple, "num-cores": 2}
    return targets.resolve({**options, "mattr": list(mattr)} if mattr else options)


HOST = Machine.of(targets.host())
# Each has other instructions than the one before.
NAMES = ("znver5", "cascadelake", "skylake-avx512", "alderlake", "x86-64-v3", "x86-64")


def dot(x, y, wide=None, transposed=(False, False)):
    """A product of matrices, either one given transposed."""
    contract = ((0 if transposed[0] else 1,), (1 if transposed[1] else 0,))
    return lax.dot_general(x, y, (contract, ((), ())), preferred_element_type=wide)


def assembly(function, *specs, on):
    compiled = tvmfun.jit(function, target=on).lower(*specs).compile()
    return "\n".join(library.inspect_source("asm") for library in modules(compiled.executable.module))


# -- the instruction -------------------------------------------------------------------------------------------------

CHOSEN = {
    "znver5": ("vdpbf16ps", "vpdpbusd", "vpdpbusd", "vpdpwssd", "vpdpwssd"),
    "znver4": ("vdpbf16ps", "vpdpbusd", "vpdpbusd", "vpdpwssd", "vpdpwssd"),
    "sapphirerapids": ("tdpbf16ps", "tdpbusd", "tdpbssd", "tdpbuud", "vpdpwssd"),
    "cascadelake": ("vfmadd", "vpdpbusd", "vpdpbusd", "vpdpwssd", "vpdpwssd"),
    "skylake-avx512": ("vfmadd", "vpmaddwd", "vpmaddwd", "vpmaddwd", "vpmaddwd"),
    "alderlake": ("vfmadd", "vpdpbusd", "vpdpbusd", "vpdpwssd", "vpdpwssd"),
    "x86-64-v3": ("vfmadd", "vpmaddwd", "vpmaddwd", "vpmaddwd", "vpmaddwd"),
    "x86-64": ("mulps", "pmaddwd", "pmaddwd", "pmaddwd", "pmaddwd"),
    "knl": ("vfmadd", "vpmulld", "vpmulld", "vpmulld", "vpmulld"),
}
DTYPES = [
    (BFLOAT16, BFLOAT16, "float32"),
    ("uint8", "int8", "int32"),
    ("int8", "int8", "int32"),
    ("uint8", "uint8", "int32"),
    ("int16", "int8", "int32"),
]


@pytest.mark.quick("x86-64-v3", "x86-64")
@pytest.mark.parametrize("mcpu", CHOSEN)
def test_the_target_decides_which_instruction_multiplies(mcpu):
    for (x, y, wide), expected in zip(DTYPES, CHOSEN[mcpu], strict=True):
        specs = ShapeDtype((128, 256), x), ShapeDtype((256, 192), y)
        code = assembly(lambda x, y, wide=wide: dot(x, y, wide), *specs, on=target(mcpu))
        found = set(re.findall(r"\b([tv]dpbf16ps|vpdpbusd|tdpb[su]{2}d|vpdpwssd|v?pmaddwd)\b", code))
        assert found <= {expected, *({"vpmaddwd"} if expected == "vpdpwssd" else ())}, (x, y)
        assert expected in code


def test_an_arm_processor_compiles_them_all():
    for x, y, wide in DTYPES:
        specs = ShapeDtype((65, 33), x), ShapeDtype((33, 40), y)
        assert "mla" in assembly(lambda x, y, wide=wide: dot(x, y, wide), *specs, on=target("generic", ARM))


LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("transposed", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", ["vdpbf16ps", "vpdpbusd"])
def test_the_innermost_loop_multiplies_words_and_stores_nothing(kind, transposed):
    x, wide = (BFLOAT16, None) if kind == "vdpbf16ps" else ("int8", "int32")
    shapes = zip(((512, 384), (384, 512)), transposed, strict=True)
    specs = [ShapeDtype(shape[::-1] if turned else shape, x) for shape, turned in shapes]
    code = assembly(lambda x, y: dot(x, y, wide, transposed), *specs, on=target("znver4"))
    sums_of = lambda block: {operands(line)[-1] for line in block if line.startswith(kind)}
    hot = max(basic_blocks(code), key=lambda block: len(sums_of(block)))
    sums = sums_of(hot)
    assert len(sums) >= 16 and all(re.fullmatch(r"%zmm\d+", register) for register in sums) and hot[-1].startswith("j")
    assert not any("(%rsp)" in line for line in hot)
    assert not any(line.startswith("v") and "(" in operands(line)[-1] for line in hot)
    assert not any(line.startswith(("vpinsr", "vpextr", "vpmov", "vcvt")) for line in hot)


@pytest.mark.slow
def test_convolutions_of_bfloat16_and_their_gradients_use_it():
    def conv(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x, w, y = (ShapeDtype(s, BFLOAT16) for s in ((4, 16, 16, 32), (3, 3, 32, 64), (4, 16, 16, 64)))
    pieces = [
        (conv, x, w),
        (lambda x, w, g: tvmfun.vjp(lambda x: conv(x, w), x)[1](g)[0], x, w, y),
        (lambda x, w, g: tvmfun.vjp(lambda w: conv(x, w), w)[1](g)[0], x, w, y),
    ]
    for function, *specs in pieces:
        code = assembly(function, *specs, on=target("znver4"))
        assert code.count("vdpbf16ps") >= 16 and "vfmadd" not in code


# -- numbers ---------------------------------------------------------------------------------------------------------


def bound(x, y, rounds):
    """How far a sum of products of bfloat16 in float32 may be off, whatever the order.

    A term or a product below the normal numbers may count as 0; `rounds` is the final rounding.
    """
    x, y = abs(x), abs(y)
    k = x.shape[1]
    flushed = TINY * (x.sum(1)[:, None] + y.sum(0)[None] + 2 * k)
    return (k + 2) * 2.0**-23 * (x @ y) + flushed + rounds * abs(x @ y)


def pair(rng, sizes, transposed, dtypes, draw):
    m, k, n = sizes
    x, y = draw(rng, (m, k), dtypes[0]), draw(rng, (k, n), dtypes[1])
    given = (x.T.copy() if transposed[0] else x), (y.T.copy() if transposed[1] else y)
    return given, x, y


def normal(rng, shape, dtype):
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-3, 4, shape))).astype(dtype)


def any_integer(rng, shape, dtype):
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    x[rng.random(shape) < 0.3] = info.min
    return x


SIZES = st.tuples(*[st.one_of(st.integers(0, 9), st.sampled_from([16, 31, 33, 64, 70]))] * 3)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(SIZES, st.sampled_from(LAYOUTS), st.sampled_from(["bfloat16", "float16"]), st.sampled_from([None, "float32"]))
def test_half_precision_is_summed_in_float32(sizes, transposed, dtype, wide):
    given, x, y = pair(np.random.default_rng(0), sizes, transposed, (dtype, dtype), normal)
    result = tvmfun.jit(lambda x, y: dot(x, y, wide, transposed))(*given)
    assert tnp.asarray(result).dtype == np.dtype(wide or dtype)
    x, y = x.astype("float64"), y.astype("float64")
    rounds = 0 if wide else 2.0**-8 if dtype == BFLOAT16 else 2.0**-11
    assert (abs(np.asarray(result).astype("float64") - x @ y) <= bound(x, y, rounds) + 2.0**-25).all()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(SIZES, st.sampled_from(LAYOUTS), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_integers_are_exact(sizes, transposed, left, right):
    given, x, y = pair(np.random.default_rng(0), sizes, transposed, (left, right), any_integer)
    result = tvmfun.jit(lambda x, y: dot(x, y, "int32", transposed))(*given)
    np.testing.assert_array_equal(result, (x.astype("int64") @ y.astype("int64")).astype("int32"))


SIZES_OF_ALL = [(64, 64, 96), (33, 67, 50), (100, 1030, 35), (3, 200, 300)]


@pytest.mark.slow
@pytest.mark.parametrize("mcpu", NAMES)
@pytest.mark.parametrize("sizes", SIZES_OF_ALL, ids=str)
def test_each_kind_of_instruction_computes_the_same(mcpu, sizes):
    lacking = machine.lacking(machine.llvm_features(target(mcpu)), machine.system_flags())
    if missing := {*lacking} & {*machine.FEATURES}:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    on = target(mcpu, mattr=[f"-{feature}" for feature in lacking])
    rng = np.random.default_rng(0)
    # Each pair of dtypes meets every layout on each processor, and for each of the sizes.
    first = NAMES.index(mcpu) + SIZES_OF_ALL.index(sizes)
    cases = [(*dtypes, LAYOUTS[(first + i) % 4]) for i, dtypes in enumerate(DTYPES)]
    pairs = [
        pair(rng, sizes, transposed, (left, right), normal if left == BFLOAT16 else any_integer)
        for left, right, _, transposed in cases
    ]
    products = lambda given: [
        dot(x, y, wide, turned) for (x, y), (_, _, wide, turned) in zip(given, cases, strict=True)
    ]
    results = tvmfun.jit(products, target=on)([given for given, _, _ in pairs])
    for (left, *_), (_, x, y), result in zip(cases, pairs, results, strict=True):
        if left == BFLOAT16:
            x, y = x.astype("float64"), y.astype("float64")
            assert (abs(result - x @ y) <= bound(x, y, 0)).all()
        else:
            np.testing.assert_array_equal(result, (x.astype("int64") @ y.astype("int64")).astype("int32"))


def test_sums_of_the_largest_bytes_wrap_around():
    """300,000 products of -128 and -128 are more than an int32 holds; 255 times -128 does not saturate."""
    x = np.full((16, 300_000), -128, "int8")
    result = np.asarray(tvmfun.jit(lambda x: dot(x, x, "int32", (False, True)))(x))
    assert (result == np.int64(300_000 * 128 * 128).astype("int32")).all()
    y = np.full((16, 4096), 255, "uint8")
    result = np.asarray(tvmfun.jit(lambda y, x: dot(y, x, "int32", (False, True)))(y, x[:, :4096]))
    assert (result == -255 * 128 * 4096).all()


def test_infinities_and_nans_of_bfloat16_go_where_they_belong():
    x, y = np.ones((40, 65), ml_dtypes.bfloat16), np.ones((65, 48), ml_dtypes.bfloat16)
    x[3, 64], x[5, 1], x[7, 0], y[2, 9] = np.inf, np.nan, -np.inf, np.inf
    x[11, 2] = 0
    with np.errstate(invalid="ignore"):
        expected = x.astype("float32") @ y.astype("float32")
    for transposed in LAYOUTS:
        given = (x.T.copy() if transposed[0] else x), (y.T.copy() if transposed[1] else y)
        result = tvmfun.jit(lambda x, y: dot(x, y, None, transposed))(*given)  # noqa: B023
        np.testing.assert_array_equal(np.asarray(result).astype("float32"), expected)


def test_numbers_below_the_normal_ones_are_at_most_lost():
    """The instruction takes them for 0, and so do others' products."""
    x = np.full((32, 64), 2.0**-130, ml_dtypes.bfloat16)
    y = np.full((64, 32), 2.0**100, ml_dtypes.bfloat16)
    result = np.asarray(tvmfun.jit(lambda x, y: dot(x, y, "float32"))(x, y)).astype("float64")
    exact = x.astype("float64") @ y.astype("float64")
    assert (abs(result - exact) <= bound(x.astype("float64"), y.astype("float64"), 0)).all()
    assert (result <= exact).all() and (result >= 0).all()


def test_batches_and_what_follows_are_one_kernel():
    rng = np.random.default_rng(0)
    x, y = normal(rng, (5, 33, 66), BFLOAT16), normal(rng, (5, 66, 40), BFLOAT16)
    bias = normal(rng, (40,), BFLOAT16)
    f = lambda ns, nn, x, y, b: nn.gelu(ns.matmul(x, y) + b)
    ours = tvmfun.jit(lambda *a: f(tnp, tvmfun.nn.functional, *a))
    theirs = jax.jit(lambda *a: f(jax.numpy, jax.nn, *a))(x, y, bias)
    result = np.asarray(ours(x, y, bias)).astype("float32")
    scale = abs(x.astype("float32")) @ abs(y.astype("float32"))
    assert (abs(result - np.asarray(theirs).astype("float32")) <= 2.0**-6 * (scale + 1)).all()


@pytest.mark.parametrize("rows", [3, 7, 9])
@pytest.mark.parametrize("left", [BFLOAT16, "float16", "int8", "uint8"])
def test_batches_of_fewer_rows_than_batches(left, rows):
    """Scores of attention with few queries and an odd width: each batch has its own packed keys."""
    rng = np.random.default_rng(0)
    draw, wide = (any_integer, "int32") if left in INTEGERS else (normal, "float32")
    x, y = draw(rng, (3, 16, rows, 7), left), draw(rng, (3, 16, 5, 7), left)
    scores = lambda x, y: lax.dot_general(x, y, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=wide)
    result = np.asarray(tvmfun.jit(scores)(x, y)).astype("float64")
    x, y = x.astype("float64"), np.swapaxes(y.astype("float64"), 2, 3)
    assert (abs(result - x @ y) <= (0 if left in INTEGERS else 1e-5 * (abs(x) @ abs(y)))).all()


@pytest.mark.quick("bfloat16-7-1030-4100", "int8-5-2051-2300", "uint8-7-1030-4100")
@pytest.mark.parametrize(
    "sizes", [(7, 1030, 4100), (5, 2051, 2300), (16, 2048, 4096)], ids=lambda s: "-".join(map(str, s))
)
@pytest.mark.parametrize("left", [BFLOAT16, "int8", "uint8"])
def test_few_rows_stream_words_of_a_large_right_operand(left, sizes):
    """Words and columns in whole blocks or not; the sums of a block are added to those of the blocks before."""
    rng = np.random.default_rng(0)
    draw, wide = (normal, "float32") if left == BFLOAT16 else (any_integer, "int32")
    (x, y), *_ = pair(rng, sizes, (False, False), (left, left), draw)
    scale = 3 if left in INTEGERS else np.float32(0.5)
    f = tvmfun.jit(lambda x, y, z: (dot(x, y, wide), dot(x, y, wide) * scale + z))
    z = draw(rng, (sizes[2],), "int32" if left in INTEGERS else "float32")
    compiled = f.lower(x, y, z).compile()
    plain, scaled = map(np.asarray, compiled(x, y, z))
    if left in INTEGERS:
        expected = x.astype("int64") @ y.astype("int64")
        np.testing.assert_array_equal(plain, expected.astype("int32"))
        np.testing.assert_array_equal(scaled, (3 * expected + z).astype("int32"))
    else:
        wide_x, wide_y = x.astype("float64"), y.astype("float64")
        error = bound(wide_x, wide_y, 0)
        assert (abs(plain - wide_x @ wide_y) <= error).all()
        assert (abs(scaled - (wide_x @ wide_y / 2 + z)) <= error + 2.0**-22 * abs(z)).all()
    if "avx512bf16" in HOST.features and sizes[0] < 8:
        texts = [module.inspect_source("asm") for module in modules(compiled.executable.module)]
        assert any("prefetcht1" in text for text in texts)


@pytest.mark.quick("int8-1", "float16-5", "int16-40")
@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("dtype", [BFLOAT16, "float16", *INTEGERS])
def test_few_rows_stream_weights_that_are_converted(dtype, rows):
    """A product in float32 with narrow weights that L2 does not hold, with an epilogue; nothing stores wide weights."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 1030)).astype("float32")
    w = (any_integer if dtype in INTEGERS else normal)(rng, (1030, 4100), dtype)
    scale = rng.standard_normal(4100).astype("float32")
    compiled = tvmfun.jit(lambda x, w, s: (x @ w.astype("float32")) * s).lower(x, w, scale).compile()
    assert compiled.memory_analysis().temporaries <= 4 * rows * 4100
    result, wide = np.asarray(compiled(x, w, scale)), w.astype("float64")
    error = 1030 * 2.0**-24 * (abs(x) @ abs(wide)) * abs(scale)
    assert (abs(result - x.astype("float64") @ wide * scale) <= error).all()


@pytest.mark.quick("int8-bfloat16-plain", "float32-uint8-vmapped", "int16-int8-looped")
@pytest.mark.parametrize("way", ["plain", "transposed", "vmapped", "looped", "gradient", "dynamic"])
@pytest.mark.parametrize(
    ("left", "right"),
    [("float32", "uint8"), ("int8", BFLOAT16), (BFLOAT16, "int8"), ("int16", "int8"), ("uint8", "float32")],
)
def test_integers_are_converted_while_a_product_in_float32_reads_them(left, right, way):
    """Also in loops, and where only one side is narrow or both are, in different formats."""
    rng = np.random.default_rng(0)
    draw = lambda shape, dtype: (any_integer if dtype in INTEGERS else normal)(rng, shape, dtype)
    x, y = draw((33, 70), left), draw((70, 45), right)
    product = lambda x, y: x.astype("float32") @ y.astype("float32")
    wide_x, wide_y = x.astype("float64"), y.astype("float64")
    expected, error = wide_x @ wide_y, 72 * 2.0**-23 * (abs(wide_x) @ abs(wide_y))
    if way == "plain":
        result = tvmfun.jit(product)(x, y)
    elif way == "transposed":
        result = tvmfun.jit(lambda x, y: product(x.T, y.T))(x.T.copy(), y.T.copy())
    elif way == "vmapped":
        result = tvmfun.jit(tvmfun.vmap(product, (None, 0)))(x, np.stack([y, y]))[1]
    elif way == "looped":
        step = lambda c, row: (c, row.astype("float32") @ y.astype("float32"))
        result = tvmfun.jit(lambda x: lax.scan(step, 0.0, x)[1])(x)
    elif way == "gradient":  # of a factor beside the product
        result = tvmfun.jit(tvmfun.grad(lambda s: (product(x, y) * s).sum()))(np.ones((33, 45), "float32"))
    else:
        result = tvmfun.jit(product, dynamic_shapes=({0: "m"}, {1: "n"}))(x, y)
    assert (abs(np.asarray(result) - expected) <= error).all()


SCALED = {
    "columns": lambda ns, x, w, s: x @ (w.astype("float32") * s),
    "rows": lambda ns, x, w, s: x @ ((w.astype("float32") - s[:, None]) * s[:, None]).T,
    "groups": lambda ns, x, w, s: x @ (w.astype("float32") * ns.repeat(s.reshape(-1, 10)[:, :1], 64, 0)[:640]),
    "reshaped groups": lambda ns, x, w, s: x @ (w.reshape(20, 32, 640) * s[:20, None, None]).reshape(640, 640),
    "groups of rows": lambda ns, x, w, s: x @ (w.reshape(640, 40, 16) * s.reshape(640, 1, 1)).reshape(640, -1).T,
    "odd groups": lambda ns, x, w, s: x @ (w.reshape(128, 5, 640) * s[:5, None]).reshape(640, -1),
    "unpacked": lambda ns, x, w, s: x @ ns.stack([w & 15, (w >> 4) & 15], 1).reshape(-1, 640)[:640].astype("float32"),
    "floats": lambda ns, x, w, s: (x * 2) @ (ns.exp(s)[:, None] * ns.where(w > 0, 1.0, s)),
    "vectors": lambda ns, x, w, s: (x[0] * 3) @ (s - 1),
    "expensive": lambda ns, x, w, s: x @ ns.tanh(w.astype("float32") * s),
}


@pytest.mark.quick(
    *("columns-plain-1", "rows-plain-1", "groups-vmapped-1", "unpacked-plain-1", "vectors-gradient-1"),
    *("reshaped groups-plain-5", "groups of rows-plain-5", "groups of rows-vmapped-1", "odd groups-gradient-5"),
    *("columns-plain-5", "rows-vmapped-5", "rows-gradient-40", "groups-looped-40", "floats-dynamic-5"),
)
@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("way", ["plain", "vmapped", "gradient", "looped", "dynamic"])
@pytest.mark.parametrize("name", SCALED)
def test_few_rows_compute_weights_while_they_read_or_pack_them(name, way, rows):
    rng = np.random.default_rng(0)
    x, s = rng.standard_normal((rows, 640)).astype("float32"), rng.standard_normal(640).astype("float32")
    w = any_integer(rng, (640, 640), "int8")

    def changed(lib, ns, loops):
        f = lambda x: SCALED[name](ns, x, ns.asarray(w), ns.asarray(s))
        if way == "vmapped":
            return lib.vmap(f)(ns.stack([x, 2 * x]))
        if way == "gradient":
            return lib.grad(lambda x: (f(x) ** 2).sum())(ns.asarray(x))
        if way == "looped":
            step = lambda c, row: (c + 1, ns.atleast_1d(f(row * c))[..., :1])
            return loops.scan(step, ns.float32(1), ns.stack([x, 2 * x]))[1]
        return f(ns.asarray(x))

    if way == "dynamic":
        f = lambda x, w, s: SCALED[name](tnp, x, w, s)
        ours = np.asarray(tvmfun.jit(f, dynamic_shapes=({0: "n"}, None, None))(x, w, s))
    else:
        ours = np.asarray(tvmfun.jit(lambda: changed(tvmfun, tnp, lax))())
    theirs = np.asarray(jax.jit(lambda: changed(jax, jax.numpy, jax.lax))())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5 * abs(theirs).max())


FLAGS = {
    "bool": lambda w: w > 0,
    "negated": lambda w: ~(w > 0),
    "chosen": lambda w: tnp.where(w > 0, 1, 0),
    "bits": lambda w: (w >> 2) & 1,
    "int8": lambda w: w,
}


@pytest.mark.quick("8-bool-True", "8-chosen-False", "2-int8-True")
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("rows", [2, 8, 40, 200])
def test_integers_and_flags_as_bfloat16(rows, name, is_transposed):
    """Of which instructions for pairs of bfloat16 take what is stored: masks, one-hot rows, weights in int8."""
    rng = np.random.default_rng(0)
    x, w = normal(rng, (rows, 192), BFLOAT16), any_integer(rng, (192, 192), "int8")

    def f(x, w):
        factor = FLAGS[name](w).astype(BFLOAT16)
        return tnp.matmul(x, factor.T if is_transposed else factor, preferred_element_type="float32")

    factor = np.asarray(FLAGS[name](tnp.asarray(w))).astype("float64")
    wide, factor = x.astype("float64"), factor.T if is_transposed else factor
    result = np.asarray(tvmfun.jit(f)(x, w))
    assert (abs(result - wide @ factor) <= 194 * 2.0**-23 * (abs(wide) @ abs(factor)) + 192 * TINY).all()


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (1, ("columns", "rows", "expensive", "reshaped groups", "groups of rows", "odd groups")),
        (2, ("columns", "rows", "reshaped groups", "groups of rows", "odd groups")),
        (12, ("columns", "rows")),
        (256, ("columns", "reshaped groups")),
    ],
    ids=["1", "2", "12", "256"],
)
def test_few_rows_store_no_weights(rows, names):
    x, w, s = ShapeDtype((rows, 640), "float32"), ShapeDtype((640, 640), "int8"), ShapeDtype((640,), "float32")
    for name in names:
        compiled = tvmfun.jit(lambda x, w, s: SCALED[name](tnp, x, w, s)).lower(x, w, s).compile()  # noqa: B023
        assert compiled.memory_analysis().temporaries < max(640 * 640, 8 * rows * 640)


@pytest.mark.slow
@pytest.mark.parametrize("left", [BFLOAT16, "int8"])
def test_long_sums_are_cut_in_pieces(left):
    """Few results and many terms: pieces in parallel, and their sum."""
    rng = np.random.default_rng(0)
    draw, wide = (normal, "float32") if left == BFLOAT16 else (any_integer, "int32")
    for transposed in LAYOUTS:
        given, x, y = pair(rng, (16, 20_002, 24), transposed, (left, left), draw)
        result = np.asarray(tvmfun.jit(lambda x, y: dot(x, y, wide, transposed))(*given))  # noqa: B023
        if left == BFLOAT16:
            x, y = x.astype("float64"), y.astype("float64")
            assert (abs(result - x @ y) <= bound(x, y, 0)).all()
        else:
            np.testing.assert_array_equal(result, (x.astype("int64") @ y.astype("int64")).astype("int32"))


@pytest.mark.quick("uint8-(True, False)")
@pytest.mark.parametrize(
    ("left", "transposed"),
    [
        *((BFLOAT16, layout) for layout in LAYOUTS),
        # With the sign of integers the instruction changes, and with the layout what comes before it.
        *(("int8" if left == right else "uint8", (left, right)) for left, right in LAYOUTS),
    ],
    ids=str,
)
def test_sizes_known_at_call_time_alone(left, transposed):
    rng = np.random.default_rng(0)
    draw, wide = (normal, "float32") if left == BFLOAT16 else (any_integer, "int32")
    names = ("m", "k"), ("k", "n")
    axes = [dict(enumerate(pair[::-1] if turned else pair)) for pair, turned in zip(names, transposed, strict=True)]
    f = tvmfun.jit(lambda x, y: dot(x, y, wide, transposed), dynamic_shapes=tuple(axes))
    for sizes in ((64, 64, 64), (33, 67, 50), (1, 1, 1), (5, 1030, 3)):
        given, x, y = pair(rng, sizes, transposed, (left, left), draw)
        result = np.asarray(f(*given))
        if left == BFLOAT16:
            x, y = x.astype("float64"), y.astype("float64")
            assert (abs(result - x @ y) <= bound(x, y, 0)).all()
        else:
            np.testing.assert_array_equal(result, (x.astype("int64") @ y.astype("int64")).astype("int32"))


@pytest.mark.slow
@pytest.mark.parametrize("stride, channels, size", [(1, 32, 12), (2, 32, 13), (1, 3, 9), (2, 5, 8)])
def test_convolutions_and_gradients_in_bfloat16(stride, channels, size):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, size, size, channels)).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((3, 3, channels, 40)).astype(ml_dtypes.bfloat16)
    numbers = ("NHWC", "HWIO", "NHWC")

    def pieces(ns, x, w, g):
        conv = lambda x, w: ns.lax.conv_general_dilated(x, w, (stride,) * 2, "SAME", dimension_numbers=numbers)
        y, pullback = ns.vjp(conv, x, w)
        return y, *pullback(g(y))

    exact = pieces(jax, x.astype("float32"), w.astype("float32"), jax.numpy.cos)
    g = np.asarray(jax.numpy.cos(exact[0])).astype(ml_dtypes.bfloat16)
    result = tvmfun.jit(lambda x, w, g: pieces(tvmfun, x, w, lambda y: g))(x, w, g)
    for ours, theirs in zip(result, exact, strict=True):
        scale = abs(np.asarray(theirs)).max()
        np.testing.assert_allclose(np.asarray(ours).astype("float32"), theirs, atol=2.0**-7 * scale)


def test_gradients_through_sums_in_float32_have_the_dtypes_of_the_arrays():
    """As JAX's, which multiplies the wide cotangent by the narrow array."""
    rng = np.random.default_rng(0)
    x, y = normal(rng, (33, 18), BFLOAT16), normal(rng, (18, 50), BFLOAT16)

    def loss(ns, x, y):
        product = ns.lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type="float32")
        return (product**2).sum()

    ours = tvmfun.jit(tvmfun.grad(lambda x, y: loss(tvmfun, x, y), argnums=(0, 1)))(x, y)
    theirs = jax.grad(lambda x, y: loss(jax, x, y), argnums=(0, 1))(x, y)
    for mine, other in zip(ours, theirs, strict=True):
        mine, other = np.asarray(mine), np.asarray(other)
        assert mine.dtype == other.dtype == np.dtype(ml_dtypes.bfloat16)
        other = other.astype("float32")
        np.testing.assert_allclose(mine.astype("float32"), other, rtol=2.0**-7, atol=2.0**-7 * abs(other).max())


def test_products_in_a_loop_and_of_what_was_just_computed():
    rng = np.random.default_rng(0)
    x, w = normal(rng, (40, 64), BFLOAT16), normal(rng, (64, 64), BFLOAT16)

    def in_a_loop(x, w):
        step = lambda c, _: (tnp.tanh(c @ w[:48, :48]), None)
        return lax.scan(step, x[:, :48], None, length=3)[0]

    for f in (in_a_loop, lambda x, w: dot(tnp.maximum(x, 0) * 2, tnp.pad(w[:32], ((0, 32), (0, 0))), "float32")):
        at_once = np.asarray(tvmfun.jit(f)(x, w)).astype("float32")
        one_by_one = np.asarray(f(tnp.asarray(x), tnp.asarray(w))).astype("float32")
        np.testing.assert_allclose(at_once, one_by_one, rtol=2.0**-7, atol=1e-5)
