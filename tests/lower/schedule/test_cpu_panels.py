"""How products divide rows, panels and terms: blocks in caches, groups and strips of panels, transposed rows."""

import math
import os
import re
from dataclasses import replace

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
from support.te_kernels import HOST, check, matmul, placeholder, processor_of, random, wide
from tvm import te
from tvm.target import Target

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.lower import machine
from tvmfun.lower.schedule.cpu.contraction import match, plan
from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops
from tvmfun.lower.schedule.cpu.contraction_nest import loops_of
from tvmfun.lower.schedule.cpu.far_operands import PackedRowsLoops
from tvmfun.lower.schedule.cpu.rules import _prepare, schedule
from tvmfun.lower.schedule.stages import parse
from tvmfun.lower.settings import ScheduleSettings, using
from tvmfun.lower.tir.micro_kernels.products import TileProduct


@pytest.fixture
def small_caches(monkeypatch):
    """Caches of which a few hundred rows fill L2, and an array of 160 KiB does not fit the last one."""
    sizes = {1: 4 << 10, 2: 64 << 10, 3: 128 << 10}
    # Settings that are derived from these sizes are for these tests only.
    monkeypatch.setattr(machine, "_machine", machine._machine.__wrapped__)
    monkeypatch.setattr(machine.Machine, "cache_bytes", lambda self, level: sizes[level])


def _blocks_of_rows(tensors, cores):
    function = te.create_prim_func(list(tensors))
    target = Target({**HOST.export(), "num-cores": cores})
    (stage,), _ = parse(function)
    processor = machine.Machine.of(target)
    contraction = match(stage)
    return loops_of(contraction, 0, processor, 16 if cores > 1 else 1), target


def _several_axes(rows, terms):
    """Two batches, two axes of rows and two of terms: 3 x ``rows`` times 401 columns over 5 x ``terms``."""
    a, b = placeholder((2, 3, rows, 5, terms), name="a"), placeholder((2, 5, terms, 401), name="b")
    r, s = te.reduce_axis((0, 5), "r"), te.reduce_axis((0, terms), "s")
    c = te.compute((2, 3, rows, 401), lambda g, h, i, j: te.sum(a[g, h, i, r, s] * b[g, r, s, j], axis=[r, s]), "c")
    x, y = random((2, 3, rows, 5, terms)), random((2, 5, terms, 401), seed=1)
    return (a, b, c), (x, y), np.einsum("ghirs,grsj->ghij", wide(x), wide(y))


def is_alone(rows, cores):
    """Whether a product has no epilogue: all sizes are checked with one and without, but by other numbers of cores."""
    return (rows + cores) % 2 == 0


def check_alone(tensors, inputs, reference, target):
    check(tensors, inputs, [reference], "contraction", target)


def check_with_epilogue(tensors, inputs, reference, scale, target):
    """Checks a product with an epilogue that is not linear and reads a row."""
    a, b, c = tensors
    m, n = reference.shape
    bias = placeholder((n,), name="bias")
    biased = te.compute((m, n), lambda i, j: te.exp(c[i, j] * (1 / scale)) + bias[j], "biased")
    v = random((n,), seed=3)
    check((a, b, bias, c, biased), (*inputs, v), [reference, np.exp(reference / scale) + v], "contraction", target)


def check_either(tensors, inputs, reference, scale, target):
    """Checks a product alone or with that epilogue."""
    if is_alone(len(reference), int(target.attrs["num-cores"])):
        check_alone(tensors, inputs, reference, target)
    else:
        check_with_epilogue(tensors, inputs, reference, scale, target)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("m,n,k", [(1400, 300, 40), (1403, 301, 90), (2003, 2500, 40)])
