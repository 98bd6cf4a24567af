"""The generated C file of an exported library for GPUs: its machine code, and the launches of a call as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tvmfun.export.c_source import Payload, address, braces, text
from tvmfun.export.contents import Leaf, leaf_lines
from tvmfun.runtime.cuda_module import (
    MAP_DTYPES,
    Argument,
    Branch,
    Copy,
    CudaModule,
    Launch,
    Repeat,
    Scalar,
    Step,
    TensorMap,
    While,
    word_offsets,
)
from tvmfun.runtime.plan import Address, Plan

# Stretches of more nodes are launched one by one: making a graph takes a microsecond or two per launch.
_MOST_NODES = 50_000


@dataclass(frozen=True)
class CudaVariant:
    """Machine code for one architecture.

    Args:
        module: the compiled module.
    """

    module: CudaModule
    platform: ClassVar[str] = "cuda"

    @property
    def target(self) -> str:
        """The target, for people."""
        return f"{self.module.arch} (cuda)"

    @property
    def plan(self) -> Plan:
        """The layout of the table of addresses."""
        return self.module.static_plan

    def entry(self) -> dict[str, Any]:
        """The entry in the manifest."""
        sizes = {"temporaries": self.plan.analysis.temporaries, "workspaces": 0}
        return {"target": self.target, "features": [], **sizes}


class Stretch(NamedTuple):
    """Launches, copies and counted loops that do not depend on data.

    Args:
        number: its number among the stretches that become graphs; -1 if it is always launched one by one.
        body: the steps.
    """

    number: int
    body: tuple[Step, ...]


Operation = Stretch | Step


def grouped(steps: Sequence[Step]) -> tuple[tuple[Operation, ...], int]:
    """Groups steps that do not depend on data into stretches, which a library turns into graphs.

    A stretch is launched one by one if it has one launch or too many, or if its numbers follow the index of a loop of
    the host.

    Args:
        steps: the steps of a module.

    Returns:
        The operations, and the number of graphs.
    """
    grouping = _Grouping()
    return grouping.of(steps, 0), grouping.count


class _Grouping:
    def __init__(self) -> None:
        self.count = 0

    def of(self, steps: Sequence[Step], depth: int) -> tuple[Operation, ...]:
        """The operations of steps inside ``depth`` nested loops of the host."""
        operations: list[Operation] = []
        together: list[Step] = []

        def close() -> None:
            if together:
                operations.append(Stretch(self._number(together, depth), tuple(together)))
                together.clear()

        for step in steps:
            if _is_static(step):
                together.append(step)
                continue
            close()
            if isinstance(step, Repeat):
                operations.append(step._replace(body=self.of(step.body, depth + 1)))
            elif isinstance(step, While):
                operations.append(step._replace(body=self.of(step.body, depth)))
            elif isinstance(step, Branch):
                operations.append(step._replace(cases=tuple(self.of(case, depth) for case in step.cases)))
        close()
        return tuple(operations)

    def _number(self, steps: Sequence[Step], depth: int) -> int:
        follows = any(isinstance(step, Launch) and _follows(step, depth) for step in _flat(steps))
        if follows or not 1 < sum(map(_node_count, steps)) <= _MOST_NODES:
            return -1
        self.count += 1
        return self.count - 1


def _is_static(step: Step) -> bool:
    if isinstance(step, Repeat):
        return all(map(_is_static, step.body))
    return isinstance(step, Launch | Copy)


def _node_count(step: Step) -> int:
    """The number of launches and copies of a step, including all cases of a branch."""
    if isinstance(step, Repeat):
        return max(step.count, 0) * sum(map(_node_count, step.body))
    if isinstance(step, Branch):
        return 1 + sum(_node_count(one) for case in step.cases for one in case)
    return 1 + sum(map(_node_count, step.body)) if isinstance(step, While) else 1


def _follows(launch: Launch, depth: int) -> bool:
    """Whether an argument follows the index of one of the outermost loops."""
    return any(isinstance(arg, Scalar) and any(arg.strides[:depth]) for arg in launch.arguments)


def _flat(steps: Sequence[Operation]) -> Iterator[Launch | Copy]:
    """All launches and copies, each once."""
    for step in steps:
        if isinstance(step, Launch | Copy):
            yield step
        elif isinstance(step, Branch):
            for case in step.cases:
                yield from _flat(case)
        else:
            yield from _flat(step.body)


def _depth(steps: Sequence[Operation]) -> int:
    """The number of nested counted loops."""
    depths = [0]
    for step in steps:
        if isinstance(step, Branch):
            depths += map(_depth, step.cases)
        elif not isinstance(step, Launch | Copy):
            depths.append(_depth(step.body) + isinstance(step, Repeat))
    return max(depths)


class CudaContents:
    """The contents of a library for GPUs.

    Args:
        name: the name of the function.
        inputs: its arguments.
        outputs: its results.
        variants: the machine code, by architecture.
        captured: arrays that the function closes over.
        manifest: the manifest, as JSON.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Leaf],
        outputs: Sequence[Leaf],
        variants: Sequence[CudaVariant],
        captured: Sequence[np.ndarray],
        manifest: bytes,
    ) -> None:
        self._payload = payload = Payload()
        offset = payload.add(manifest)
        arrays = [f"{{{address(payload.add_array(array))}, {array.nbytes}u}}" for array in captured]
        initial = [None if leaf.initial is None else payload.add_array(leaf.initial) for leaf in inputs]
        tables = [_Tables(i, variant.module, payload) for i, variant in enumerate(variants)]
        entries = [table.entry(variant.target) for table, variant in zip(tables, variants, strict=True)]
        self._lines = [
            *leaf_lines("inputs", inputs, initial),
            *leaf_lines("outputs", outputs, [None] * len(outputs)),
            *(line for table in tables for line in table.lines),
            f"static const struct cuda_variant variants[] = {braces(entries)};",
            f"static const struct cuda_array captured[] = {braces([*arrays, '{0}'])};",
            "const struct cuda_contents tvmfun_cuda_contents = {",
            f"  {{{text(name)}, inputs, outputs, {len(inputs)}, {len(outputs)}, 0, 0}},",
            f"  variants, {len(entries)}, captured, {len(arrays)},",
            f"  {address(offset)}, {len(manifest)}}};",
            "",
        ]

    def write(self, folder: Path) -> Path:
        """Writes the C file, and the bytes that it includes, into a folder; returns the path of the first."""
        source = folder / "contents.c"
        included = self._payload.write(folder / "payload.bin")
        source.write_text("\n".join(['#include "cuda_plan.h"', *included, *self._lines]))
        return source


