"""Schedules: loops for the kernels of a Program, arranged for a target."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.target import Target

from tvmfun.lower import target as targets
from tvmfun.lower.schedule.cpu import rules as cpu_rules
from tvmfun.lower.schedule.gpu import rules as gpu_rules


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Returns the kernel with loops arranged for the target; the attribute ``tvmfun.rule`` names the rule."""
    if targets.is_cpu(target):
        return cpu_rules.schedule(function, target)
    return gpu_rules.schedule(function, target)


def schedule_in_place(
    function: tirx.PrimFunc, target: Target, in_place: Sequence[tuple[int, int]]
) -> tirx.PrimFunc | None:
    """Returns the kernel with some outputs written over inputs instead of being parameters.

    Args:
        function: the kernel.
        target: the target.
        in_place: the positions, among the parameters, of inputs and of the outputs to write over them. Each element of
            such an input is read only where the same element of its output is computed.

    Returns:
        The scheduled kernel. None if an output would be written too early.
    """
    params = function.params
    pairs = [(params[source], params[output]) for source, output in in_place]
    if targets.is_cpu(target):
        return cpu_rules.schedule_in_place(function, target, pairs)
    return gpu_rules.schedule_in_place(function, target, pairs)