@pytest.mark.own_vectors
def test_rows_of_a_strided_operand_stay_in_the_cache(small_caches, cores, m, n, k):
    tensors, inputs, reference = matmul(m, n, k, "tn")
    loops, target = _blocks_of_rows(tensors, cores)
    assert 128 * 4 * k // 2 <= loops.per_block * loops.tiling.rows * 4 * k <= (64 << 10)
    assert loops.blocks in loops.taken
    if is_alone(m, cores):
        check_alone(tensors, inputs, reference, target)
        return
    a, b, c = tensors
    bias = placeholder((n,), name="bias")
    biased = te.compute((m, n), lambda i, j: c[i, j] * te.exp(bias[j]) + bias[j], "biased")
    v = random((n,), seed=3)
    check((a, b, bias, c, biased), (*inputs, v), [reference, reference * np.exp(v) + v], "contraction", target)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.own_vectors
def test_rows_of_a_strided_operand_in_batches(small_caches, cores):
    """Two batches, two axes of rows and two of terms; the last panel is narrower."""
    a, b = placeholder((2, 8, 5, 3, 1100), name="a"), placeholder((2, 8, 5, 210), name="b")
    r, s = te.reduce_axis((0, 8), "r"), te.reduce_axis((0, 5), "s")
    c = te.compute((2, 3, 1100, 210), lambda g, h, i, j: te.sum(a[g, r, s, h, i] * b[g, r, s, j], axis=[r, s]), "c")
    loops, target = _blocks_of_rows((a, b, c), cores)
    assert loops.blocks in loops.taken and loops.per_block * loops.tiling.rows < 1100
    x, y = random((2, 8, 5, 3, 1100)), random((2, 8, 5, 210), seed=1)
    check((a, b, c), (x, y), [np.einsum("grshi,grsj->ghij", wide(x), wide(y))], "contraction", target)


@pytest.mark.parametrize(
    "m,n,k,layout",
    [(1400, 40, 40, "tn"), (1400, 300, 40, "nn"), (700, 300, 40, "tn"), (1400, 300, 400, "tn")],
    ids=["few panels", "contiguous terms", "small", "long rows"],
)
@pytest.mark.own_vectors
def test_rows_that_need_no_blocks(small_caches, m, n, k, layout):
    loops, _ = _blocks_of_rows(matmul(m, n, k, layout)[0], 1)
    assert loops.taken == []


@pytest.mark.parametrize(
    "m,n,k,panels_first,blocks",
    [
        (1024, 768, 96, True, 1),
        (1024, 509, 70, True, 1),
        (400, 1100, 40, True, 1),
        # The last of ten panels is narrower, so each is two tasks; of five panels, each is four.
        (1023, 300, 40, True, 2),
        (700, 260, 40, True, 2),
        # Panels of many rows are packed once for some of them.
        (4096, 768, 16, False, 16),
        # Near rows of the right operand need no packing.
        (1024, 256, 40, False, 16),
    ],
)
def test_panels_of_few_rows_are_packed_once(m, n, k, panels_first, blocks):
    tensors, inputs, reference = matmul(m, n, k, "nn")
    (stage,), _ = parse(te.create_prim_func(list(tensors)))
    processor = processor_of("rocketlake")
    contraction = match(stage)
    loops = ContractionLoops(contraction, plan(contraction, processor), 0, 16, processor)
    assert (loops.taken[0] is loops.panels) == panels_first
    assert loops.blocks.extent == blocks
    check(tensors, inputs, [reference], "contraction", Target({**HOST.export(), "num-cores": 2}))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    "m,n,k",
    [(2, 2048, 40), (8, 4096, 32), (8, 4099, 70), (13, 1030, 65), (14, 700, 33), (31, 5000, 100), (32, 640, 64)],
)
@pytest.mark.own_vectors
def test_few_rows_stream_a_large_right_operand(small_caches, cores, m, n, k):
    """Columns and terms in whole blocks or not, one tile of rows or several, and with epilogues."""
    tensors, inputs, reference = matmul(m, n, k)
    loops, target = _blocks_of_rows(tensors, cores)
    assert loops.tiling.streamed and math.prod(axis.extent for axis in loops.tiling.inner) <= 32
    check_either(tensors, inputs, reference, 8, target)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.own_vectors
