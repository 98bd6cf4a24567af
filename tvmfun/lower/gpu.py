"""Schedules for GPUs: TVM's dlight rules, in the order in which they are most specific."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir import dlight
from tvm.target import Target

_RULES = {
    "contraction": dlight.gpu.Matmul,
    "reduction": dlight.gpu.Reduction,
    "normalization": dlight.gpu.GeneralReduction,
    "fallback": dlight.gpu.Fallback,
}


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Returns the kernel with its loops bound to blocks and threads."""
    for name, rule in _RULES.items():
        with target:
            try:
                space = rule().apply(function, target, False)
            except tvm.error.InternalError:
                continue  # the rule met a form it does not expect: the next one is more general
        if space is not None:
            first = space[0] if isinstance(space, list) else space
            return first.mod["main"].with_attr({"tvmfun.rule": name, "tirx.is_scheduled": True})
    return function
