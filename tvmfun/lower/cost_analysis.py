"""What a call costs, told before it runs: operations, and bytes that kernels move."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tvm.target import Target

from tvmfun.core.cost import program_flops, running
from tvmfun.core.dims import typical
from tvmfun.core.inline import inlined
from tvmfun.core.program import Atom, Program
from tvmfun.lower.fusion.in_place import InPlace
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.pipeline import fused_kernels


@dataclass(frozen=True)
class CostAnalysis:
    """What one call of a compiled function computes and moves.

    Args:
        flops: the floating-point operations, as :func:`tvmfun.nn.summary` counts them; what kernels compute twice to
            save memory counts once.
        bytes: what kernels read and write: each its arguments and results once, of a table only the rows that are
            looked up or written. Caches may save some of it.

    Both are formulas of the dynamic sizes, if there are any.

    >>> cost = CostAnalysis(flops=2_000_000, bytes=100_000)
    >>> cost.seconds(flops_per_second=1e12, bytes_per_second=1e10)
    1e-05
    """

    flops: Any
    bytes: Any

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """The floor of the time of a call on a machine of such speeds: the larger of both, in seconds.

        Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
        """
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)


def cost_analysis(program: Program, target: Target, donated: Collection[int] = ()) -> CostAnalysis:
    """What a call of the compiled Program costs.

    Args:
        program: what was compiled.
        target: what for.
        donated: the places of inputs that may be overwritten with results.
    """
    program = inlined(program)
    return CostAnalysis(program_flops(program), _moved(program, target, donated))


def _moved(program: Program, target: Target, donated: Collection[int]) -> Any:
    return sum(_moved_by(kernel, in_place, target) for kernel, in_place in fused_kernels(program, target, donated))


def _moved_by(kernel: Kernel, in_place: InPlace, target: Target) -> Any:
    first = kernel.equations[0]
    if kernel.is_view:
        return 0
    if first.op.runs is not None:
        # The state of a loop stays where it is.
        return running(first, lambda program: _moved(program, target, range(len(program.inputs))))
    if in_place and first.op.overwrites is not None:
        # What it does not write stays as it is; what it writes is as large as what it writes it from.
        others = sum(_bytes(atom) for i, atom in enumerate(first.inputs) if i != first.op.overwrites)
        return others + _bytes(first.inputs[-1])
    return sum(_read(kernel, atom) for atom in kernel.inputs) + sum(map(_bytes, kernel.outputs))


def _read(kernel: Kernel, atom: Atom) -> Any:
    """The bytes of an input that a kernel reads: where elements are picked, not more than are picked."""
    readers = [equation for equation in kernel.equations if atom in equation.inputs]
    if any(equation.op.kind != "injective" for equation in readers):
        return _bytes(atom)
    picked = sum(equation.outputs[0].aval.size for equation in readers) * atom.aval.dtype.itemsize
    return min(_bytes(atom), picked, key=typical)


def _bytes(atom: Atom) -> Any:
    return atom.aval.size * atom.aval.dtype.itemsize