def test_streamed_operands_of_several_axes(small_caches, cores):
    """Two batches, two axes of rows and two of terms, of which a block has some of the last."""
    tensors, inputs, reference = _several_axes(4, 37)
    loops, target = _blocks_of_rows(tensors, cores)
    assert loops.tiling.streamed
    check(tensors, inputs, [reference], "contraction", target)


@pytest.fixture
def deep_panels(monkeypatch):
    """Panels that fit L2, which is as large as on processors that prefer these; all products are large."""
    small = (
        "grouped_panels._LITTLE_WORK",
        "contraction._PACKED_WORK",
        "contraction._NEAR_SHARE",
        "contraction.LARGE_BYTES",
    )
    for name in small:
        monkeypatch.setattr(f"tvmfun.lower.schedule.cpu.{name}", 0)
    with using(ScheduleSettings(panel_level=2)):
        yield


#: The columns of a deep panel on this machine.
_WIDTH = machine.Machine.of(HOST).lanes("float32") * (4 if machine.Machine.of(HOST).registers >= 32 else 2)


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize(
    "m,n,k",
    [
        (16, 16, 33),
        (40, 17, 64),
        (16, 160, 321),
        (17, 161, 400),
        (100, 333, 600),
        (250, 170, 1025),
        (1030, 200, 530),
        (48, 1000, 2048),
    ],
)
def test_rows_with_strided_terms_are_transposed(deep_panels, cores, m, n, k):
    """Rows, columns and terms in whole tiles and blocks or not, with and without epilogues."""
    tensors, inputs, reference = matmul(m, n, k, "tn")
    loops, target = _blocks_of_rows(tensors, cores)
    assert loops.tiling.packs_rows
    check_either(tensors, inputs, reference, k, target)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("terms", [36, 48, 700])
def test_transposed_rows_of_several_axes(deep_panels, cores, terms):
    """Two batches, two axes of rows and two of terms; the block of the second axis of rows has a remainder."""
    a, b = placeholder((2, 9, terms, 3, 50), name="a"), placeholder((2, 9, terms, 165), name="b")
    r, s = te.reduce_axis((0, 9), "r"), te.reduce_axis((0, terms), "s")
    c = te.compute((2, 3, 50, 165), lambda g, h, i, j: te.sum(a[g, r, s, h, i] * b[g, r, s, j], axis=[r, s]), "c")
    loops, target = _blocks_of_rows((a, b, c), cores)
    assert loops.tiling.packs_rows
    x, y = random((2, 9, terms, 3, 50)), random((2, 9, terms, 165), seed=1)
    check((a, b, c), (x, y), [np.einsum("grshi,grsj->ghij", wide(x), wide(y))], "contraction", target)


