"""A prediction of training steps on a GPU, kernel by kernel, on a machine without one: ``python -m gpu.predict``.

A kernel takes the larger of two times: its bytes at the memory's bandwidth, and its operations at the rate of the units
that it was scheduled for. A launch takes a constant on top. Rates are those of data sheets times shares that are
assumed: those of products are the ones by which schedules choose tiles. This is a lower bound that says where a step's
time must go, not a measurement: kernels that reach less are not known to it. Products fill the tensor cores while the
memory works for other blocks, but only as far as blocks are not in step; so there is a second sum, in which nothing
overlaps.

The *ideal* bytes are those of :mod:`gpu.ideal`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.ours import Ours
from tvm import tirx

import tvmfun
from gpu.ideal import ideal_bytes
from gpu.steps import TIMED
from tvmfun.core.cost import flops, running
from tvmfun.core.inline import inlined
from tvmfun.core.program import Program
from tvmfun.execute import input_positions
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda.launches import cuda_module
from tvmfun.lower.codegen.relax_module import ModuleBuilder
from tvmfun.lower.cost_analysis import moved_by
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.fusion.options import fusion_options
from tvmfun.lower.schedule.gpu import tiles
from tvmfun.lower.tir.build import nbytes
from tvmfun.lower.tir.walk import find

SM_90A = targets.resolve({"kind": "cuda", "arch": "sm_90a"})


@dataclass(frozen=True)
class Gpu:
    """A GPU of the architecture sm_90a.

    Args:
        name: the product.
        memory: the bytes that its memory moves per second.
    """

    name: str
    memory: float

    def times(self, moved: float, operations: float, units: str) -> tuple[float, float]:
        """The seconds of so many bytes, and of operations by such units (:data:`tiles.UNITS`)."""
        return moved / (self.memory * _OF_MEMORY), operations / tiles.reached(units, "sm_90a")


#: Source: NVIDIA, "H100 Tensor Core GPU" and "H200 Tensor Core GPU" data sheets, SXM.
GPUS = {gpu.name: gpu for gpu in (Gpu("H100", 3.35e12), Gpu("H200", 4.8e12))}

#: The share of the memory's bandwidth that kernels are assumed to reach; those of the units are in :mod:`tiles`.
_OF_MEMORY = 0.85
#: The time from one launch of a graph to the next one that waits for it.
_LAUNCH = 1.5e-6
#: The most bytes that the next launch finds in the L2 cache: half of what an H100 has.
_IN_CACHE = 25e6
#: The units of whatever is not a product.
_FMA = "fma float32"


@dataclass
class Row:
    """Calls of kernels of one name and rule.

    Args:
        calls: how many there are.
        bytes: what they move.
        flops: their floating-point operations.
        seconds: their time, without launches.
        apart: the same if no byte moves while they compute.
    """

    calls: int = 0
    bytes: float = 0
    flops: float = 0
    seconds: float = 0
    apart: float = 0


@dataclass
class Prediction:
    """A step.

    Args:
        name: the step.
        rows: its kernels, by rule and name.
        launches: the launches that remain when independent ones are joined.
        packed: the bytes of the file of its module, without machine code.
        ideal: the ideal bytes.
    """

    name: str
    rows: dict[tuple[str, str], Row] = field(default_factory=lambda: defaultdict(Row))
    launches: int = 0
    packed: int = 0
    ideal: float = 0

    @property
    def bytes(self) -> float:
        """The bytes that all kernels move."""
        return sum(row.bytes for row in self.rows.values())

    @property
    def flops(self) -> float:
        """The floating-point operations of all kernels."""
        return sum(row.flops for row in self.rows.values())

    @property
    def seconds(self) -> float:
        """The time of the step."""
        return sum(row.seconds for row in self.rows.values()) + _LAUNCH * self.launches

    @property
    def apart(self) -> float:
        """The time of the step if no kernel moved bytes while it computes."""
        return sum(row.apart for row in self.rows.values()) + _LAUNCH * self.launches


def predict(name: str, gpu: Gpu) -> Prediction:
    """Returns the prediction of one of the timed steps."""
    runner = Ours(TIMED[name])
    carry, batch = runner.types()
    lowered = tvmfun.jit(runner.run.__wrapped__, donate_argnums=0, target=SM_90A).lower(carry, batch)
    donated = input_positions(lowered.program, lowered.donated)
    program = inlined(lowered.program, "cuda")
    fused = pipeline.fused_kernels(program, SM_90A, donated)
    scheduled = ModuleBuilder(program, SM_90A, kernel_cache.scheduled).build(fused)
    module = cuda_module(scheduled, SM_90A, None, "it is not run")
    ideal = ideal_bytes(pipeline.rewritten(program, SM_90A))
    result = Prediction(name, launches=len(list(module.launches())), packed=len(module.pack()), ideal=ideal)
    for kernel, in_place in fused:
        if not kernel.is_view:
            function = function_of(kernel, in_place)
            row = result.rows[str(function.attrs["tvmfun.rule"]), kernel.name]
            row.calls += 1
            row.bytes += _moved(kernel, in_place)
            row.flops += sum(map(flops, kernel.equations))
            times = _times(kernel, in_place, gpu)
            row.seconds += sum(map(max, times))
            row.apart += sum(map(sum, times))
    return result


def function_of(kernel: Kernel, in_place: InPlace) -> tirx.PrimFunc:
    """The scheduled kernel."""
    function = kernel_cache.scheduled(kernel, SM_90A, in_place) if in_place else None
    function = function or kernel_cache.scheduled(kernel, SM_90A)
    assert function is not None
    return function


def _moved(kernel: Kernel, in_place: InPlace) -> float:
    """The bytes that a kernel moves, with those that it stores for its own next launch, and maybe reads again.

    Such are the partial sums of a split product: the next launch finds few of them in the L2 cache.
    """
    first = kernel.equations[0]
    if first.op.runs is not None:
        return running(first, lambda program: sum(_moved(*one) for one in _kernels_of_step(program)))
    function = function_of(kernel, in_place)
    own = [node.buffer for node in find(function.body, tirx.AllocBuffer)]
    own += function.body.block.alloc_buffers
    parts = sum(nbytes(buffer) for buffer in own if buffer.scope() == "global")
    return moved_by(kernel, in_place, SM_90A) + parts * (1 if parts <= _IN_CACHE else 2)


def _times(kernel: Kernel, in_place: InPlace, gpu: Gpu) -> list[tuple[float, float]]:
    """The times of a kernel, for its bytes and for its operations; of a loop those of all of its steps."""
    first = kernel.equations[0]
    if first.op.runs is not None:
        alternatives = (
            [
                time
                for program, count in programs
                for one in _kernels_of_step(program)
                for time in _times(*one, gpu) * count
            ]
            for programs in first.op.runs(**first.params)
        )
        return max(alternatives, key=lambda times: sum(map(max, times)))
    units = function_of(kernel, in_place).attrs.get(tiles.UNITS, _FMA)
    return [gpu.times(_moved(kernel, in_place), sum(map(flops, kernel.equations)), str(units))]


def _kernels_of_step(program: Program) -> list[tuple[Kernel, InPlace]]:
    """The kernels of one step of a loop."""
    return [(kernel, ()) for kernel in fuse(program, fusion_options(SM_90A)) if not kernel.is_view]


# -- the tables --------------------------------------------------------------------------------------------------------


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _table(*head: str) -> list[str]:
    return [_line(*head), _line(*("---" for _ in head))]


def summary(predictions: Sequence[Prediction], gpu: Gpu) -> str:
    """A table of steps in Markdown."""
    lines = _table("step", "kernels", "launches", "GB", "ideal GB", "ratio", "Tflop", f"ms, {gpu.name}", "no overlap")
    for found in predictions:
        calls = sum(row.calls for row in found.rows.values())
        ratio = f"{found.bytes / found.ideal:.2f}"
        times = f"{found.bytes / 1e9:.3f}", f"{found.ideal / 1e9:.3f}", ratio, f"{found.flops / 1e12:.3f}"
        lines.append(
            _line(found.name, calls, found.launches, *times, f"{found.seconds * 1e3:.2f}", f"{found.apart * 1e3:.2f}")
        )
    return "\n".join(lines)


def kernels(found: Prediction, most: int) -> str:
    """A table of the kernels of a step that take longest, in Markdown."""
    lines = _table("us", "calls", "MB", "Gflop", "rule", "kernel")
    for (rule, name), row in sorted(found.rows.items(), key=lambda item: -item[1].seconds)[:most]:
        numbers = f"{row.seconds * 1e6:.1f}", row.calls, f"{row.bytes / 1e6:.1f}", f"{row.flops / 1e9:.1f}"
        lines.append(_line(*numbers, rule, f"`{name}`"))
    return "\n".join(lines)


def main(*arguments: str) -> None:
    """Prints the tables of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=GPUS, default="H200")
    parser.add_argument("--steps", nargs="*", metavar="NAME", default=list(TIMED), help="; ".join(TIMED))
    parser.add_argument("--kernels", type=int, default=12, help="how many kernels of each step are listed")
    options = parser.parse_args(arguments or None)
    found = []
    for name in options.steps:
        found.append(predict(name, GPUS[options.gpu]))
        print(f"{name}\n\n{kernels(found[-1], options.kernels)}\n", flush=True)
    print(summary(found, GPUS[options.gpu]))


if __name__ == "__main__":
    main()