class _Tables:
    """The C arrays of a variant, in the order in which they refer to each other."""

    def __init__(self, i: int, module: CudaModule, payload: Payload) -> None:
        self._prefix = f"v{i}_"
        self._module = module
        self.lines: list[str] = []
        self._count = 0
        operations, self._graphs = grouped(module.steps)
        self._depth = _depth(operations)
        launches = [step for step in _flat(operations) if isinstance(step, Launch)]
        self._most_words = max((word_offsets(launch.arguments)[1] for launch in launches), default=0)
        shared: dict[str, int] = {}
        for launch in launches:
            shared[launch.kernel] = max(shared.get(launch.kernel, 0), launch.shared_bytes)
        is_graph = bool(module.condition) and sum(map(_node_count, module.steps)) <= _MOST_NODES
        self._condition = len(shared) if is_graph else -1
        if is_graph:
            shared[module.condition] = 0
        self._kernels = {name: number for number, name in enumerate(shared)}
        images: dict[bytes, int] = {}  # several kernels may share a cubin
        image_of = {
            name: images.setdefault(cubin.image, len(images))
            for cubin in module.cubins
            for name in cubin.kernels
            if name in shared
        }
        self._images = self._array("const void *const", [address(payload.add(image)) for image in images])
        self._image_count = len(images)
        kernels = [f"{{{text(name)}, {image_of[name]}, {nbytes}u}}" for name, nbytes in shared.items()]
        self._kernel_table = self._array("struct cuda_kernel", kernels)
        self._operations = self._sequence(operations)
        self._fresh = self._array("uint64_t", list(map(str, module.plan.fresh)))
        self._slots = self._array("int32_t", list(map(str, module.plan.results)))
        self._constants = address(payload.add(module.constants))

    def entry(self, target: str) -> str:
        """The initializer of the variant."""
        arch, plan = self._module.arch.removeprefix("sm_"), self._module.static_plan
        number = int(arch.rstrip("af"))
        fits = "CUDA_EXACT" if arch.endswith("a") else "CUDA_SAME_MAJOR"
        return (
            f"{{{text(target)}, {number // 10}, {number % 10}, {fits}, {self._images}, {self._image_count}, "
            f"{self._kernel_table}, {len(self._kernels)}, {self._condition}, {self._operations}, {self._graphs}, "
            f"{self._depth}, {self._most_words}, {self._fresh}, {len(plan.fresh)}, {self._slots}, "
            f"{plan.analysis.temporaries}u, {self._constants}, {len(self._module.constants)}u}}"
        )

    def _array(self, kind: str, items: Sequence[str]) -> str:
        """Adds an array and returns its name; a null pointer for one without items."""
        if not items:
            return "0"
        name, self._count = f"{self._prefix}{self._count}", self._count + 1
        self.lines.append(f"static const {kind} {name}[] = {braces(items)};")
        return name

    def _sequence(self, operations: Sequence[Operation]) -> str:
        name = self._array("struct cuda_operation", list(map(self._operation, operations)))
        return f"{{{name}, {len(operations)}}}"

    def _operation(self, operation: Operation) -> str:
        match operation:
            case Launch():
                arguments = self._array("struct cuda_argument", list(map(self._argument, operation.arguments)))
                extents = ", ".join(f"{{{x}, {y}, {z}}}" for x, y, z in (*operation[1:3], operation.cluster))
                return (
                    f"{{CUDA_LAUNCH, .launch = {{{self._kernels[operation.kernel]}, {extents}, "
                    f"{operation.shared_bytes}, {arguments}, {len(operation.arguments)}, {int(operation.is_packed)}}}}}"
                )
            case Copy(target, source, nbytes):
                return f"{{CUDA_COPY, .copy = {{{_pair(target)}, {_pair(source)}, {nbytes}u}}}}"
            case Repeat(count, body):
                return f"{{CUDA_REPEAT, .repeat = {{{count}, {self._sequence(body)}}}}}"
            case While(condition, body):
                return f"{{CUDA_WHILE, .loop = {{{_pair(condition)}, {self._sequence(body)}}}}}"
            case Branch(index, dtype, cases):
                table = self._array("struct cuda_sequence", list(map(self._sequence, cases)))
                nbytes = 1 if dtype == "bool" else 4
                return f"{{CUDA_BRANCH, .branch = {{{_pair(index)}, {nbytes}, {len(cases)}, {table}}}}}"
            case Stretch(number, body):
                return f"{{CUDA_STRETCH, .stretch = {{{number}, {self._sequence(body)}}}}}"

    def _argument(self, argument: Argument) -> str:
        if isinstance(argument, TensorMap):
            dtype, rank = MAP_DTYPES[argument.dtype], len(argument.sizes)
            numbers = ", ".join(f"{{{', '.join(map(str, part))}}}" for part in argument[2:])
            tensor = self._array("struct cuda_tensor", [f"{{{dtype}, {rank}, {numbers}}}"])
            return f"{{{argument.address.slot}, 0, {argument.address.offset}u, 0, 0, {tensor}}}"
        if isinstance(argument, Address):
            return f"{{{argument.slot}, 0, {argument.offset}u, 0, 0, 0}}"
        mask = (1 << 8 * argument.nbytes) - 1
        strides = [f"{stride % (1 << 64)}u" for stride in argument.strides]
        table = self._array("uint64_t", strides)
        return f"{{-1, {len(strides)}, {argument.bits & mask}u, {mask}u, {table}, 0}}"


def _pair(place: Address) -> str:
    return f"{{{place.slot}, {place.offset}u}}"
