"""Products by wgmma on sm_90a: emulated against the CPU, and compiled to machine code.

The emulator reads matrices as their descriptors say, and runs products in the background.
"""

from itertools import product

import numpy as np
import pytest
from lower.gpu.test_gpu_products import LAYOUTS, SIZES, convolution, factors, random, rounded_to_tf32
from support.cuda_emulator import EmulationError
from support.emulated_products import (
    check,
    emulate,
    needs_gxx,
    needs_nvcc,
    product_of,
    replace_line,
    resources,
    scheduled,
)
from tvm import tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, nn
from tvmfun.lower.schedule.gpu import tiles
from tvmfun.lower.schedule.gpu.layouts import Swizzled
from tvmfun.lower.schedule.gpu.mainloops import TensorCores
from tvmfun.lower.schedule.gpu.tensor_maps import TiledOperand
from tvmfun.lower.schedule.gpu.warpgroups import Warpgroups

ARCH = "sm_90a"
HALF = [tile for tile in tiles.shapes("bfloat16", ARCH) if tile.kind is Warpgroups]
WIDE = [tile for tile in tiles.shapes("tf32", ARCH) if tile.kind is Warpgroups]
size_of = lambda tile: f"{tile.rows}x{tile.columns}"


@pytest.fixture
def smallest(monkeypatch):
    """Lets all products use the smallest tiles."""
    size = lambda dtype: HALF[-1] if dtype != "tf32" else WIDE[-1]
    monkeypatch.setattr(tiles, "choose", lambda dtype, *_: (size(dtype), 1))


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("tile", HALF, ids=size_of)
def test_every_tile(tile, monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *_: (tile, 1))
    for layout in ("nt", "tn"):
        sizes = tile.rows + 8, tile.columns + 16, 3 * tile.depth + 8
        check(LAYOUTS[layout], *factors(layout, *sizes, "bfloat16"), arch=ARCH, orders=1)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [("bfloat16", (72, 80, 456)), ("float16", (65, 7, 33)), ("bfloat16", (65, 7, 33)), ("float16", (130, 66, 70))],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_those_of_the_cpu(layout, dtype, sizes, smallest):
    assert check(LAYOUTS[layout], *factors(layout, *sizes, dtype), arch=ARCH, orders=3) == ["product"]


