"""Scheduling: how the loops of a kernel run on a target."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from tvmfun.lower import cpu, gpu
from tvmfun.lower import target as targets


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Returns the kernel with loops arranged for the target; the attribute ``tvmfun.rule`` says by which rule."""
    return (cpu if targets.is_cpu(target) else gpu).schedule(function, target)
