"""Tile shapes of matrix products: measured ones, or by a model of the time of a product with each of a few shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

from tvmfun.lower.schedule.gpu.mainloops import MainLoop, Simt, TensorCores
from tvmfun.lower.schedule.gpu.measured_tiles import MEASURED
from tvmfun.lower.schedule.gpu.warpgroups import Warpgroups
from tvmfun.lower.target import number

# rows, columns, depth in bytes, rows and columns of a team, stages
_WARPGROUPS = (
    (128, 256, 128, 64, 256, 4),
    (256, 128, 128, 128, 128, 4),
    (128, 192, 128, 64, 192, 4),
    (128, 128, 128, 64, 128, 5),
    (64, 256, 128, 64, 256, 4),
    (128, 64, 128, 64, 64, 5),
    (64, 128, 128, 64, 128, 5),
    # Several blocks fit a multiprocessor.
    (128, 192, 128, 64, 192, 2),
    (128, 128, 128, 64, 128, 3),
    (64, 256, 128, 64, 256, 2),
    (64, 192, 128, 64, 192, 3),
    (128, 64, 128, 64, 64, 3),
    (64, 128, 128, 64, 128, 3),
    (64, 64, 128, 64, 64, 3),
    (64, 64, 128, 64, 64, 6),
)
_TENSOR_CORES = (
    (128, 256, 64, 64, 64, 3),
    (256, 128, 64, 64, 64, 3),
    (128, 128, 64, 64, 32, 4),
    (128, 64, 64, 32, 32, 4),
    (64, 128, 64, 32, 32, 4),
    (64, 64, 64, 32, 32, 4),
    (32, 64, 128, 16, 32, 4),
    (64, 32, 128, 32, 16, 4),
    (16, 128, 128, 16, 32, 4),
    (128, 16, 128, 32, 16, 4),
    (32, 32, 128, 16, 16, 4),
    (16, 32, 128, 16, 16, 4),
)
_SIMT = (
    (128, 128, 64, 32, 64, 3),
    (64, 128, 64, 32, 32, 3),
    (128, 64, 64, 32, 32, 3),
    (64, 64, 64, 16, 32, 3),
    (32, 64, 64, 16, 32, 3),
    (32, 32, 64, 16, 32, 3),
)


#: The attribute of a function that multiplies by a main loop: its instruction and the dtype of its factors.
UNITS = "tvmfun.units"
# The fewest steps of a range of the terms.
_FEWEST_STEPS = 4
# Seconds of an additional launch in a graph.
_LAUNCH = 2e-6
# The most shared memory of a block in bytes, by architecture.
_BLOCK_SHARED = {80: 163 << 10, 87: 163 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10}
# The most shared memory of a block on all other architectures.
_LEAST_SHARED = 99 << 10
# A multiprocessor of sm_90: its registers.
_REGISTERS = 65536
# Its resident threads.
_THREADS = 2048
# Its shared memory in bytes.
_SHARED = 227 << 10
# The shared memory in bytes that it reserves for each block.
_RESERVED = 1 << 10
# The registers of a thread besides its sums.
_OTHER_REGISTERS = 40


@dataclass(frozen=True)
class Fit:
    """Constants of the model of products on tensor cores.

    Args:
        rate: operations per second of all tensor cores.
        bandwidth: bytes of tiles per second from the L2 cache.
        step: the least seconds of a step of the main loop.
        block: seconds of a block before its first step and after its last one.
        element: the cost of an element of a result, in bytes of memory.
        partial: the cost of an element of a partial sum, in bytes of memory.
        by_warps: how much longer ``mma.sync`` takes.
    """

    rate: float
    bandwidth: float
    step: float
    block: float
    element: float
    partial: float
    by_warps: float = 1.4


@dataclass(frozen=True)
class GpuModel:
    """The figures of a processor that the model uses.

    Args:
        processors: streaming multiprocessors.
        bandwidth: bytes of global memory per second.
        rates: operations per second that good kernels reach on all processors together, by instruction and dtype.
        peaks: the data sheet's operations per second by dtype; none where a rate was measured.
        fits: constants by dtype, where products were measured.
    """

    processors: int
    bandwidth: float
    rates: dict[str, dict[str, float]]
    peaks: dict[str, float] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)


# The shares of a data sheet's rates that kernels of each instruction are assumed to reach; they are not measured.
_SHARES = {"wgmma": 0.75, "mma.sync": 0.625, "fma": 0.75}
# Source: NVIDIA, "H100 Tensor Core GPU" and "H200 Tensor Core GPU" data sheets, SXM, without sparsity.
_HOPPER = {"float16": 989e12, "bfloat16": 989e12, "tf32": 494e12, "float32": 67e12}


# Fitted to 1,235 measured kernels of an H100, products of transformers with their epilogues.
_HALF = Fit(4.69e14, 1.44e13, 7.0e-7, 4.6e-6, 3.2, 13.1)
_FITS = {"float16": _HALF, "bfloat16": _HALF, "tf32": Fit(1.86e14, 6.4e12, 1.2e-6, 6.7e-7, 4.5, 4.8)}


def _of_peaks(processors: int, bandwidth: float, peaks: dict[str, float], fits: dict[str, Fit]) -> GpuModel:
    rates = {name: {dtype: share * peak for dtype, peak in peaks.items()} for name, share in _SHARES.items()}
    return GpuModel(processors, bandwidth, rates, peaks, fits)


def _of_rates(processors: int, bandwidth: float, half: float, single: float) -> GpuModel:
    tensor_cores = {"float16": half, "bfloat16": half, "tf32": half / 2}
    return GpuModel(processors, bandwidth, {"mma.sync": tensor_cores, "fma": {"float32": single}})


_RATES = {
    "sm_80": _of_rates(108, 1.9e12, 312e12, 19e12),
    "sm_90": _of_peaks(132, 3e12, _HOPPER, _FITS),
    "sm_100": _of_rates(148, 7e12, 620e12, 70e12),
}


@dataclass(frozen=True)
class Tile:
    """The sizes of a block's tiles, ``depth`` in terms, and the main loop that multiplies them."""

    kind: type[MainLoop]
    rows: int
    columns: int
    depth: int
    team_rows: int
    team_columns: int
    stages: int

    def loop(self, dtype: str, left_by_term: bool, right_by_term: bool) -> MainLoop:
        """The main loop for operands of a dtype, whose terms are neighbours or not."""
        sizes = (self.rows, self.columns, self.depth, self.team_rows, self.team_columns)
        return self.kind(dtype, *sizes, left_by_term, right_by_term, self.stages)

    @property
    def key(self) -> str:
        """The instruction, the tile, a team's part of it, and the stages, as in ``"wgmma 128x256x64 64x256 4"``."""
        tile, team = (self.rows, self.columns, self.depth), (self.team_rows, self.team_columns)
        return f"{self.kind.instruction} {'x'.join(map(str, tile))} {'x'.join(map(str, team))} {self.stages}"

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.kind.team * (self.rows // self.team_rows) * (self.columns // self.team_columns)


def reached(units: str, arch: str) -> float:
    """The operations per second that a function whose attribute is :data:`UNITS` is assumed to reach."""
    instruction, dtype = units.split()
    return machine(arch).rates[instruction][dtype]


def machine(arch: str) -> GpuModel:
    """The processor of the newest known architecture that is not newer than ``arch``."""
    known = [name for name in _RATES if number(name) <= number(arch)]
    return _RATES[known[-1] if known else "sm_80"]


def most_shared(arch: str) -> int:
    """The most shared memory of a block, in bytes."""
    return _BLOCK_SHARED.get(number(arch), _LEAST_SHARED)


def shared_bytes(tile: Tile, dtype: str) -> int:
    """The most shared memory that a block needs for any layout of the operands."""
    layouts = [(False, False)] if dtype == "float32" else [(True, True), (True, False), (False, True), (False, False)]
    return max(tile.loop(dtype, *layout).shared_bytes for layout in layouts)


@cache
def shapes(dtype: str, arch: str) -> list[Tile]:
    """The tile shapes for a dtype that fit the shared memory of a block. Only sm_90a has wgmma."""
    tables = [(Simt, _SIMT)] if dtype == "float32" else [(TensorCores, _TENSOR_CORES)]
    if arch == "sm_90a" and dtype != "float32":
        tables.insert(0, (Warpgroups, _WARPGROUPS))
    tiles = [Tile(kind, m, n, depth // _size(dtype), *rest) for kind, table in tables for m, n, depth, *rest in table]
    return [tile for tile in tiles if shared_bytes(tile, dtype) <= most_shared(arch)]


def predicted_seconds(tile: Tile, dtype: str, sizes: tuple[int, int, int, int], arch: str, splits: int = 1) -> float:
    """A model of the time of a product, without launching it.

    Partial sums over ``splits`` ranges of the terms are written, and read by another launch.
    """
    batch, rows, columns, terms = sizes
    processor = machine(arch)
    blocks = splits * batch * math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns)
    steps = math.ceil(math.ceil(terms / tile.depth) / splits)
    unique = batch * _size(dtype) * terms * (rows + columns) / processor.bandwidth
    fit = processor.fits.get(dtype)
    seconds = (_fitted if fit else _assumed)(tile, dtype, blocks, steps, processor)
    again = _LAUNCH + (fit.partial if fit else 8) * splits * batch * rows * columns / processor.bandwidth
    return max(unique, seconds) + (again if splits > 1 else 0.0)


def _size(dtype: str) -> int:
    return 2 if dtype in ("float16", "bfloat16") else 4


def _waves(blocks: int, at_once: int) -> float:
    """The number of waves in which the blocks run; many waves get out of step, so that the last one is shorter."""
    waves = max(1.0, blocks / at_once)
    return math.ceil(waves) if waves < 8 else waves


def _assumed(tile: Tile, dtype: str, blocks: int, steps: int, processor: GpuModel) -> float:
    """The time of a product; a wave takes the time of its multiplications or its global reads, whichever is longer.

    Small tiles read shared memory more often per multiplication.
    """
    size = _size(dtype)
    # The pipeline fills first, which takes the latency of memory: steps of 64 bytes, for any depth.
    filled = steps + tile.stages * 64 / (tile.depth * size)
    # Shared memory feeds a team's fragments: the larger its tile, the more each element is used.
    reuse = tile.team_rows * tile.team_columns / (tile.team_rows + tile.team_columns)
    efficiency = min(1.0, reuse / 21) * min(1.0, (tile.threads * 2) / 256)
    work = 2 * tile.rows * tile.columns * tile.depth
    compute = work / (processor.rates[tile.kind.instruction][dtype] / processor.processors * efficiency)
    traffic = (tile.rows + tile.columns) * tile.depth * size / (2.5 * processor.bandwidth / processor.processors)
    epilogue = tile.rows * tile.columns * 8 / (processor.bandwidth / processor.processors)
    return _waves(blocks, processor.processors) * (filled * max(compute, traffic, 3e-8) + epilogue)


def _fitted(tile: Tile, dtype: str, blocks: int, steps: int, processor: GpuModel) -> float:
    """The time with the constants that fit measured times best.

    Blocks of one multiprocessor share its tensor cores, and one of them multiplies while others wait.
    """
    fit, each = processor.fits[dtype], processor.processors
    together = max(1, min(resident(tile, dtype), math.ceil(blocks / each)))
    slower = 1.0 if tile.kind is Warpgroups else fit.by_warps
    compute = slower * 2 * tile.rows * tile.columns * tile.depth / (fit.rate / each)
    traffic = (tile.rows + tile.columns) * tile.depth * _size(dtype) / (fit.bandwidth / each)
    step = max(together * max(compute, traffic), fit.step)
    epilogue = fit.element * together * tile.rows * tile.columns / (processor.bandwidth / each)
    return _waves(blocks, each * together) * (steps * step + fit.block + epilogue)


def resident(tile: Tile, dtype: str) -> int:
    """The blocks that a multiprocessor of sm_90 runs at the same time."""
    sums = tile.team_rows * tile.team_columns // tile.kind.team
    by_registers = _REGISTERS // (tile.threads * (sums + _OTHER_REGISTERS))
    by_shared = _SHARED // (shared_bytes(tile, dtype) + _RESERVED)
    return max(1, min(by_registers, by_shared, _THREADS // tile.threads))


def options(dtype: str, sizes: tuple[int, int, int, int], arch: str) -> list[tuple[Tile, int]]:
    """The shapes for a product, each with the numbers of ranges that its terms can be split into."""
    return [
        (tile, splits)
        for tile in shapes(dtype, arch)
        for splits in (1, 2, 4, 8, 16, 32)
        if splits == 1 or sizes[3] >= splits * _FEWEST_STEPS * tile.depth
    ]


def choose(dtype: str, sizes: tuple[int, int, int, int], arch: str) -> tuple[Tile, int]:
    """The shape, and the number of ranges of the terms, that was the fastest, or has the shortest predicted time."""
    known = options(dtype, sizes, arch)
    measured = MEASURED.get(arch, {}).get((dtype, *sizes))
    fastest = next((option for option in known if measured == (option[0].key, option[1])), None)
    return fastest or min(known, key=lambda option: predicted_seconds(option[0], dtype, sizes, arch, option[1]))