@pytest.fixture
def packed(monkeypatch):
    """Panels that are packed for any number of rows."""
    constants = {"_ROWS_TO_PACK": {1 << 20: 0}, "_ROWS_TO_PACK_NARROW": 0, "_SMALL_SHARE": 0}
    for name, value in constants.items():
        monkeypatch.setattr(f"tvmfun.lower.schedule.cpu.contraction.{name}", value)


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize(
    "m,n,k,layout,size",
    [
        (132, 6 * _WIDTH, 70, "nn", 6),
        (149, 6 * _WIDTH + 1, 64, "nt", 6),  # a last panel of one column, and fewer rows
        (150, 7 * _WIDTH + 11, 33, "nn", 6),  # a group of six and one of two, of which one is narrower
        (130, 5 * _WIDTH + 13, 70400 // _WIDTH, "nt", 2),
        (130, 5 * _WIDTH + 13, 1100, "nn", 6),  # three blocks of terms
        (27, 3 * _WIDTH + 8, 176000 // _WIDTH + 2300, "nt", 1),  # blocks of terms
        (2001, 2 * _WIDTH + 2, 40, "nt", 3),  # blocks of rows
    ],
)
def test_panels_in_groups(deep_panels, packed, monkeypatch, cores, m, n, k, layout, size):
    """With and without epilogues that read the output's rows, its columns and both."""
    share = 5 / 16 * (2 << 20) / machine.Machine.of(HOST).cache_bytes(2)
    monkeypatch.setattr("tvmfun.lower.schedule.cpu.contraction._SHARES", {2: share})  # as of 2 MB
    tensors, inputs, reference = matmul(m, n, k, layout)
    loops, target = _blocks_of_rows(tensors, cores)
    assert loops.member.extent == size if cores == 1 else loops.member.extent <= size
    if is_alone(m, cores):
        check_alone(tensors, inputs, reference, target)
        return
    a, b, c = tensors
    columns, both = placeholder((n,), name="columns"), placeholder((m, n), name="both")
    result = te.compute((m, n), lambda i, j: te.exp(c[i, j] * (1 / k)) * both[i, j] + columns[j], "result")
    v, w = random((n,), seed=3), random((m, n), seed=4)
    expected = np.exp(reference / k) * w + v
    check((a, b, columns, both, c, result), (*inputs, v, w), [reference, expected], "contraction", target)


@pytest.mark.parametrize(
    "m,n,k,cores,strips",
    [
        (70, 1040, 300, 1, 1),
        (70, 1040, 300, 2, 2),
        (70, 1030, 300, 2, 2),
        (70, 12 * _WIDTH + 9, 300, 2, 1),  # 13 panels, of which one thread would have seven
        (67, 2500, 260, 3, 3),
        (48, 1040, 300, 2, 1),
        (300, 260, 128, 2, 1),
    ],
)
def test_strips_of_panels_for_transposed_rows(deep_panels, m, n, k, cores, strips):
    """Few rows are transposed for each strip of panels, so that each panel is packed once."""
    tensors, inputs, reference = matmul(m, n, k, "tn")
    loops, target = _blocks_of_rows(tensors, cores)
    assert isinstance(loops, PackedRowsLoops)
    assert loops.strips.extent == strips and (strips == 1 or loops.blocks.extent == 1)
    check_alone(tensors, inputs, reference, target)
    check_with_epilogue(tensors, inputs, reference, k, target)


@pytest.mark.parametrize(
    "m,n,cores,blocks",
    [
        (256, 415, 2, 2),  # the last of seven panels is narrower
        (256, 448, 2, 2),  # seven panels for two threads
        (256, 512, 2, 1),
        (96, 415, 2, 1),
        (1200, 415, 2, 3),
        (256, 415, 16, 3),  # for each thread a task
    ],
)
def test_panels_are_packed_for_many_rows_of_a_task(packed, m, n, cores, blocks):
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, n, 512)[0])))
    processor = replace(processor_of("znver5"), cores=cores)
    assert loops_of(match(stage), 0, processor, 8 * cores).blocks.extent == blocks


@pytest.mark.parametrize(
    ("m", "k", "columns", "cores"),
    [
        *(
            (*sizes, columns, cores)
            for *sizes, cores in ((70, 64, 1), (101, 333, 2))
            for columns in (1, 15, 16, 17, 31, 33, 3 * 16 + 5)
        ),
        (70, 64, 17, 2),
        (101, 333, 15, 1),
    ],
)
def test_narrower_panels_are_transposed(packed, cores, columns, m, k):
    """The last tile of a panel begins early, and the terms fill no tile; with and without epilogues."""
    tensors, inputs, reference = matmul(m, 2 * _WIDTH + columns, k, "nt")
    check_either(tensors, inputs, reference, k, Target({**HOST.export(), "num-cores": cores}))