def in_tensorfloat32(layout):
    of = lambda x, flag: x.T if flag == "t" else x
    return lambda x, y: tnp.matmul(of(x, layout[0]), of(y, layout[1]), precision="tensorfloat32")


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("tile", [WIDE[0], WIDE[-1]], ids=size_of)
@pytest.mark.parametrize("sizes", [(72, 80, 456), (33, 24, 41)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensorfloat32_rounds_the_factors_and_nothing_else(layout, sizes, tile, monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *_: (tile, 1))
    arrays = factors(layout, *sizes, "float32")
    (result,), rules = emulate(in_tensorfloat32(layout), *arrays, arch=ARCH)
    assert rules == ["product"]
    x, y = (array.T if flag == "t" else array for array, flag in zip(arrays, layout, strict=True))
    np.testing.assert_allclose(result, rounded_to_tf32(x).astype("float64") @ rounded_to_tf32(y), atol=1e-4)
    assert np.abs(result - x.astype("float64") @ y).max() > 1e-3


@needs_gxx
@pytest.mark.slow
def test_computed_factors_of_tensorfloat32_are_turned(smallest):
    def gradients(x, w, g):
        layer = tvmfun.amp(lambda x, w: nn.functional.gelu(x) @ w, "tensorfloat32")
        return tvmfun.vjp(layer, x, w)[1](g)

    draw = lambda *shape: random(*shape, dtype="float32")
    arrays = draw(70, 33), draw(33, 40), draw(70, 40)
    assert check(gradients, *arrays, arch=ARCH, tolerance=4e-3).count("product") == 2
    stacked = lambda x, y: tnp.matmul(tnp.swapaxes(x, 1, 2), y, precision="tensorfloat32")
    check(stacked, draw(3, 45, 33), draw(3, 45, 40), arch=ARCH, tolerance=4e-3)


CONVOLUTIONS = {
    "plain": {},
    "strided and dilated": {"window_strides": (2, 1), "rhs_dilation": (2, 2)},
    "transposed": {"lhs_dilation": (2, 3)},
    "groups": {"feature_group_count": 2},
}


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_in_tensorfloat32_and_their_derivatives(name, smallest):
    """The factors of all derivatives are rounded, and nothing else is: integers of a few bits are exact."""
    options = CONVOLUTIONS[name]
    channels = 8 // options.get("feature_group_count", 1)
    numbers = lambda *shape: np.random.default_rng(len(shape)).integers(-4, 4, shape).astype("float32")
    x, w = numbers(2, 9, 8, 8), numbers(3, 3, channels, 24)
    plain = lambda x, w: convolution(x, w, **options)
    reduced = lambda x, w: convolution(x, w, precision="high", **options)
    g = numbers(*plain(x, w).shape)

    def derivatives(f):
        first = lambda x, w, g: tvmfun.vjp(f, x, w)[1](g)
        return lambda x, w, g: (f(x, w), *tvmfun.jvp(lambda *args: first(*args), (x, w, g), (x, w, g))[1])

    results, rules = emulate(derivatives(reduced), x, w, g, arch=ARCH, orders=1)
    for ours, theirs in zip(results, derivatives(plain)(x, w, g), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))
    text = str(tvmfun.trace(derivatives(reduced))(x, w, g))
    products = text.count(" conv(") + text.count(" conv_kernel_gradient(")
    assert products == text.count("precision='tensorfloat32'") == 5
    assert name == "groups" or rules.count("product") >= 5


def test_mixed_precision_of_tensorfloat32_includes_convolutions():
    spec = lambda *shape: ShapeDtype(shape, "float32")
    layer = tvmfun.amp(lambda x, w: tnp.sum(nn.functional.relu(convolution(x, w))), "tensorfloat32")
    kernels = scheduled(tvmfun.grad(layer, (0, 1)), spec(32, 16, 16, 64), spec(3, 3, 64, 64), arch=ARCH)
    units = [str(one.function.attrs[tiles.UNITS]) for one in kernels if one.rule == "product"]
    assert len(units) == 3 and all(unit.endswith(" tf32") for unit in units)
    half = str(tvmfun.trace(tvmfun.amp(layer, "tensorfloat32"))(spec(2, 8, 8, 3), spec(3, 3, 3, 4)))
    assert "bfloat16" not in half


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stacks_of_products(layout, smallest):
    check(LAYOUTS[layout], *factors(layout, 33, 24, 40, "float16", (2, 2)), arch=ARCH)


@needs_gxx
@pytest.mark.slow
def test_heads_of_attention_are_read_where_they_are(smallest):
    q, k = random(2, 20, 3, 16, dtype="bfloat16"), random(2, 24, 3, 16, dtype="bfloat16", seed=1)
    assert check(lambda q, k: tnp.einsum("bqhd,bkhd->bhqk", q, k), q, k, arch=ARCH) == ["product"]
    p = random(2, 3, 20, 24, dtype="bfloat16")
    check(lambda p, v: tnp.einsum("bhqk,bkhd->bqhd", p, v), p, k, arch=ARCH)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("splits", [2, 5])
def test_partial_sums_of_ranges_of_the_terms(splits, monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *_: (HALF[-1], splits))
    layer = lambda x, w, b: nn.functional.relu(tnp.swapaxes(x, 1, 2) @ w + b[:, None])
    check(layer, *(random(*shape, dtype="bfloat16") for shape in ((2, 700, 37), (2, 700, 44), (37,))), arch=ARCH)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_epilogues(dtype, smallest):
    def layer(x, w, b, r):
        y = nn.functional.gelu(x @ w + b) * 2 + r
        return y, y.astype("float32")

    arrays = [random(*shape, dtype=dtype) for shape in ((40, 24), (24, 48), (48,), (40, 48))]
    assert check(layer, *arrays, arch=ARCH, tolerance=1.6e-2).count("product") == 1


@needs_gxx
@pytest.mark.slow
def test_a_training_step_in_mixed_precision(smallest):
    def loss(w1, w2, x, y):
        return tnp.mean((nn.functional.gelu(x @ w1) @ w2 - y) ** 2)

    arrays = [random(*shape, dtype="float32") for shape in ((64, 128), (128, 24), (40, 64), (40, 24))]
    step = tvmfun.value_and_grad(tvmfun.amp(loss, "bfloat16"), argnums=(0, 1))
    assert check(step, *arrays, arch=ARCH, orders=1, tolerance=1e-2).count("product") == 5


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, 16])
def test_convolutions_and_their_gradients(channels, smallest):
    def both(x, w, g):
        y, pull = tvmfun.vjp(lambda x, w: nn.functional.relu(convolution(x, w)), x, w)
        return y, *pull(g)

    shapes = ((2, 9, 8, channels), (3, 3, channels, 24), (2, 9, 8, 24))
    rules = check(both, *(random(*shape, dtype="bfloat16") for shape in shapes), arch=ARCH, orders=1)
    assert rules.count("product") >= 3


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "instead", "error"),
    [
        ("tvmfun_publish();\n", "\n", "without a fence.proxy.async"),
        ("tvmfun_barrier();\n", "\n", "depends on the order"),
        ("tvmfun_products_begin();\n", "\n", "without a wgmma.fence"),
        ("tvmfun_products_wait<0>();\n", "\n", "does not wait for its last wgmma"),
        # A copy then overwrites a tile that is still read, and no thread has made that visible.
        ("tvmfun_products_wait<1>();", "tvmfun_products_wait<2>();", "without a fence.proxy.async"),
        ("tvmfun_copies_wait<3>", "tvmfun_copies_wait<4>", "without a fence.proxy.async"),
    ],
    ids=["publish", "barrier", "begin", "finish", "products", "copies"],
)
def test_every_wait_and_fence_is_needed(line, instead, error, smallest, monkeypatch):
    """Where the threads copy; for the copy engine see ``test_gpu_tensor_maps.py``."""
    monkeypatch.setattr(TiledOperand, "match", lambda *_: None)
    replace_line(monkeypatch, line, instead)
    with pytest.raises(EmulationError, match=error):
        check(LAYOUTS["nt"], *factors("nt", 72, 72, 904, "bfloat16"), arch=ARCH, orders=4)


