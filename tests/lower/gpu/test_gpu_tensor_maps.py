"""Operands that the copy engine of sm_90 moves in boxes: emulated, launched, joined and exported.

The emulator copies boxes as late as a barrier allows, or at once, and reads maps as the driver
encodes them.
"""

import numpy as np
import pytest
from lower.gpu.test_gpu_products import LAYOUTS, factors, random
from support.cuda_emulator import GXX, EmulationError
from support.emulated_products import check, needs_gxx, needs_nvcc, product_of, replace_line, resources
from support.gpu_modules import gpu_module

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, nn
from tvmfun.lower.codegen.cuda.tensor_maps import tensor_maps
from tvmfun.lower.schedule.gpu import tiles
from tvmfun.lower.schedule.gpu.warpgroups import Warpgroups
from tvmfun.runtime.cuda_module import CudaModule, Launch, TensorMap

ARCH = "sm_90a"
FEW_STAGES, SMALLEST = [
    tile for tile in tiles.shapes("bfloat16", ARCH) if tile.kind is Warpgroups and (tile.rows, tile.columns) == (64, 64)
]


@pytest.fixture
def smallest(monkeypatch):
    """Lets all products use the smallest tiles of warpgroups."""
    monkeypatch.setattr(tiles, "choose", lambda *_: (SMALLEST, 1))


@pytest.fixture
def machine(monkeypatch, smallest):
    if GXX is None:
        pytest.skip("there is no g++, which compiles the emulated kernels")
    from support.cuda_emulator.gpu import emulated_gpus

    monkeypatch.setenv("TVMFUN_CACHE_DIR", "")
    with emulated_gpus(seed=3) as machine:
        yield machine


def maps_of(function, *arguments):
    """The tensor maps of the only product of a function, by parameter."""
    (product, _) = product_of(function, *arguments, arch=ARCH)
    return [tensor for kernel in product.kernels(_target())[1] for tensor in tensor_maps(kernel).values()]


def _target():
    from tvmfun.lower import target as targets

    return targets.resolve({"kind": "cuda", "arch": ARCH})


def half(*shape, seed=0):
    return random(*shape, dtype="bfloat16", seed=seed)


# -- which operands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_plain_arrays_are_copied_in_boxes(layout, smallest):
    left, right = maps_of(LAYOUTS[layout], *factors(layout, 72, 80, 136, "bfloat16"))[::-1]
    assert {left.sizes, right.sizes} == {
        (136, 72) if layout[0] == "n" else (72, 136), (80, 136) if layout[1] == "n" else (136, 80),
    }  # fmt: skip
    assert all(tensor.box == (64, 64) and tensor.strides == (tensor.sizes[0] * 2,) for tensor in (left, right))


