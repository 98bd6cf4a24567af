"""Products of matrices on GPUs: emulated against the CPU, and compiled to machine code for three architectures.

The emulator runs the CUDA source thread by thread.
"""

import numpy as np
import pytest
from support.emulated_products import check, emulate, needs_gxx, needs_nvcc, product_of, ptx, resources, scheduled

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, nn
from tvmfun.lower.schedule.gpu import tiles


def random(*shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


LAYOUTS = {
    "nn": lambda x, y: x @ y,
    "nt": lambda x, y: x @ tnp.swapaxes(y, -1, -2),
    "tn": lambda x, y: tnp.swapaxes(x, -1, -2) @ y,
    "tt": lambda x, y: tnp.swapaxes(x, -1, -2) @ tnp.swapaxes(y, -1, -2),
}


def factors(layout, m, n, k, dtype, batch=()):
    left = (k, m) if layout[0] == "t" else (m, k)
    right = (n, k) if layout[1] == "t" else (k, n)
    return random(*batch, *left, dtype=dtype, seed=1), random(*batch, *right, dtype=dtype, seed=2)


CASES = [
    ("nn", (16, 16, 16), "float16"),
    ("nn", (17, 7, 33), "bfloat16"),
    ("nn", (130, 72, 40), "float16"),
    ("nn", (96, 200, 64), "float32"),
    ("nt", (17, 40, 32), "bfloat16"),
    ("nt", (130, 7, 17), "float32"),
    ("nt", (2, 128, 1000), "float16"),
    ("tn", (48, 40, 72), "float16"),
    ("tn", (7, 17, 2), "bfloat16"),
    ("tn", (128, 130, 16), "float32"),
    ("tt", (16, 24, 48), "bfloat16"),
    ("tt", (33, 31, 29), "float32"),
]


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize(("layout", "sizes", "dtype"), CASES)
def test_products_are_those_of_the_cpu(layout, sizes, dtype):
    assert check(LAYOUTS[layout], *factors(layout, *sizes, dtype)) == ["product"]


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vectors_and_matrices_without_terms(dtype):
    for layout, sizes in (("nn", (1, 130, 24)), ("tn", (7, 17, 1)), ("nt", (33, 1, 20)), ("nn", (5, 6, 0))):
        check(LAYOUTS[layout], *factors(layout, *sizes, dtype), orders=1)


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_product_with_an_epilogue(dtype):
    layer = lambda x, w, b, r: nn.functional.gelu(x @ w + b) * 2 + r
    arrays = [random(*shape, dtype=dtype) for shape in ((40, 24), (24, 48), (48,), (40, 48))]
    assert check(layer, *arrays) == ["product"]


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("batch", [(0,), (3,), (2, 2)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stacks_of_products(layout, batch):
    check(LAYOUTS[layout], *factors(layout, 33, 24, 40, "float16", batch))


@needs_gxx
@pytest.mark.slow
def test_heads_of_attention_are_read_where_they_are():
    q, k = random(2, 20, 3, 16, dtype="bfloat16"), random(2, 24, 3, 16, dtype="bfloat16", seed=1)
    assert check(lambda q, k: tnp.einsum("bqhd,bkhd->bhqk", q, k), q, k) == ["product"]
    p = random(2, 3, 20, 24, dtype="bfloat16")
    check(lambda p, v: tnp.einsum("bhqk,bkhd->bqhd", p, v), p, k)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_epilogues_with_masks_and_several_results(dtype):
    def layer(x, w, b, mask):
        y = x @ w + b
        return tnp.where(mask, y, 0), y > 1, y.astype("float32")

    arrays = [random(*shape, dtype=dtype) for shape in ((40, 24), (24, 48), (40, 1))]
    mask = np.random.default_rng(0).random((40, 48)) < 0.5
    check(layer, *arrays, mask)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("tile", tiles.shapes("bfloat16", "sm_80"), ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_every_tile_of_tensor_cores(tile, monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *_: (tile, 1))
    for layout in ("nt", "tn"):
        sizes = tile.rows + 8, tile.columns + 16, 3 * tile.depth + 8
        check(LAYOUTS[layout], *factors(layout, *sizes, "bfloat16"), orders=1)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("tile", tiles.shapes("float32", "sm_80"), ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_every_tile_without_tensor_cores(tile, monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *_: (tile, 1))
    for layout in ("nt", "tn"):
        sizes = tile.rows + 8, tile.columns + 16, 3 * tile.depth + 8
        check(LAYOUTS[layout], *factors(layout, *sizes, "float32"), orders=1)


CONVOLUTIONS = {"plain": {}, "stride": {"window_strides": (2, 2)}, "dilation": {"rhs_dilation": (2, 2)}}


def convolution(x, w, window_strides=(1, 1), **options):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, window_strides, "SAME", dimension_numbers=layout, **options)


# All pairs: numbers of channels say whether they are copied in vectors, whose length depends on the dtype.
@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "channels", "dtype"),
    [
        ("plain", 3, "bfloat16"),
        ("plain", 16, "float32"),
        ("stride", 3, "float32"),
        ("stride", 16, "bfloat16"),
        ("dilation", 3, "float32"),
        ("dilation", 16, "bfloat16"),
    ],
)
def test_convolutions_and_their_gradients_are_products(kind, channels, dtype):
    def both(x, w, g):
        y, pull = tvmfun.vjp(lambda x, w: nn.functional.relu(convolution(x, w, **CONVOLUTIONS[kind])), x, w)
        return y, *pull(g[: y.shape[0], : y.shape[1], : y.shape[2]])

    arrays = [random(*shape, dtype=dtype) for shape in ((2, 9, 8, channels), (3, 3, channels, 24), (2, 9, 8, 24))]
    rules = check(both, *arrays, orders=1)
    assert "contraction" not in rules
    assert rules.count("product") >= 3


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("splits", [2, 5])
def test_partial_sums_of_ranges_of_the_terms(splits, dtype, monkeypatch):
    tile = tiles.shapes(dtype, "sm_80")[-1]
    monkeypatch.setattr(tiles, "choose", lambda *_: (tile, splits))
    layer = lambda x, w, b: nn.functional.relu(tnp.swapaxes(x, 1, 2) @ w + b[:, None])
    arrays = [random(*shape, dtype=dtype) for shape in ((2, 700, 37), (2, 700, 44), (37,))]
    check(layer, *arrays)


def two_layers(w1, w2, x, y):
    return tnp.mean((nn.functional.gelu(x @ w1) @ w2 - y) ** 2)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_training_step_in_mixed_precision(dtype):
    arrays = [random(*shape, dtype="float32") for shape in ((64, 128), (128, 24), (40, 64), (40, 24))]
    step = tvmfun.value_and_grad(tvmfun.amp(two_layers, dtype), argnums=(0, 1))
    rules = check(step, *arrays, orders=1, tolerance=1e-2)
    assert rules.count("product") == 5


@pytest.mark.parametrize("policy", ["bfloat16", tvmfun.PrecisionPolicy("float16", only_products=False)])
def test_mixed_precision_stores_and_multiplies_half_precision(policy):
    step = tvmfun.value_and_grad(tvmfun.amp(two_layers, policy), argnums=(0, 1))
    specs = [ShapeDtype(shape, "float32") for shape in ((64, 128), (128, 24), (40, 64), (40, 24))]
    products = [one for one in scheduled(step, *specs) if one.rule == "product"]
    assert len(products) == 5
    for product in products:
        assert sum(atom.aval.dtype.itemsize == 2 for atom in product.kernel.inputs) >= 2
        dtype = "bfloat16" if policy == "bfloat16" else "float16"
        assert f"tvmfun_{dtype}_" in product.function.script()


def rounded_to_tf32(x):
    """A float32 array rounded to 11 bits, ties away from zero."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(33, 24, 40), (17, 7, 19)])
def test_tensorfloat32_rounds_the_factors_and_nothing_else(layout, sizes):
    exact = factors(layout, *sizes, "float32")
    left, right = (x.T if flag == "t" else x for flag, x in zip(layout, map(rounded_to_tf32, exact), strict=True))
    product = lambda x, y: lax.dot(x.T if layout[0] == "t" else x, y.T if layout[1] == "t" else y, precision="high")
    (result,), rules = emulate(product, *exact)
    assert rules == ["product"]
    np.testing.assert_allclose(result, left.astype("float64") @ right, rtol=1e-5, atol=1e-5)
    assert np.abs(result - exact_product(layout, *exact)).max() > 1e-4


def exact_product(layout, x, y):
    return (x.T if layout[0] == "t" else x).astype("float64") @ (y.T if layout[1] == "t" else y)


@pytest.mark.parametrize(
    ("precision", "format"),
    [(None, "float32"), ("highest", "float32"), ("tensorfloat32", "tf32"), (lax.Precision.HIGH, "tf32")],
)
def test_tensorfloat32_is_an_explicit_choice(precision, format):
    specs = [ShapeDtype((64, 64), "float32")] * 2
    product, _ = product_of(lambda x, w: tnp.matmul(x, w, precision=precision), *specs)
    assert f"tvmfun_{format}_" in product.function.script()


def test_a_whole_step_in_tensorfloat32():
    step = tvmfun.value_and_grad(tvmfun.amp(two_layers, "tensorfloat32"), argnums=(0, 1))
    specs = [ShapeDtype(shape, "float32") for shape in ((64, 128), (128, 24), (40, 64), (40, 24))]
    products = [one for one in scheduled(step, *specs) if one.rule == "product"]
    assert len(products) == 5
    assert all("tvmfun_tf32_" in product.function.script() for product in products)


@pytest.mark.slow
@needs_nvcc
def test_tensorfloat32_is_multiplied_by_tensor_cores(tmp_path):
    specs = [ShapeDtype((64, 64), "float32")] * 2
    _, source = product_of(lambda x, w: tnp.matmul(x, w, precision="tensorfloat32"), *specs)
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in ptx(source, "sm_80", tmp_path)


# -- machine code ------------------------------------------------------------------------------------------------------

# bytes of shared memory that a block may use
MOST_SHARED = {"sm_80": 163 << 10, "sm_90a": 227 << 10, "sm_100": 227 << 10}
SIZES = {"large": (4096, 3072, 768), "odd": (1000, 130, 70), "few rows": (16, 1024, 1024), "logits": (64, 10, 128)}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "dtypes"),
    [
        ("sm_80", ("bfloat16", "float32", "tf32")),
        ("sm_90a", ("bfloat16", "tf32")),
        ("sm_100", ("float16", "float32", "tf32")),
    ],
)
def test_products_need_no_memory_for_registers(arch, dtypes, tmp_path):
    sources = {}
    for dtype in dtypes:
        precision = "tensorfloat32" if dtype == "tf32" else None
        layer = lambda x, w, b, precision=precision: nn.functional.gelu(tnp.matmul(x, w, precision=precision) + b)
        for sizes, (m, n, k) in SIZES.items():
            specs = [ShapeDtype(shape, "float32" if precision else dtype) for shape in ((m, k), (k, n), (n,))]
            sources[dtype, sizes] = product_of(layer, *specs, arch=arch)[1]
    for case, kernels in zip(sources, resources(list(sources.values()), arch, tmp_path), strict=True):
        for used in kernels:
            assert (used.spilled_bytes, used.stack_bytes) == (0, 0), case


@needs_nvcc
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_half_precision_is_multiplied_by_tensor_cores(dtype, tmp_path):
    specs = [ShapeDtype((64, 64), dtype)] * 2
    _, source = product_of(lambda x, w: x @ w, *specs)
    text = ptx(source, "sm_80", tmp_path)
    short = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32" in text
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in text
    assert "cp.async.cg.shared.global" in text


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tiles_fit_the_shared_memory_of_each_architecture(dtype):
    for arch, most in {**MOST_SHARED, "sm_86": 99 << 10, "sm_120": 99 << 10}.items():
        for tile in tiles.shapes(dtype, arch):
            assert tiles.shared_bytes(tile, dtype) <= most, (arch, tile)


def test_small_products_get_small_tiles():
    few, _ = tiles.choose("bfloat16", (1, 16, 1024, 1024), "sm_90")
    many, splits = tiles.choose("bfloat16", (1, 8192, 8192, 8192), "sm_90")
    assert few.rows <= 32
    assert many.rows * many.columns >= 128 * 128
    assert splits == 1


def test_long_sums_of_few_tiles_are_split():
    for dtype in ("bfloat16", "tf32", "float32"):
        tile, splits = tiles.choose(dtype, (1, 256, 256, 32768), "sm_90")
        blocks = splits * -(-256 // tile.rows) * -(-256 // tile.columns)
        assert splits > 1
        assert blocks >= 66
