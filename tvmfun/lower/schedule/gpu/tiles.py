"""Tile shapes of matrix products, by a model of the time that a product takes with each of a few shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from tvmfun.lower.schedule.gpu.mainloops import MainLoop

# rows, columns, depth in bytes, warp rows, warp columns, stages
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


# A range of the terms has at least so many steps.
_FEWEST_STEPS = 4
# Seconds of another launch in a graph.
_LAUNCH = 2e-6
# The most shared memory of a block, by architecture, in bytes.
_BLOCK_SHARED = {80: 163 << 10, 87: 163 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10}
_LEAST_SHARED = 99 << 10


@dataclass(frozen=True)
class Machine:
    """The figures of a processor that the model uses.

    Args:
        processors: streaming multiprocessors.
        bandwidth: bytes of global memory per second.
        rates: operations per second by dtype, all processors together.
    """

    processors: int
    bandwidth: float
    rates: dict[str, float]


_RATES = {
    "sm_80": Machine(108, 1.9e12, {"float16": 312e12, "bfloat16": 312e12, "tf32": 156e12, "float32": 19e12}),
    # Speeds that mma.sync reaches on these; wgmma would be faster.
    "sm_90": Machine(132, 3.9e12, {"float16": 620e12, "bfloat16": 620e12, "tf32": 310e12, "float32": 60e12}),
    "sm_100": Machine(148, 7e12, {"float16": 620e12, "bfloat16": 620e12, "tf32": 310e12, "float32": 70e12}),
}


@dataclass(frozen=True)
class Tile:
    """The sizes of a block's tiles; ``depth`` in terms."""

    rows: int
    columns: int
    depth: int
    warp_rows: int
    warp_columns: int
    stages: int

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)


def machine(arch: str) -> Machine:
    """The processor of the newest known architecture that is not newer than ``arch``."""
    known = [name for name in _RATES if number(name) <= number(arch)]
    return _RATES[known[-1] if known else "sm_80"]


def number(arch: str) -> int:
    """The number of an architecture: 90 of ``sm_90a``."""
    return int("".join(c for c in arch.removeprefix("sm_") if c.isdecimal()) or 0)


def most_shared(arch: str) -> int:
    """The most shared memory of a block, in bytes."""
    return _BLOCK_SHARED.get(number(arch), _LEAST_SHARED)


def shared_bytes(tile: Tile, dtype: str) -> int:
    """The shared memory that a block needs at most, whatever the layout of the operands."""
    sizes = (tile.rows, tile.columns, tile.depth, tile.warp_rows, tile.warp_columns)
    layouts = [(False, False)] if dtype == "float32" else [(True, True), (True, False), (False, True), (False, False)]
    return max(MainLoop(dtype, *sizes, *layout, tile.stages).shared_bytes for layout in layouts)


@cache
def shapes(dtype: str, arch: str) -> list[Tile]:
    """The tile shapes for a dtype that fit the shared memory of a block."""
    size = 2 if dtype in ("float16", "bfloat16") else 4
    table = _SIMT if dtype == "float32" else _TENSOR_CORES
    tiles = [Tile(m, n, depth // size, wm, wn, stages) for m, n, depth, wm, wn, stages in table]
    return [tile for tile in tiles if shared_bytes(tile, dtype) <= most_shared(arch)]


def predicted_seconds(tile: Tile, dtype: str, sizes: tuple[int, int, int, int], arch: str, splits: int = 1) -> float:
    """A model of the time of a product, without launching it.

    Each wave of blocks takes as long as its multiplications, or as its reads of global memory, whichever is longer.
    Small tiles read shared memory more often per multiplication. Partial sums over ``splits`` ranges of the terms are
    written, and read by another launch.
    """
    batch, rows, columns, terms = sizes
    processor = machine(arch)
    size = 2 if dtype in ("float16", "bfloat16") else 4
    blocks = splits * batch * math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns)
    steps = math.ceil(math.ceil(terms / tile.depth) / splits) + tile.stages  # the pipeline fills first
    # Shared memory feeds a warp's fragments: the larger its tile, the more each element is used.
    reuse = tile.warp_rows * tile.warp_columns / (tile.warp_rows + tile.warp_columns)
    efficiency = min(1.0, reuse / 21) * min(1.0, (tile.threads * 2) / 256)
    work = 2 * tile.rows * tile.columns * tile.depth
    compute = work / (processor.rates[dtype] / processor.processors * efficiency)
    traffic = (tile.rows + tile.columns) * tile.depth * size / (2.5 * processor.bandwidth / processor.processors)
    waves = max(1.0, blocks / processor.processors)
    waves = math.ceil(waves) if waves < 8 else waves
    epilogue = tile.rows * tile.columns * 8 / (processor.bandwidth / processor.processors)
    unique = batch * size * terms * (rows + columns) / processor.bandwidth
    again = 0.0 if splits == 1 else _LAUNCH + 8 * splits * batch * rows * columns / processor.bandwidth
    return max(unique, waves * (steps * max(compute, traffic, 3e-8) + epilogue)) + again


def choose(dtype: str, sizes: tuple[int, int, int, int], arch: str) -> tuple[Tile, int]:
    """The shape, and the number of ranges of the terms, with the shortest predicted time."""
    options = [
        (tile, splits)
        for tile in shapes(dtype, arch)
        for splits in (1, 2, 4, 8, 16, 32)
        if splits == 1 or sizes[3] >= splits * _FEWEST_STEPS * tile.depth
    ]
    return min(options, key=lambda option: predicted_seconds(option[0], dtype, sizes, arch, option[1]))