OTHERS = {
    # Lines that do not begin at multiples of 16 bytes.
    "odd": (lambda x, y: x @ y, half(40, 33), half(33, 41), 0),
    "one odd": (lambda x, y: x @ y, half(40, 33), half(33, 48), 1),
    # Operands that are computed, padded or gathered on the way.
    "computed": (lambda x, y: tnp.tanh(x) @ y, half(40, 32), half(32, 48), 2),
    "converted": (lambda x, y: (x.astype("bfloat16") @ y), half(40, 32).astype("float32"), half(32, 48), 2),
    "read again": (lambda x, y: x @ y + x, half(48, 48), half(48, 48), 1),
    "twice": (lambda x: x @ x.T, half(48, 64), None, 0),
    "float32": (lambda x, y: tnp.matmul(x, y, precision="high"), half(40, 32).astype("float32"),
                half(32, 48).astype("float32"), 0),
    "slice": (lambda x, y: x[8:, 16:] @ y, half(48, 48), half(32, 48), 2),
    # Windows of a sequence, which overlap.
    "overlapping": (
        lambda x, y: lax.conv_general_dilated(x, y, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")),
        half(1, 40, 16), half(3, 16, 40), 1,
    ),
    "odd slice": (lambda x, y: x[:, 1:33] @ y, half(40, 48), half(32, 48), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_operands_are_not_copied_in_boxes_unless_they_are_stored(name, smallest):
    function, *arrays, count = OTHERS[name]
    assert len(maps_of(function, *(array for array in arrays if array is not None))) == count


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_mixed_operands(name, smallest):
    function, *arrays, _ = OTHERS[name]
    tolerance = {"float32": 4e-3}.get(name, 0.0)
    check(function, *(array for array in arrays if array is not None), arch=ARCH, orders=3, tolerance=tolerance)


@needs_gxx
@pytest.mark.slow
def test_stacks_and_heads_are_axes_of_the_tensor(smallest):
    stacked = half(3, 40, 32), half(3, 32, 48)
    assert [tensor.sizes[2:] for tensor in maps_of(tnp.matmul, *stacked)] == [(3,), (3,)]
    check(tnp.matmul, *stacked, arch=ARCH)
    heads = lambda q, k: tnp.einsum("bqhd,bkhd->bhqk", q, k)
    arrays = half(2, 20, 3, 16), half(2, 24, 3, 16, seed=1)
    # Axes are in the order of their strides.
    assert {tensor.sizes for tensor in maps_of(heads, *arrays)} == {(16, 3, 20, 2), (16, 3, 24, 2)}
    check(heads, *arrays, arch=ARCH)
    # The batch shares one factor.
    check(lambda x, w: tnp.einsum("bqd,dk->bqk", x, w), half(3, 17, 24), half(24, 40), arch=ARCH)
    check(tvmfun.vmap(lambda x, w: x @ w, in_axes=(0, None)), half(3, 17, 24), half(24, 40), arch=ARCH)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("splits", [2, 3])
def test_ranges_of_the_terms(splits, monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *_: (SMALLEST, splits))
    layer = lambda x, w, b: nn.functional.relu(x.T @ w + b)
    check(layer, half(712, 40), half(712, 48), half(48), arch=ARCH, orders=3)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "instead", "error"),
    [
        ("tvmfun_publish();\n", "\n", "the copy engine may not see"),
        ("tvmfun_await((", "(void)((", "depends on the order|more threads arrive"),
        (", 16384);", ", 16400);", "waits forever"),
        (", 16384);", ", 16368);", "waits forever|depends on the order|ends before"),
        ("tvmfun_products_wait<1>();", "tvmfun_products_wait<2>();", "depends on the order"),
        ("    tvmfun_barrier();\n", "\n", "depends on the order|waits forever"),
    ],
    ids=["publish", "await", "more bytes", "fewer bytes", "products", "barrier"],
)
def test_every_wait_and_fence_is_needed(line, instead, error, smallest, monkeypatch):
    replace_line(monkeypatch, line, instead)
    with pytest.raises(EmulationError, match=error):
        check(LAYOUTS["nt"], *factors("nt", 136, 136, 904, "bfloat16"), arch=ARCH, orders=4)


@needs_gxx
@pytest.mark.slow
def test_products_of_few_stages_are_finished_before_the_next_step(monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *_: (FEW_STAGES, 1))
    arguments = LAYOUTS["nt"], *factors("nt", 136, 136, 904, "bfloat16")
    check(*arguments, arch=ARCH, orders=4)
    replace_line(monkeypatch, "tvmfun_products_wait<0>();\n}\n__device__", "tvmfun_products_wait<1>();\n}\n__device__")
    with pytest.raises(EmulationError, match="depends on the order"):
        check(*arguments, arch=ARCH, orders=4)


def test_results_do_not_lie_over_the_barriers():
    """Whose memory must not be used for anything else as long as they are valid."""
    for tile in tiles.shapes("bfloat16", ARCH):
        loop = tile.loop("bfloat16", True, True)
        assert loop.barriers >= max(loop.rows * loop.result_length * 4, loop.stages * loop.stage_bytes)


@needs_nvcc
@pytest.mark.slow
def test_registers_and_instructions(monkeypatch, tmp_path):
    sources = []
    for tile in tiles.shapes("bfloat16", ARCH):
        if tile.kind is not Warpgroups:
            continue
        monkeypatch.setattr(tiles, "choose", lambda *_, tile=tile: (tile, 1))
        for layout in ("nn", "tt"):
            shapes = [(2048, 2048)] * 2
            sources.append(product_of(LAYOUTS[layout], *(ShapeDtype(s, "bfloat16") for s in shapes), arch=ARCH)[1])
    for kernels in resources(sources, ARCH, tmp_path):
        assert [(used.spilled_bytes, used.stack_bytes) for used in kernels] == [(0, 0)]


# -- launches ----------------------------------------------------------------------------------------------------------


def layer(x, w, v):
    """Two products, of which the second reads what the first has stored."""
    y = nn.functional.relu(x @ w)
    return y, (y @ v).astype("float32")


def three(x, q, k, v):
    """Independent products of one array."""
    return x @ q, x @ k, x @ v.T


def test_launches_have_maps_as_arguments(smallest, no_compiler):
    module = gpu_module(layer, *(ShapeDtype(s, "bfloat16") for s in ((72, 64), (64, 80), (80, 40))), arch=ARCH)
    found = [[arg for arg in step.arguments if isinstance(arg, TensorMap)] for step in module.steps]
    assert list(map(len, found)) == [2, 2]
    assert CudaModule.unpack(module.pack()) == module
    # The second product reads its operand from where the first one has stored it.
    between = {arg.address for arg in found[1]} & set(module.steps[0].arguments)
    assert len(between) == 1


def test_joined_products_have_maps_in_their_table(smallest, no_compiler):
    shapes = (72, 64), (64, 80), (64, 40), (48, 64)
    module = gpu_module(three, *(ShapeDtype(s, "bfloat16") for s in shapes), arch=ARCH)
    (launch,) = (step for step in module.steps if isinstance(step, Launch))
    assert launch.is_packed and sum(isinstance(arg, TensorMap) for arg in launch.arguments) == 6


@pytest.mark.slow
@pytest.mark.parametrize("function", [layer, three])
def test_calls_have_the_results_of_the_cpu(function, machine):
    """Also with arrays at other addresses, for which maps are encoded again, and as one graph."""
    shapes = {layer: ((72, 64), (64, 80), (80, 40)), three: ((72, 64), (64, 80), (64, 40), (48, 64))}[function]
    jitted, kept = tvmfun.jit(function), []
    for seed in range(4):
        arrays = [half(*shape, seed=seed) for shape in shapes]
        kept.append(tvmfun.device_put(arrays, "cuda"))
        for ours, theirs in zip(jitted(*kept[-1]), jitted(*arrays), strict=True):
            np.testing.assert_allclose(np.asarray(ours, "float32"), np.asarray(theirs, "float32"), rtol=2e-2, atol=2e-2)
    assert machine.calls("cuTensorMapEncodeTiled") >= 4 * len(shapes)
    for _ in range(3):
        jitted(*kept[0])
    assert machine.calls("cuGraphLaunch") >= (function is layer)  # the other one is a single launch


@pytest.mark.slow
def test_loops_and_donated_arrays(machine):
    def step(state, x):
        w, total = state
        w = (w - 0.125 * (x.T @ (x @ w))).astype("bfloat16")
        return (w, total + tnp.sum(w.astype("float32"))), None

    run = lambda w, xs: lax.scan(step, (w, 0.0), xs)[0]
    w, xs = ((array * 0.1).astype("bfloat16") for array in (half(48, 40), half(3, 64, 48)))
    donated = tvmfun.jit(run, donate_argnums=0)
    ours = donated(tvmfun.device_put(w, "cuda"), tvmfun.device_put(xs, "cuda"))
    theirs = tvmfun.jit(run)(w, xs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(a, "float32"), np.asarray(b, "float32"), rtol=4e-2, atol=4e-2)


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("function", [layer, three])
def test_exported_steps(function, smallest, tmp_path):
    from safetensors.numpy import save_file
    from support.emulated_export import CHECKED, RUN, compiled, export, printed

    from tvmfun.export import read_manifest

    def converted(*arrays):
        return function(*(array.astype("bfloat16") for array in arrays))

    shapes = {layer: ((72, 64), (64, 80), (80, 40)), three: ((72, 64), (64, 80), (64, 40), (48, 64))}[function]
    arrays = [half(*shape).astype("float32") for shape in shapes]
    export(converted, arrays, tmp_path / "f.so")
    names = [leaf["name"] for leaf in read_manifest(tmp_path / "f.so")["inputs"]]
    save_file(dict(zip(names, arrays, strict=True)), tmp_path / "arguments")
    program = compiled(RUN, *CHECKED)
    counts = printed(program, tmp_path / "f.so", tmp_path / "arguments", tmp_path / "results", 4).split()
    assert counts[-1] == "0" and int(counts[1]) >= 1
    content = (tmp_path / "results").read_bytes()
    for leaf in map(np.asarray, tvmfun.tree.leaves(tvmfun.jit(converted)(*arrays))):
        ours = np.frombuffer(content[: leaf.nbytes], leaf.dtype).reshape(leaf.shape)
        np.testing.assert_allclose(ours.astype("float32"), leaf.astype("float32"), rtol=2e-2, atol=2e-2)
        content = content[leaf.nbytes :]