@pytest.mark.parametrize("mcpu,m,blocks", [("znver3", 1024, 4), ("znver3", 1000, 4), ("graniterapids", 1300, 4)])
def test_blocks_of_packed_rows_are_as_many_for_each_thread(mcpu, m, blocks):
    """Of rows that L2 cannot hold, threads have equally many blocks, although fewer would do."""
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, 512, 2048, "tn")[0])))
    assert loops_of(match(stage), 0, processor_of(mcpu), 16).blocks.extent == blocks


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("n", [128, 129, 300])
def test_narrow_panels_of_packed_rows_are_packed_in_groups(deep_panels, cores, n):
    tensors, inputs, reference = matmul(200, n, 300, "tn")
    loops, target = _blocks_of_rows(tensors, cores)
    assert (loops.member.extent > 1) == (_WIDTH < 64)
    check_either(tensors, inputs, reference, 300, target)


@pytest.mark.parametrize("cores", [1, 2])
def test_strips_of_panels_in_batches(deep_panels, cores):
    a, b = placeholder((1, 130, 2, 70), name="a"), placeholder((1, 130, 2, 1000), name="b")
    r, s = te.reduce_axis((0, 130), "r"), te.reduce_axis((0, 2), "s")
    c = te.compute((1, 70, 1000), lambda g, i, j: te.sum(a[g, r, s, i] * b[g, r, s, j], axis=[r, s]), "c")
    x, y = random((1, 130, 2, 70)), random((1, 130, 2, 1000), seed=1)
    target = Target({**HOST.export(), "num-cores": cores})
    check((a, b, c), (x, y), [np.einsum("grsi,grsj->gij", wide(x), wide(y))], "contraction", target)


@pytest.mark.parametrize(
    "left,right,formula,loops",
    [
        ((6, 50, 20), (6, 50, 30), "rsi,rsj->ij", 1),
        ((2, 3, 5, 20), (2, 3, 5, 30), "rsti,rstj->ij", 1),
        ((20, 6, 50), (6, 50, 30), "irs,rsj->ij", 1),
        ((50, 6, 20), (6, 50, 30), "sri,rsj->ij", 2),
        ((6, 20, 50), (6, 50, 30), "ris,rsj->ij", 2),
    ],
)
def test_reduced_axes_are_joined_where_both_operands_walk_on(left, right, formula, loops):
    a, b = placeholder(left, name="a"), placeholder(right, name="b")
    first, second = formula.split("->")[0].split(",")
    axes = {name: te.reduce_axis((0, right[second.index(name)]), name) for name in second if name != "j"}

    def term(i, j):
        at = {**axes, "i": i, "j": j}
        return te.sum(a[tuple(at[x] for x in first)] * b[tuple(at[x] for x in second)], axis=list(axes.values()))

    c = te.compute((20, 30), term, "c")
    (stage,), temps = parse(te.create_prim_func([a, b, c]))
    ((prepared,), _) = _prepare([stage], temps, machine.Machine.of(HOST))
    assert len(prepared.reduce) == loops
    x, y = random(left), random(right, seed=1)
    check((a, b, c), (x, y), [np.einsum(formula, wide(x), wide(y))], "contraction")


@pytest.mark.parametrize("cores", [1, 2])
def test_groups_of_panels_beside_batches_and_rows(deep_panels, cores):
    """Two batches, two axes of rows, of which one has a remainder, and two of terms."""
    tensors, inputs, reference = _several_axes(140, 13)
    loops, target = _blocks_of_rows(tensors, cores)
    assert loops.member.extent > 1
    check(tensors, inputs, [reference], "contraction", target)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    "m,n,k,layout",
    [
        (4100, 40, 256, "nn"),
        (4099, 2 * _WIDTH + 2, 250, "nt"),  # terms that fill no line, and columns that fill no vector
        (16400, 64, 64, "nn"),
        (1100, 64, 1024, "nn"),
    ],
)
def test_rows_are_fetched_before_they_are_read(deep_panels, cores, m, n, k, layout):
    """The last tile fetches rows that do not exist, or has fewer rows."""
    tensors, inputs, reference = matmul(m, n, k, layout)
    loops, target = _blocks_of_rows(tensors, cores)
    assert loops.line == 16
    text = str(schedule(te.create_prim_func(list(tensors)), target))
    names = re.findall(r"tvmfun\.micro\.product\.([^\"]+)", text)
    assert "llvm.prefetch" in text or any(TileProduct.of_name(name.split(".")).fetched_rows for name in names)
    check(tensors, inputs, [reference], "contraction", target)


