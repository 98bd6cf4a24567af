"""Vectors of consecutive integers that are numbers, not indices, as sums of a repeated integer and a step vector.

TVM's code generator computes ``Ramp(base, stride, lanes)`` lane by lane. The sum of ``Broadcast(base, lanes)`` and
``Ramp(0, stride, lanes)`` becomes one vector instruction, because the ramp is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmfun.lower.tir import build
from tvmfun.lower.tir.walk import find_outside_indices, rewrite


def with_step_vectors(body: tirx.Stmt) -> tirx.Stmt:
    """Returns the statement with step vectors instead of ramps outside of indices.

    Args:
        body: a statement that is not simplified any more: simplification would turn the sums into ramps again.
    """
    if not any(map(_varies, find_outside_indices(body, tirx.Ramp))):
        return body
    return rewrite(
        body,
        (tirx.Ramp, lambda ramp: _sum(ramp) if _varies(ramp) else ramp),
        # Indices have to be ramps again.
        (ir.TensorLoad, lambda load: load.source[tuple(_with_ramps(load.indices))]),
        (tirx.BufferStore, lambda store: tirx.BufferStore(store.buffer, store.value, _with_ramps(store.indices))),
    )


def _varies(ramp: tirx.Ramp) -> bool:
    """Whether a vector starts at a number that is not a constant, with constant steps."""
    return not isinstance(ramp.base, tirx.IntImm) and isinstance(ramp.stride, tirx.IntImm)


def _sum(ramp: tirx.Ramp) -> Any:
    steps = tirx.Ramp(build.zero(str(ramp.base.ty)), ramp.stride, ramp.lanes)
    return tirx.Add(tirx.Broadcast(ramp.base, ramp.lanes), steps)


def _with_ramps(indices: Sequence[Any]) -> list[Any]:
    return [rewrite(index, (tirx.Add, _ramp)) for index in indices]


def _ramp(value: tirx.Add) -> Any:
    """The ramp that is such a sum, or the value itself."""
    if not isinstance(value.a, tirx.Broadcast) or not isinstance(value.b, tirx.Ramp):
        return value
    ramp = tirx.Ramp(value.a.value, value.b.stride, value.b.lanes)
    return ramp if tvm_ffi.structural_equal(_sum(ramp), value) else value
