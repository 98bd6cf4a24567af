"""Joined kernels: one launch for several independent kernels; each block looks up the kernel that it runs.

The arguments of all launches are a table in the kernel's parameter, a struct of words. Launches of the same kernel with
as many blocks make a *section*: consecutive blocks with consecutive rows of the table. Tensor maps are at multiples of
128 bytes, so rows with some begin and end there: then all rows of a section have them at the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from tvm import tirx
from tvm.target import Target

from tvmfun.lower.codegen.cuda import lowering
from tvmfun.lower.codegen.cuda.cubins import PLACEHOLDER, KernelSource
from tvmfun.lower.codegen.cuda.tensor_maps import TYPE
from tvmfun.lower.tir.build import nbytes
from tvmfun.lower.tir.walk import find
from tvmfun.runtime.cuda_module import MAP_ALIGNMENT, Argument, Launch, Scalar, Step, TensorMap, word_offsets
from tvmfun.runtime.plan import Address

#: The threads of most kernels' blocks; kernels of fewer threads may be joined with these.
_THREADS = 256
# With more blocks than this, two per multiprocessor, idle threads would cost more than the launch.
_FEW_BLOCKS = 264
# The most parameters of a joined kernel, in words of 8 bytes.
_MOST_WORDS = 512
# The most kernels that are joined.
_MOST_KERNELS = 32
# The most static shared memory of a joined kernel, in bytes.
_MOST_SHARED = 24 << 10

# Names by which a kernel depends on the whole grid: its blocks cannot get other numbers.
_OF_THE_GRID = re.compile(
    r"blockIdx\.[yz]|gridDim|blockDim|(?<!shared::)cluster|cooperative_groups|griddepcontrol|setmaxnreg"
    rf"|grid_constant__ (?!{TYPE})"
)
_HEAD = re.compile(
    rf'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?{PLACEHOLDER}_(\d+)\(([^)]*)\)( \{{|;)'
)
_PART = rf"static __device__ __forceinline__ void {PLACEHOLDER}_\1(int tvmfun_block, \2)\3"


class Section(NamedTuple):
    """Launches of one kernel with as many blocks.

    Args:
        kernel: the kernel's name.
        blocks: the blocks of each launch.
        threads: the threads of a block.
        count: the number of launches.
    """

    kernel: str
    blocks: int
    threads: int
    count: int


class Joiner:
    """Joins launches of the kernels of a module.

    Args:
        kernels: lowered functions by the name of the kernel.
        sources: their CUDA C++.
        target: a GPU.
    """

    def __init__(
        self, kernels: Mapping[str, tirx.PrimFunc], sources: Mapping[str, KernelSource], target: Target
    ) -> None:
        self._kernels = kernels
        self._target = target
        #: The CUDA C++ of all kernels, including those that :meth:`joined` has made.
        self.sources = dict(sources)
        self._may_join = {name: _may_join(source) for name, source in sources.items()}
        self._shared = {name: _shared_bytes(kernel) for name, kernel in kernels.items()}
        self._made: dict[tuple, KernelSource] = {}

    def kind(self, step: Step) -> tuple[int, int] | None:
        """A launch's kind: launches of the same kind may be joined. None if it remains alone."""
        if not isinstance(step, Launch) or not self._may_join[step.kernel]:
            return None
        if prod(step.grid[1:]) * prod(step.block[1:]) * prod(step.cluster) != 1:
            return None
        is_small = step.grid[0] <= _FEW_BLOCKS
        if step.shared_bytes:
            return step.block[0], 1 if is_small else step.shared_bytes
        return _THREADS if is_small and step.block[0] < _THREADS else step.block[0], 0

    def parts(self, launches: Sequence[Launch]) -> list[list[Launch]]:
        """Divides the launches into few parts that can each be joined; equal kernels are neighbours."""
        result: list[list[Launch]] = []
        words = shared = 0
        names: set[str] = set()
        for launch in sorted(launches, key=lambda launch: (launch.kernel, launch.grid)):
            is_new = launch.kernel not in names
            words += _words(launch)
            shared += is_new * self._shared[launch.kernel]
            fits = words <= _MOST_WORDS and shared <= _MOST_SHARED and len(names) + is_new <= _MOST_KERNELS
            if not result or not fits:
                result.append([])
                names, words, shared = set(), _words(launch), self._shared[launch.kernel]
            names.add(launch.kernel)
            result[-1].append(launch)
        return result

    def joined(self, launches: Sequence[Launch]) -> Launch:
        """Joins the launches of one of the :meth:`parts`."""
        if len(launches) == 1:
            return launches[0]
        key = lambda launch: (launch.kernel, launch.grid[0], launch.block[0])
        sections = [Section(*section, len(list(group))) for section, group in groupby(launches, key)]
        source = self._source(tuple(sections))
        self.sources[source.name] = source
        return Launch(
            source.name,
            (sum(launch.grid[0] for launch in launches), 1, 1),
            (max(launch.block[0] for launch in launches), 1, 1),
            max(launch.shared_bytes for launch in launches),
            _packed(launches),
            is_packed=True,
        )

    def _source(self, sections: tuple[Section, ...]) -> KernelSource:
        """The kernel of sections."""
        if sections not in self._made:
            names = list(dict.fromkeys(section.kernel for section in sections))
            numbered = {f"{PLACEHOLDER}_{i}": self._kernels[name] for i, name in enumerate(names)}
            text = lowering.source_of(numbered, self._target)
            start = text.index('extern "C" ')
            parameters = {names[int(i)]: _types(found) for i, found, _ in _HEAD.findall(text)}
            parts = _HEAD.sub(_PART, text[start:]).replace("blockIdx.x", "tvmfun_block")
            calls = {name: f"{PLACEHOLDER}_{i}" for i, name in enumerate(names)}
            maps = {name: frozenset(i for i, _ in self.sources[name].maps) for name in names}
            body = f"{parts}\n{_dispatch(sections, calls, parameters, maps)}"
            title = _title(self.sources[name].title for name in names)
            self._made[sections] = KernelSource(title, text[:start], body)
        return self._made[sections]