@pytest.mark.parametrize(
    "m,n,k",
    [(200, 250, 700), (4100, 640, 256), (1100, 64, 1030), (20000, 64, 30)],
    ids=["near", "wide", "long", "short"],
)
def test_rows_that_are_not_fetched_before(deep_panels, m, n, k):
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, n, k)[0])))
    assert loops_of(match(stage), 0, processor_of("graniterapids"), 16).line is None


@pytest.mark.parametrize(
    "panels,others,cores,size", [(24, 1, 2, 6), (6, 1, 2, 3), (8, 1, 2, 4), (24, 1, 16, 2), (5, 2, 2, 5)]
)
def test_no_thread_has_more_panels_because_of_groups(deep_panels, packed, panels, others, cores, size):
    """Rows of 600, so that tasks are panels, and ``others`` batches."""
    columns = _WIDTH * panels
    a, b = placeholder((others, 600, 96), name="a"), placeholder((others, 96, columns), name="b")
    k = te.reduce_axis((0, 96), "k")
    c = te.compute((others, 600, columns), lambda g, i, j: te.sum(a[g, i, k] * b[g, k, j], axis=[k]), "c")
    loops, _ = _blocks_of_rows((a, b, c), cores)
    assert loops.member.extent == size and loops.panels.extent == math.ceil(panels / size)


def test_each_block_of_transposed_rows_fits_l2(deep_panels):
    (stage,), _ = parse(te.create_prim_func(list(matmul(8192, 384, 2048, "tn")[0])))
    loops = loops_of(match(stage), 0, processor_of("graniterapids"), 16)
    assert loops.tiling.packs_rows and math.prod(map(int, loops.packed_rows.shape)) * 4 <= (1 << 20) + (80 << 10)
    assert loops.blocks.extent * loops.per_block * 6 >= 8192 - 5


@pytest.mark.parametrize(
    "m,n,k,layout",
    [
        (256, 384, 2048, "nn"),
        (256, 384, 32, "tn"),
        (256, 15, 2048, "tn"),
        (12, 384, 2048, "tn"),
        (256, 384, 2048, "nt"),
    ],
    ids=["neighbouring terms", "few terms", "few columns", "few rows", "both"],
)
def test_other_rows_are_not_transposed(deep_panels, m, n, k, layout):
    (stage,), _ = parse(te.create_prim_func(list(matmul(m, n, k, layout)[0])))
    tiling = plan(match(stage), processor_of("graniterapids"))
    assert not tiling.packs_rows
    # Without a copy, the lines of so many terms stay in L1.
    assert n != 15 or math.prod(axis.extent for axis in tiling.inner) <= 128


@pytest.mark.parametrize(
    "m,n,k,layout",
    [(8, 4096, 32, "nt"), (8, 128, 300, "nn"), (8, 200, 40, "nn"), (65, 640, 64, "nn")],
    ids=["contiguous terms", "short rows", "small", "many rows"],
)
def test_other_right_operands_are_not_streamed(small_caches, m, n, k, layout):
    loops, _ = _blocks_of_rows(matmul(m, n, k, layout)[0], 2)
    assert not loops.tiling.streamed


