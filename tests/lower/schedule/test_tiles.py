"""The sizes of tiles and panels by processor, and which operands are packed."""

import math

import pytest
from support.te_kernels import matmul, placeholder, processor_of
from tvm import te
from tvm.target import Target

from tvmfun.lower import machine
from tvmfun.lower.schedule.cpu.contraction import match, plan
from tvmfun.lower.schedule.cpu.rules import _prepare
from tvmfun.lower.schedule.stages import parse

#: Rows and columns of the register tile of a product of 1024 x 1024 float32, and terms of a panel, by LLVM's name.
TILES = {
    "znver3": (6, 16, 342),
    "znver4": (6, 64, 512),
    "znver5": (6, 64, 512),
    "skylake-avx512": (6, 64, 512),
    "rocketlake": (8, 32, 256),
    "icelake-server": (6, 64, 512),
    "sapphirerapids": (6, 64, 342),
    "graniterapids": (6, 64, 342),
    "neoverse-n1": (8, 8, 1024),
}


@pytest.mark.parametrize("mcpu", TILES)
def test_tiles_fit_registers_and_caches(mcpu):
    triple = "aarch64-linux-gnu" if mcpu.startswith("neoverse") else "x86_64-linux-gnu"
    target = Target({"kind": "llvm", "mcpu": mcpu, "mtriple": triple, "num-cores": 2})
    processor = machine._machine.__wrapped__(str(target), False, None)
    (stage,), _ = parse(te.create_prim_func(list(matmul(1024, 1024, 1024)[0])))
    tiling = plan(match(stage), processor)
    depth = math.prod(axis.extent for axis in tiling.inner)
    assert (tiling.rows, tiling.columns, depth) == TILES[mcpu]
    vectors = tiling.columns // tiling.lanes
    assert tiling.rows * vectors + vectors + 1 <= processor.registers
    level = processor.settings.panel_level
    assert 4 * depth * (tiling.columns + (tiling.rows if level == 1 else 0)) <= processor.cache_bytes(level)


@pytest.mark.parametrize("mcpu", ["sapphirerapids", "graniterapids"])
@pytest.mark.parametrize(
    "m,n,unpacked,tile",
    [
        (16, 512, True, (6, 64)),
        (191, 512, True, (6, 64)),
        (192, 512, False, (6, 64)),
        (95, 1024, True, (8, 48)),
        (96, 1024, False, (6, 64)),
        (31, 3000, True, (8, 48)),
        (32, 3000, False, (6, 64)),
        (5, 1024, True, (5, 64)),
    ],
)
def test_panels_are_packed_for_many_rows(mcpu, m, n, unpacked, tile):
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, n, 100)[0])))
    tiling = plan(match(stage), processor_of(mcpu))
    assert (tiling.unpacked, (tiling.rows, tiling.columns)) == (unpacked, tile)


@pytest.mark.parametrize(
    "mcpu,m,n,k,packs",
    [
        ("znver5", 1024, 256, 128, False),
        ("znver5", 1030, 256, 128, True),  # more than half of L2
        ("znver5", 1000, 256, 129, True),
        ("graniterapids", 2000, 256, 128, False),
        ("znver3", 200, 256, 128, True),  # narrow panels
    ],
)
def test_few_strided_terms_in_l2_are_read_where_they_are(mcpu, m, n, k, packs):
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, n, k, "tn")[0])))
    assert plan(match(stage), processor_of(mcpu)).packs_rows == packs


@pytest.mark.parametrize("mcpu,packs", [("znver5", False), ("graniterapids", True), ("znver3", True)])
def test_strided_terms_of_images_are_read_where_they_are(mcpu, packs):
    """Terms are images and their pixels, of which every other one is read; unless L2 is large or panels are narrow."""
    x, g = placeholder((32, 16, 16, 128), name="x"), placeholder((32, 8, 8, 256), name="g")
    n, i, j = (te.reduce_axis((0, size), name) for name, size in zip("nij", (32, 8, 8), strict=True))
    term = lambda c, f: te.sum(x[n, 2 * i, 2 * j, c] * g[n, i, j, f], axis=[n, i, j])
    (stage,), _ = parse(te.create_prim_func([x, g, te.compute((128, 256), term, "w")]))
    assert plan(match(stage), processor_of(mcpu)).packs_rows == packs


@pytest.mark.parametrize(
    "mcpu,m,n,k,tile",
    [
        ("znver5", 1024, 256, 256, (13, 32)),
        ("znver5", 702, 192, 330, (6, 64)),  # L1 does not hold two vectors of each row
        ("znver5", 5, 256, 256, (5, 64)),
        ("graniterapids", 1024, 256, 256, (6, 64)),
    ],
)
def test_tiles_are_narrow_where_l1_holds_their_columns(mcpu, m, n, k, tile):
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, n, k)[0])))
    tiling = plan(match(stage), processor_of(mcpu))
    assert tiling.unpacked and (tiling.rows, tiling.columns) == tile


@pytest.mark.parametrize("m,n,unpacked", [(15, 1000, True), (16, 1000, False), (16, 256, True)])
def test_narrow_tiles_pack_panels_for_fewer_rows(m, n, unpacked):
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, n, 100)[0])))
    tiling = plan(match(stage), processor_of("znver3"))
    assert tiling.unpacked == unpacked and tiling.columns == 16


@pytest.mark.parametrize("m,n,unpacked", [(1000, 256, True), (1000, 260, False), (1100, 256, False)])
def test_small_matrices_are_not_packed(m, n, unpacked):
    """Half a megabyte of near rows, for a left operand that fits L2."""
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, n, 500)[0])))
    assert plan(match(stage), processor_of("graniterapids")).unpacked == unpacked


@pytest.mark.parametrize(
    "m,n,k,stages",
    [(16, 256, 256, 1), (16, 256, 2048, 2), (16, 512, 2048, 1), (6, 128, 64, 1), (6, 128, 3000, 2)],
    ids=["short, few", "long, few", "long, many", "short, very few", "long, very few"],
)
def test_long_sums_in_few_tiles_are_cut(m, n, k, stages):
    (stage,), temps = parse(te.create_prim_func(list(matmul(m, n, k)[0])))
    prepared, _ = _prepare([stage], temps, processor_of("graniterapids"))
    assert len(prepared) == stages


@pytest.mark.parametrize("columns", [48, 96, 160, 302, 330])
@pytest.mark.parametrize("mcpu", ["rocketlake", "graniterapids"])
def test_panels_have_nearly_equal_widths(mcpu, columns):
    processor = processor_of(mcpu)
    (stage,), _ = parse(te.create_prim_func(list(matmul(192, columns, 32)[0])))
    tiling = plan(match(stage), processor)
    vectors, panels = -(-columns // tiling.lanes), -(-columns // tiling.columns)
    assert panels == -(-vectors // (4 if mcpu == "graniterapids" else 2))
    assert tiling.columns // tiling.lanes == -(-vectors // panels)
