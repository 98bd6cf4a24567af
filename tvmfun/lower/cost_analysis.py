"""Cost analysis of compiled functions: operations, and bytes that kernels move."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tvm.target import Target

from tvmfun.core.cost import program_flops, running
from tvmfun.core.dims import typical
from tvmfun.core.inline import inlined
from tvmfun.core.program import Atom, Program
from tvmfun.lower import target as targets
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.pipeline import fused_kernels


@dataclass(frozen=True)
class CostAnalysis:
    """The operations and memory traffic of one call of a compiled function.

    Args:
        flops: the floating-point operations, as :func:`tvmfun.nn.summary` counts them. Values that several kernels
            compute to save memory count once.
        bytes: the bytes that kernels read and write: arguments and results once per kernel, and only those rows of
            tables that are looked up or written. Caches may save some of this traffic.

    Both are formulas of the dynamic sizes, if there are any.

    >>> cost = CostAnalysis(flops=2_000_000, bytes=100_000)
    >>> cost.seconds(flops_per_second=1e12, bytes_per_second=1e10)
    1e-05
    """

    flops: Any
    bytes: Any

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """A lower bound of the time of a call on a machine of these speeds, in seconds: the larger of both times.

        Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
        """
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)


def cost_analysis(program: Program, target: Target, donated: Collection[int] = ()) -> CostAnalysis:
    """Returns the cost of a call of the compiled Program.

    Args:
        program: the Program.
        target: the target.
        donated: the positions of inputs that may be overwritten with results.
    """
    program = inlined(program, targets.platform(target))
    return CostAnalysis(program_flops(program), _moved(program, target, donated))


def _moved(program: Program, target: Target, donated: Collection[int]) -> Any:
    return sum(moved_by(kernel, in_place, target) for kernel, in_place in fused_kernels(program, target, donated))


def moved_by(kernel: Kernel, in_place: InPlace, target: Target) -> Any:
    """The bytes that a kernel reads and writes in one call."""
    first = kernel.equations[0]
    if kernel.is_view:
        return 0
    if first.op.runs is not None:
        # A loop updates its state in place.
        return running(first, lambda program: _moved(program, target, range(len(program.inputs))))
    if in_place and first.op.overwrites is not None:
        # Only the updated elements are written, one per update.
        others = sum(_bytes(atom) for i, atom in enumerate(first.inputs) if i != first.op.overwrites)
        return others + max((_bytes(atom) for atom in first.inputs[1:]), key=typical)
    read = _elements_read(kernel)
    inputs = sum(read[atom] * atom.aval.dtype.itemsize for atom in kernel.inputs)
    return inputs + sum(map(_bytes, kernel.outputs))


def _elements_read(kernel: Kernel) -> dict[Atom, Any]:
    """The number of elements of each value that a kernel reads: all, or the elements that it looks up."""
    read: dict[Atom, Any] = {atom: atom.aval.size for atom in kernel.outputs}
    for equation in reversed(kernel.equations):
        wanted = max((read.get(out, 0) for out in equation.outputs), key=typical)
        for atom in dict.fromkeys(equation.inputs):
            size = atom.aval.size
            is_lookup = equation.op.kind in ("pointwise", "injective") and not equation.op.window
            more = min(size, wanted, key=typical) if is_lookup else size
            read[atom] = min(size, read.get(atom, 0) + more, key=typical)
    return read


def _bytes(atom: Atom) -> Any:
    return atom.aval.size * atom.aval.dtype.itemsize