@pytest.mark.parametrize(
    "mcpu,n,reuse,packs",
    [
        ("graniterapids", 256, 4, True),  # rows that are 1 KB apart
        ("graniterapids", 96, 4, True),
        ("graniterapids", 256, 3, False),
        ("graniterapids", 64, 9, False),  # the rows of the panel are all there are
        ("rocketlake", 256, 9, False),
        ("rocketlake", 272, 4, True),
    ],
)
def test_deep_panels_are_packed_of_near_rows_too(mcpu, n, reuse, packs):
    (stage,), _ = parse(te.create_prim_func(list(matmul(1024, n, 2048)[0])))
    processor = processor_of(mcpu)
    assert loops_of(match(stage), 0, processor, 16).wants_packing(reuse) == packs


@pytest.mark.own_vectors
def test_small_products_of_a_large_batch_need_no_blocks(small_caches):
    """Their panels stay tasks, however large all left operands are together."""
    a, b = placeholder((30, 40, 270), name="a"), placeholder((30, 40, 300), name="b")
    r = te.reduce_axis((0, 40), "r")
    c = te.compute((30, 270, 300), lambda g, i, j: te.sum(a[g, r, i] * b[g, r, j], axis=r), "c")
    loops, target = _blocks_of_rows((a, b, c), 2)
    assert loops.blocks not in loops.taken
    x, y = random((30, 40, 270)), random((30, 40, 300), seed=1)
    check((a, b, c), (x, y), [np.einsum("gri,grj->gij", wide(x), wide(y))], "contraction", target)


@pytest.fixture
def few_rows(monkeypatch):
    """As many rows are few as on processors with wide tiles, whatever L2 holds."""
    monkeypatch.setattr("tvmfun.lower.schedule.cpu.contraction._ROWS_TO_PACK_NARROW", 192)
    cache_bytes = machine.Machine.cache_bytes
    larger = lambda self, level: max(cache_bytes(self, level), 2 << 20 if level == 2 else 0)
    monkeypatch.setattr(machine.Machine, "cache_bytes", larger)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("m,n,k", [(16, 512, 100), (24, 100, 130), (95, 1024, 90), (33, 1000, 1030), (170, 65, 2049)])
def test_few_rows_read_the_right_operand_where_it_is(deep_panels, few_rows, cores, m, n, k):
    """Columns in whole vectors or not, terms in one block or several, with and without epilogues."""
    tensors, inputs, reference = matmul(m, n, k)
    loops, target = _blocks_of_rows(tensors, cores)
    assert loops.tiling.unpacked
    if n % loops.tiling.lanes == 0:
        assert "panel" not in str(schedule(te.create_prim_func(list(tensors)), target))
    check_either(tensors, inputs, reference, k, target)


@pytest.mark.parametrize("cores", [1, 2])
def test_few_rows_of_batches_and_several_axes(deep_panels, few_rows, cores):
    """Two batches, two axes of rows and two of terms, whose rows are equally far apart."""
    tensors, inputs, reference = _several_axes(14, 13)
    loops, target = _blocks_of_rows(tensors, cores)
    assert loops.tiling.unpacked
    check(tensors, inputs, [reference], "contraction", target)


@pytest.mark.parametrize("formula", ["i,rj->ij", "ir,sj->ij"], ids=["no terms of the left", "terms of each"])
def test_right_operands_without_rows_apart(deep_panels, formula):
    """Terms over which an operand does not vary, and a matrix that is read from its last row to its first."""
    left, right = formula.split("->")[0].split(",")
    sizes = {"i": 7, "j": 90, "r": 40, "s": 30}
    x, y = (random(tuple(sizes[n] for n in names), seed=len(names)) for names in (left, right))
    product = tvmfun.jit(lambda x, y: tnp.einsum(formula, x, y[::-1]))
    np.testing.assert_allclose(product(x, y), np.einsum(formula, x, y[::-1]), rtol=2e-4, atol=2e-4)
    flipped = tvmfun.jit(lambda x, y: x @ y[::-1])
    x = random((20, y.shape[0]))
    np.testing.assert_allclose(flipped(x, y), x @ y[::-1], rtol=2e-4, atol=2e-4)