def _packed(launches: Sequence[Launch]) -> tuple[Argument, ...]:
    """The rows of the table, with unused words before and after the aligned ones."""
    packed: list[Argument] = []
    for launch in launches:
        is_aligned = any(isinstance(argument, TensorMap) for argument in launch.arguments)
        packed += _unused(packed) if is_aligned else ()
        packed += launch.arguments
        packed += _unused(packed) if is_aligned else ()
    return tuple(packed)


def _unused(packed: Sequence[Argument]) -> list[Scalar]:
    """The unused words before the next position of a tensor map."""
    return [Scalar("uint64", 0)] * (-word_offsets(packed)[1] % MAP_ALIGNMENT)


def _words(launch: Launch) -> int:
    """The most words that a launch takes in a table."""
    (*_, end), is_aligned = word_offsets(launch.arguments), any(isinstance(a, TensorMap) for a in launch.arguments)
    return end + 2 * MAP_ALIGNMENT * is_aligned


def _row(count: int, maps: frozenset[int]) -> tuple[list[int], int]:
    """The word at which each argument of a row is, and the number of words of a row."""
    tensor, number = TensorMap(Address(0), "", (), (), ()), Address(0)
    offsets, end = word_offsets([tensor if i in maps else number for i in range(count)])
    return offsets, end + (-end % MAP_ALIGNMENT if maps else 0)


def _dispatch(
    sections: Sequence[Section],
    calls: Mapping[str, str],
    parameters: Mapping[str, list[str]],
    maps: Mapping[str, frozenset[int]],
) -> str:
    """The joined kernel.

    Args:
        sections: the sections of its blocks, in order.
        calls: the device function of each kernel.
        parameters: the types of the parameters of each kernel.
        maps: the parameters of each kernel that are tensor maps.
    """
    threads = max(section.threads for section in sections)
    starts, words = [], 0
    for section in sections:
        words += -words % MAP_ALIGNMENT if maps[section.kernel] else 0
        starts.append(words)
        words += section.count * _row(len(parameters[section.kernel]), maps[section.kernel])[1]
    aligned = "__align__(128) " if any(maps.values()) else ""
    lines = [
        f"struct {aligned}{PLACEHOLDER}_table {{ unsigned long long words[{words}]; }};",
        f'extern "C" __global__ void __launch_bounds__({threads}) {PLACEHOLDER}(',
        f"    const __grid_constant__ {PLACEHOLDER}_table table) {{",
        "  int block = (int)blockIdx.x;",
    ]
    for start, (name, blocks, own, count) in zip(starts, sections, strict=True):
        types, own_maps = parameters[name], maps[name]
        offsets, length = _row(len(types), own_maps)
        arguments = "".join(
            f", {_argument(dtype, at, i in own_maps)}" for i, (dtype, at) in enumerate(zip(types, offsets, strict=True))
        )
        guard = f"if ((int)threadIdx.x < {own}) " if own < threads else ""
        lines += [
            f"  if (block < {blocks * count}) {{",
            f"    const unsigned long long* row = table.words + {start} + block / {blocks} * {length};",
            f"    {guard}{calls[name]}(block % {blocks}{arguments});",
            "    return;",
            "  }",
            f"  block -= {blocks * count};",
        ]
    return "\n".join([*lines, "}", ""])


def _may_join(source: KernelSource) -> bool:
    return "blockIdx" not in source.prelude and not _OF_THE_GRID.search(source.prelude + source.body)


def _shared_bytes(kernel: tirx.PrimFunc) -> int:
    buffers = (allocation.buffer for allocation in find(kernel.body, tirx.AllocBuffer))
    return sum(nbytes(buffer) for buffer in buffers if buffer.scope() == "shared")


def _types(parameters: str) -> list[str]:
    """The types of parameters such as ``float* __restrict__ x, int n``."""
    return [text.replace("__restrict__", "").rsplit(None, 1)[0].strip() for text in parameters.split(",")]


def _argument(dtype: str, i: int, is_map: bool) -> str:
    """The expression of an argument in a row of the table; the address of one that is a tensor map."""
    if is_map:
        return f"({dtype})&row[{i}]"
    return f"({dtype})row[{i}]" if dtype.endswith("*") else f"*(const {dtype}*)&row[{i}]"


def _title(titles: Iterable[str]) -> str:
    """The names of the kernels, as many as fit."""
    distinct = list(dict.fromkeys(titles))
    while len("__".join(distinct)) > 120:
        distinct.pop()
    return "__".join(distinct)
