"""Right operands that a contraction computes while it packs them, such as dequantized weights.

They are cheap to compute from arrays that take less memory than the operand, so that not even a few rows wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir

from tvmfun.lower.schedule.cpu.contraction import match
from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir import build, intrinsics
from tvmfun.lower.tir.build import Axis, Expr

# The most bits that are read for each bit of the operand, as in :mod:`tvmfun.lower.fusion.products`.
_SHARE = 5 / 8
# The most operations per element of the operand.
_OPERATIONS = 16


def is_computed_by_packing(reader: Stage, producer: Stage) -> bool:
    """Whether the result of a map is the right operand of a contraction, which computes it while it packs it."""
    contraction = match(reader)
    if contraction is None or not is_narrow(producer.value, producer.space):
        return False
    right = contraction.right
    return isinstance(right, ir.TensorLoad) and right.source.same_as(producer.output)


def is_narrow(value: Expr, axes: Sequence[Axis]) -> bool:
    """Whether a value at each point of some axes is cheap to compute from numbers that take less memory."""
    if intrinsics.is_heavy(value) or build.operation_count(value) > _OPERATIONS:
        return False
    points = build.points(axes)
    read = 0
    for load in build.loads(value):
        own = build.points([axis for axis in axes if build.uses(load, axis.var)])
        read += own * build.bits(str(load.ty))
    return 0 < read <= _SHARE * points * build.bits(str(value.ty))