@pytest.mark.parametrize("by_term", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_chunks_of_a_line_change_places_by_its_number(dtype, by_term):
    rows, depth = (128, 64) if dtype == "float16" else (128, 32)
    layout = Swizzled(rows, depth, np.dtype(dtype).itemsize, by_term)
    lines = 128 // np.dtype(dtype).itemsize
    tile = np.arange(rows * depth).reshape(rows, depth)
    groups = (tile if by_term else tile.T).reshape(rows if by_term else depth, -1, lines).swapaxes(0, 1)
    chunks = groups.reshape(*groups.shape[:2], 8, -1)
    order = np.arange(8) ^ np.arange(groups.shape[1])[:, None] % 8
    expected = np.take_along_axis(chunks, order[None, :, :, None], axis=2).reshape(-1)
    for row, term in ((0, 0), (1, 0), (5, 9), (77, 31), (127, depth - 1)):
        offset = layout.offset(tirx.const(row, "int32"), tirx.const(term, "int32"))
        assert expected[int(offset) // np.dtype(dtype).itemsize] == tile[row, term]


# -- which products ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "tf32"])
def test_large_products_use_warpgroups_where_there_are_some(dtype):
    sizes = (1, 4096, 3072, 768)
    assert tiles.choose(dtype, sizes, "sm_90a")[0].kind is Warpgroups
    for arch in ("sm_80", "sm_90", "sm_100", "sm_100a"):
        assert tiles.choose(dtype, sizes, arch)[0].kind is TensorCores
    assert tiles.choose(dtype, (1, 16, 1024, 1024), "sm_90a")[0].kind is TensorCores


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensorfloat32_uses_warpgroups_in_all_layouts(layout):
    specs = [ShapeDtype((2048, 2048), "float32")] * 2
    (kernel,) = scheduled(in_tensorfloat32(layout), *specs, arch=ARCH)
    assert kernel.rule == "product" and "_kk_wgmma" in kernel.function.script()


def gelu_of(x, w, b, precision):
    return nn.functional.gelu(tnp.matmul(x, w, precision=precision) + b)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
def test_no_tile_needs_memory_for_registers(dtype, monkeypatch, tmp_path):
    """Sizes change how factors are copied, not what a tile needs: the one that needs most is compiled for all of them.

    Without vectors threads copy elements, and where terms are not neighbours they turn what they copy. Nor do stages
    change what a tile needs: of two tiles that differ in these alone, each is compiled for one of the two ways to copy.
    """
    shapes, precision = (WIDE, "tensorfloat32") if dtype == "tf32" else (HALF, None)
    layouts = {
        "nt": lambda x, w, b: gelu_of(x, w.T, b, precision),
        "tn": lambda x, w, b: gelu_of(x.T, w, b, precision),
    }
    most = max(shapes, key=lambda tile: (tile.team_rows * tile.team_columns, -tile.threads))
    ways, sources = (("tn", "large"), ("nt", "odd")), {}
    for tile in shapes:
        monkeypatch.setattr(tiles, "choose", lambda *_, tile=tile: (tile, 1))
        alike = [one for one in shapes if (one.rows, one.columns) == (tile.rows, tile.columns)]
        assert len(alike) <= len(ways)
        for layout, size in product(layouts, SIZES) if tile is most else ways[alike.index(tile) :: len(alike)]:
            m, n, k = SIZES[size]
            left, right = ((m, k), (n, k)) if layout == "nt" else ((k, m), (k, n))
            types = [ShapeDtype(shape, "float32" if precision else dtype) for shape in (left, right, (n,))]
            sources[tile.key, layout, size] = product_of(layouts[layout], *types, arch=ARCH)[1]
    for case, kernels in zip(sources, resources(list(sources.values()), ARCH, tmp_path), strict=True):
        for used in kernels:
            assert (used.spilled_bytes, used.stack_bytes) == (0, 0), case
